"""From matched detections to precision, recall, average precision and fitness.

Inputs are flat arrays over all detections of a data set: correct (n, 10) bool for IoU .50 to .95, scores (n,), classes
(n,); and over all labels: classes (m,). Every sort is stable, so equal scores count in the order of the data set.
"""

from typing import NamedTuple

import numpy as np

from yolov7fast.core.boxes import box_iou
from yolov7fast.metrics.confusion import ConfusionMatrix

__all__ = ["ClassAP", "ConfusionMatrix", "Curves", "Ranked", "SizeAP", "ap_by_size", "ap_per_class", "box_iou"]
__all__ += ["class_metrics", "compute_ap", "fitness", "rank_by_class"]

EPS = 1e-16
POINTS = 1000  # of the curves over confidence and recall
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
    """Figures of the classes that have labels, in ascending class order."""

    p: np.ndarray  # (c,) precision, recall and F1 at the confidence with the best mean F1
    r: np.ndarray  # (c,)
    ap: np.ndarray  # (c, 10) average precision at IoU .50, .55, ..., .95
    f1: np.ndarray  # (c,)
    classes: np.ndarray  # (c,) int32 class ids


class Curves(NamedTuple):
    """What the plots of the curves show, rows as in `ClassAP.classes`, at IoU 0.5."""

    x: np.ndarray  # (1000,) from 0 to 1: confidence, or recall for `pr`
    p: np.ndarray  # (c, 1000) over confidence
    r: np.ndarray  # (c, 1000) over confidence
    f1: np.ndarray  # (c, 1000) over confidence
    pr: np.ndarray  # (c, 1000) precision over recall, 0 for a class without predictions


class SizeAP(NamedTuple):
    """Figures of one range of object sizes, means over the classes that have such labels; NaN where there are none."""

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
    mrec = np.concatenate(((0.0,), recall, (end,)))
    mpre = np.concatenate(((1.0,), precision, (0.0,)))
    mpre = np.maximum.accumulate(mpre[::-1])[::-1]
    return float(np.interp(AP_POINTS, mrec, mpre) @ AP_WEIGHTS), mpre, mrec


class Ranked(NamedTuple):
    """The detections of one labelled class, best first."""

    cls: int
    labels: int  # how many there are
    rows: np.ndarray  # (n,) of the detections
    right: np.ndarray  # (m,) places in `rows` of those that are right at some threshold, ascending
    hits: np.ndarray  # (m, 10) at which thresholds these are right


def rank_by_class(tp, conf, pred_cls, target_cls) -> list[Ranked]:
    """Group detections by class and sort them by falling score, for every class that has labels.

    Grouping first, by a radix sort, keeps the sorts small enough for the processor's caches.
    """
    tp, conf, pred_cls = np.asarray(tp), np.asarray(conf), np.asarray(pred_cls).astype(np.uint16)
    grouped = np.argsort(pred_cls, kind="stable")
    edges = np.cumsum(np.bincount(pred_cls, minlength=1))
    any_right = np.zeros(len(tp), bool)
    for k in range(tp.shape[1]):  # by columns: several times faster than a reduction over rows of ten
        any_right |= tp[:, k]
    ranked = []
    for cls, labels in zip(*np.unique(np.asarray(target_cls).astype(np.int64), return_counts=True)):
        start, end = (edges[cls - 1] if cls else 0, edges[cls]) if cls < len(edges) else (0, 0)
        rows = grouped[start:end]
        rows = rows.take(_falling(conf.take(rows)))
        right = np.flatnonzero(any_right.take(rows))
        ranked.append(Ranked(int(cls), int(labels), rows, right, tp[rows[right]]))
    return ranked


def _falling(score: np.ndarray) -> np.ndarray:
    """Order by falling score, equal ones as given.

    For float32 from 0 up, score and position are packed into one whole number: numbers sort several times faster than
    an index does, and position makes equal scores unequal.
    """
    if score.dtype != np.float32 or not (score >= 0).all():
        return np.argsort(-score, kind="stable")
    key = (~score.view(np.uint32)).astype(np.uint64) << np.uint64(32)
    key |= np.arange(len(score), dtype=np.uint64)
    key.sort()
    return (key & np.uint64(0xFFFFFFFF)).astype(np.int64)


def ap_per_class(tp, conf, pred_cls, target_cls, v5_metric: bool = False) -> ClassAP:
    """Precision, recall, AP and F1 of every class that has labels; classes without labels count nowhere."""
    return class_metrics(rank_by_class(tp, conf, pred_cls, target_cls), conf, v5_metric)[0]


def class_metrics(ranked: list[Ranked], conf: np.ndarray, v5_metric: bool = False) -> tuple[ClassAP, Curves]:
    """As `ap_per_class`, from detections already ranked, with the curves over confidence and recall."""
    x = np.linspace(0, 1, POINTS)
    p, r, pr = (np.zeros((len(ranked), POINTS)) for _ in range(3))
    ap = np.zeros((len(ranked), ranked[0].hits.shape[1] if ranked else 10))
    for c, found in enumerate(ranked):
        n = len(found.rows)
        if not n:
            continue
        score = -conf.take(found.rows).astype(np.float64)
        right = np.zeros(n)
        right[found.right] = found.hits[:, 0]
        count = right.cumsum()
        r[c] = np.interp(-x, score, count / (found.labels + EPS), left=0)
        p[c] = np.interp(-x, score, count / np.arange(1, n + 1), left=1)
        ap[c] = _ap_of_thresholds(found, n, v5_metric)
        rank = found.right[found.hits[:, 0]] + 1
        _, mpre, mrec = compute_ap(*_curve(rank, n, found.labels), v5_metric)
        pr[c] = np.interp(x, mrec, mpre)
    f1 = 2 * p * r / (p + r + EPS)
    best = f1.mean(0).argmax() if ranked else 0
    classes = np.array([found.cls for found in ranked], "int32")
    return ClassAP(p[:, best], r[:, best], ap, f1[:, best], classes), Curves(x, p, r, f1, pr)


