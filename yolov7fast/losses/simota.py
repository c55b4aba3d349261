"""SimOTA, the simplified optimal transport assignment of YOLOX (Ge et al., 2021), for a whole batch at once.

1. Candidates: the cells near the centre of a box whose anchor fits it (`candidates.find_candidates`), padded so that
   the images of a batch are matched together (`plan_chunks`); both on the host.
2. Cost matrix (B, num_gt, num_candidates): class cost plus weighted overlap cost of every pair.
3. Dynamic k: a box takes the k candidates of lowest cost, k being the sum of its best overlaps.
4. Conflict resolution: a candidate taken by several boxes is assigned to the one with the lowest cost.

No loop over images or boxes, and no host sync. Other assigners inherit from `SimOTA` and replace single steps: `tal`.

Shape letters: n candidates and N targets of the whole batch, C classes; in a chunk B images, G = num_gt boxes of an
image, P = num_candidates of an image, both padded to the largest of the chunk.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from yolov7fast.core.boxes import box_iou

IOU_WEIGHT = 3.0  # of the overlap cost against the class cost
LOG_FLOOR = float(np.float32(1e-8))  # added to an IoU before its logarithm, the same for fp32 and fp64
LEAD_TOP, AUX_TOP = 10, 20  # number of a box's best overlaps that determine its k
MAX_PAIRS = 1 << 23  # (box, candidate) pairs of a chunk, which limits memory to about 250 MB


class Predictions(NamedTuple):
    """What the network predicts at the n candidates of the batch."""

    boxes: torch.Tensor  # (4, n) xyxy in pixels
    objectness: torch.Tensor  # (n, 1) logits
    class_logits: torch.Tensor  # (n, C)
    cell: torch.Tensor  # (4, n) column, row of the candidate's cell, 0, 0
    stride: torch.Tensor  # (1, n) pixels of a cell


class MatchingChunk(NamedTuple):
    """Images that are matched together. An image with several heads counts as one image per head."""

    candidates: torch.Tensor  # (B, P) int64, candidate of the batch, -1 for padding, which comes last
    gt_idx: torch.Tensor  # (B, G) int64, row of targets, -1 for padding


class GroundTruthBoxes(NamedTuple):
    """The targets of a batch, and the chunks in which they are matched: one unless the batch is very large."""

    boxes: torch.Tensor  # (N, 4) xyxy in pixels
    labels: torch.Tensor  # (N,) int64, column among the class logits
    chunks: tuple[MatchingChunk, ...]


class Assignment(NamedTuple):
    """The result for each of the n candidates."""

    positive_mask: torch.Tensor  # (n,) bool
    matched_gt: torch.Tensor  # (n,) int64, row of targets; meaningless where not positive
    weight: torch.Tensor | None = None  # (n,) in box and class loss, 0 where not positive; None: all equal
    objectness: torch.Tensor | None = None  # (n,) objectness target of positives; None: their overlap (CIoU)


class Assigner:
    """Selects the positives among the candidates. Subclasses are registered in `losses.assigners`."""

    compares: ClassVar[bool] = False  # whether it compares predictions with ground truth, and so needs the image size
    # True: every cell is one candidate and boxes are in pixels. False, as upstream: a cell proposed twice is two
    # candidates, and both sides of a box are scaled by the height of the image
    exact: ClassVar[bool] = False

    @classmethod
    def build(cls, auxiliary: bool) -> "Assigner":
        """The assigner for a network with (`auxiliary`) or without an auxiliary head."""
        return cls()

    def __call__(
        self, proposed: torch.Tensor, predictions: Predictions | None = None, gt: GroundTruthBoxes | None = None
    ) -> Assignment:
        """The assignment. proposed: (n,) int64, target that proposed each candidate; the others if `compares`."""
        raise NotImplementedError


# --- candidates, padded (on the host) ---------------------------------------------------------------------------------


def plan_chunks(candidate_image: np.ndarray, gt_image: np.ndarray) -> list[np.ndarray]:
    """The fields of each `MatchingChunk`, one after another; each chunk has at most MAX_PAIRS pairs.

    candidate_image: (n,), gt_image: (N,) int64. Images without candidates are left out. If one chunk is not enough,
    images with similar numbers of candidates share a chunk, and the boxes of an image too large for one are split.
    """
    num_images = int(candidate_image.max(initial=-1)) + 1
    candidates, gt_idx = pad_by_group(candidate_image, num_images), pad_by_group(gt_image, num_images)
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


def pad_by_group(group: np.ndarray, num_groups: int) -> np.ndarray:
    """(num_groups, most) int64: the members of each group in ascending order, padded with -1; other groups are left
    out."""
    order = np.argsort(group, kind="stable")
    order = order[group[order] < num_groups]
    counts = np.bincount(group[order], minlength=num_groups)
    padded = np.full((num_groups, counts.max(initial=0)), -1)
    padded[np.arange(padded.shape[1]) < counts[:, None]] = order
    return padded


# --- cost matrix, dynamic k, conflict resolution (on the device) ------------------------------------------------------


class Pairs(NamedTuple):
    """All pairs of boxes and candidates of the images of a chunk."""

    candidates: torch.Tensor  # (B, P) int64, -1 for padding
    gt_boxes: torch.Tensor  # (B, G, 4) xyxy in pixels
    gt_labels: torch.Tensor  # (B, G)
    iou: torch.Tensor  # (B, G, P)

    def of_candidates(self, values: torch.Tensor) -> torch.Tensor:
        """(B, 1, P) from (n,) values of the candidates."""
        return values[self.candidates].unsqueeze(1)

    def of_class(self, values: torch.Tensor) -> torch.Tensor:
        """(B, G, P) from (n, C) values: for each pair the value of the box's class."""
        return values[self.candidates.unsqueeze(1), self.gt_labels.unsqueeze(2)]


