"""From matched detections to precision, recall, average precision and fitness.

Inputs are flat arrays over all detections of a data set: correct (n, 10) bool for IoU .50 to .95, scores (n,), classes
(n,); and over all labels: classes (m,). Every sort is stable, so equal scores count in the order of the data set.
"""

from typing import NamedTuple

import numpy as np

from utils.boxes import box_iou
from utils.confusion import ConfusionMatrix

__all__ = ["ClassAP", "ConfusionMatrix", "Curves", "SizeAP", "ap_by_size", "ap_per_class", "box_iou", "class_metrics"]
__all__ += ["compute_ap", "fitness"]

EPS = 1e-16
POINTS = 1000  # of the curves over confidence and recall
SIZES = {  # ranges of object area in native px, as COCO has them
    "all": (0.0, np.inf),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, np.inf),
}


class ClassAP(NamedTuple):
    """Figures of the classes that have labels, in ascending class order."""

    p: np.ndarray  # (c,) precision, recall and F1 at the confidence with the best mean F1
    r: np.ndarray  # (c,)
    ap: np.ndarray  # (c, 10) average precision at IoU .50, .55, ..., .95
    f1: np.ndarray  # (c,)
    classes: np.ndarray  # (c,) int32 class ids


class Curves(NamedTuple):
    """What the curve pictures show, rows as in `ClassAP.classes`, at IoU 0.5."""

    x: np.ndarray  # (1000,) from 0 to 1: confidence, or recall for `pr`
    p: np.ndarray  # (c, 1000) over confidence
    r: np.ndarray  # (c, 1000) over confidence
    f1: np.ndarray  # (c, 1000) over confidence
    pr: np.ndarray  # (c, 1000) precision over recall, 0 for a class without predictions


class SizeAP(NamedTuple):
    """Figures of one range of object sizes, means over the classes that have such labels."""

    labels: int
    ap50: float
    ap: float
    ar: float


def fitness(x: np.ndarray) -> np.ndarray:
    """Rows (n, >=4) of P, R, mAP@.5, mAP@.5:.95 -> (n,) the figure by which the best checkpoint is chosen."""
    return (np.asarray(x)[:, :4] * [0.0, 0.0, 0.1, 0.9]).sum(1)


def compute_ap(recall, precision, v5_metric: bool = False) -> tuple[float, np.ndarray, np.ndarray]:
    """Area under a precision-recall curve: (AP, envelope of precision, recall with sentinels).

    The curve ends in precision 0 at the last recall + 0.01, or at recall 1 with the v5 metric. Precision is made
    non-increasing, read at 101 points by linear interpolation and integrated by trapezoids.
    """
    end = 1.0 if v5_metric else recall[-1] + 0.01
    mrec = np.concatenate(([0.0], recall, [end]))
    mpre = np.concatenate(([1.0], precision, [0.0]))
    mpre = np.maximum.accumulate(mpre[::-1])[::-1]
    x = np.linspace(0, 1, 101)
    return float(np.trapezoid(np.interp(x, mrec, mpre), x)), mpre, mrec


def ap_per_class(tp, conf, pred_cls, target_cls, v5_metric: bool = False) -> ClassAP:
    """Precision, recall, AP and F1 of every class that has labels; classes without labels count nowhere."""
    return class_metrics(tp, conf, pred_cls, target_cls, v5_metric)[0]


def class_metrics(tp, conf, pred_cls, target_cls, v5_metric: bool = False) -> tuple[ClassAP, Curves]:
    """As `ap_per_class`, with the curves over confidence and recall."""
    order, classes, starts, n_labels = _by_class(conf, pred_cls, target_cls)
    x = np.linspace(0, 1, POINTS)
    p, r, pr = (np.zeros((len(classes), POINTS)) for _ in range(3))
    ap = np.zeros((len(classes), tp.shape[1]))
    for c, labels in enumerate(n_labels):
        rows = order[starts[c, 0] : starts[c, 1]]
        if not len(rows):
            continue
        hits, score = tp[rows], -conf[rows]
        found = hits[:, 0].cumsum()
        r[c] = np.interp(-x, score, found / (labels + EPS), left=0)
        p[c] = np.interp(-x, score, found / np.arange(1, len(rows) + 1), left=1)
        for k in range(tp.shape[1]):
            recall, precision = _curve(np.flatnonzero(hits[:, k]) + 1, len(rows), labels)
            ap[c, k], mpre, mrec = compute_ap(recall, precision, v5_metric)
            if k == 0:
                pr[c] = np.interp(x, mrec, mpre)
    f1 = 2 * p * r / (p + r + EPS)
    best = f1.mean(0).argmax() if len(classes) else 0
    result = ClassAP(p[:, best], r[:, best], ap, f1[:, best], classes.astype("int32"))
    return result, Curves(x, p, r, f1, pr)


