"""Upstream's import path for device helpers and the EMA; the names live in the package."""

from yolov7fast.core.device import select_device, time_synchronized
from yolov7fast.training.optimizer import ModelEMA

__all__ = ["ModelEMA", "select_device", "time_synchronized"]
