"""SimOTA: a box takes its k cheapest candidates, k being roughly the number of candidates that already overlap it.

A cell proposed twice stands in its pool twice, at equal cost; which copy a box takes matters where two boxes each want
one. On the host a box takes what torch.topk gives for its row alone, as WongKinYiu/yolov7 does: runs on a CPU can be
compared with recorded ones. On other devices, where that choice is not defined, it takes the first in the pool.
"""

from dataclasses import dataclass

import torch

from yolov7fast.assign.base import Predictions
from yolov7fast.assign.pooled import Pairs, PooledAssigner, dynamic_k
from yolov7fast.assign.pools import LOG_FLOOR

IOU_WEIGHT = 3.0  # of the overlap cost against the class cost
LEAD_TOP, AUX_TOP = 10, 20  # how many of a box's best overlaps say how many candidates it takes


@dataclass(frozen=True)
class Ota(PooledAssigner):
    """top: how many of a box's best overlaps count towards its k, and so the most candidates it can take."""

    top: int = LEAD_TOP

    @classmethod
    def build(cls, auxiliary: bool) -> "Ota":
        return cls(AUX_TOP if auxiliary else LEAD_TOP)

    def score(self, objectness: torch.Tensor, class_logits: torch.Tensor) -> torch.Tensor:
        """sqrt(class probability x objectness), (n, C), kept off 0 and 1 so that its logarithms are finite.

        The class probability is taken in fp32 whatever the network computes in. Saturated logits (beyond about +-16)
        would make the cost infinite or NaN; here they cost what the nearest representable score costs.
        """
        score = super().score(objectness, class_logits)
        limits = torch.finfo(score.dtype)
        return score.sqrt_().clamp_(limits.tiny**0.5, 1 - limits.eps / 2)

    def candidate_figures(self, predictions: Predictions, score: torch.Tensor) -> torch.Tensor:
        """(1, n): minus what the candidate costs a box of no class."""
        return sum_log(1 - score).T

    def count(self, pairs: Pairs, cost: torch.Tensor) -> torch.Tensor:
        return dynamic_k(pairs.iou, pairs.block.present, self.top)

    def cost(self, pairs: Pairs) -> torch.Tensor:
        """Class cost + weighted overlap cost.

        The class cost, a BCE against the box's one-hot class, is the candidate's cost for no class at all less the
        log-odds of the box's class: no (G, P, C) is ever formed. A box that is only padding pays infinitely for its
        overlap; the logarithm of 0 would do it too, but is twenty times as slow as another on a CPU.
        """
        cost = (pairs.iou + LOG_FLOOR).log_().mul_(pairs.block.penalty * -IOU_WEIGHT)
        no_class = (pairs.block.padding_cost - pairs.figures).transpose(0, 1)  # (B, 1, P)
        return cost.add_(no_class).sub_(pairs.class_score().logit_())


def sum_log(x: torch.Tensor) -> torch.Tensor:
    """Sum of logarithms over the last axis (kept, size 1), by the logarithm of products: fewer of them to take.

    Four factors of at least 2^-24 do not underflow in fp32.
    """
    for _ in range(2):
        if x.shape[-1] % 2 == 0:
            first, second = x.chunk(2, -1)
            x = first * second
    return x.log().sum(-1, keepdim=True)
