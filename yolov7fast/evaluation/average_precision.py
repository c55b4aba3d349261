"""From matched detections to precision, recall, average precision and fitness.

Inputs are flat arrays over all detections of a data set: correct (n, 10) bool for IoU .50 to .95, scores (n,), classes
(n,); and over all labels: classes (m,). Every sort is stable, so equal scores count in the order of the data set.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

EPS = 1e-16
X = np.linspace(0, 1, 1000)  # of the curves over confidence and recall
AP_POINTS = np.linspace(0, 1, 101)  # of recall, at which precision is read
AP_WEIGHTS = np.full(101, 0.01)  # of the trapezoids between them
AP_WEIGHTS[[0, -1]] = 0.005
SIZES = {  # ranges of object area in native px, as COCO has them
    "all": (0.0, np.inf),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, np.inf),
}


class ClassAP(NamedTuple):
    """Metrics of the classes that have labels, in ascending class order."""

    p: np.ndarray  # (c,) precision, recall and F1 at the confidence with the best mean F1
    r: np.ndarray  # (c,)
    ap: np.ndarray  # (c, 10) average precision at IoU .50, .55, ..., .95
    f1: np.ndarray  # (c,)
    classes: np.ndarray  # (c,) int32 class ids


class Curves(NamedTuple):
    """Values of the curve plots at IoU 0.5; rows as in `ClassAP.classes`."""

    x: np.ndarray  # (1000,) from 0 to 1: confidence, or recall for `pr`
    p: np.ndarray  # (c, 1000) over confidence
    r: np.ndarray  # (c, 1000) over confidence
    f1: np.ndarray  # (c, 1000) over confidence
    pr: np.ndarray  # (c, 1000) precision over recall, 0 for a class without predictions
    detections: np.ndarray  # (c,) number of detections of each class


class SizeAP(NamedTuple):
    """Metrics of one range of object sizes, means over the classes that have such labels; NaN where there are none."""

    labels: int
    ap50: float
    ap: float
    ar: float


def fitness(x: np.ndarray) -> np.ndarray:
    """Rows (n, >=4) of P, R, mAP@.5, mAP@.5:.95 -> (n,) fitness, which selects the best checkpoint."""
    return (np.asarray(x)[:, :4] * [0.0, 0.0, 0.1, 0.9]).sum(1)


def compute_ap(recall, precision, v5_metric: bool = False) -> tuple[float, np.ndarray, np.ndarray]:
    """Area under a precision-recall curve: (AP, envelope of precision, recall with sentinels).

    The curve ends in precision 0 at the last recall + 0.01, or at recall 1 with the v5 metric. Precision is made
    non-increasing, read at 101 points by linear interpolation and integrated by trapezoids.
    """
    end = 1.0 if v5_metric else recall[-1] + 0.01
    mrec = np.concatenate(((0.0,), recall, (end,)))
    mpre = np.concatenate(((1.0,), precision, (0.0,)))
    mpre = np.maximum.accumulate(mpre[::-1])[::-1]
    return float(np.interp(AP_POINTS, mrec, mpre) @ AP_WEIGHTS), mpre, mrec


def ap_per_class(tp, conf, pred_cls, target_cls, v5_metric: bool = False) -> ClassAP:
    """Precision, recall, AP and F1 of every class that has labels; classes without labels count nowhere."""
    return class_metrics(tp, conf, pred_cls, target_cls, v5_metric)[0]


def class_metrics(tp, conf, pred_cls, target_cls, v5_metric: bool = False) -> tuple[ClassAP, Curves]:
    """As `ap_per_class`, with the curves over confidence and recall.

    Above a class's best score precision is 1 and recall 0; a class without detections has 0 everywhere.
    """
    tp, conf = np.asarray(tp, bool), np.asarray(conf)
    classes, labels = np.unique(np.asarray(target_cls).astype(np.int64), return_counts=True)
    ap, detections = np.zeros((len(classes), tp.shape[1])), np.zeros(len(classes), int)
    p, r, pr = np.zeros((3, len(classes), len(X)))
    for c, rows in enumerate(rows_by_class(conf, pred_cls, classes)):
        detections[c] = len(rows)
        if len(rows):
            score, right = conf[rows].astype(np.float64), tp[rows, 0].cumsum()
            p[c] = np.interp(-X, -score, right / np.arange(1, len(rows) + 1), left=1)
            r[c] = np.interp(-X, -score, right / (labels[c] + EPS), left=0)
            always = np.ones(len(rows), bool)
            curves = recall_and_precision(tp[rows], always, always, labels[c])
            areas = [compute_ap(*curve, v5_metric) for curve in curves]
            ap[c] = [area for area, _, _ in areas]
            _, mpre, mrec = areas[0]
            pr[c] = np.interp(X, mrec, mpre)
    f1 = 2 * p * r / (p + r + EPS)
    best = f1.mean(0).argmax() if len(f1) else 0
    found = ClassAP(p[:, best], r[:, best], ap, f1[:, best], classes.astype("int32"))
    return found, Curves(X, p, r, f1, pr, detections)


def rows_by_class(conf: np.ndarray, pred_cls: np.ndarray, classes: np.ndarray) -> Iterator[np.ndarray]:
    """The detections of each class, best first, equal scores as given."""
    pred_cls = np.asarray(pred_cls).astype(np.int64)
    order = np.lexsort((-conf, pred_cls))
    first, last = (np.searchsorted(pred_cls[order], classes, side) for side in ("left", "right"))
    return (order[start:end] for start, end in zip(first, last))


def recall_and_precision(
    tp: np.ndarray, counts_wrong: np.ndarray, counts_right: np.ndarray, labels: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The curve (recall, precision) of each threshold for the n > 0 detections of a class, best first.

    tp (n, t) bool: right at each threshold; counts_wrong, counts_right (n,) bool: whether a detection counts where it
    is wrong, and where it is right. Of the points only those that shape the area are kept: right detections, those
    just before them, and the last one.
    """
    found: np.ndarray = np.any(tp, axis=1)
    shaping = np.flatnonzero(found | np.append(found[1:], True))
    wrong, taken, tp = counts_wrong[shaping, None].astype(int), counts_right[shaping, None].astype(int), tp[shaping]
    counted = counts_wrong.cumsum()[shaping, None] + (tp * (taken - wrong)).cumsum(0)
    right = (tp * taken).cumsum(0)
    return list(zip((right / (labels + EPS)).T, (right / np.maximum(counted, 1)).T))


