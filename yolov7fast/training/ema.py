"""A moving average of the weights, which validation and the saved detector use."""

import math
from copy import deepcopy
from typing import Any

import torch
from torch import nn

COPIED_ATTRIBUTES = ("yaml", "nc", "hyp", "gr", "names", "stride", "class_weights")


class ModelEMA:
    """An average of the model's floating-point state; its decay ramps up, so that the first weights have little
    effect."""

    def __init__(self, model: nn.Module, decay: float = 0.9999, ramp: float = 2000.0, updates: int = 0):
        self.ema: Any = deepcopy(model).eval()  # of the model's own class
        self.updates = updates
        self.decay = decay
        self.ramp = ramp
        # once each: a tensor with several names (tied layers) is averaged under the first one
        self.names = {n for n, _ in self.ema.named_parameters()} | {n for n, _ in self.ema.named_buffers()}
        for parameter in self.ema.parameters():
            parameter.requires_grad_(False)
        self._average: list[torch.Tensor] = []
        self._current: list[torch.Tensor] = []
        self._paired: nn.Module | None = None  # the network whose tensors `_current` holds

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """average <- d * average + (1 - d) * model, for floating entries; counters are copied once."""
        self.updates += 1
        d = self.decay * (1 - math.exp(-self.updates / self.ramp))
        if self._paired is not model:
            self._pair(model)
        torch._foreach_mul_(self._average, d)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(self._average, self._current, alpha=1.0 - d)  # pyright: ignore[reportPrivateImportUsage]

    def forget_pairs(self) -> None:
        """Look up the tensors again at the next update: one of the networks may have new tensors by then."""
        self._paired = None

    def _pair(self, model: nn.Module) -> None:
        """List the tensors of both networks once: looking them up in every step takes milliseconds of host time."""
        own, other = self.ema.state_dict(), model.state_dict()
        names = [name for name, value in own.items() if name in self.names and value.dtype.is_floating_point]
        self._average, self._current = [own[name] for name in names], [other[name].detach() for name in names]
        self._paired = model

    def copy_attributes(self, model: nn.Module) -> None:
        for name in COPIED_ATTRIBUTES:
            if hasattr(model, name):
                setattr(self.ema, name, getattr(model, name))
