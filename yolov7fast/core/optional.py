"""Packages that only some commands need: imported on first use, named in one line where they are missing."""

import importlib
from types import ModuleType

from yolov7fast.core.errors import UserError


def need(package: str, why: str, install: str = "onnx onnxruntime onnxscript openvino") -> ModuleType:
    """The module `package`. why: what needs it, as the beginning of a sentence; install: what pip is to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.split(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == name
        state = "is not installed" if missing else f"cannot be imported ({' '.join(str(error).split())[:120]})"
        raise UserError(f"{why} needs the package {name}, which {state}: python -m pip install {install}") from None
