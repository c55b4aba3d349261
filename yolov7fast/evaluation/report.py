"""What an evaluation says at its end: the printed table, its files, its curves."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from yolov7fast.core.drawing import class_name
from yolov7fast.core.files.atomic import atomic_file
from yolov7fast.evaluation.coco_metrics import write_json
from yolov7fast.evaluation.config import EvalConfig
from yolov7fast.evaluation.curve_plots import plot_confusion, plot_mc_curve, plot_pr_curve
from yolov7fast.evaluation.result import MAP, MAP50, SUMMARY, EvalResult

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
    for size, figures in result.sizes.items():
        print(SIZE_ROW % (size, result.seen, figures.labels, *map(_shown, (figures.ap50, figures.ap, figures.ar))))


def _shown(value: float) -> str:
    """A figure in a table; a dash where there was nothing to measure."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def thresholds_text(config: EvalConfig, uses_nms: bool) -> str:
    """The thresholds that a table's figures depend on."""
    nms = f"NMS IoU {config.iou_thres:g}" if uses_nms else "no NMS"
    return f"Thresholds: confidence {config.conf_thres:g}, {nms}"


def training_flags(config: EvalConfig, uses_nms: bool) -> str:
    """The flags of test.py that give the thresholds of validation in training; empty where they are the same."""
    training = EvalConfig()
    flags = []
    if config.conf_thres != training.conf_thres:
        flags.append(f"--conf-thres {training.conf_thres:g}")
    if uses_nms and config.iou_thres != training.iou_thres:
        flags.append(f"--iou-thres {training.iou_thres:g}")
    return " ".join(flags)


def print_speed(result: EvalResult, precision: str) -> None:
    """precision: what the network ran in; half on CUDA, which moves the figures in the third or fourth digit."""
    inference, nms, size, batch = result.speed
    print(
        f"Speed: {inference:.1f}/{nms:.1f}/{result.speed.total_ms:.1f} ms inference/NMS/total per {size}x{size} image "
        f"at batch-size {batch}, in {precision}"
    )


def print_coco(result: EvalResult) -> None:
    """pycocotools' figures and ours side by side; they differ by design."""
    if result.coco:
        ours, theirs = result.summary, result.coco
        print(f"{'':20s}{'mAP@.5':>12s}{'mAP@.5:.95':>12s}")
        print("%20s%12.3g%12.3g" % ("this metric", ours[MAP50], ours[MAP]))
        print("%20s%12.3g%12.3g" % ("pycocotools", theirs["AP50"], theirs["AP"]))


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
    """`per_class.csv`, and `metrics.json` with every figure and the settings it was made with."""
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
        "further": _without_nan(dict(result.further)),
        "losses": dict(result.losses),
        "sizes": {size: _without_nan(figures._asdict()) for size, figures in result.sizes.items()},
        "times": {
            "inference_ms": result.speed.inference_ms,
            "nms_ms": result.speed.nms_ms,
            "total_ms": result.speed.total_ms,
        },
        "coco": result.coco,
        "per_class": rows,
    }
    write_json(document, save_dir / "metrics.json", indent=1)


def _without_nan(figures: dict[str, float]) -> dict[str, float | None]:
    """What was not measured is null: JSON knows no NaN."""
    return {name: None if math.isnan(value) else value for name, value in figures.items()}


def write_per_class_ap(result: EvalResult, names: Sequence[str], path: str | Path) -> None:
    """{map50, map, per_class: {id: {ap50, ap, name}}} as JSON (`--save-per-class-ap`)."""
    rows = per_class_rows(result, names)
    per_class = {str(r["class"]): {"ap50": r["AP50"], "ap": r["AP"], "name": r["name"]} for r in rows}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    document = {"map50": result.summary[MAP50], "map": result.summary[MAP], "per_class": per_class}
    write_json(document, path, indent=1)


def draw_curves(result: EvalResult, matrix: np.ndarray, names: Sequence[str], save_dir: Path) -> None:
    """PR, F1, P and R curves, and the confusion matrix."""
    curves, ids = result.curves, result.classes.classes.tolist()
    plot_pr_curve(curves.x, curves.pr, result.classes.ap[:, 0], save_dir / "PR_curve.png", names, ids)
    for label, values in (("F1", curves.f1), ("Precision", curves.p), ("Recall", curves.r)):
        short = "F1" if label == "F1" else label[0]
        plot_mc_curve(curves.x, values, save_dir / f"{short}_curve.png", names, ids, label)
    plot_confusion(matrix, save_dir / "confusion_matrix.png", names)
