"""What tests of one process share, and must leave as they found it: a later test file may depend on it."""

import logging
import os
import re
import signal
import sys
import threading
from types import ModuleType
from typing import Any

import cv2
import torch

OWN = ("models", "tests", "tools", "utils", "yolov7fast")  # packages whose module-level names are compared

# pytest-timeout has the first; the first loader with workers installs the second for the rest of the process
SIGNALS = set(signal.Signals) - {signal.SIGALRM, signal.SIGCHLD}
KEPT = ("yolov7fast.data.loading.torch_loader._gated",)  # goes with SIGCHLD
# variables set by pytest, by torch, by its CUDA builds, and for TensorBoard
ENVIRONMENT = ("PYTEST_", "TORCHINDUCTOR_", "CUDA_MODULE_LOADING", "TF_CPP_")


def process_state() -> dict[str, Any]:
    """Name -> value, without the states of random generators: a test that draws numbers seeds them itself."""
    root = logging.getLogger()
    matplotlib = sys.modules.get("matplotlib")
    state: dict[str, Any] = {
        "working directory": os.getcwd(),
        "sys.path": [path for path in sys.path if path != torchs_own_path()],
        "sys.argv": list(sys.argv),
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "torch default dtype": torch.get_default_dtype(),
        "torch default device": torch.get_default_device(),
        "torch threads": torch.get_num_threads(),
        "torch deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch gradients": torch.is_grad_enabled(),
        "OpenCV threads": cv2.getNumThreads(),
        "logging disabled": root.manager.disable,
        "logging handlers": [h for h in root.handlers if not type(h).__module__.startswith("_pytest")],
    }
    if matplotlib is not None:
        state["matplotlib backend"] = matplotlib.rcParams._get("backend")
    state |= {f"signal {number.name}": signal.getsignal(number) for number in SIGNALS}
    state |= {f"environment {k}": v for k, v in os.environ.items() if not k.startswith(ENVIRONMENT)}
    return state


def torchs_own_path() -> str | None:
    """The folder that torch 2.8 appends to sys.path when something imports `torch.distributed.nn`."""
    module = sys.modules.get("torch.distributed.nn.jit.instantiator")
    return getattr(module, "INSTANTIATED_TEMPLATE_DIR_PATH", None)


def loaded_modules() -> dict[str, tuple[ModuleType | None, dict[str, Any]]]:
    """Name -> module and, of this project's modules, its module-level names."""
    return {
        name: (module, own_names(module) if name.partition(".")[0] in OWN and module is not None else {})
        for name, module in list(sys.modules.items())
    }


def own_names(module: ModuleType) -> dict[str, Any]:
    """Module-level names, without those that Dynamo writes for compiled functions (`__...`; `_ID_c0` in torch 2.8)."""
    return {k: v for k, v in vars(module).items() if not k.startswith("__") and not re.fullmatch(r"_\d+_c\d+", k)}


def shown(value: Any) -> str:
    return repr(value)[:200]


def stubs() -> set[str]:
    """Top-level modules that were not imported from anywhere; those that Cython makes begin with an underscore."""

    def is_stub(module: ModuleType) -> bool:
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        return loader is None and getattr(module, "__file__", None) is None

    loaded = [(name, module) for name, module in list(sys.modules.items()) if "." not in name and name[0] != "_"]
    return {name for name, module in loaded if module is not None and is_stub(module)}


def changes(state: dict[str, Any], modules: dict[str, tuple[ModuleType | None, dict[str, Any]]]) -> list[str]:
    """What differs now from a state and from loaded modules; what has really been imported since is no change."""
    now = process_state()
    found = [
        f"{name}: {shown(state.get(name))} -> {shown(now.get(name))}"
        for name in sorted(state.keys() | now.keys())
        if state.get(name) != now.get(name) and not (name == "matplotlib backend" and name not in state)
    ]
    found += [f"sys.modules[{name!r}]: absent -> {shown(sys.modules[name])}" for name in stubs() - modules.keys()]
    for name, (module, names) in modules.items():
        present = sys.modules.get(name, "absent")
        if present is not module:
            found.append(f"sys.modules[{name!r}]: {shown(module)} -> {shown(present)}")
        elif names:
            found += [
                f"{name}.{key}: {shown(value)} -> {shown(vars(module).get(key))}"
                for key, value in names.items()
                if vars(module).get(key) is not value and f"{name}.{key}" not in KEPT
            ]
    return found
