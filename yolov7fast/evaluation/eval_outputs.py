"""Outputs of an evaluation: sinks that see every batch, and the tables, files and plots written at its end."""

import csv
import json
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from yolov7fast.core.boxes import xyxy2xywh
from yolov7fast.core.drawing import class_name, plot_images
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_file, write_atomically
from yolov7fast.core.text import counted
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.labels import check_class_range
from yolov7fast.evaluation.coco_metrics import (
    GroundTruth,
    coco_stats,
    detection_rows,
    find_annotations,
    ground_truth,
)
from yolov7fast.evaluation.confusion_matrix import ConfusionMatrix
from yolov7fast.evaluation.curve_plots import plot_confusion, plot_mc_curve, plot_pr_curve
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.eval_loop import SeenBatch, Sink
from yolov7fast.evaluation.eval_result import MAP, MAP50, SUMMARY, EvalResult
from yolov7fast.predictors.predictor import Predictor

ROW = "%20s" + "%12i" * 2 + "%12.3g" * 4
SIZE_HEADER = ("%20s" + "%12s" * 5) % ("Size", "Images", "Labels", "mAP@.5", "mAP@.5:.95", "AR")
SIZE_ROW = "%20s" + "%12i" * 2 + "%12s" * 3
JSON_NAMES = ("P", "R", "mAP50", "mAP")  # of the summary in metrics.json


def print_table(result: EvalResult, names: Sequence[str], per_class: bool) -> None:
    """The summary row; with `per_class` also a row for each labelled class, and AP and AR by object size."""
    print(ROW % ("all", result.seen, result.labels.sum(), *(result.summary[name] for name in SUMMARY)))
    for name, value in result.further.items():
        print("%20s%12s" % (name.removeprefix("metrics/"), _shown(value)))
    if not per_class:
        return
    if len(names) > 1:
        for row in per_class_rows(result, names):
            print(ROW % (row["name"], result.seen, row["labels"], row["P"], row["R"], row["AP50"], row["AP"]))
    print(SIZE_HEADER)
    for size, found in result.sizes.items():
        print(SIZE_ROW % (size, result.seen, found.labels, *map(_shown, (found.ap50, found.ap, found.ar))))


def _shown(value: float) -> str:
    """A number of a table; a dash if nothing was measured."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def print_thresholds(config: EvalConfig, uses_nms: bool) -> None:
    """The thresholds that a table depends on; for test.py also the flags that give those of validation in training."""
    nms = f"NMS IoU {config.iou_thres:g}" if uses_nms else "no NMS"
    print(f"Thresholds: confidence {config.conf_thres:g}, {nms}")
    training, names = EvalConfig(), ("conf_thres", "iou_thres") if uses_nms else ("conf_thres",)
    other = [name for name in names if getattr(training, name) != getattr(config, name)]
    if other and config.standalone:
        flags = " ".join(f"--{name.replace('_', '-')} {getattr(training, name):g}" for name in other)
        print(f"Validation during training uses other thresholds: {flags} reproduces its values")


def print_speed(result: EvalResult, precision: str) -> None:
    """precision: what the network ran in; half on CUDA, which changes the third or fourth digit."""
    inference, nms, size, batch = result.speed
    print(
        f"Speed: {inference:.1f}/{nms:.1f}/{result.speed.total_ms:.1f} ms inference/NMS/total per {size}x{size} image "
        f"at batch-size {batch}, in {precision}"
    )


def per_class_rows(result: EvalResult, names: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each class that has labels, ascending."""
    classes = result.classes
    return [
        {
            "class": int(c),
            "name": class_name(names, c),
            "labels": int(result.labels[c]),
            "P": float(classes.p[i]),
            "R": float(classes.r[i]),
            "F1": float(classes.f1[i]),
            "AP50": float(classes.ap[i, 0]),
            "AP75": float(classes.ap[i, 5]),
            "AP": float(classes.ap[i].mean()),
        }
        for i, c in enumerate(classes.classes)
    ]


