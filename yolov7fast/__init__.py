"""YOLOv7 Fast: a trainer for YOLOv7 detectors. Importing it loads nothing heavy; torch comes with what needs it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yolov7fast.checkpoint.ensemble import attempt_load as load

__version__ = "0.2.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    """`load(path)`: the network of a checkpoint, upstream's or our own, ready for inference."""
    if name == "load":
        from yolov7fast.checkpoint.ensemble import attempt_load

        return attempt_load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
