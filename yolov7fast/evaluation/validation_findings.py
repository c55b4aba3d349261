"""The part of a run's page about its validation, as plain values for JSON: tables, matrix, curves, images."""

import heapq
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from yolov7fast.evaluation.confusion_matrix import ConfusionMatrix
from yolov7fast.evaluation.eval_loop import SeenBatch
from yolov7fast.evaluation.eval_outputs import per_class_rows, without_nan
from yolov7fast.evaluation.eval_result import EvalResult

FIRST, WORST = 8, 20  # images shown
MAX_BOXES = 150  # of one kind in an image
MAX_CELLS = 10_000  # of the confusion matrix, the largest
MAX_CURVES = 12  # of single classes
CURVE_POINTS = 101


class FindingsSink:
    """Counts the confusion matrix and remembers the boxes of the first images and of those with most errors."""

    image_batches = 0

    def __init__(self, nc: int):
        self.matrix = ConfusionMatrix(nc)
        self.first: list[dict[str, Any]] = []
        self.worst: list[tuple[int, int, dict[str, Any]]] = []  # a heap: errors, order, image
        self.order = count()

    def __call__(self, batch: SeenBatch) -> None:
        pairing, labels = self.matrix.update(batch.native), batch.native.labels
        missed, false = np.ones(len(labels), bool), np.ones(len(pairing.detections), bool)  # by label, by detection
        missed[pairing.labels] = false[pairing.paired] = False
        wrong = np.zeros(len(false), bool)
        wrong[pairing.paired] = pairing.detections[pairing.paired, 5] != labels[pairing.labels, 0]
        for i, path in enumerate(batch.paths):
            own, found = batch.native.label_image == i, pairing.det_image == i
            errors = {
                "missed": int(missed[own].sum()),
                "false": int(false[found].sum()),
                "wrong": int(wrong[found].sum()),
            }
            total = sum(errors.values())
            is_first = len(self.first) < FIRST
            is_bad = total > 0 and (len(self.worst) < WORST or total > self.worst[0][0])
            if not is_first and not is_bad:
                continue
            (height, width), _ = batch.shapes[i]
            scale = np.array([width, height, width, height], np.float32)
            rows, dets, odd = labels[own], pairing.detections[found], (false | wrong)[found]
            image = {  # boxes as fractions of the image's sides: [class, left, top, right, bottom, odd, score]
                "path": str(path),
                "size": [int(width), int(height)],
                **errors,
                "labels": _boxes(rows[:, 0], rows[:, 1:] / scale, missed[own], np.ones(len(rows))),
                "detections": _boxes(dets[:, 5], dets[:, :4] / scale, odd, dets[:, 4]),
            }
            if is_first:
                self.first.append(image)
            if is_bad:
                push = heapq.heappush if len(self.worst) < WORST else heapq.heappushpop
                push(self.worst, (total, -next(self.order), image))


def _boxes(cls: np.ndarray, xyxy: np.ndarray, odd: np.ndarray, score: np.ndarray) -> list[list]:
    rows = zip(cls[:MAX_BOXES], xyxy, odd, score)
    return [[int(c), *(round(float(v), 4) for v in box), int(o), round(float(s), 3)] for c, box, o, s in rows]


def findings(
    result: EvalResult, sink: FindingsSink, names: Sequence[str], groups: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """The values by section; groups: classes of each head, if there are several."""
    rows, matrix = per_class_rows(result, names), sink.matrix.matrix
    predicted, true = np.nonzero(matrix)
    counts = matrix[predicted, true].astype(int)
    fullest = np.argsort(-counts, kind="stable")[:MAX_CELLS]
    return {
        "images": result.seen,
        "labels": int(result.labels.sum()),
        "summary": dict(result.metrics),
        "names": [str(name) for name in names],
        "classes": rows,
        "sizes": {size: without_nan(metrics._asdict()) for size, metrics in result.sizes.items()},
        "heads": [_head(name, classes, rows) for name, classes in groups.items()],
        "matrix": np.stack((predicted, true, counts), 1)[fullest].tolist(),
        "curves": _curves(result, names),
        "first": sink.first,
        "worst": [image for *_, image in sorted(sink.worst, key=lambda entry: entry[:2], reverse=True)],
        "ms_per_image": result.speed.total_ms,
    }


def _head(name: str, classes: Sequence[int], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the classes of a head that have labels."""
    own = [row for row in rows if row["class"] in set(classes)]
    means = {key: sum(row[key] for row in own) / len(own) if own else None for key in ("P", "R", "AP50", "AP")}
    return {"name": name, "classes": len(classes), "labels": sum(row["labels"] for row in own), **means}


def _curves(result: EvalResult, names: Sequence[str]) -> dict[str, Any]:
    """Precision over recall at IoU 0.5: the mean, and the classes of lowest AP where not all can be shown."""
    curves, ap50 = result.curves, result.classes.ap[:, 0]
    if not len(ap50):
        return {"x": [], "lines": []}
    chosen = np.sort(np.argsort(ap50, kind="stable")[:MAX_CURVES])
    at = np.linspace(0, len(curves.x) - 1, CURVE_POINTS).round().astype(int)
    named = [("all classes", ap50.mean(), curves.pr.mean(0))] if len(ap50) > 1 else []
    named += [(str(names[int(result.classes.classes[i])]), ap50[i], curves.pr[i]) for i in chosen.tolist()]
    return {
        "x": [round(float(x), 4) for x in curves.x[at]],
        "lines": [[name, float(ap), [round(float(y), 4) for y in values[at]]] for name, ap, values in named],
        "left_out": len(ap50) - len(chosen),
    }