def write_files(result: EvalResult, names: Sequence[str], save_dir: Path, settings: dict[str, Any]) -> None:
    """Write `per_class.csv`, and `metrics.json` with every metric and the settings."""
    rows = per_class_rows(result, names)
    with atomic_file(save_dir / "per_class.csv", "w") as f:
        writer = csv.DictWriter(f, ["class", "name", "labels", "P", "R", "F1", "AP50", "AP75", "AP"])
        writer.writeheader()
        writer.writerows(rows)
    document = {
        "settings": settings,
        "images": result.seen,
        "labels": int(result.labels.sum()),
        **dict(zip(JSON_NAMES, (result.summary[name] for name in SUMMARY))),
        "further": without_nan(dict(result.further)),
        "losses": dict(result.losses),
        "sizes": {size: without_nan(found._asdict()) for size, found in result.sizes.items()},
        "times": {
            "inference_ms": result.speed.inference_ms,
            "nms_ms": result.speed.nms_ms,
            "total_ms": result.speed.total_ms,
        },
        "coco": result.coco,
        "per_class": rows,
    }
    write_atomically(save_dir / "metrics.json", json.dumps(document, indent=1))


def without_nan(values: dict[str, float]) -> dict[str, float | None]:
    """NaN becomes null: JSON has no NaN."""
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def write_per_class_ap(result: EvalResult, names: Sequence[str], path: str | Path) -> None:
    """{map50, map, per_class: {id: {ap50, ap, name}}} as JSON (`--save-per-class-ap`)."""
    rows = per_class_rows(result, names)
    per_class = {str(r["class"]): {"ap50": r["AP50"], "ap": r["AP"], "name": r["name"]} for r in rows}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    document = {"map50": result.summary[MAP50], "map": result.summary[MAP], "per_class": per_class}
    write_atomically(path, json.dumps(document, indent=1))


def draw_curves(result: EvalResult, matrix: np.ndarray, names: Sequence[str], save_dir: Path) -> None:
    """PR, F1, P and R curves, and the confusion matrix."""
    curves, ids = result.curves, result.classes.classes.tolist()
    plot_pr_curve(curves.x, curves.pr, result.classes.ap[:, 0], save_dir / "PR_curve.png", names, ids)
    for label, values in (("F1", curves.f1), ("Precision", curves.p), ("Recall", curves.r)):
        short = "F1" if label == "F1" else label[0]
        plot_mc_curve(curves.x, values, save_dir / f"{short}_curve.png", names, ids, label)
    plot_confusion(matrix, save_dir / "confusion_matrix.png", names)


log = logging.getLogger(__name__)
DRAWN_BATCHES = 3
DRAWN_IMAGES = 16


class TextSink:
    """`labels/<stem>.txt`: a line for each detection, best first: class, xywh normalised, and the score if wanted.

    Each run overwrites the file; images with the same stem in several folders share it.
    """

    image_batches = 0

    def __init__(self, folder: Path, save_conf: bool):
        self.folder, self.save_conf, self.begun = folder, save_conf, set()
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, batch: SeenBatch) -> None:
        for path, (size, _), dets in zip(batch.paths, batch.shapes, batch.native.split(len(batch.paths))):
            if not len(dets):
                continue
            h, w = size
            xywh = xyxy2xywh(dets[:, :4]) / np.array([w, h, w, h], np.float32)
            columns = [dets[:, 5:6], xywh] + ([dets[:, 4:5]] if self.save_conf else [])
            lines = [" ".join(f"{value:g}" for value in row) for row in np.concatenate(columns, 1).tolist()]
            stem = Path(path).stem
            with (self.folder / f"{stem}.txt").open("a" if stem in self.begun else "w") as f:
                f.write("\n".join(lines) + "\n")
            self.begun.add(stem)


class JsonSink:
    """Collects COCO's rows."""

    image_batches = 0

    def __init__(self, truth: GroundTruth):
        self.truth = truth
        self.rows: list[dict[str, Any]] = []

    def __call__(self, batch: SeenBatch) -> None:
        for path, dets in zip(batch.paths, batch.native.split(len(batch.paths))):
            self.rows += detection_rows(path, dets, self.truth)


class ImageSink:
    """`test_batch{0,1,2}_{labels,pred}.jpg`; a drawing that fails is logged."""

    image_batches = DRAWN_BATCHES

    def __init__(self, save_dir: Path, names):
        self.save_dir, self.names = save_dir, names

    def __call__(self, batch: SeenBatch) -> None:
        if batch.batch_index >= DRAWN_BATCHES:
            return
        images = batch.images[:DRAWN_IMAGES].cpu()
        paths = list(batch.paths[: len(images)])
        with drawing(self.save_dir):
            for kind, targets in (("labels", batch.targets.cpu()), ("pred", detections_as_targets(batch))):
                fname = self.save_dir / f"test_batch{batch.batch_index}_{kind}.jpg"
                plot_images(images, targets, paths, fname, self.names)


@contextmanager
def drawing(save_dir: Path) -> Iterator[None]:
    """Drawings never end a run: an error is logged."""
    try:
        yield
    except Exception as error:
        log.warning("an image in %s could not be drawn: %s", save_dir, error)


