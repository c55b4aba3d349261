"""Upstream's import path for data sets and loaders; the names live in the package."""

from yolov7fast.data.dataset import (
    IMG_FORMATS,
    LoadImages,
    LoadImagesAndLabels,
    LoadStreams,
    create_dataloader,
    img2label_paths,
    letterbox,
)

__all__ = [
    "IMG_FORMATS",
    "LoadImages",
    "LoadImagesAndLabels",
    "LoadStreams",
    "create_dataloader",
    "img2label_paths",
    "letterbox",
]
