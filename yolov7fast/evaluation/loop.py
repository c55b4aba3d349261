"""Evaluation of a detector on labelled images. Which detector it is, the loop does not know: it asks a function.

Everything between the detector's boxes and the figures is done on whole batches, on the host, while the loader works.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from yolov7fast.core.device import time_synchronized
from yolov7fast.metrics.average_precision import ClassAP, Curves, SizeAP, ap_by_size, class_metrics, rank_by_class
from yolov7fast.metrics.matching import Batch, match, native_batch

HEADER = ("%20s" + "%12s" * 6) % ("Class", "Images", "Labels", "P", "R", "mAP@.5", "mAP@.5:.95")


class Prediction(NamedTuple):
    """What a detector says of a batch."""

    detections: list[torch.Tensor]  # per image (k, 6): xyxy in pixels of the batch, score, class; best first
    inference_ms: float = 0.0  # for the whole batch
    nms_ms: float = 0.0
    loss: torch.Tensor | None = None  # (3,) box, obj, cls, or whatever parts the detector's loss has


# takes images uint8 (B, 3, H, W), targets (n, 6) image, class, xywh normalised to the batch, and the images' shapes
Predict = Callable[[torch.Tensor, torch.Tensor, Sequence[Any]], Prediction]


class SeenBatch(NamedTuple):
    """What a sink gets to see of a batch, `native` being in pixels of the original pictures."""

    index: int
    images: torch.Tensor  # uint8 (B, 3, H, W); may be overwritten by the loader later
    targets: torch.Tensor  # (n, 6)
    paths: Sequence[str]
    shapes: Sequence[Any]  # per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h)))
    detections: list[torch.Tensor]  # per image (k, 6), pixels of the batch
    native: Batch


Sink = Callable[[SeenBatch], None]  # writes or counts something; called once for every batch, in order


class EvalResult(tuple):
    """Unpacks as (P, R, mAP@.5, mAP@.5:.95, box, obj, cls), per-class mAP (nc,), (times in ms ..., size, size, batch).

    It also carries what the table shows:
    own: P, R, mAP@.5, mAP@.5:.95 of our own metric, which pycocotools' figures replace in the tuple where it ran
    seen: images; labels: (nc,) label counts; classes: `ClassAP`; curves: `Curves`
    sizes: 'all', 'small', 'medium', 'large' -> `SizeAP`; coco: pycocotools' twelve numbers by name, or None
    """

    own: tuple[float, float, float, float]
    seen: int
    labels: np.ndarray
    classes: ClassAP
    curves: Curves
    sizes: dict[str, SizeAP]
    coco: dict[str, float] | None

    def __new__(cls, results, maps, times, **extra):
        self = super().__new__(cls, (tuple(results), maps, tuple(times)))
        self.__dict__.update(extra)
        return self

    @property
    def results(self) -> tuple[float, ...]:
        return self[0]

    @property
    def maps(self) -> np.ndarray:
        return self[1]

    @property
    def times(self) -> tuple[float, ...]:
        return self[2]

    def with_coco(self, stats: dict[str, float]) -> "EvalResult":
        """The same with pycocotools' AP and AP50 in the place of ours, also for classes without labels."""
        absent = np.setdiff1d(np.arange(len(self.maps)), self.classes.classes)
        maps = self.maps.copy()
        maps[absent] = stats["AP"]
        results = (*self.results[:2], stats["AP50"], stats["AP"], *self.results[4:])
        return EvalResult(results, maps, self.times, **{**self.__dict__, "coco": stats})


