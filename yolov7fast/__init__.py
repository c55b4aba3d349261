"""YOLOv7 Fast: a trainer for YOLOv7 detectors. Importing it is fast: torch is imported on first use.

model = yolov7fast.load("best.pt")     # or best.onnx, best.xml, best.torchscript.pt
results = model(["a.jpg", "b.jpg"])    # the boxes of detect.py

run = yolov7fast.train(data="my.yaml", weights="yolov7.pt", epochs=100)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yolov7fast.cli.python_api import train
    from yolov7fast.inference.detector import load

__version__ = "0.2.0"
__all__ = ["__version__", "load", "train"]
_MODULES = {"load": "yolov7fast.inference.detector", "train": "yolov7fast.cli.python_api"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