@dataclass(frozen=True)
class SimOTA(Assigner):
    """top: number of a box's best overlaps that are summed for its k; the maximum number of candidates it can take."""

    compares: ClassVar[bool] = True

    top: int = LEAD_TOP

    @classmethod
    def build(cls, auxiliary: bool) -> "SimOTA":
        return cls(AUX_TOP if auxiliary else LEAD_TOP)

    @torch.no_grad()
    def __call__(
        self, proposed: torch.Tensor, predictions: Predictions | None = None, gt: GroundTruthBoxes | None = None
    ) -> Assignment:
        if predictions is None or gt is None:
            raise TypeError(f"{type(self).__name__} needs predictions and ground truth")
        n = len(proposed)  # the buffers have n + 1 elements: padding (-1) is written to the last
        num_taken, matched_gt, preferred_gt = proposed.new_zeros(3, n + 1).unbind()
        lowest = predictions.boxes.new_full((n + 1,), torch.inf)
        features = self.prepare(predictions)
        for chunk in gt.chunks:
            taken, cost, preferred = self.match_chunk(chunk, predictions.boxes, gt.boxes, gt.labels, features)
            num_taken.index_put_((taken,), torch.ones_like(taken), accumulate=True)
            matched_gt.index_put_((taken,), chunk.gt_idx.unsqueeze(2).expand_as(taken), accumulate=True)
            best = lowest[chunk.candidates]  # of earlier chunks, if the boxes of an image are split
            lowest[chunk.candidates] = torch.minimum(best, cost)
            preferred_gt[chunk.candidates] = torch.where(cost < best, preferred, preferred_gt[chunk.candidates])
        # with a single box, the sum of rows in matched_gt is its row
        matched_gt = torch.where(num_taken > 1, preferred_gt, matched_gt)[:n]
        return self.weigh(Assignment(num_taken[:n] > 0, matched_gt), predictions, features, gt)

    def match_chunk(
        self,
        chunk: MatchingChunk,
        boxes: torch.Tensor,
        gt_boxes: torch.Tensor,
        gt_labels: torch.Tensor,
        features: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Steps 2 to 4 for some images.

        Returns the candidates that each box takes, (B, G, K), -1 for none; for each candidate, (B, P), the lowest
        conflict cost, and the target row of the box that has it, whether the box took it or not.
        """
        candidates, gt_idx = chunk
        is_candidate, is_gt = candidates >= 0, gt_idx >= 0
        padding = ~(is_gt.unsqueeze(2) & is_candidate.unsqueeze(1))
        gt_boxes, gt_labels = gt_boxes[gt_idx], gt_labels[gt_idx]
        iou = box_iou(gt_boxes, boxes[:, candidates].permute(1, 2, 0)).nan_to_num_(0)  # two empty boxes: no overlap
        pairs = Pairs(candidates, gt_boxes, gt_labels, iou.masked_fill(padding, 0))
        cost = self.cost_matrix(pairs, features).masked_fill(padding, torch.inf)
        k = self.dynamic_k(pairs, cost) * is_gt
        index = lowest_cost(cost, k, is_candidate.sum(1), self.top)
        taken = candidates.unsqueeze(1).expand_as(cost).gather(2, index)
        taken = torch.where(torch.arange(index.shape[2], device=k.device) < k.unsqueeze(2), taken, -1)
        lowest, preferred = self.conflict_cost(pairs, cost).min(1)
        return taken, lowest, gt_idx.gather(1, preferred)

    def prepare(self, predictions: Predictions) -> tuple[torch.Tensor, ...]:
        """Inputs of `cost_matrix` for each candidate: score of each class (n, C), cost for no class (n,).

        The score is sqrt(class probability x objectness), clamped away from 0 and 1 so that its logarithms are finite.
        The probability is computed in fp32 for every precision of the network.
        """
        score = (predictions.class_logits.float().sigmoid() * predictions.objectness.sigmoid()).sqrt_()
        limits = torch.finfo(score.dtype)
        score = score.clamp_(limits.tiny**0.5, 1 - limits.eps / 2)
        return score, -(1 - score).log_().sum(1)

    def cost_matrix(self, pairs: Pairs, features: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """(B, G, P) class cost + weighted overlap cost; values at padding are not used.

        The class cost is the binary cross-entropy of the scores with the box's one-hot class, summed over classes. It
        is computed as the cost for no class minus the log-odds of the box's class, without a (G, P, C) tensor.
        """
        score, no_class = features
        cls_cost = pairs.of_candidates(no_class) - pairs.of_class(score).logit_()
        return cls_cost.sub_((pairs.iou + LOG_FLOOR).log_(), alpha=IOU_WEIGHT)

    def dynamic_k(self, pairs: Pairs, cost: torch.Tensor) -> torch.Tensor:
        """(B, G) int64: how many candidates each box takes, at most `top`."""
        best = pairs.iou.topk(min(self.top, pairs.iou.shape[2])).values
        return best.sum(2).long().clamp_(min=1)

    def conflict_cost(self, pairs: Pairs, cost: torch.Tensor) -> torch.Tensor:
        """(B, G, P): a candidate taken by several boxes is assigned to the box with the lowest value."""
        return cost

    def weigh(
        self, given: Assignment, predictions: Predictions, features: tuple[torch.Tensor, ...], gt: GroundTruthBoxes
    ) -> Assignment:
        """Add weights and objectness targets, for assigners that weight positives."""
        return given


def lowest_cost(cost: torch.Tensor, k: torch.Tensor, num_candidates: torch.Tensor, top: int) -> torch.Tensor:
    """(B, G, K) int64: the candidates of lowest cost of each box, of which the first k (B, G) are to be used.

    cost: (B, G, P), infinite for padding; num_candidates: (B,); k <= top.

    A cell proposed twice gives two equal columns, so the k-th lowest cost is often not unique. On the CPU ties are
    broken as upstream does, by torch.topk of the row alone; on other devices upstream's order is undefined.
    """
    lowest = cost.topk(min(top + 1, cost.shape[2]), largest=False)
    if not cost.is_cpu:
        return lowest.indices[..., :top]
    return _resolve_ties(cost, k, num_candidates, lowest.values, lowest.indices)[..., :top]


@torch.library.custom_op("yolov7fast::resolve_ties", mutates_args=())
def _resolve_ties(
    cost: torch.Tensor, k: torch.Tensor, num_candidates: torch.Tensor, values: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    """A custom operator because the number of ties depends on values, which torch.compile cannot trace."""
    indices, last = indices.clone(), values.shape[2] - 1
    at_k, after_k = (values.gather(2, at[..., None])[..., 0] for at in ((k - 1).clamp(min=0), k.clamp(max=last)))
    for image, gt in ((at_k == after_k) & (k > 0) & (k <= last)).nonzero().tolist():
        row, count = cost[image, gt, : num_candidates[image]], int(k[image, gt])
        indices[image, gt, :count] = row.topk(count, largest=False).indices
    return indices


@_resolve_ties.register_fake
def _(cost, k, num_candidates, values, indices):
    return torch.empty_like(indices)
