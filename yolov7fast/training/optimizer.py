"""Optimizers: rates that change by batch, saved states, averaged weights (EMA), and how a YOLO network is optimised."""

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from yolov7fast.core.errors import UserError
from yolov7fast.training import hyperparameters as hyper

# entries of a parameter group that choose the implementation of a step, not its result
IMPLEMENTATION = ("fused", "foreach", "capturable", "differentiable")


class Rates(NamedTuple):
    """The rates of one batch: a learning rate for each optimizer group, momentum, batches per optimizer step."""

    lrs: tuple[float, ...]
    momentum: float
    accumulate: int


def apply_rates(optimizer: torch.optim.Optimizer, rates: Rates) -> None:
    """Write the rates of a batch into the optimizer; Adam's momentum is not warmed up."""
    for group, lr in zip(optimizer.param_groups, rates.lrs, strict=True):
        group["lr"] = lr
        if "momentum" in group:
            group["momentum"] = rates.momentum


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter of a fused SGD a momentum of zero, from which the first step makes the gradient itself.

    By default torch creates these buffers uninitialised at the first step, and a first step with an overflow (common
    with fp16) does not fill them: the second step would use uninitialised memory as momentum.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in (group for group in optimizer.param_groups if group.get("fused")):
        for parameter in (p for p in group["params"] if p.requires_grad):
            if optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load a saved state; the implementation of a step (fused or not) stays that of this machine.

    A file from another kind of machine or another program may differ or lack these entries, and they must match what
    this optimizer has announced to the gradient scaler.
    """
    own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    saved = state["param_groups"]
    if len(saved) == len(own):
        kept = [{name: value for name, value in group.items() if name in IMPLEMENTATION} for group in own]
        saved = [{**mine, **theirs, **fixed} for mine, theirs, fixed in zip(own, saved, kept, strict=True)]
    try:
        optimizer.load_state_dict({**state, "param_groups": saved})
    except ValueError as error:
        raise UserError(
            f"the checkpoint's optimizer does not fit this network: {error}; start a new run with --weights"
        ) from None
    begin_momentum(optimizer)


# --- averaged weights -------------------------------------------------------------------------------------------------
# A moving average of the weights, which validation and the saved detector use.


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


# --- YOLO: parameter groups, frozen layers, rates ---------------------------------------------------------------------
# How a YOLO network is optimised: parameter groups, frozen layers, and rates as pure functions of the global step.
#
# Upstream moves its scheduler one epoch late and overwrites it while warming up; written out, the rate depends only on
# the global step and the epoch, so a resumed run needs no scheduler state.


# attributes of a head that hold implicit vectors, in the order they join the group
IMPLICIT = ("im", "imc", "imb", "imo", "ia")
DECAYED = 1  # the group of decayed weights among those of `build_optimizer`


class Groups(NamedTuple):
    """Parameters by treatment: batch-norm weights and implicit vectors; decayed weights; biases."""

    plain: list[nn.Parameter]
    decayed: list[nn.Parameter]
    biases: list[nn.Parameter]


def parameter_groups(model: nn.Module) -> Groups:
    """Each parameter in exactly one group, in the order in which modules are registered.

    A parameter that is neither `weight` nor `bias` (an implicit vector, a free parameter of a user's block) is not
    decayed.
    """
    groups = Groups([], [], [])
    for module in model.modules():
        own = module._parameters
        bias, weight = own.get("bias"), own.get("weight")
        if isinstance(bias, nn.Parameter):
            groups.biases.append(bias)
        if isinstance(weight, nn.Parameter):
            batch_norm = isinstance(module, nn.BatchNorm2d)
            (groups.plain if batch_norm else groups.decayed).append(weight)
        for name in IMPLICIT:
            groups.plain.extend(_implicit_vectors(module._modules.get(name)))
    seen = {id(parameter) for group in groups for parameter in group}
    groups.plain.extend(parameter for parameter in model.parameters() if id(parameter) not in seen)
    return groups


def _implicit_vectors(holder: nn.Module | None) -> Iterable[nn.Parameter]:
    if holder is None:
        return []
    modules = holder if isinstance(holder, nn.ModuleList) else [holder]
    found = (getattr(module, "implicit", None) for module in modules)
    return [vector for vector in found if isinstance(vector, nn.Parameter)]


def build_optimizer(
    model: nn.Module, hyp: Mapping[str, float], *, adam: bool, weight_decay: float, fused: bool | None = None
) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, or Adam; on CUDA the fused form, which needs no host read of the gradient scaler."""
    groups = parameter_groups(model)
    fused = fused or (True if next(model.parameters()).is_cuda else None)
    if adam:
        optimizer = torch.optim.Adam(groups.plain, lr=hyp["lr0"], betas=(hyp["momentum"], 0.999), fused=fused)
    else:
        optimizer = torch.optim.SGD(groups.plain, lr=hyp["lr0"], momentum=hyp["momentum"], nesterov=True, fused=fused)
    optimizer.add_param_group({"params": groups.decayed, "weight_decay": weight_decay})
    optimizer.add_param_group({"params": groups.biases})
    begin_momentum(optimizer)
    return optimizer


def set_weight_decay(optimizer: torch.optim.Optimizer, weight_decay: float) -> None:
    """Set the weight decay of the decayed weights of an optimizer of `build_optimizer`."""
    optimizer.param_groups[DECAYED]["weight_decay"] = weight_decay


def freeze_layers(model: nn.Module, layers: list[int]) -> list[str]:
    """Stop the gradients of layers 0..n-1 (one number n) or of exactly the given ones; returns the frozen names."""
    numbers = range(layers[0]) if len(layers) == 1 else layers
    prefixes = [f"model.{number}." for number in numbers]
    frozen = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not any(prefix in name for prefix in prefixes)
        if not parameter.requires_grad:
            frozen.append(name)
    if all(not parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"--freeze {' '.join(map(str, layers))} leaves nothing to train: the last layer must learn")
    return frozen


@dataclass(frozen=True)
class YoloSchedule:
    """Warm-up, then cosine or linear decay; groups in the order of `parameter_groups`, biases last."""

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
        """The last global step of the warm-up."""
        return max(round(self.hyp["warmup_epochs"] * self.batches), int(hyper.get(self.hyp, "warmup_min_iters")))

    def decay(self, epoch: int) -> float:
        """The factor on lr0 in epoch `epoch`."""
        lrf = self.hyp["lrf"]
        if self.linear:
            return (1 - epoch / max(self.epochs - 1, 1)) * (1.0 - lrf) + lrf
        return ((1 - math.cos(epoch * math.pi / self.epochs)) / 2) * (lrf - 1) + 1

    def rates(self, global_step: int, epoch: int, batch_index: int | None = None) -> Rates:
        """Rates of an iteration; batch_index: its index in the epoch, if epochs differ in length."""
        lr0, momentum = self.hyp["lr0"], self.hyp["momentum"]
        full = max(1, round(self.nominal_batch / self.total_batch))
        span = [0, self.warmup]
        if global_step <= self.warmup:
            target = lr0 * self.decay(epoch)
            lr = float(np.interp(global_step, span, [0.0, target]))
            bias_lr = float(np.interp(global_step, span, [self.hyp["warmup_bias_lr"], target]))
            accumulate = np.interp(global_step, span, [1, self.nominal_batch / self.total_batch]).round()
            warm_momentum = float(np.interp(global_step, span, [self.hyp["warmup_momentum"], momentum]))
            return Rates((lr, lr, bias_lr), warm_momentum, max(1, int(accumulate)))
        # the epoch in which the warm-up ends keeps its own factor, a later one uses that of the previous epoch
        batch_index = global_step - epoch * self.batches if batch_index is None else batch_index
        ended_in_this_epoch = global_step - batch_index <= self.warmup
        lr = lr0 * self.decay(epoch if ended_in_this_epoch else epoch - 1)
        return Rates((lr, lr, lr), momentum, full)


def scaled_weight_decay(hyp: Mapping[str, float], total_batch: int) -> float:
    """Weight decay for the effective batch of one optimizer step."""
    nominal = hyper.get(hyp, "nominal_batch")
    accumulate = max(round(nominal / total_batch), 1)
    return hyp["weight_decay"] * total_batch * accumulate / nominal
