"""`torch.load` as a checkout calls it: by path, without `weights_only`, for checkpoints and label caches.

PyTorch refuses pickled networks by default since 2.6, and would run what is in them before. Here such files are read
by this project's reader, which runs nothing, and their layers are made of the checkout's own classes.
"""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from yolov7fast.checkpoint.checkpoint_reader import CheckpointError, load_checkpoint
from yolov7fast.checkpoint.safe_constructors import stock_modules
from yolov7fast.core.errors import UserError
from yolov7fast.overlay.checkout import Checkout

NETWORKS = ("models.common", "models.experimental", "models.yolo")


def layer_classes(checkout: Checkout) -> dict[str, type[nn.Module]]:
    """Path in files -> class, of every layer that the checkout has defined so far, and of PyTorch's own."""
    for name in NETWORKS:
        checkout.module(name)
    found = stock_modules()
    for module in checkout.modules():
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, nn.Module) and cls.__module__ == module.__name__:
                found[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return found


def safe_load(checkout: Checkout, original: Callable) -> Callable:
    """What takes the place of `torch.load`; `original` serves callers that say how to load, and open files.

    A `map_location` that is a function or a table gives the CPU.
    """

    def load(f, map_location=None, pickle_module=None, *, weights_only=None, mmap=None, **options):
        if weights_only is None and pickle_module is None and isinstance(f, str | os.PathLike):
            device = map_location if isinstance(map_location, str | torch.device) else None
            try:
                return load_checkpoint(Path(f), device, layer_classes(checkout))
            except CheckpointError:
                if Path(f).suffix != ".cache":
                    raise
                complaint = "is no label cache of this checkout: it is damaged, or another trainer's of the same name"
                raise UserError(f"{f} {complaint}; delete it, and it is made again") from None
        return original(f, map_location, pickle_module, weights_only=weights_only, mmap=mmap, **options)

    return load


def put_in(checkout: Checkout, patches) -> None:
    patches.set(torch, "load", safe_load(checkout, torch.load))
