"""Upstream's import path for data sets and loaders; the names live in the package."""

from yolov7fast.augment.transforms import letterbox
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.labels import IMG_FORMATS, img2label_paths
from yolov7fast.inference.sources import LoadImages
from yolov7fast.inference.streams import LoadStreams
from yolov7fast.loading.dataloader import create_dataloader

__all__ = [
    "IMG_FORMATS",
    "LoadImages",
    "LoadImagesAndLabels",
    "LoadStreams",
    "create_dataloader",
    "img2label_paths",
    "letterbox",
]
