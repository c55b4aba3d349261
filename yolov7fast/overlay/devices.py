"""Devices that a checkout's losses name by hand: the predictions' own device is taken instead.

Some releases write `cuda:0` into the OTA loss, which then fails on a CPU and on every other GPU.
"""

from collections.abc import Callable
from functools import wraps

import torch
from torch.overrides import TorchFunctionMode

from yolov7fast.overlay.patches import Patches


class _OnDevice(TorchFunctionMode):
    """While open, a CUDA device named in a call is the given one."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.device = device

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = self.device
        if func is torch.Tensor.cuda:
            return args[0].to(self.device)
        if func is torch.Tensor.to:
            args = tuple(self.device if _is_cuda(arg) else arg for arg in args)
        return func(*args, **kwargs)


def on_own_device(call: Callable) -> Callable:
    """A loss's `__call__(self, p, targets, ...)` for which the predictions say the device."""

    @wraps(call)
    def run(self, p, *args, **kwargs):
        with _OnDevice(_first(p).device):
            return call(self, p, *args, **kwargs)

    return run


def put_in(module, names: tuple[str, ...], patches: Patches) -> None:
    """Repair the losses of these names in a checkout's `utils.loss`."""
    for cls in (getattr(module, name, None) for name in names):
        if cls is not None:
            patches.set(cls, "__call__", on_own_device(cls.__call__))


def _first(p) -> torch.Tensor:
    return p if isinstance(p, torch.Tensor) else _first(p[0])


def _is_cuda(device) -> bool:
    return str(device).startswith("cuda") if isinstance(device, str | torch.device) else False
