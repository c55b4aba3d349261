"""Upstream's import path for loading trained networks; the names live in the package."""

from yolov7fast.checkpoint.ensemble import Ensemble, attempt_load

__all__ = ["Ensemble", "attempt_load"]
