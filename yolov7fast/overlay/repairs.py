"""What in a checkout stops on today's NumPy, PyTorch and launcher, repaired in memory."""

import os
import warnings

import numpy as np

from yolov7fast.overlay import devices, safe_load, torchvision_standin
from yolov7fast.overlay.checkout import Checkout
from yolov7fast.overlay.patches import Patches

# names that NumPy took away -> what they meant
NUMPY_NAMES = {"trapz": getattr(np, "trapezoid", None), "int": int, "float": float, "bool": bool, "object": object}
LOSSES = ("ComputeLoss", "ComputeLossOTA", "ComputeLossAuxOTA", "ComputeLossBinOTA")
OUTDATED = (  # calls in checkouts that still do what they should: begin of the warning
    r"`torch\.cuda\.amp\.",
    r"torch\.meshgrid: in an upcoming release",
    r"Detected call of `lr_scheduler\.step\(\)` before `optimizer\.step\(\)`",
)
LAUNCHED = ("train.py", "train_aux.py")  # scripts with the flag --local_rank


def before_imports(patches: Patches) -> None:
    """What must be there when the checkout's modules are imported."""
    for name, meaning in NUMPY_NAMES.items():
        if meaning is not None and name not in vars(np):
            patches.set(np, name, meaning)
    if not torchvision_standin.torchvision_loads():
        torchvision_standin.put_in(patches)
    for message in OUTDATED:
        warnings.filterwarnings("ignore", message)


def after_imports(checkout: Checkout, patches: Patches) -> None:
    """What is repaired in the checkout's modules, once imported."""
    safe_load.put_in(checkout, patches)
    devices.put_in(checkout.module("utils.loss"), LOSSES, patches)


def with_rank(script: str, arguments: list[str]) -> list[str]:
    """The arguments of a script under torchrun, which gives the rank in the environment alone."""
    named = any(argument.replace("-", "_").startswith("__local_rank") for argument in arguments)
    if script not in LAUNCHED or named or "LOCAL_RANK" not in os.environ:
        return arguments
    return [*arguments, "--local_rank", os.environ["LOCAL_RANK"]]
