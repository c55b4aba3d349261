"""Evaluation of a detector on labelled images. Which detector it is, the loop does not know: it asks a function.

Everything between the detector's boxes and the figures is done on whole batches, on the host, by a thread of its own,
while the loader and the network work on the next batches. A device that has a queue of its own is handed the next batch
before the boxes of the former one are read (`overlap`).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from yolov7fast.evaluation.average_precision import ClassAP, Curves, SizeAP, ap_by_size, class_metrics, rank_found
from yolov7fast.evaluation.config import EvalConfig
from yolov7fast.evaluation.detection_matching import Batch, match, native_batch
from yolov7fast.evaluation.further_metrics import FURTHER
from yolov7fast.evaluation.overlap import Background, LoadedBatch, Predict, loaded, predictions
from yolov7fast.evaluation.result import SUMMARY, EvalResult, Speed
from yolov7fast.predictors.predictor import on_host

HEADER = ("%20s" + "%12s" * 6) % ("Class", "Images", "Labels", "P", "R", "mAP@.5", "mAP@.5:.95")

DEFAULT = EvalConfig()


class EvaluationStopped(Exception):
    """The evaluation was asked to stop (`should_stop`): there are no figures."""


class SeenBatch(NamedTuple):
    """What a sink gets to see of a batch, `native` being in pixels of the original images."""

    batch_index: int
    images: torch.Tensor  # uint8 (B, 3, H, W); overwritten by the loader later, unless copied for a sink (see Sink)
    targets: torch.Tensor  # (n, 6)
    paths: Sequence[str]
    shapes: Sequence[Any]  # per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h)))
    detections: list[torch.Tensor]  # per image (k, 6), pixels of the batch
    native: Batch


# Writes or counts something; called once for every batch, in order, by the evaluation's own thread. A sink that reads
# the images of the first n batches alone says so by `image_batches = n`, and gets copies of these. One that does not
# say it may read all images, and is waited for after each batch.
Sink = Callable[[SeenBatch], None]


class Records:
    """Matched detections and labels of all batches so far, from which the figures are computed."""

    def __init__(self):
        self.detections: list[tuple[np.ndarray, ...]] = []  # score, class, area
        self.found: list[tuple[np.ndarray, ...]] = []  # detections that took a label: row, hits (k, 10), label's area
        self.labels: list[tuple[np.ndarray, ...]] = []  # class, area
        self.n = 0  # detections

    def add(self, batch: Batch) -> None:
        matches, dets, label_area = match(batch), batch.detections, _area(batch.labels[:, 1:])
        self.detections.append((dets[:, 4], dets[:, 5], _area(dets)))
        self.found.append((matches.found + self.n, matches.hits, label_area.take(matches.taken)))
        self.labels.append((batch.labels[:, 0], label_area))
        self.n += len(dets)

    def figures(self, v5_metric: bool) -> tuple[ClassAP, Curves, dict[str, SizeAP], np.ndarray]:
        """Figures of the labelled classes, curves, figures by size, and the class of every label (m,) int."""
        if not self.detections:
            self.add(Batch(np.zeros((0, 6), "f4"), np.zeros(0, int), np.zeros((0, 5), "f4"), np.zeros(0, int)))
        (score, cls, area), (found, hits, found_area), (label_cls, label_area) = (
            [np.concatenate(column) for column in zip(*part)] for part in (self.detections, self.found, self.labels)
        )
        taken = np.zeros(self.n, np.float32)
        taken[found] = found_area
        ranking = rank_found(found, hits, score, cls, label_cls)
        classes, curves = class_metrics(ranking, score, v5_metric)
        sizes = ap_by_size(ranking, label_cls, area, taken, label_area, v5_metric)
        return classes, curves, sizes, label_cls.astype(int)


def _area(xyxy: np.ndarray) -> np.ndarray:
    return (xyxy[:, 2] - xyxy[:, 0]) * (xyxy[:, 3] - xyxy[:, 1])


def never() -> bool:
    """For evaluations that nobody asks to stop."""
    return False


def evaluate(
    predict: Predict,
    loader: Iterable,
    nc: int,
    config: EvalConfig = DEFAULT,
    sinks: Sequence[Sink] = (),
    should_stop: Callable[[], bool] = never,
) -> EvalResult:
    """Run a detector over a loader of (images, targets, paths, shapes) and measure it.

    should_stop: asked after every batch; if it says so, `EvaluationStopped` is raised.
    """
    records, seen, batches, times = Records(), 0, 0, np.zeros(2)
    losses: dict[str, torch.Tensor] = {}
    further = {name: make(nc) for name, make in FURTHER.items()}
    copied = max((getattr(sink, "image_batches", 0) for sink in sinks), default=0)  # batches
    waits = not all(hasattr(sink, "image_batches") for sink in sinks)

    def account(batch_index: int, batch: LoadedBatch, detections: list[torch.Tensor]) -> None:
        _, targets, paths, shapes, images = batch
        height, width = images.shape[2:]
        native = native_batch(detections, targets, shapes, (height, width))
        records.add(native)
        for metric in further.values():
            metric.update(native)
        for sink in sinks:
            sink(SeenBatch(batch_index, images, targets, paths, shapes, detections, native))

    predicted = predictions(predict, loaded(tqdm(loader, desc=HEADER), copied), ahead=not waits)
    with Background() as background, closing(predicted):
        for batch, prediction in predicted:
            times += prediction.inference_ms, prediction.nms_ms
            for name, value in prediction.losses.items():
                losses[name] = losses[name] + value if name in losses else value
            detections = _on_host(prediction.detections, config.single_cls)
            background.put(partial(account, batches, batch, detections))
            if waits:
                background.wait()
            seen += len(batch.images)
            batches += 1
            if should_stop():
                raise EvaluationStopped
    means = {name: float(value.float().cpu() / batches) for name, value in losses.items()}
    inference_ms, nms_ms = (float(ms) for ms in times / max(seen, 1))
    speed = Speed(inference_ms, nms_ms, config.img_size, config.batch_size)
    result = _result(records, config.v5_metric, nc, seen, means, speed)
    return replace(result, further={name: metric.figure() for name, metric in further.items()})


def _on_host(detections: list[torch.Tensor], single_cls: bool) -> list[torch.Tensor]:
    """(k, 6) float32 each, on the CPU."""
    rows = [found[:, :6].float() for found in on_host(detections)]
    return [torch.cat((found[:, :5], torch.zeros_like(found[:, 5:])), 1) for found in rows] if single_cls else rows


def _result(
    records: Records, v5_metric: bool, nc: int, seen: int, losses: dict[str, float], speed: Speed
) -> EvalResult:
    classes, curves, sizes, label_cls = records.figures(v5_metric)
    ap = classes.ap.mean(1)
    columns = (classes.p, classes.r, classes.ap[:, 0], ap)
    summary = {name: float(x.mean()) if len(x) else 0.0 for name, x in zip(SUMMARY, columns)}
    per_class_ap = np.full(nc, summary[SUMMARY[-1]])
    per_class_ap[classes.classes] = ap
    labels = np.bincount(label_cls, minlength=nc)
    return EvalResult(summary, losses, per_class_ap, seen, labels, classes, curves, sizes, speed)
