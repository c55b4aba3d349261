"""The optimizer: which parameter belongs to which group."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from yolov7fast.core.errors import UserError
from yolov7fast.training.schedule import Rates

# attributes of a head that hold implicit vectors, in the order they join the group
IMPLICIT = ("im", "imc", "imb", "imo", "ia")
# entries of a parameter group that say how a step is computed here, not what it computes
IMPLEMENTATION = ("fused", "foreach", "capturable", "differentiable")
DECAYED = 1  # the group of decayed weights among those of `build_optimizer`


class Groups(NamedTuple):
    """Parameters by treatment: batch-norm weights and implicit vectors; decayed weights; biases."""

    plain: list[nn.Parameter]
    decayed: list[nn.Parameter]
    biases: list[nn.Parameter]


def parameter_groups(model: nn.Module) -> Groups:
    """Walk the modules in registration order and put each parameter into exactly one group.

    A parameter that is neither `weight` nor `bias` (an implicit vector, a free parameter of a user's block) is not
    decayed.
    """
    groups = Groups([], [], [])
    for module in model.modules():
        own = module._parameters
        if isinstance(own.get("bias"), nn.Parameter):
            groups.biases.append(own["bias"])
        if isinstance(own.get("weight"), nn.Parameter):
            batch_norm = isinstance(module, nn.BatchNorm2d)
            (groups.plain if batch_norm else groups.decayed).append(own["weight"])
        for name in IMPLICIT:
            groups.plain.extend(_implicit_vectors(module._modules.get(name)))
    seen = {id(parameter) for group in groups for parameter in group}
    groups.plain.extend(parameter for parameter in model.parameters() if id(parameter) not in seen)
    return groups


def _implicit_vectors(holder: nn.Module | None) -> Iterable[nn.Parameter]:
    if holder is None:
        return []
    modules = holder if isinstance(holder, nn.ModuleList) else [holder]
    return [module.implicit for module in modules if hasattr(module, "implicit")]


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


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter of a fused SGD a momentum of zero, from which the first step makes the gradient itself.

    Left alone, torch makes these buffers at the first step, uninitialised, and a first step that finds an overflow
    (usual with fp16) does not fill them: garbage would be the momentum of the second.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in (group for group in optimizer.param_groups if group.get("fused")):
        for parameter in (p for p in group["params"] if p.requires_grad):
            if optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Take over a saved state; how a step is computed (fused or not) stays as this machine has it.

    A file from another kind of machine, or from another program, says otherwise or nothing; and what this optimizer
    announced to the gradient scaler when it was built would not hold any more.
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


def set_weight_decay(optimizer: torch.optim.Optimizer, weight_decay: float) -> None:
    """Let the decayed weights of an optimizer of `build_optimizer` decay so much from now on."""
    optimizer.param_groups[DECAYED]["weight_decay"] = weight_decay


def apply_rates(optimizer: torch.optim.Optimizer, rates: Rates) -> None:
    """Write the rates of a batch into the optimizer; Adam's momentum is not warmed up."""
    for group, lr in zip(optimizer.param_groups, rates.lrs, strict=True):
        group["lr"] = lr
        if "momentum" in group:
            group["momentum"] = rates.momentum


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
