"""The loss of a network with several heads: each head learns the objects of its classes, all others are background.

Raw outputs are a list over heads of lists over levels. The candidates of an object lie in the outputs of its class's
head only, so there are as many as with one head; all heads are found, read and matched together, each (image, head) as
a separate image. The cost grows with objects, not with heads.

Weights of heads: box and class loss of an object count as much as with one head, times the relative weight of its head
(the weights are normalised to a mean of 1). Objectness, which must also tell heads apart, is multiplied by
`objectness_weight`. With `hyp["per_head_loss"]` set, as in a public fork with such networks, the means of each head are
computed separately and summed with the weights as given: the loss then grows with the number of heads, two objects of
one head weigh as much as two hundred of another, and classes weigh more in small heads.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from yolov7fast.core.device import send
from yolov7fast.losses.candidates import LossPlan
from yolov7fast.losses.yolo_loss import Terms, YoloLoss
from yolov7fast.nn.multihead import HeadConfig

CERTAIN = 100.0  # a logit whose sigmoid is 1, and 0 with the other sign


class MultiHeadLoss(YoloLoss):
    """Assigns every target to the head of its class; `head_config` of the detection layer defines the heads."""

    def __init__(self, model: Any, assigner: str, autobalance: bool = False):
        super().__init__(model, assigner, autobalance)
        model = getattr(model, "module", model)
        config = HeadConfig.from_dict(model.model[-1].head_config)
        columns = np.arange(config.nc) if config.full_head else np.array(config.local_of)
        self.heads = config.heads
        self.layout = replace(self.layout, heads=config.heads, head_of=np.array(config.head_of), column_of=columns)
        self.per_head = bool(model.hyp.get("per_head_loss", 0))
        self.objectness_weight = 1 if self.per_head else objectness_weight(self.heads)
        weights = torch.tensor(config.weights)
        trained, fixed = class_columns(config)
        self.trains_all = bool(trained.all())
        on_host = weights if self.per_head else weights / weights.mean(), torch.tensor(config.sizes), trained, fixed
        self.constants = cache(lambda device: tuple(t.to(device) for t in on_host))  # copied to a device once

    def raw_outputs(self, p: list) -> list[torch.Tensor]:
        return [head[level] for level in range(self.levels) for head in p]

    def plan(self, targets: torch.Tensor, raw: list[torch.Tensor], reach: float, height: int | None = None) -> LossPlan:
        plan = super().plan(targets, raw, reach, height)
        if self.trains_all:
            return plan
        head = np.repeat(np.arange(len(raw)) % self.heads, [len(c) for c in plan.cells])
        (head,) = send([head], raw[0].device)
        _, _, trained, fixed = self.constants(raw[0].device)
        return plan._replace(trained=trained.index_select(0, head), fixed=fixed.index_select(0, head))

    def means(self, sums: Terms, count: torch.Tensor) -> Terms:
        """From (levels x heads,) to (levels,)."""
        weights, sizes, _, _ = self.constants(count.device)
        box, objectness, cls, *further = (x.view(self.levels, self.heads) for x in sums)
        count = count.view(self.levels, self.heads)
        count = (count if self.per_head else count.sum(1, keepdim=True)).clamp(min=1)
        cls = cls / (count * (sizes if self.per_head else self.nc))
        means = box / count, objectness * self.objectness_weight, cls, *(x / count for x in further)
        return Terms(*((x * weights).sum(1) for x in means))


def objectness_weight(heads: int) -> int:
    """Factor of the objectness loss, whose gain in the hyp file is for one head: 1 for one, 3 for two, 7 for four.

    With one head the class loss distinguishes classes. Between heads only objectness does, at its few positive cells,
    and with its ordinary gain it is learned too slowly. The rule is empirical: on the shapes set (progress.md) four
    heads of one class had mAP@.5 0.68, 0.80 and 0.88 with objectness counted once, 4 and 8 times, one head 0.80.
    """
    return 2 * heads - 1


def class_columns(config: HeadConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """(heads, widest) bool, the class columns that each head trains, and float, logits that replace the others.

    Not trained are columns that a head does not have or has for other heads' classes (certainly absent), and the class
    of a head with a single class (certainly present), unless there is only one class in all.
    """
    trained = torch.zeros(config.heads, max(config.widths), dtype=torch.bool)
    fixed = torch.full(trained.shape, -CERTAIN)
    for head, columns in enumerate(config.columns):
        single = len(columns) == 1 and config.nc > 1
        trained[head, list(columns)] = not single
        fixed[head, list(columns)] = CERTAIN
    return trained, fixed
