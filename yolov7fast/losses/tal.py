"""Task-aligned assignment of TOOD (Feng et al., 2021): a box takes the candidates with the best score and overlap.

alignment = score^ALPHA x IoU^BETA, of a box and a candidate whose cell's centre lies inside the box; the score is
objectness x probability of the box's class. A box takes its `top` best aligned candidates; one taken by several boxes
is assigned to the one with the highest IoU. Positives are weighted: see `TAL.weigh` and docs/ota.md.

The other steps are those of SimOTA. Everything is computed in logarithms: IoU^6 of a poor candidate underflows in
single precision.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from yolov7fast.core.boxes import bbox_iou
from yolov7fast.losses.simota import LOG_FLOOR, Assignment, GroundTruthBoxes, Pairs, Predictions, SimOTA

ALPHA, BETA = 1.0, 6.0  # exponents of score and IoU
TOP = 13


@dataclass(frozen=True)
class TAL(SimOTA):
    """top: the most candidates that a box takes."""

    exact: ClassVar[bool] = True

    top: int = TOP
    alpha: float = ALPHA
    beta: float = BETA

    @classmethod
    def build(cls, auxiliary: bool) -> "TAL":
        return cls()

    def prepare(self, predictions: Predictions) -> tuple[torch.Tensor, ...]:
        """Class logits (n, C); log of objectness, centre x and y of the cell and half its side in pixels, (n,) each."""
        centre_x, centre_y, *_ = ((predictions.cell + 0.5) * predictions.stride).unbind()
        objectness = F.logsigmoid(predictions.objectness).squeeze(1)
        return predictions.class_logits, objectness, centre_x, centre_y, predictions.stride.squeeze(0) / 2

    def cost_matrix(self, pairs: Pairs, features: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Minus the logarithm of the alignment; infinite for cells outside the box."""
        logits, *others = features
        objectness, x, y, half = map(pairs.of_candidates, others)
        logit = pairs.of_class(logits) if logits.shape[1] > 1 else None
        cost = self.misalignment(pairs.iou, objectness, logit)
        left, top, right, bottom = pairs.gt_boxes.unsqueeze(3).unbind(2)  # (B, G, 1) each
        outside = (x - (left + right) / 2).abs() > torch.maximum((right - left) / 2, half)
        outside |= (y - (top + bottom) / 2).abs() > torch.maximum((bottom - top) / 2, half)
        return cost.masked_fill_(outside, torch.inf)

    def misalignment(self, iou: torch.Tensor, objectness: torch.Tensor, logit: torch.Tensor | None) -> torch.Tensor:
        """-log(score^alpha x iou^beta); objectness: its logarithm; logit: of the box's class.

        In a network of one class the class logit is not trained, so the score is the objectness.
        """
        score = objectness if logit is None else F.logsigmoid(logit) + objectness
        return -self.beta * (iou + LOG_FLOOR).log() - self.alpha * score

    def dynamic_k(self, pairs: Pairs, cost: torch.Tensor) -> torch.Tensor:
        """The number of candidates inside the box, at most `top`."""
        return (cost < torch.inf).sum(2).clamp_(max=self.top)

    def conflict_cost(self, pairs: Pairs, cost: torch.Tensor) -> torch.Tensor:
        """Prefers the highest IoU among the boxes that contain the cell's centre."""
        return (-pairs.iou).masked_fill_(cost == torch.inf, torch.inf)

    def weigh(
        self, given: Assignment, predictions: Predictions, features: tuple[torch.Tensor, ...], gt: GroundTruthBoxes
    ) -> Assignment:
        """Weight of a positive: its alignment relative to the best of its box's positives, which has weight 1.

        Objectness target: this weight times the highest IoU among the box's positives (TOOD's normalised alignment).
        """
        positive, row = given.positive_mask, given.matched_gt
        iou = bbox_iou(predictions.boxes, gt.boxes[row], x1y1x2y2=True, eps=0).nan_to_num_(0)
        logits, objectness, *_ = features
        logit = logits.gather(1, gt.labels[row].unsqueeze(1)).squeeze(1) if logits.shape[1] > 1 else None
        cost = torch.where(positive, self.misalignment(iou, objectness, logit), torch.inf)
        least = cost.new_full((len(gt.labels),), torch.inf).scatter_reduce_(0, row, cost, "amin")
        best = torch.zeros_like(least).scatter_reduce_(0, row, iou * positive, "amax")
        weight = torch.where(positive, (least[row] - cost).exp_(), 0)
        return Assignment(positive, row, weight, weight * best[row])
