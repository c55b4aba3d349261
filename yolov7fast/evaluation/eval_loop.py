"""Evaluation of a detector on labelled images. Which detector it is, the loop does not know: it asks a function.

Everything between the detector's boxes and the figures is done on whole batches, on the host, by a thread of its own,
while the loader and the network work on the next batches. A device that has a queue of its own is handed the next batch
before the boxes of the former one are read (`overlap`).
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from yolov7fast.core.device import wait_for_device
from yolov7fast.core.process.threads import ThreadPool
from yolov7fast.evaluation.average_precision import ClassAP, Curves, SizeAP, ap_by_size, class_metrics, rank_found
from yolov7fast.evaluation.detection_matching import Batch, match, native_batch
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.eval_result import FURTHER, SUMMARY, EvalResult, Speed
from yolov7fast.predictors.base import Finish, Prediction, on_host

AHEAD = 4  # tasks that may wait in `Background`: more would only hold memory
# a `predictors.base.Predictor`, or any function that is called like one
Predict = Callable[[torch.Tensor, Sequence[Any], torch.Tensor], Prediction]
Launch = Callable[[torch.Tensor, Sequence[Any], torch.Tensor], Finish]


class LoadedBatch(NamedTuple):
    """A batch of a loader, which may use the memory of its images and targets again."""

    images: torch.Tensor  # uint8 (B, 3, H, W), the loader's
    targets: torch.Tensor  # (n, 6), a copy
    paths: Sequence[str]
    shapes: Sequence[Any]  # per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h)))
    shown: torch.Tensor  # the images for sinks: a copy where they look at them


Predicted = tuple[LoadedBatch, Prediction]


def loaded(loader: Iterable, copied: int) -> Iterator[LoadedBatch]:
    """The batches of a loader; of the first `copied` the images are copied, too."""
    for index, (images, targets, paths, shapes) in enumerate(loader):
        yield LoadedBatch(images, targets.clone(), paths, shapes, images.clone() if index < copied else images)


def predictions(
    predict: Predict, batches: Iterable[LoadedBatch], ahead: bool = True
) -> Generator[Predicted, None, None]:
    """Each batch with what the detector says of it, in order.

    ahead: the next batch may be asked for before the former is given out, which a detector that `runs_ahead` makes use
    of. All others answer at once: on a CPU there is nothing to overlap, and a second output would only take memory.
    """
    launch: Launch | None = getattr(predict, "launch", None)
    if ahead and launch is not None and getattr(predict, "runs_ahead", False):
        yield from _launched_ahead(launch, batches)
    else:
        for batch in batches:
            yield batch, predict(batch.images, batch.shapes, batch.targets)


def _launched_ahead(launch: Launch, batches: Iterable[LoadedBatch]) -> Generator[Predicted, None, None]:
    """A batch is finished after the next one was launched; no more than these two are on the device.

    One that is given up is waited for: the device may still be reading its images.
    """
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


def _finished(launched: deque[tuple[LoadedBatch, Finish]]) -> Predicted:
    """The oldest; once it is given out, nothing holds its output on the device."""
    batch, finish = launched.popleft()
    return batch, finish()


class Background:
    """`put` hands work over and returns; what it raises is raised by a later `put` or `wait`.

    Work is done in order by one thread, in parallel with the network and the loader.
    """

    def __init__(self):
        self.pool = ThreadPool(1, thread_name_prefix="evaluation")
        self.waiting: deque[Future] = deque()

    def __enter__(self) -> "Background":
        return self

    def put(self, work: Callable[[], None]) -> None:
        while self.waiting and (len(self.waiting) >= AHEAD or self.waiting[0].done()):
            self.waiting.popleft().result()
        self.waiting.append(self.pool.submit(work))

    def wait(self) -> None:
        """Until all work is done."""
        while self.waiting:
            self.waiting.popleft().result()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Work not yet begun is dropped where an error ends the evaluation; else all of it is waited for."""
        try:
            if kind is None:
                self.wait()
        finally:
            self.pool.shutdown(cancel_futures=True)


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