def detections_as_targets(batch: SeenBatch) -> np.ndarray:
    """(n, 7) image, class, xywh in pixels of the batch, score."""
    rows = [np.zeros((0, 7), np.float32)]
    for i, dets in enumerate(batch.detections):
        dets = dets.cpu().numpy()
        xywh = xyxy2xywh(dets[:, :4])
        rows.append(np.concatenate((np.full((len(dets), 1), i), dets[:, 5:6], xywh, dets[:, 4:5]), 1))
    return np.concatenate(rows)


class Outputs:
    """Everything that one evaluation writes, according to its configuration.

    data_set: the loader's, with img_files, label_files, labels (m, 5) and shapes (n, 2) w, h.
    """

    def __init__(self, save_dir: Path, data: DataYaml, config: EvalConfig, data_set, weights: list[str]):
        self.save_dir, self.data, self.config, self.data_set, self.weights = save_dir, data, config, data_set, weights
        self.names = ["item"] if config.single_cls and data.nc > 1 else data.names
        self.sinks: list[Sink] = []
        self.closed_sinks: list[Any] = []
        self.rows: JsonSink | None = None
        self.matrix: ConfusionMatrix | None = None
        self._check_labels()
        save_dir.mkdir(parents=True, exist_ok=True)
        if config.save_txt or config.save_hybrid:
            self.sinks.append(TextSink(save_dir / "labels", config.save_conf))
        if config.save_json:
            annotations = find_annotations(data, config.split, config.annotations)
            self.rows = JsonSink(ground_truth(annotations, data_set, self.names, config.is_coco))
            self.sinks.append(self.rows)
        if config.plots:
            self.matrix = ConfusionMatrix(len(self.names))
            self.sinks += [ImageSink(save_dir, self.names), self.matrix]

    def add(self, sink: Any) -> None:
        """Add a sink that sees every batch; its method `close` is called when the evaluation is complete."""
        self.sinks.append(sink)
        self.closed_sinks.append(sink)

    def _check_labels(self) -> None:
        """Raise UserError for labels beyond nc, or if there are no labels and no detections are to be written."""
        files, wanted = self.data_set.label_files, self.config
        check_class_range(self.data_set.labels, files, len(self.names), self.data.path)
        if not any(map(len, self.data_set.labels)):
            message = f"none of the {counted(len(files), 'image')} has a label"
            message += f" (looked in {Path(files[0]).parent})" if len(files) else ""
            if wanted.standalone and not (wanted.save_json or wanted.save_txt):
                raise UserError(f"{message}: nothing to measure; --save-txt and --save-json write detections without")
            log.warning("%s: all metrics will be 0", message)

    def finish(self, result: EvalResult, predictor: Predictor) -> EvalResult:
        """Print and write the result; metrics of pycocotools replace ours in it where it ran."""
        config = self.config
        for sink in self.closed_sinks:
            sink.close()
        per_class = config.verbose or (config.standalone and len(self.names) < 50)
        print_table(result, self.names, per_class)
        print_thresholds(config, predictor.uses_nms)
        if config.standalone:
            print_speed(result, predictor.precision)
        if self.rows is not None:
            result = self._finish_json(result, self.rows)
        if config.standalone or self.matrix is not None:
            settings = {"weights": self.weights, "data": self.data.path, "precision": predictor.precision}
            settings |= config.settings() | ({} if predictor.uses_nms else {"iou_thres": None, "agnostic": None})
            write_files(result, self.names, self.save_dir, settings)
        if self.matrix is not None:
            with drawing(self.save_dir):
                draw_curves(result, self.matrix.matrix, self.names, self.save_dir)
        return result

    def _finish_json(self, result: EvalResult, sink: JsonSink) -> EvalResult:
        path = self.save_dir / f"{Path(self.weights[0]).stem if self.weights else ''}_predictions.json"
        write_atomically(path, json.dumps(sink.rows))
        print(f"{counted(len(sink.rows), 'detection')} in {path}; ground truth: {sink.truth.source}")
        stats = coco_stats(sink.truth, sink.rows)
        if stats:
            result = result.with_coco(stats)
            # our metric and theirs, which differ by design
            print(f"{'':20s}{'mAP@.5':>12s}{'mAP@.5:.95':>12s}")
            print("%20s%12.3g%12.3g" % ("this metric", result.summary[MAP50], result.summary[MAP]))
            print("%20s%12.3g%12.3g" % ("pycocotools", stats["AP50"], stats["AP"]))
        return result
