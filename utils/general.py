"""Upstream's import path for helpers; the names live in the package."""

from yolov7fast.checkpoint.checkpoint_reader import strip_checkpoint as strip_optimizer
from yolov7fast.core.boxes import (
    bbox_iou,
    box_iou,
    clip_coords,
    scale_coords,
    wh_iou,
    xyn2xy,
    xywh2xyxy,
    xywhn2xyxy,
    xyxy2xywh,
)
from yolov7fast.core.files.paths import check_file, check_img_size, increment_path
from yolov7fast.core.files.paths import latest_run as get_latest_run
from yolov7fast.data.class_groups import labels_to_class_weights, labels_to_image_weights
from yolov7fast.evaluation.coco_metrics import coco80_to_coco91_class
from yolov7fast.predictors.nms import non_max_suppression

__all__ = ["bbox_iou", "box_iou", "clip_coords", "scale_coords", "wh_iou"]
__all__ += ["xyn2xy", "xywh2xyxy", "xywhn2xyxy", "xyxy2xywh"]
__all__ += ["check_file", "check_img_size", "coco80_to_coco91_class", "get_latest_run", "increment_path"]
__all__ += ["labels_to_class_weights", "labels_to_image_weights", "non_max_suppression", "strip_optimizer"]