def ap_by_size(tp, conf, pred_cls, target_cls, det_area, match_area, target_area, v5_metric=False) -> dict[str, SizeAP]:
    """AP and average recall for all, small, medium and large objects, by the areas (native px) that COCO uses.

    match_area (n,): area of the label a detection took, anything where it took none. As in COCO's protocol, labels
    outside the range are ignored, and so are correct detections of them and wrong detections outside the range. Uses
    the matching of the other metrics. AR: recall of all detections, mean over classes and IoU thresholds.
    """
    tp, target_cls = np.asarray(tp, bool), np.asarray(target_cls).astype(np.int64)
    classes = np.unique(target_cls)
    rows_of = dict(zip(classes.tolist(), rows_by_class(conf, pred_cls, classes)))
    result = {}
    for name, (low, high) in SIZES.items():
        in_range = (target_area >= low) & (target_area <= high)
        ap, recalls = [], []
        for cls, labels in zip(*np.unique(target_cls[in_range], return_counts=True)):
            rows = rows_of[int(cls)]
            own, taken = ((area[rows] >= low) & (area[rows] <= high) for area in (det_area, match_area))
            curves = recall_and_precision(tp[rows], own, taken, labels) if len(rows) else [([0.0], [0.0])] * tp.shape[1]
            ap.append([compute_ap(recall, precision, v5_metric)[0] for recall, precision in curves])
            recalls.append([recall[-1] for recall, _ in curves])
        ap50, mean, ar = (np.mean(ap, 0)[0], np.mean(ap), np.mean(recalls)) if ap else (np.nan,) * 3
        result[name] = SizeAP(int(in_range.sum()), float(ap50), float(mean), float(ar))
    return result
