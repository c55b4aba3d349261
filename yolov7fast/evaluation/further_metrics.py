"""Metrics beyond precision, recall and AP: one row each. `docs/extending_metric.md` adds one, step by step."""

from collections.abc import Callable
from typing import Protocol

from yolov7fast.evaluation.detection_matching import Batch


class FurtherMetric(Protocol):
    """Sees every batch of an evaluation once, then gives its figure."""

    def update(self, batch: Batch) -> None:
        """Detections and labels of some images, in pixels of the original images."""
        ...

    def figure(self) -> float:
        """NaN where nothing could be measured."""
        ...


# name, as a column of results.csv -> the metric, made with the number of classes
FURTHER: dict[str, Callable[[int], FurtherMetric]] = {}
