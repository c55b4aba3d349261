"""Every candidate is a positive of the target that proposed it."""

import torch

from yolov7fast.assign.base import Assigner, Assignment, Predictions
from yolov7fast.assign.pools import Pools


class Plain(Assigner):
    def __call__(
        self, proposed: torch.Tensor, predictions: Predictions | None = None, pools: Pools | None = None
    ) -> Assignment:
        return Assignment(torch.ones_like(proposed, dtype=torch.bool), proposed)
