"""The losses of a network with several heads: each head learns the objects of its own classes, all others are ground.

`loss(maps, targets)` and `loss(maps, targets, images)` as in `losses.yolo`, the maps being a list over heads of lists
over levels. An object's candidates lie in the maps of its class's head alone, so there are as many as with one head;
they are found, read and matched together, in pools of (image, head). The work grows with objects, not with heads.

How heads are weighed: box and class of an object count as much as they would with one head, times the relative weight
of its head (the weights are brought to a mean of 1). Objectness, which has to tell whose object it is as well, counts
more: `objectness_weight`. With `hyp["per_head_loss"]` set, as in the public attempt at such networks, each head's means
are taken by themselves and added up with the weights as they are: the loss then grows with the number of heads, two
objects of one head weigh as much as two hundred of another, and classes weigh more in small heads.
"""

from functools import cache

import numpy as np
import torch

from yolov7fast.core.device_copy import send
from yolov7fast.losses.yolo import ComputeLoss, ComputeLossOTA, Plan, Terms, _Loss
from yolov7fast.nn.head_config import HeadConfig

CERTAIN = 100.0  # a logit whose sigmoid is 1, and 0 with the other sign


class _Routed(_Loss):
    """Sends every target to the head of its class. The head gives `head_config`, a plain dictionary."""

    def __init__(self, model, autobalance: bool = False, class_weights: np.ndarray | None = None):
        super().__init__(model, autobalance, class_weights)
        model = getattr(model, "module", model)
        config = HeadConfig.from_dict(model.model[-1].head_config)
        self.heads, self.head_of = config.heads, np.array(config.head_of)
        self.column_of = np.arange(config.nc) if config.full_head else np.array(config.local_of)
        self.sizes = torch.tensor(config.sizes)
        self.per_head = bool(model.hyp.get("per_head_loss", 0))
        weights = torch.tensor(config.weights)
        self.weights = weights if self.per_head else weights / weights.mean()
        self.objectness_weight = 1 if self.per_head else objectness_weight(self.heads)
        self.on = cache(self.on)  # of this object alone
        self.learnt, self.fixed = class_columns(config)
        self.learns_all = bool(self.learnt.all())

    def on(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Weights and sizes of the heads, learnt and fixed columns, on a device."""
        return tuple(t.to(device) for t in (self.weights, self.sizes, self.learnt, self.fixed))

    def maps_of(self, p) -> list[torch.Tensor]:
        return [head[level] for level in range(self.levels) for head in p]

    def plan(self, targets: torch.Tensor, maps, reach: float, height: int | None = None) -> Plan:
        plan = super().plan(targets, maps, reach, height)
        if self.learns_all:
            return plan
        head = np.repeat(np.arange(len(maps)) % self.heads, [len(c) for c in plan.cells])
        (head,) = send([head], maps[0].device)
        _, _, learnt, fixed = self.on(maps[0].device)
        return plan._replace(learnt=learnt.index_select(0, head), fixed=fixed.index_select(0, head))

    def means(self, box, objectness, cls, count) -> Terms:
        """From (levels x heads,) to (levels,)."""
        weights, sizes, _, _ = self.on(box.device)
        box, objectness, cls, count = (x.view(self.levels, self.heads) for x in (box, objectness, cls, count))
        if self.per_head:
            count = count.clamp(min=1)
            box, cls = box / count, cls / (count * sizes)
        else:
            count = count.sum(1, keepdim=True).clamp(min=1)
            box, cls = box / count, cls / (count * self.nc)
        return Terms(*((x * weights).sum(1) for x in (box, objectness * self.objectness_weight, cls)))


class ComputeLossMultiHead(_Routed, ComputeLoss):
    """The plain loss for several heads, `loss(maps, targets)`."""


class ComputeLossMultiHeadOTA(_Routed, ComputeLossOTA):
    """The OTA loss for several heads, `loss(maps, targets, images)`."""


def objectness_weight(heads: int) -> int:
    """How often objectness counts, whose gain in the hyp file is meant for one head: 1 for one, 3 for two, 7 for four.

    With one head the class loss tells classes apart. Among heads objectness alone does, at its few positive cells, and
    with its ordinary gain it learns that too slowly. Found by measuring, not derived: on the shapes set (progress.md)
    four heads of one class had mAP@.5 0.68, 0.80 and 0.88 with objectness counted once, 4 and 8 times, one head 0.80.
    """
    return 2 * heads - 1


def class_columns(config: HeadConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """(heads, widest) bool, the class columns that each head learns, and float, logits that stand for the others.

    Not learnt are columns a head does not have, or has for other heads' classes: absent for certain. Nor is the one
    class of a head with a single class, which is certainly present (with one class in all the ordinary rule holds).
    """
    learnt = torch.zeros(config.heads, max(config.widths), dtype=torch.bool)
    fixed = torch.full(learnt.shape, -CERTAIN)
    for head, columns in enumerate(config.columns):
        single = len(columns) == 1 and config.nc > 1
        learnt[head, list(columns)] = not single
        fixed[head, list(columns)] = CERTAIN
    return learnt, fixed
