"""Upstream's import path for metrics; the names live in the package."""

from yolov7fast.evaluation.average_precision import ap_per_class, compute_ap, fitness
from yolov7fast.evaluation.confusion_matrix import ConfusionMatrix

__all__ = ["ConfusionMatrix", "ap_per_class", "compute_ap", "fitness"]
