"""What an evaluation says at its end: the printed table, its files, its curves."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from yolov7fast.evaluation.loop import EvalResult
from yolov7fast.metrics.coco import write_json
from yolov7fast.plots import plot_confusion, plot_mc_curve, plot_pr_curve

ROW = "%20s" + "%12i" * 2 + "%12.3g" * 4
SIZE_HEADER = ("%20s" + "%12s" * 5) % ("Size", "Images", "Labels", "mAP@.5", "mAP@.5:.95", "AR")
SIZE_ROW = "%20s" + "%12i" * 2 + "%12.3g" * 3


def print_table(result: EvalResult, names: Sequence[str], per_class: bool) -> None:
    """The summary row; with `per_class` also a row for each labelled class, and AP and AR by object size."""
    print(ROW % ("all", result.seen, result.labels.sum(), *result.own))
    if not per_class:
        return
    if len(names) > 1:
        for row in per_class_rows(result, names):
            print(ROW % (row["name"], result.seen, row["labels"], row["P"], row["R"], row["AP50"], row["AP"]))
    print(SIZE_HEADER)
    for size, figures in result.sizes.items():
        print(SIZE_ROW % (size, result.seen, figures.labels, figures.ap50, figures.ap, figures.ar))


def print_speed(result: EvalResult, precision: str) -> None:
    """precision: what the network ran in; half on CUDA, which moves the figures in the third or fourth digit."""
    inference, nms, total, size, _, batch = result.times
    print(
        f"Speed: {inference:.1f}/{nms:.1f}/{total:.1f} ms inference/NMS/total per {size:.0f}x{size:.0f} image "
        f"at batch-size {batch:.0f}, in {precision}"
    )


def print_coco(result: EvalResult) -> None:
    """pycocotools' figures and ours side by side; they differ by design."""
    if result.coco:
        ours, theirs = result.own, result.coco
        print(f"{'':20s}{'mAP@.5':>12s}{'mAP@.5:.95':>12s}")
        print("%20s%12.3g%12.3g" % ("this metric", ours[2], ours[3]))
        print("%20s%12.3g%12.3g" % ("pycocotools", theirs["AP50"], theirs["AP"]))


def per_class_rows(result: EvalResult, names: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each class that has labels, ascending."""
    classes = result.classes
    return [
        {
            "class": int(c),
            "name": str(names[c]),
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
    with (save_dir / "per_class.csv").open("w", newline="") as f:
        writer = csv.DictWriter(f, ["class", "name", "labels", "P", "R", "F1", "AP50", "AP75", "AP"])
        writer.writeheader()
        writer.writerows(rows)
    summary = dict(zip(("P", "R", "mAP50", "mAP"), result.own))
    losses = dict(zip(("box", "obj", "cls"), result.results[4:]))
    times = dict(zip(("inference_ms", "nms_ms", "total_ms"), result.times))
    sizes = {size: figures._asdict() for size, figures in result.sizes.items()}
    counts = {"images": result.seen, "labels": int(result.labels.sum())}
    document = {"settings": settings, **counts, **summary, "losses": losses, "sizes": sizes, "times": times}
    write_json({**document, "coco": result.coco, "per_class": rows}, save_dir / "metrics.json", indent=1)


def write_per_class_ap(result: EvalResult, names: Sequence[str], path: str | Path) -> None:
    """{map50, map, per_class: {id: {ap50, ap, name}}} as JSON (`--save-per-class-ap`)."""
    rows = per_class_rows(result, names)
    per_class = {str(r["class"]): {"ap50": r["AP50"], "ap": r["AP"], "name": r["name"]} for r in rows}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_json({"map50": result.own[2], "map": result.own[3], "per_class": per_class}, path, indent=1)


def draw_curves(result: EvalResult, matrix: np.ndarray, names: Sequence[str], save_dir: Path) -> None:
    """PR, F1, P and R curves, and the confusion matrix."""
    curves, ids = result.curves, result.classes.classes
    plot_pr_curve(curves.x, curves.pr, result.classes.ap[:, 0], save_dir / "PR_curve.png", names, ids)
    for label, values in (("F1", curves.f1), ("Precision", curves.p), ("Recall", curves.r)):
        short = "F1" if label == "F1" else label[0]
        plot_mc_curve(curves.x, values, save_dir / f"{short}_curve.png", names, ids, label)
    plot_confusion(matrix, save_dir / "confusion_matrix.png", names)