def _curve(rank: np.ndarray, n: int, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision of n ranked detections of which those at `rank` (from 1, ascending) are right.

    Only points that shape the area are kept: each right detection, the one before it, and the last. Between them
    recall stands still while precision falls, so the envelope and its interpolation are those of the full curve.
    """
    m = len(rank)
    at = np.empty(2 * m + 1)
    at[0:-1:2], at[1::2], at[-1] = rank - 1, rank, n
    at[0] = max(at[0], 1)  # no detection stands before the first of all; a point at recall 0 does no harm
    found = np.arange(1, 2 * m + 2) // 2  # 0, 1, 1, 2, 2, ..., m
    return found / (labels + EPS), found / at


def _ap_of_thresholds(found: Ranked, n: int, v5_metric: bool) -> np.ndarray:
    """(10,) average precision at every IoU threshold: `compute_ap` of each `_curve`, in one walk over all of them.

    Each curve has the points of all thresholds, those right at any and the ones before them. The further points lie
    where recall stands still and precision falls, and change nothing.
    """
    m, thresholds = found.hits.shape
    count = np.zeros((2 * m + 3, thresholds))  # detections that are right so far; first and last row: the sentinels
    count[2:-1:2] = count[3::2][:m] = found.hits.cumsum(0)
    count[-2:] = count[2 * m]
    count[1:-2:2] = count[0:-3:2]
    rank = np.empty(2 * m + 1)
    rank[0:-1:2], rank[1::2], rank[-1] = found.right, found.right + 1, n
    rank[0] = max(rank[0], 1)
    recall = count / (found.labels + EPS)
    recall[-1] = 1.0 if v5_metric else recall[-2] + 0.01
    precision = np.empty_like(count)
    precision[0], precision[-1] = 1.0, 0.0
    np.divide(count[1:-1], rank[:, None], out=precision[1:-1])
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.stack([np.searchsorted(column, AP_POINTS, "right") for column in recall.T], 1) - 1  # (101, thresholds)
    after = np.minimum(at + 1, 2 * m + 2)
    (x0, x1), (y0, y1) = ([np.take_along_axis(v, i, 0) for i in (at, after)] for v in (recall, precision))
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.where(at == after, y0, (y1 - y0) / (x1 - x0) * (AP_POINTS[:, None] - x0) + y0)
    return np.array([column @ AP_WEIGHTS for column in np.ascontiguousarray(y.T)])


def ap_by_size(
    ranked: list[Ranked], target_cls, det_area, match_area, target_area, v5_metric=False
) -> dict[str, SizeAP]:
    """AP and average recall for all, small, medium and large objects, by the areas (native px) that COCO uses.

    match_area (n,): area of the label a detection took, anything where it took none. As in COCO's protocol, labels
    outside the range are not asked for; a detection right about such a label does not count, nor does a wrong one that
    is itself outside the range. The matching is that of the other figures. AR: recall of all detections, mean over
    classes and IoU thresholds.
    """
    result = {}
    for name, (low, high) in SIZES.items():
        det_in = (det_area >= low) & (det_area <= high)
        match_in = (match_area >= low) & (match_area <= high)
        target_in = (target_area >= low) & (target_area <= high)
        labels = np.bincount(np.asarray(target_cls)[target_in].astype(np.int64), minlength=65536)
        figures = [
            _size_figures(
                found, det_in.take(found.rows), match_in[found.rows[found.right]], labels[found.cls], v5_metric
            )
            for found in ranked
            if labels[found.cls]
        ]  # per class: AP at the ten thresholds, recall at the ten thresholds
        ap, recall = np.array(figures).mean(0) if figures else np.full((2, 10), np.nan)
        result[name] = SizeAP(int(target_in.sum()), float(ap[0]), float(ap.mean()), float(recall.mean()))
    return result


def _size_figures(found: Ranked, det_in, match_in, labels: int, v5_metric: bool) -> np.ndarray:
    """(2, 10) AP and recall of one class within one size range; det_in (n,), match_in (m,) as in `found`."""
    figures = np.zeros((2, found.hits.shape[1]))
    inside = det_in.cumsum()
    for k in range(found.hits.shape[1]):
        at, own = found.right[found.hits[:, k]], match_in[found.hits[:, k]]
        if not own.any():
            continue
        correction = own.astype(int) - det_in[at]  # a right detection counts by its label's size, not by its own
        rank = (inside[at] + correction.cumsum())[own]
        figures[0, k] = compute_ap(*_curve(rank, int(inside[-1] + correction.sum()), labels), v5_metric)[0]
        figures[1, k] = len(rank) / labels
    return figures
