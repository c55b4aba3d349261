"""Upstream's import path for device helpers; the names live in the package."""

from yolov7fast.core.device import select_device, time_synchronized

__all__ = ["select_device", "time_synchronized"]
