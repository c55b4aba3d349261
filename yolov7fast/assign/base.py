"""What an assigner is: the rule by which candidates become positives.

The host finds the candidates (`assign.candidates`) and, for assigners that let them compete, the pools they compete in
(`assign.pools`). The assigner then runs on the device: no loop over images or boxes, nothing read back.
"""

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch

from yolov7fast.assign.pools import Pools


class Predictions(NamedTuple):
    """What the network predicts at the n candidates of the batch."""

    corners: torch.Tensor  # (4, n) boxes in pixels, xyxy
    objectness: torch.Tensor  # (n, 1) logits
    class_logits: torch.Tensor  # (n, C)
    cell: torch.Tensor  # (4, n) column, row of the candidate's cell, 0, 0
    stride: torch.Tensor  # (1, n) pixels of a cell

    def split(self, step: int) -> Iterator["Predictions"]:
        """The same in parts of `step` candidates."""
        rows = ("objectness", "class_logits")
        parts = (field.split(step, 0 if name in rows else 1) for name, field in self._asdict().items())
        return map(Predictions, *parts)


class Assignment(NamedTuple):
    """What each of the n candidates was given."""

    taken: torch.Tensor  # (n,) bool: it is a positive
    target: torch.Tensor  # (n,) int64, row of its target; meaningless where not taken
    weight: torch.Tensor | None = None  # (n,) in the box and class loss, 0 where not taken; None: all positives alike
    objectness: torch.Tensor | None = None  # (n,) what a positive's objectness is to learn; None: its overlap (CIoU)


class Assigner:
    """Chooses the positives among the candidates. One rule is one subclass, entered in `assign.registry`."""

    pooled: ClassVar[bool] = False  # candidates of an image compete, by what the network predicts there
    # a cell is one candidate and boxes are in true pixels; False, as upstream: a cell proposed twice stands in its pool
    # twice, and both sides of a box are scaled by the height of the image
    exact: ClassVar[bool] = False

    @classmethod
    def build(cls, auxiliary: bool) -> "Assigner":
        """auxiliary: for a network with an auxiliary head, whose lead head may then take more candidates."""
        return cls()

    def __call__(
        self, proposed: torch.Tensor, predictions: Predictions | None = None, pools: Pools | None = None
    ) -> Assignment:
        """proposed: (n,) int64, row of the target that proposed each candidate. The others only for pooled rules."""
        raise NotImplementedError
