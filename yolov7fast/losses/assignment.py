"""What label assignment works on: predictions at the candidates, ground truth padded by image, and the result.

Shape letters: n candidates and N targets of the whole batch, C classes; in a chunk B images, G = num_gt boxes of an
image, P = num_candidates of an image, both padded to the largest of the chunk.
"""

from typing import ClassVar, NamedTuple

import numpy as np
import torch

MAX_PAIRS = 1 << 23  # (box, candidate) pairs of a chunk, which bounds memory: about 250 MB


class Predictions(NamedTuple):
    """What the network predicts at the n candidates of the batch."""

    boxes: torch.Tensor  # (4, n) xyxy in pixels
    objectness: torch.Tensor  # (n, 1) logits
    class_logits: torch.Tensor  # (n, C)
    cell: torch.Tensor  # (4, n) column, row of the candidate's cell, 0, 0
    stride: torch.Tensor  # (1, n) pixels of a cell


class MatchingChunk(NamedTuple):
    """Images that are matched together. An image with several heads counts as one image for each head."""

    candidates: torch.Tensor  # (B, P) int64, candidate of the batch, -1 for padding, which comes last
    gt_idx: torch.Tensor  # (B, G) int64, row of targets, -1 for padding


class GroundTruthBoxes(NamedTuple):
    """The targets of a batch, and the chunks in which they are matched: one for all ordinary batches."""

    boxes: torch.Tensor  # (N, 4) xyxy in pixels
    labels: torch.Tensor  # (N,) int64, column among the class logits
    chunks: tuple[MatchingChunk, ...]


class Assignment(NamedTuple):
    """The result for each of the n candidates."""

    positive_mask: torch.Tensor  # (n,) bool
    matched_gt: torch.Tensor  # (n,) int64, row of targets; meaningless where not positive
    weight: torch.Tensor | None = None  # (n,) in box and class loss, 0 where not positive; None: all positives alike
    objectness: torch.Tensor | None = None  # (n,) objectness target of positives; None: their overlap (CIoU)


class Assigner:
    """Chooses the positives among the candidates. An assigner is a subclass, entered in `losses.assigners`."""

    compares: ClassVar[bool] = False  # compares predictions with ground truth: needs the size of the images
    # a cell is one candidate and boxes are in true pixels; False, as upstream: a cell proposed twice is a candidate
    # twice, and both sides of a box are scaled by the height of the image
    exact: ClassVar[bool] = False

    @classmethod
    def build(cls, auxiliary: bool) -> "Assigner":
        """auxiliary: for a network with an auxiliary head."""
        return cls()

    def __call__(
        self, proposed: torch.Tensor, predictions: Predictions | None = None, gt: GroundTruthBoxes | None = None
    ) -> Assignment:
        """proposed: (n,) int64, row of the target that proposed each candidate; the others if `compares`."""
        raise NotImplementedError


class PlainAssigner(Assigner):
    """Every candidate is a positive of the target that proposed it."""

    def __call__(
        self, proposed: torch.Tensor, predictions: Predictions | None = None, gt: GroundTruthBoxes | None = None
    ) -> Assignment:
        return Assignment(torch.ones_like(proposed, dtype=torch.bool), proposed)


def plan_chunks(candidate_image: np.ndarray, gt_image: np.ndarray) -> list[np.ndarray]:
    """The fields of each `MatchingChunk`, one after another; each chunk has at most MAX_PAIRS pairs.

    candidate_image: (n,), gt_image: (N,) int64. Images without candidates are left out. If everything does not fit one
    chunk, images with similar numbers of candidates share one, and the boxes of an image too large for one are divided.
    """
    num_images = int(candidate_image.max(initial=-1)) + 1
    gt_image = np.minimum(gt_image, num_images)
    candidates, gt_idx = _pad_by_group(candidate_image, num_images), _pad_by_group(gt_image, num_images + 1)[:-1]
    num_candidates, num_gt = (candidates >= 0).sum(1), (gt_idx >= 0).sum(1)
    left = np.argsort(-num_candidates, kind="stable")
    left = left[num_candidates[left] > 0]
    chunks = []
    while len(left):
        widest = num_candidates[left[0]]
        pairs = np.arange(1, len(left) + 1) * np.maximum.accumulate(num_gt[left]) * widest
        count = max(1, int((pairs <= MAX_PAIRS).sum()))
        images, left = left[:count], left[count:]
        step = max(1, MAX_PAIRS // (count * widest))
        for start in range(0, num_gt[images].max(), step):
            stop = min(start + step, num_gt[images].max())
            chunks += [candidates[images, :widest], gt_idx[images, start:stop]]
    return chunks


def _pad_by_group(group: np.ndarray, num_groups: int) -> np.ndarray:
    """(num_groups, most) int64: the members of each group in ascending order, padded with -1."""
    counts = np.bincount(group, minlength=num_groups)
    order = np.argsort(group, kind="stable")
    rank = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    padded = np.full((num_groups, counts.max(initial=0)), -1)
    padded[group[order], rank] = order
    return padded
