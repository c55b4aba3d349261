"""Upstream's import path for data sets and loaders; the names live in the package."""

from yolov7fast.data.augment.transforms import augment_hsv, letterbox, random_perspective
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.data.image_io import IMG_FORMATS
from yolov7fast.data.labels import img2label_paths
from yolov7fast.data.loading.create_dataloader import create_dataloader
from yolov7fast.inference.sources import LoadImages, LoadStreams

__all__ = ["IMG_FORMATS", "LoadImages", "LoadImagesAndLabels", "LoadStreams", "augment_hsv"]
__all__ += ["create_dataloader", "img2label_paths", "letterbox", "random_perspective"]