def ap_by_size(tp, conf, pred_cls, target_cls, det_area, match_area, target_area, v5_metric=False) -> dict[str, SizeAP]:
    """AP and average recall for small, medium and large objects, by the areas (native px) that COCO uses.

    match_area (n,): area of the label a detection took, anything where it took none. As in COCO's protocol, labels
    outside the range are not asked for; a detection right about such a label does not count, nor does a wrong one that
    is itself outside the range. The matching is that of the other figures. AR: recall of all detections, mean over
    classes and IoU thresholds.
    """
    order, classes, starts, _ = _by_class(conf, pred_cls, target_cls)
    result = {}
    for name, (low, high) in SIZES.items():
        det_in = (det_area >= low) & (det_area <= high)
        match_in = (match_area >= low) & (match_area <= high)
        target_in = (target_area >= low) & (target_area <= high)
        figures = []  # per class: AP at the ten thresholds, recall at the ten thresholds
        for c, cls in enumerate(classes):
            labels = int((target_in & (target_cls == cls)).sum())
            if labels:
                rows = order[starts[c, 0] : starts[c, 1]]
                figures.append(_size_figures(tp[rows], det_in[rows], match_in[rows], labels, v5_metric))
        ap, recall = np.array(figures).mean(0) if figures else np.zeros((2, tp.shape[1]))
        result[name] = SizeAP(int(target_in.sum()), float(ap[0]), float(ap.mean()), float(recall.mean()))
    return result


def _size_figures(hits, det_in, match_in, labels: int, v5_metric: bool) -> np.ndarray:
    """(2, 10) AP and recall of one class within one size range; rows in score order."""
    figures = np.zeros((2, hits.shape[1]))
    inside = det_in.cumsum()
    for k in range(hits.shape[1]):
        at = np.flatnonzero(hits[:, k])  # a right detection counts by its label's size, a wrong one by its own
        correction = match_in[at].astype(int) - det_in[at]
        rank = (inside[at] + correction.cumsum())[match_in[at]]
        counted = int(inside[-1] + correction.sum()) if len(inside) else 0
        if counted:
            figures[0, k] = compute_ap(*_curve(rank, counted, labels), v5_metric)[0]
        figures[1, k] = len(rank) / labels
    return figures


def _by_class(conf, pred_cls, target_cls):
    """Order by class, then falling score; the labelled classes (c,), their (c, 2) ranges in it, their label counts."""
    order = np.argsort(-np.asarray(conf), kind="stable")
    pred_sorted = np.asarray(pred_cls)[order].astype(np.uint16)  # 16 bit: sorted by radix, in linear time
    regroup = np.argsort(pred_sorted, kind="stable")
    classes, n_labels = np.unique(target_cls, return_counts=True)
    edges = np.searchsorted(pred_sorted[regroup], np.stack((classes, classes + 1), 1).astype(np.uint16))
    return order[regroup], classes, edges, n_labels


def _curve(rank: np.ndarray, n: int, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision of n ranked detections of which those at `rank` (from 1, ascending) are right.

    Only points that shape the area are kept: each right detection, the one before it, and the last. Between them
    recall stands still while precision falls, so the envelope and its interpolation are those of the full curve.
    """
    at = np.union1d(np.concatenate((rank - 1, rank)), [n])
    at = at[at > 0]
    found = np.searchsorted(rank, at, side="right")
    return found / (labels + EPS), found / at
