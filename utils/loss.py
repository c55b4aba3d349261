"""Upstream's import path for the losses; the names live in the package."""

from yolov7fast.losses.yolo_loss import ComputeLoss, ComputeLossAuxOTA, ComputeLossOTA

__all__ = ["ComputeLoss", "ComputeLossAuxOTA", "ComputeLossOTA"]
