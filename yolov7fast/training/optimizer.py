"""Functions for every optimizer: learning rates that change by batch, and loading of a saved state."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from yolov7fast.core.errors import UserError

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
