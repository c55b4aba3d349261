"""The evaluation loop: predictions of any detector on labelled images, matched and measured.

Matching, metrics and files are computed on whole batches in a background thread while the loader and the network work
on the next batches. On a device with a queue the next batch is launched before the boxes of the previous one are read.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from yolov7fast.core.device import wait_for_device
from yolov7fast.core.process.threads import ThreadPool
from yolov7fast.evaluation.average_precision import ap_by_size, class_metrics
from yolov7fast.evaluation.detection_matching import Batch, match, native_batch
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.eval_result import FURTHER, SUMMARY, EvalResult, Speed
from yolov7fast.predictors.predictor import Finish, Prediction, on_host

HEADER = ("%20s" + "%12s" * 6) % ("Class", "Images", "Labels", "P", "R", "mAP@.5", "mAP@.5:.95")
AHEAD = 4  # batches that may wait for the background thread: more would only hold memory
DEFAULT = EvalConfig()
# a `predictors.base.Predictor`, or any function with its signature
Predict = Callable[[torch.Tensor, Sequence[Any], torch.Tensor], Prediction]
Launch = Callable[[torch.Tensor, Sequence[Any], torch.Tensor], Finish]


class EvaluationStopped(Exception):
    """Raised when `should_stop` ends an evaluation; there is no result."""


class LoadedBatch(NamedTuple):
    """A batch of a loader, which may reuse the memory of its images and targets."""

    images: torch.Tensor  # uint8 (B, 3, H, W), the loader's
    targets: torch.Tensor  # (n, 6), a copy
    paths: Sequence[str]
    shapes: Sequence[Any]  # per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h)))
    shown: torch.Tensor  # the images for sinks: a copy if sinks read them


class SeenBatch(NamedTuple):
    """The input of a sink; `native` is in pixels of the original images."""

    batch_index: int
    images: torch.Tensor  # uint8 (B, 3, H, W); overwritten by the loader later, unless copied for a sink (see Sink)
    targets: torch.Tensor  # (n, 6)
    paths: Sequence[str]
    shapes: Sequence[Any]  # per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h)))
    detections: list[torch.Tensor]  # per image (k, 6), pixels of the batch
    native: Batch


# A sink writes or counts something. It is called once for every batch, in order, in the background thread. A sink that
# reads only the images of the first n batches declares `image_batches = n` and gets copies of them. A sink without that
# attribute may read all images, so the loop waits for it after each batch.
Sink = Callable[[SeenBatch], None]


def never() -> bool:
    """The default of `should_stop`."""
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

    should_stop: called after every batch; if it returns True, `EvaluationStopped` is raised.
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
    waiting: deque[Future] = deque()  # batches to account for

    def wait_until_at_most(most: int) -> None:
        """Wait until at most `most` batches are not accounted for; an error of a sink is raised here."""
        while waiting and (len(waiting) > most or waiting[0].done()):
            waiting.popleft().result()

    with ThreadPool(1, thread_name_prefix="evaluation") as background, closing(predicted):
        try:
            for batch, prediction in predicted:
                times += prediction.inference_ms, prediction.nms_ms
                for name, value in prediction.losses.items():
                    losses[name] = losses[name] + value if name in losses else value
                detections = _on_host(prediction.detections, config.single_cls)
                wait_until_at_most(AHEAD - 1)
                waiting.append(background.submit(account, batches, batch, detections))
                if waits:
                    wait_until_at_most(0)
                seen += len(batch.images)
                batches += 1
                if should_stop():
                    raise EvaluationStopped
            wait_until_at_most(0)
        finally:
            for future in waiting:
                future.cancel()
    means = {name: float(value.float().cpu() / batches) for name, value in losses.items()}
    inference_ms, nms_ms = (float(ms) for ms in times / max(seen, 1))
    speed = Speed(inference_ms, nms_ms, config.img_size, config.batch_size)
    result = records.result(config.v5_metric, nc, seen, means, speed)
    return replace(result, further={name: metric.figure() for name, metric in further.items()})


def _on_host(detections: list[torch.Tensor], single_cls: bool) -> list[torch.Tensor]:
    """(k, 6) float32 each, on the CPU."""
    rows = [found[:, :6].float() for found in on_host(detections)]
    return [torch.cat((found[:, :5], torch.zeros_like(found[:, 5:])), 1) for found in rows] if single_cls else rows


class Records:
    """Matched detections and labels of all batches so far, from which the metrics are computed."""

    def __init__(self):
        self.detections: list[tuple[np.ndarray, ...]] = []  # correct (k, 10), score, class, area, area of its label
        self.labels: list[tuple[np.ndarray, ...]] = []  # class, area

    def add(self, batch: Batch) -> None:
        matches, dets, label_area = match(batch), batch.detections, _area(batch.labels[:, 1:])
        taken = np.append(label_area, 0)[matches.label]  # 0 for a detection without a label
        self.detections.append((matches.correct, dets[:, 4], dets[:, 5], _area(dets), taken))
        self.labels.append((batch.labels[:, 0], label_area))

    def result(self, v5_metric: bool, nc: int, seen: int, losses: dict[str, float], speed: Speed) -> EvalResult:
        if not self.detections:
            self.add(Batch(np.zeros((0, 6), "f4"), np.zeros(0, int), np.zeros((0, 5), "f4"), np.zeros(0, int)))
        correct, score, cls, area, taken = (np.concatenate(column) for column in zip(*self.detections))
        label_cls, label_area = (np.concatenate(column) for column in zip(*self.labels))
        classes, curves = class_metrics(correct, score, cls, label_cls, v5_metric)
        sizes = ap_by_size(correct, score, cls, label_cls, area, taken, label_area, v5_metric)
        ap = classes.ap.mean(1)
        columns = (classes.p, classes.r, classes.ap[:, 0], ap)
        summary = {name: float(x.mean()) if len(x) else 0.0 for name, x in zip(SUMMARY, columns)}
        per_class_ap = np.full(nc, summary[SUMMARY[-1]])
        per_class_ap[classes.classes] = ap
        labels = np.bincount(label_cls.astype(int), minlength=nc)
        return EvalResult(summary, losses, per_class_ap, seen, labels, classes, curves, sizes, speed)


def _area(xyxy: np.ndarray) -> np.ndarray:
    return (xyxy[:, 2] - xyxy[:, 0]) * (xyxy[:, 3] - xyxy[:, 1])


# --- overlap of device and host ---------------------------------------------------------------------------------------


def loaded(loader: Iterable, copied: int) -> Iterator[LoadedBatch]:
    """The batches of a loader; the images of the first `copied` batches are copied."""
    for index, (images, targets, paths, shapes) in enumerate(loader):
        yield LoadedBatch(images, targets.clone(), paths, shapes, images.clone() if index < copied else images)


def predictions(
    predict: Predict, batches: Iterable[LoadedBatch], ahead: bool = True
) -> Generator[tuple[LoadedBatch, Prediction], None, None]:
    """Each batch with its prediction, in order.

    ahead: a detector with `runs_ahead` may be given the next batch before the previous one is finished; no more than
    two batches are on the device. On an early exit the device is waited for: it may still be reading the images.
    """
    launch: Launch | None = getattr(predict, "launch", None)
    if not ahead or launch is None or not getattr(predict, "runs_ahead", False):
        for batch in batches:
            yield batch, predict(batch.images, batch.shapes, batch.targets)
        return
    launched: deque[tuple[LoadedBatch, Finish]] = deque()
    try:
        for batch in batches:
            launched.append((batch, launch(batch.images, batch.shapes, batch.targets)))
            if len(launched) == 2:
                yield _finished(launched)
        while launched:
            yield _finished(launched)
    finally:
        if launched:
            wait_for_device()


def _finished(launched: deque[tuple[LoadedBatch, Finish]]) -> tuple[LoadedBatch, Prediction]:
    """The oldest batch; a function, so that no local variable keeps its output on the device."""
    batch, finish = launched.popleft()
    return batch, finish()