class Records:
    """Matched detections and labels of all batches so far, from which the figures are computed."""

    def __init__(self):
        self.detections: list[tuple[np.ndarray, ...]] = []  # correct (n, 10), score, class, area, area of its label
        self.labels: list[tuple[np.ndarray, ...]] = []  # class, area

    def add(self, batch: Batch) -> None:
        matches = match(batch)
        label_area = _area(batch.labels[:, 1:])
        taken = np.zeros(len(batch.detections), np.float32)
        found = matches.label >= 0
        taken[found] = label_area[matches.label[found]]
        dets = batch.detections
        self.detections.append((matches.correct, dets[:, 4], dets[:, 5], _area(dets), taken))
        self.labels.append((batch.labels[:, 0], label_area))

    def figures(self, v5_metric: bool) -> tuple[ClassAP, Curves, dict[str, SizeAP], np.ndarray]:
        """Figures of the labelled classes, curves, figures by size, and the class of every label (m,) int."""
        if not self.detections:
            self.add(Batch(np.zeros((0, 6), "f4"), np.zeros(0, int), np.zeros((0, 5), "f4"), np.zeros(0, int)))
        correct, score, cls, area, taken = (np.concatenate(column) for column in zip(*self.detections))
        label_cls, label_area = (np.concatenate(column) for column in zip(*self.labels))
        ranked = rank_by_class(correct, score, cls, label_cls)
        classes, curves = class_metrics(ranked, score, v5_metric)
        sizes = ap_by_size(ranked, label_cls, area, taken, label_area, v5_metric)
        return classes, curves, sizes, label_cls.astype(int)


def _area(xyxy: np.ndarray) -> np.ndarray:
    return (xyxy[:, 2] - xyxy[:, 0]) * (xyxy[:, 3] - xyxy[:, 1])


def evaluate(
    predict: Predict,
    loader: Iterable,
    nc: int,
    *,
    imgsz: int = 0,
    batch_size: int = 0,
    single_cls: bool = False,
    v5_metric: bool = False,
    sinks: Sequence[Sink] = (),
) -> EvalResult:
    """Run a detector over a loader of (images, targets, paths, shapes) and measure it.

    single_cls: every detection counts as class 0, as the labels of such a loader do. imgsz, batch_size: reported only.
    """
    records, seen, loss, times = Records(), 0, None, np.zeros(2)
    for index, (images, targets, paths, shapes) in enumerate(tqdm(loader, desc=HEADER)):
        prediction = predict(images, targets, shapes)
        times += prediction.inference_ms, prediction.nms_ms
        if prediction.loss is not None:
            loss = prediction.loss if loss is None else loss + prediction.loss
        detections = _on_host(prediction.detections, single_cls)
        native = native_batch(detections, targets, shapes, tuple(images.shape[2:]))
        records.add(native)
        seen += len(images)
        for sink in sinks:
            sink(SeenBatch(index, images, targets, paths, shapes, detections, native))
    losses = [0.0, 0.0, 0.0] if loss is None else (loss.float().cpu() / (index + 1)).tolist()
    per_image = times / max(seen, 1)
    return _result(records, v5_metric, nc, seen, losses, (*per_image, per_image.sum(), imgsz, imgsz, batch_size))


def _on_host(detections: list[torch.Tensor], single_cls: bool) -> list[torch.Tensor]:
    """(k, 6) float32 each, on the CPU by one transfer."""
    rows = torch.cat([d[:, :6] for d in detections]).float().cpu()
    if single_cls:
        rows = torch.cat((rows[:, :5], torch.zeros_like(rows[:, 5:])), 1)
    return list(rows.split([len(d) for d in detections]))


def _result(records: Records, v5_metric: bool, nc: int, seen: int, losses, times) -> EvalResult:
    classes, curves, sizes, label_cls = records.figures(v5_metric)
    ap = classes.ap.mean(1)
    own = tuple(float(x.mean()) if len(x) else 0.0 for x in (classes.p, classes.r, classes.ap[:, 0], ap))
    maps = np.full(nc, own[3])
    maps[classes.classes] = ap
    labels = np.bincount(label_cls, minlength=nc)
    extra = {"own": own, "seen": seen, "labels": labels, "classes": classes, "curves": curves, "sizes": sizes}
    return EvalResult((*own, *losses), maps, map(float, times), **extra, coco=None)


class Stopwatch:
    """Milliseconds between calls of `lap`, the device's work included."""

    def __init__(self):
        self.last = time_synchronized()

    def lap(self) -> float:
        now = time_synchronized()
        passed, self.last = (now - self.last) * 1e3, now
        return passed
