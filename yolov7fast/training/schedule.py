"""Learning rates, momentum and accumulation as pure functions of the batch number.

The reference moves its scheduler one epoch late and overwrites it while warming up; written out, the rate depends on
nothing but the batch number and the epoch, so a resumed run needs no scheduler state.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from yolov7fast.training import hyperparameters as hyper


class Rates(NamedTuple):
    """What one batch trains with: a learning rate for each optimizer group, momentum, batches to one optimizer step."""

    lrs: tuple[float, ...]
    momentum: float
    accumulate: int


@dataclass(frozen=True)
class YoloSchedule:
    """Warm-up, then cosine or linear decay; groups in the order of `optim.parameter_groups`, biases last."""

    hyp: Mapping[str, float]
    batches: int  # batches of an epoch
    epochs: int
    total_batch: int
    linear: bool = False

    @property
    def nominal_batch(self) -> float:
        return hyper.get(self.hyp, "nominal_batch")

    @property
    def warmup(self) -> int:
        """The last batch number that is still warming up."""
        return max(round(self.hyp["warmup_epochs"] * self.batches), int(hyper.get(self.hyp, "warmup_min_iters")))

    def decay(self, epoch: int) -> float:
        """The factor on lr0 that epoch `epoch` aims at."""
        lrf = self.hyp["lrf"]
        if self.linear:
            return (1 - epoch / max(self.epochs - 1, 1)) * (1.0 - lrf) + lrf
        return ((1 - math.cos(epoch * math.pi / self.epochs)) / 2) * (lrf - 1) + 1

    def rates(self, batch: int, epoch: int, position: int | None = None) -> Rates:
        """Rates for batch number `batch` (over the whole run), the `position`-th of `epoch`."""
        lr0, momentum = self.hyp["lr0"], self.hyp["momentum"]
        full = max(1, round(self.nominal_batch / self.total_batch))
        span = [0, self.warmup]
        if batch <= self.warmup:
            target = lr0 * self.decay(epoch)
            lr = float(np.interp(batch, span, [0.0, target]))
            bias_lr = float(np.interp(batch, span, [self.hyp["warmup_bias_lr"], target]))
            accumulate = np.interp(batch, span, [1, self.nominal_batch / self.total_batch]).round()
            warm_momentum = float(np.interp(batch, span, [self.hyp["warmup_momentum"], momentum]))
            return Rates((lr, lr, bias_lr), warm_momentum, max(1, int(accumulate)))
        # the epoch in which the warm-up ended stays at its own factor, a later one runs at that of the epoch before
        position = batch - epoch * self.batches if position is None else position
        ended_in_this_epoch = batch - position <= self.warmup
        lr = lr0 * self.decay(epoch if ended_in_this_epoch else epoch - 1)
        return Rates((lr, lr, lr), momentum, full)


def scaled_weight_decay(hyp: Mapping[str, float], total_batch: int) -> float:
    """Weight decay for the batch that one optimizer step really sees."""
    nominal = hyper.get(hyp, "nominal_batch")
    accumulate = max(round(nominal / total_batch), 1)
    return hyp["weight_decay"] * total_batch * accumulate / nominal


@dataclass(frozen=True)
class DropSchedule:
    """Linear warm-up, then rates that drop to a tenth once, or follow half a cosine; the same factor for each group."""

    base: tuple[float, ...]  # learning rate of each optimizer group
    batches: int  # batches of an epoch
    epochs: int
    kind: str = "step"  # or "cosine"
    drop: int = 0  # step: epochs before the drop; 0: four fifths of all
    final: float = 0.01  # cosine: the factor at the end
    warmup: int = 0  # batches

    def factor(self, batch: int, epoch: int) -> float:
        warm = min((batch + 1) / self.warmup, 1.0) if self.warmup else 1.0
        if self.kind == "step":
            return warm * (0.1 if epoch >= (self.drop or max(round(self.epochs * 0.8), 1)) else 1.0)
        done = min(batch / max(self.batches * self.epochs, 1), 1.0)
        return warm * (self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2)

    def rates(self, batch: int, epoch: int) -> Rates:
        factor = self.factor(batch, epoch)
        return Rates(tuple(lr * factor for lr in self.base), 0.0, 1)
