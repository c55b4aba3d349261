"""SimOTA: a box takes its k cheapest candidates, k being roughly the number of candidates that already overlap it.

A cell proposed twice stands in its pool twice, at equal cost; which copy a box takes matters where two boxes each want
one. On the host a box takes what torch.topk gives for its row alone, as WongKinYiu/yolov7 does: runs on a CPU can be
compared with recorded ones. On other devices, where that choice is not defined, it takes the first in the pool.
"""

import math
from dataclasses import dataclass

import torch

from yolov7fast.assign.base import Predictions
from yolov7fast.assign.listed import ListedAssigner, ListedPairs
from yolov7fast.assign.pooled import Pairs, dynamic_k
from yolov7fast.assign.pools import LOG_FLOOR

IOU_WEIGHT = 3.0  # of the overlap cost against the class cost
ROWS_IN_CACHE = 1 << 17  # scores worked on at a time on a CPU
LEAD_TOP, AUX_TOP = 10, 20  # how many of a box's best overlaps say how many candidates it takes


@dataclass(frozen=True)
class Ota(ListedAssigner):
    """top: how many of a box's best overlaps count towards its k, and so the most candidates it can take."""

    top: int = LEAD_TOP

    @classmethod
    def build(cls, auxiliary: bool) -> "Ota":
        return cls(AUX_TOP if auxiliary else LEAD_TOP)

    def score(self, objectness: torch.Tensor, class_logits: torch.Tensor) -> torch.Tensor:
        """The class logits as they are: `joint_score` is kept of the pairs' own classes alone."""
        return class_logits

    def candidate_figures(self, predictions: Predictions, score: torch.Tensor) -> torch.Tensor:
        """(2, n): minus what the candidate costs a box of no class, and its objectness."""
        objectness = predictions.objectness.sigmoid()
        return torch.cat([log_of_none(objectness, predictions.class_logits).T, objectness.T])

    def count(self, pairs: Pairs | ListedPairs, cost: torch.Tensor) -> torch.Tensor:
        return dynamic_k(pairs.best_overlaps(self.top), pairs.present)

    def cost(self, pairs: Pairs | ListedPairs) -> torch.Tensor:
        """Class cost + weighted overlap cost.

        The class cost, a BCE against the box's one-hot class, is the candidate's cost for no class at all less the
        log-odds of the box's class: no (G, P, C) is ever formed. A box that is only padding gets log(0): infinite.
        """
        none, objectness = pairs.figures
        cost = (pairs.iou + pairs.floor).log_().mul_(-IOU_WEIGHT)
        return cost.add_(pairs.padding_cost - none).sub_(joint_score(objectness, pairs.class_score()).logit_())

    def regions(self, table: torch.Tensor) -> torch.Tensor:
        """The predicted boxes: those that do not overlap a box have an IoU of 0 with it."""
        return table[:4]

    def least_apart(self, table: torch.Tensor) -> torch.Tensor:
        """The cost at an IoU of 0 and a class probability of 1, less what rounding can do."""
        none, objectness = table[4:]
        certain = joint_score(objectness, torch.full_like(objectness, math.inf))
        return (-IOU_WEIGHT * math.log(LOG_FLOOR) - none - certain.logit()) * (1 - 1e-4) - 1e-4


def joint_score(objectness: torch.Tensor, class_logits: torch.Tensor) -> torch.Tensor:
    """sqrt(class probability x objectness probability), kept off 0 and 1 so that its logarithms are finite.

    The class probability is taken in fp32 whatever the network computes in. Saturated logits (beyond about +-16)
    would make the cost infinite or NaN; here they cost what the nearest representable score costs.
    """
    score = class_logits.float().sigmoid() * objectness
    limits = torch.finfo(score.dtype)
    return score.sqrt_().clamp_(limits.tiny**0.5, 1 - limits.eps / 2)


def log_of_none(objectness: torch.Tensor, class_logits: torch.Tensor) -> torch.Tensor:
    """(n, 1): logarithm of the chance that a candidate shows no class, of (n, 1) probabilities and (n, C) logits."""
    if class_logits.is_cpu and not torch.compiler.is_compiling():  # a compiler makes one pass of it by itself
        return _log_of_none_in_parts(objectness, class_logits)
    return sum_log(1 - joint_score(objectness, class_logits))


@torch.library.custom_op("yolov7fast::log_of_none", mutates_args=())
def _log_of_none_in_parts(objectness: torch.Tensor, class_logits: torch.Tensor) -> torch.Tensor:
    """A few thousand candidates at a time, whose scores stay in the processor's cache from step to step."""
    rows = max(1, ROWS_IN_CACHE // class_logits.shape[1])
    parts = zip(objectness.split(rows), class_logits.split(rows))
    return torch.cat([sum_log(1 - joint_score(*part)) for part in parts])


def sum_log(x: torch.Tensor) -> torch.Tensor:
    """Sum of logarithms over the last axis (kept, size 1), by the logarithm of products: fewer of them to take.

    Four factors of at least 2^-24 do not underflow in fp32.
    """
    for _ in range(2):
        if x.shape[-1] % 2 == 0:
            first, second = x.chunk(2, -1)
            x = first * second
    return x.log().sum(-1, keepdim=True)
