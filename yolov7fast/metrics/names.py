"""The names by which figures travel: columns of results.csv, tags of the loggers, keys of a validation's result."""

from collections.abc import Mapping

import numpy as np

from yolov7fast.metrics.average_precision import fitness

PRECISION, RECALL = "metrics/precision", "metrics/recall"
MAP50, MAP = "metrics/mAP_0.5", "metrics/mAP_0.5:0.95"
SUMMARY = (PRECISION, RECALL, MAP50, MAP)  # in the order of results.txt


def validation_loss(part: str) -> str:
    """The name of a part of the loss as validation measured it: box -> val/box."""
    return f"val/{part}"


def fitness_of(metrics: Mapping[str, float]) -> float:
    """The figure by which the best checkpoint is chosen, from metrics by name."""
    return float(fitness(np.array([[metrics[name] for name in SUMMARY]]))[0])
