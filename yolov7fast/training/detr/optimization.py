"""How a DETR network is optimised: AdamW, and rates as pure functions of the global step."""

import logging
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from yolov7fast.training.optimizer import Rates

log = logging.getLogger(__name__)


def build_optimizer(model: nn.Module, lr: float, backbone_lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW over two groups: everything else, then the backbone, which DETR trains more slowly."""
    learning = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for name, p in learning if ".backbone." not in name], "lr": lr},
        {"params": [p for name, p in learning if ".backbone." in name], "lr": backbone_lr},
    ]
    log.info("AdamW: %d parameters, %d of the backbone", *(len(group["params"]) for group in groups))
    fused = True if next(model.parameters()).is_cuda else None
    return torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay, fused=fused)


@dataclass(frozen=True)
class DropSchedule:
    """Linear warm-up, then rates that drop to a tenth once, or follow half a cosine; the same factor for each group."""

    base: tuple[float, ...]  # learning rate of each optimizer group
    batches: float  # of an epoch, on average
    epochs: int
    kind: str = "step"  # or "cosine"
    drop: int = 0  # step: epochs before the drop; 0: four fifths of all
    final: float = 0.01  # cosine: the factor at the end
    warmup: int = 0  # iterations

    def factor(self, global_step: int, epoch: int) -> float:
        warm = min((global_step + 1) / self.warmup, 1.0) if self.warmup else 1.0
        if self.kind == "step":
            return warm * (0.1 if epoch >= (self.drop or max(round(self.epochs * 0.8), 1)) else 1.0)
        done = min(global_step / max(self.batches * self.epochs, 1), 1.0)
        return warm * (self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2)

    def rates(self, global_step: int, epoch: int) -> Rates:
        factor = self.factor(global_step, epoch)
        return Rates(tuple(lr * factor for lr in self.base), 0.0, 1)

    def state(self, global_step: int, epoch: int) -> dict[str, Any]:
        """Plain values for a checkpoint: the settings, how far the run is, and the rates of its next iteration."""
        place = {"global_step": global_step, "epoch": epoch, "last_lr": list(self.rates(global_step, epoch).lrs)}
        return {**asdict(self), "base": list(self.base), **place}
