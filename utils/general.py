"""Names that scripts out there import from here; they live in the modules below."""

from utils.boxes import bbox_iou, box_iou, clip_coords, scale_coords, xyn2xy, xywh2xyxy, xywhn2xyxy, xyxy2xywh
from utils.coco import coco80_to_coco91_class
from utils.files import check_file, check_img_size, increment_path
from utils.files import latest_run as get_latest_run
from utils.nms import non_max_suppression
from utils.weights import labels_to_class_weights, labels_to_image_weights

__all__ = ["bbox_iou", "box_iou", "clip_coords", "scale_coords", "xyn2xy", "xywh2xyxy", "xywhn2xyxy", "xyxy2xywh"]
__all__ += ["check_file", "check_img_size", "coco80_to_coco91_class", "get_latest_run", "increment_path"]
__all__ += ["labels_to_class_weights", "labels_to_image_weights", "non_max_suppression"]
