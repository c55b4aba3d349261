"""Repairs in memory of code that fails with current versions of NumPy, PyTorch, torchvision and the launcher."""

import importlib
import os
import sys
from collections.abc import Callable
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.checkpoint.safe_constructors import stock_modules
from yolov7fast.core.errors import CheckpointError, UserError
from yolov7fast.overlay.checkout import Checkout, Patches
from yolov7fast.predictors.nms import greedy_nms

# names that NumPy removed -> their meaning
NUMPY_NAMES = {"trapz": getattr(np, "trapezoid", None), "int": int, "float": float, "bool": bool, "object": object}
LOSSES = ("ComputeLoss", "ComputeLossOTA", "ComputeLossAuxOTA", "ComputeLossBinOTA")
NETWORKS = ("models.common", "models.experimental", "models.yolo")
TORCHVISION_PARTS = ("ops", "utils", "transforms", "models", "datasets", "io")
LAUNCHED = ("train.py", "train_aux.py")  # scripts with the flag --local_rank


def before_imports(patches: Patches) -> None:
    """Repairs that the checkout's modules need when they are imported."""
    for name, meaning in NUMPY_NAMES.items():
        if meaning is not None and name not in vars(np):
            patches.set(np, name, meaning)
    if not torchvision_loads():
        put_in_torchvision(patches)


def after_imports(checkout: Checkout, patches: Patches) -> None:
    """Repairs in the checkout's modules, once they are imported."""
    patches.set(torch, "load", safe_load(checkout, torch.load))
    module = checkout.module("utils.loss")
    for cls in (getattr(module, name) for name in LOSSES if hasattr(module, name)):
        patches.set(cls, "__call__", on_own_device(cls.__call__))


def with_rank(script: str, arguments: list[str]) -> list[str]:
    """The arguments of a script with --local_rank, which torchrun only passes in the environment."""
    named = any(argument.replace("-", "_").startswith("__local_rank") for argument in arguments)
    if script not in LAUNCHED or named or "LOCAL_RANK" not in os.environ:
        return arguments
    return [*arguments, "--local_rank", os.environ["LOCAL_RANK"]]


# --- torch.load -------------------------------------------------------------------------------------------------------


def safe_load(checkout: Checkout, original: Callable) -> Callable:
    """A replacement of `torch.load` that reads checkpoints and label caches without executing code in them.

    Upstream calls it with a path and without `weights_only`: PyTorch 2.6 and newer then refuse pickled networks; older
    versions executed them. The layers are built from the checkout's own classes. Other calls are passed to `original`.
    A
    `map_location` that is a function or a table gives the CPU.
    """

    def load(f, map_location=None, pickle_module=None, *, weights_only=None, mmap=None, **options):
        if weights_only is None and pickle_module is None and isinstance(f, str | os.PathLike):
            device = map_location if isinstance(map_location, str | torch.device) else None
            try:
                return load_checkpoint(Path(f), device, layer_classes(checkout))
            except CheckpointError:
                if Path(f).suffix != ".cache":
                    raise
                complaint = "is not a label cache of this checkout: it is damaged or was written by another trainer"
                raise UserError(f"{f} {complaint}; delete it, and it is created again") from None
        return original(f, map_location, pickle_module, weights_only=weights_only, mmap=mmap, **options)

    return load


def layer_classes(checkout: Checkout) -> dict[str, type[nn.Module]]:
    """Path in files -> class, of every layer that the checkout has defined so far, and of PyTorch's layers."""
    for name in NETWORKS:
        checkout.module(name)
    found = stock_modules()
    for module in checkout.modules():
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, nn.Module) and cls.__module__ == module.__name__:
                found[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return found


# --- devices ----------------------------------------------------------------------------------------------------------


class _OnDevice(TorchFunctionMode):
    """Replaces CUDA devices that calls name by the given device.

    Some releases write `cuda:0` into the OTA loss, which then fails on a CPU and on every other GPU.
    """

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
    """A loss's `__call__(self, p, targets, ...)` that runs on the device of the predictions `p`."""

    @wraps(call)
    def run(self, p, *args, **kwargs):
        first = p
        while not isinstance(first, torch.Tensor):
            first = first[0]
        with _OnDevice(first.device):
            return call(self, p, *args, **kwargs)

    return run


def _is_cuda(device) -> bool:
    return isinstance(device, str | torch.device) and str(device).startswith("cuda")


# --- torchvision ------------------------------------------------------------------------------------------------------


def torchvision_loads() -> bool:
    """Whether the installed torchvision can be imported; modules left by a failed import are removed."""
    before = set(sys.modules)
    try:
        return bool(getattr(importlib.import_module("torchvision"), "__file__", None))  # the stub has no version
    except Exception:  # ImportError if it is absent or hidden; RuntimeError if its operators do not fit torch
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "torchvision":
                del sys.modules[name]
        return False


def put_in_torchvision(patches: Patches) -> None:
    """Replace torchvision by a stub with `ops.nms`, the only function that training, evaluation and detection call.

    Any other name can be imported, and raises a `UserError` when it is called.
    """
    parts = {name: _TorchvisionStub(f"torchvision.{name}") for name in TORCHVISION_PARTS}
    vars(parts["ops"])["nms"] = nms
    top = _TorchvisionStub("torchvision")
    vars(top).update(parts, __path__=[])  # with a path, so that submodules can be imported by name
    for module in (top, *parts.values()):
        patches.set_module(module)


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Indices of the boxes (n, 4) xyxy kept by greedy NMS among the best 30000, best first."""
    rows, order = (x.detach().float().cpu().numpy() for x in (boxes, scores))
    return torch.from_numpy(greedy_nms(rows, order, iou_threshold, most=len(boxes))).to(boxes.device)


class _TorchvisionStub(ModuleType):
    """A module with a spec, without which `importlib.util.find_spec` raises, and with functions of any name."""

    def __init__(self, path: str):
        super().__init__(path, "A stub of yolov7fast.overlay.")
        self.__spec__ = ModuleSpec(path, loader=None, is_package="." not in path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

        def missing(*_, **__):
            why = f"the installed torchvision does not load with torch {torch.__version__}"
            raise UserError(f"{self.__name__}.{name} was called, but {why}: install the one built for it")

        return missing
