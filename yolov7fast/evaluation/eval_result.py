"""The result of an evaluation, the names of its metrics, and further metrics (`FURTHER`).

The names are columns of results.csv and tags of the loggers. `docs/extending.md` adds a metric, step by step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from yolov7fast.evaluation.average_precision import ClassAP, Curves, SizeAP, fitness
from yolov7fast.evaluation.detection_matching import Batch

PRECISION, RECALL = "metrics/precision", "metrics/recall"
MAP50, MAP = "metrics/mAP_0.5", "metrics/mAP_0.5:0.95"
SUMMARY = (PRECISION, RECALL, MAP50, MAP)  # in the order of results.txt


def validation_loss(part: str) -> str:
    """The name of a part of the loss as validation measured it: box -> val/box."""
    return f"val/{part}"


def fitness_of(metrics: Mapping[str, float]) -> float:
    """The number by which the best checkpoint is chosen, from metrics by name."""
    return float(fitness(np.array([[metrics[name] for name in SUMMARY]]))[0])


class Speed(NamedTuple):
    """Milliseconds per image, and what they were measured at."""

    inference_ms: float
    nms_ms: float
    img_size: int
    batch_size: int

    @property
    def total_ms(self) -> float:
        return self.inference_ms + self.nms_ms


@dataclass(frozen=True)
class EvalResult:
    """The result of one evaluation.

    summary: precision, recall and the two mAPs of our own metric, by the names in `SUMMARY`. Where pycocotools
    ran, `metrics` has its mAPs instead, and `coco` its twelve numbers.
    """

    summary: Mapping[str, float]
    losses: Mapping[str, float]  # parts of the loss by name; empty where it was not measured
    per_class_ap: np.ndarray  # (nc,) AP@.5:.95; classes without labels have the mean
    seen: int  # images
    labels: np.ndarray  # (nc,) label counts
    classes: ClassAP
    curves: Curves
    sizes: Mapping[str, SizeAP]  # all, small, medium, large
    speed: Speed
    coco: Mapping[str, float] | None = None
    further: Mapping[str, float] = field(default_factory=dict)  # values of the metrics in FURTHER, by name

    @property
    def metrics(self) -> dict[str, float]:
        """All metrics and losses, by the column names of results.csv."""
        found = dict(self.summary)
        if self.coco:
            found |= {MAP50: self.coco["AP50"], MAP: self.coco["AP"]}
        losses = {validation_loss(name): value for name, value in self.losses.items()}
        return {**found, **losses, **self.further}

    @property
    def fitness(self) -> float:
        """The number that selects the best checkpoint."""
        return fitness_of(self.metrics)

    def with_coco(self, stats: Mapping[str, float]) -> "EvalResult":
        """A copy with pycocotools' metrics; classes without labels get its AP."""
        per_class_ap = self.per_class_ap.copy()
        per_class_ap[np.setdiff1d(np.arange(len(per_class_ap)), self.classes.classes)] = stats["AP"]
        return replace(self, per_class_ap=per_class_ap, coco=stats)

    def as_upstream(self) -> tuple[tuple[float, ...], np.ndarray, tuple[float, ...]]:
        """The return value of upstream's `test`.

        (P, R, mAP@.5, mAP@.5:.95, three losses), per-class AP, and (inference, NMS and total ms per image, size, size,
        batch size).
        """
        losses = (*self.losses.values(), 0.0, 0.0, 0.0)[:3]
        speed = self.speed
        times = (speed.inference_ms, speed.nms_ms, speed.total_ms, speed.img_size, speed.img_size, speed.batch_size)
        return (*(self.metrics[name] for name in SUMMARY), *losses), self.per_class_ap, times


class FurtherMetric(Protocol):
    """A metric that is updated with every batch of an evaluation."""

    def update(self, batch: Batch) -> None:
        """Detections and labels of some images, in pixels of the original images."""
        ...

    def figure(self) -> float:
        """NaN where nothing could be measured."""
        ...


# name, as a column of results.csv -> the metric, made with the number of classes
FURTHER: dict[str, Callable[[int], FurtherMetric]] = {}
