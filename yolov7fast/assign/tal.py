"""TOOD's task-aligned assignment (Feng et al., 2021): a box takes the candidates that score and overlap best together.

alignment = score^ALPHA x IoU^BETA, of a box and a candidate whose cell's centre lies inside the box; the score is
objectness x probability of the box's class. A box takes its `top` best aligned candidates; one that several boxes took
goes to the one it overlaps most. Positives are not all alike: see `Tal.settled` and docs/assigners.md.

Everything is done in logarithms: IoU^6 of a poor candidate is far below what single precision holds.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from yolov7fast.assign.base import Assignment, Predictions
from yolov7fast.assign.pooled import Pairs, PooledAssigner
from yolov7fast.assign.pools import LOG_FLOOR, Pools
from yolov7fast.core.boxes import bbox_iou

ALPHA, BETA = 1.0, 6.0  # exponents of score and IoU
TOP = 13


@dataclass(frozen=True)
class Tal(PooledAssigner):
    """top: the most candidates that a box takes. A cell is one candidate, whoever proposed it."""

    exact: ClassVar[bool] = True

    top: int = TOP
    alpha: float = ALPHA
    beta: float = BETA

    def score(self, objectness: torch.Tensor, class_logits: torch.Tensor) -> torch.Tensor:
        """The class logits as they are: only those of the pairs' own classes become logarithms of probabilities.

        Laid out once as pairs read them, where every block of pools would do it.
        """
        return class_logits.contiguous()

    def candidate_figures(self, predictions: Predictions, score: torch.Tensor) -> torch.Tensor:
        """(4, n): logarithm of objectness; of the cell the centre (x, y) and half the side, in pixels."""
        half = predictions.stride / 2
        centre = (predictions.cell[:2] + 0.5) * predictions.stride
        return torch.cat([F.logsigmoid(predictions.objectness).T, centre, half])

    def cost(self, pairs: Pairs) -> torch.Tensor:
        """Minus the logarithm of the alignment; infinite for cells outside the box, and for padding."""
        objectness, x, y, half = pairs.figures[:, :, None]  # (B, 1, P) each
        logit = pairs.class_score() if pairs.score.shape[1] > 1 else None
        cost = self.misalignment(pairs.iou + LOG_FLOOR, objectness, logit)
        x = x - pairs.block.padding_cost[:, None]  # an empty slot is infinitely far away
        low, high = pairs.block.corners[..., None].chunk(2, 2)  # (B, G, 2, 1) each
        (centre_x, centre_y), (extent_x, extent_y) = ((low + high) / 2).unbind(2), ((high - low) / 2).unbind(2)
        centre_x = centre_x + (pairs.block.penalty - 1)  # and a box that is only padding, the other way
        near = (x - centre_x).abs_().le_(torch.maximum(extent_x, half))  # 1.0 or 0.0
        near *= (y - centre_y).abs_().le_(torch.maximum(extent_y, half))
        return cost.div_(near)

    def misalignment(self, iou: torch.Tensor, objectness: torch.Tensor, logit: torch.Tensor | None) -> torch.Tensor:
        """-log(score^alpha x iou^beta), above 0; objectness: its logarithm; logit: of the box's class.

        A network of one class does not learn its class logit: there is none, and the score is the objectness.
        """
        score = objectness if logit is None else F.logsigmoid(logit).add_(objectness)
        return iou.log().mul_(-self.beta).sub_(score, alpha=self.alpha).clamp_(min=torch.finfo(iou.dtype).tiny)

    def count(self, pairs: Pairs, cost: torch.Tensor) -> torch.Tensor:
        return _finite(cost).sum(-1).long().clamp_(max=self.top)

    def conflict_cost(self, pairs: Pairs, cost: torch.Tensor) -> torch.Tensor:
        """The highest IoU, among the boxes that the cell lies inside."""
        return (2 - pairs.iou).div_(_finite(cost))

    def settled(self, given: Assignment, predictions: Predictions, score: torch.Tensor, pools: Pools) -> Assignment:
        """Weight of a positive: its alignment relative to the best of its box's positives, which weighs 1.

        Objectness target: that times the highest IoU among the box's positives (TOOD's normalised alignment).
        """
        row = given.target
        iou = bbox_iou(predictions.corners, pools.corners.index_select(0, row), x1y1x2y2=True, eps=0).nan_to_num_(0)
        logit = score.gather(1, pools.classes.index_select(0, row)[:, None])[:, 0] if score.shape[1] > 1 else None
        cost = self.misalignment(iou + LOG_FLOOR, F.logsigmoid(predictions.objectness)[:, 0], logit)
        cost = torch.where(given.taken, cost, torch.inf)
        least = cost.new_full((len(pools.classes),), torch.inf).scatter_reduce_(0, row, cost, "amin")
        best = torch.zeros_like(least).scatter_reduce_(0, row, iou * given.taken, "amax")
        weight = torch.where(given.taken, (least.index_select(0, row) - cost).exp_(), 0)
        return given._replace(weight=weight, objectness=weight * best.index_select(0, row))


def _finite(cost: torch.Tensor) -> torch.Tensor:
    """1 where a cost is finite, else 0: of the cost's own type, which a CPU writes four times as fast as bools."""
    return cost.clone().lt_(torch.inf)
