"""From matched detections to precision, recall, average precision and fitness.

Inputs are flat arrays over all detections of a data set: correct (n, 10) bool for IoU .50 to .95, scores (n,), classes
(n,); and over all labels: classes (m,). Every sort is stable, so equal scores count in the order of the data set.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from yolov7fast.core.boxes import box_iou
from yolov7fast.metrics.confusion import ConfusionMatrix
from yolov7fast.metrics.ranking import Ranking, rank_by_class

__all__ = ["ClassAP", "ConfusionMatrix", "Curves", "Ranking", "SizeAP", "ap_by_size", "ap_per_class", "box_iou"]
__all__ += ["class_metrics", "compute_ap", "fitness", "rank_by_class"]

EPS = 1e-16
POINTS = 1000  # of the curves over confidence and recall
X = np.linspace(0, 1, POINTS)
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


@dataclass(frozen=True)
class Curves:
    """What the plots of the curves show, rows as in `ClassAP.classes`, at IoU 0.5."""

    x: np.ndarray  # (1000,) from 0 to 1: confidence, or recall for `pr`
    p: np.ndarray  # (c, 1000) over confidence
    r: np.ndarray  # (c, 1000) over confidence
    f1: np.ndarray  # (c, 1000) over confidence
    lines: list[tuple[np.ndarray, int, int]]  # per class: ranks of right detections from 1, detections, labels
    v5_metric: bool

    @cached_property
    def pr(self) -> np.ndarray:
        """(c, 1000) precision over recall, 0 for a class without predictions; computed when somebody draws it."""
        pr = np.zeros((len(self.lines), len(self.x)))
        for row, (rank, n, labels) in zip(pr, self.lines):
            if n:
                _, mpre, mrec = compute_ap(*_curve(rank, n, labels), self.v5_metric)
                row[:] = np.interp(self.x, mrec, mpre)
        return pr


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


def ap_per_class(tp, conf, pred_cls, target_cls, v5_metric: bool = False) -> ClassAP:
    """Precision, recall, AP and F1 of every class that has labels; classes without labels count nowhere."""
    return class_metrics(rank_by_class(tp, conf, pred_cls, target_cls), conf, v5_metric)[0]


def class_metrics(ranking: Ranking, conf: np.ndarray, v5_metric: bool = False) -> tuple[ClassAP, Curves]:
    """As `ap_per_class`, from detections already ranked, with the curves over confidence and recall."""
    p, r = _over_confidence(ranking, np.asarray(conf))
    f1 = _harmonic_mean(p, r)
    best = f1.mean(0).argmax() if len(f1) else 0
    rank = 1 + ranking.right - ranking.by_class(ranking.edges[:-1])
    n, labels, needed = ranking.counts, ranking.labels, _count_at(ranking.labels)
    ap = [_ap_of_classes(ranking, hit, rank, n, labels, needed, v5_metric) for hit in ranking.hits.T]
    at50 = np.split(np.where(ranking.hits[:, 0], rank, 0), ranking.right_edges[1:-1])
    lines = [(at[at > 0], of, asked) for at, of, asked in zip(at50, n.tolist(), labels.tolist())]
    classes = ranking.classes.astype("int32")
    return ClassAP(p[:, best], r[:, best], np.stack(ap, 1), f1[:, best], classes), Curves(X, p, r, f1, lines, v5_metric)


def _over_confidence(ranking: Ranking, conf: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall (c, 1000) at IoU 0.5 over confidence, linear between detections.

    Above a class's best score precision is 1 and recall 0; a class without detections has 0 everywhere. Class by
    class: the numbers of one stay in the processor's cache.
    """
    p, r = np.zeros((2, len(ranking.classes), POINTS))
    right = ranking.right[ranking.hits[:, 0]]
    parts = np.searchsorted(right, ranking.edges)
    rank = np.arange(1.0, ranking.counts.max(initial=0) + 2)
    for c in np.flatnonzero(ranking.counts):
        start, end = ranking.edges[c], ranking.edges[c + 1]
        score = conf.take(ranking.rows[start:end]).astype(np.float64)
        np.negative(score, out=score)
        steps = np.concatenate(([start], right[parts[c] : parts[c + 1]], [end]))
        count = np.repeat(rank[: len(steps) - 1] - 1, np.diff(steps))
        p[c] = np.interp(-X, score, count / rank[: end - start], left=1)
        count /= ranking.labels[c] + EPS
        r[c] = np.interp(-X, score, count, left=0)
    return p, r


def _harmonic_mean(p: np.ndarray, r: np.ndarray) -> np.ndarray:
    total = p + r
    total += EPS
    product = 2 * p
    product *= r
    return np.divide(product, total, out=product)


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


def _ap_of_classes(ranking: Ranking, hit, rank, n, labels, needed, v5_metric: bool) -> np.ndarray:
    """(c,) average precision at one threshold: `compute_ap` of each class, without walking along any curve.

    hit (m,) bool: which of `ranking.right` are right; rank (m,): their places from 1 within their class; n (c,):
    detections of each class; labels (c,); needed (c, 101): of `_count_at`.

    Recall rises at right detections alone, so from one of them to the next the envelope is the best precision from
    there on, which `best` holds for each right detection; which one is the next at a point of recall depends on the
    number of labels alone. Behind the last right detection the curve falls to 0 on a straight line.
    """
    at = np.flatnonzero(hit)
    edges = np.searchsorted(at, ranking.right_edges)
    first, found = edges[:-1], np.diff(edges)
    best = np.zeros(len(at) + 1)
    np.divide(np.arange(1, len(at) + 1) - np.repeat(first, found), rank.take(at), out=best[:-1])
    for start, end in zip(first.tolist(), edges[1:].tolist()):
        own = best[start:end][::-1]
        np.maximum.accumulate(own, out=own)
    inside = needed < found[:, None]
    y = best.take(np.where(inside, needed + first[:, None], -1))
    last = found / (labels + EPS)
    end = np.ones(len(last)) if v5_metric else last + 0.01
    with np.errstate(divide="ignore", invalid="ignore"):
        height = np.where(found > 0, found / n, 0.0)
        behind = (-height / (end - last))[:, None] * (AP_POINTS - last[:, None]) + height[:, None]
    y = np.where(inside, y, np.where(end[:, None] > AP_POINTS, behind, 0.0))
    return y @ AP_WEIGHTS


def _count_at(labels: np.ndarray) -> np.ndarray:
    """(c, 101) greatest number of labels whose fraction of all is not above each point of recall."""
    labels = labels[:, None]
    count = np.floor(AP_POINTS * labels)
    count += (count + 1) / (labels + EPS) <= AP_POINTS  # rounded as recall is
    count -= count / (labels + EPS) > AP_POINTS
    return count.astype(np.int64)


def ap_by_size(ranking: Ranking, target_cls, det_area, match_area, target_area, v5_metric=False) -> dict[str, SizeAP]:
    """AP and average recall for all, small, medium and large objects, by the areas (native px) that COCO uses.

    match_area (n,): area of the label a detection took, anything where it took none. As in COCO's protocol, labels
    outside the range are not asked for; a detection right about such a label does not count, nor does a wrong one that
    is itself outside the range. The matching is that of the other figures. AR: recall of all detections, mean over
    classes and IoU thresholds.
    """
    result = {}
    det_area, match_area = det_area.take(ranking.rows), match_area.take(ranking.rows.take(ranking.right))
    position = np.searchsorted(ranking.classes, np.asarray(target_cls).astype(np.int64))
    for name, (low, high) in SIZES.items():
        det_in = (det_area >= low) & (det_area <= high)
        match_in = (match_area >= low) & (match_area <= high)
        target_in = (target_area >= low) & (target_area <= high)
        labels = np.bincount(position[target_in], minlength=len(ranking.classes))
        asked = labels > 0
        ap, recall = np.full((2, 1, 1), np.nan)
        if asked.any():
            ap, recall = (x[asked] for x in _size_figures(ranking, det_in, match_in, labels, v5_metric))
        figures = (float(x.mean()) for x in (ap[:, 0], ap, recall))
        result[name] = SizeAP(int(target_in.sum()), *figures)
    return result


def _size_figures(ranking: Ranking, det_in, match_in, labels, v5_metric: bool) -> tuple[np.ndarray, np.ndarray]:
    """(c, t) AP and recall within one size range; det_in (n,) and match_in (m,) as in the ranking, labels (c,)."""
    inside = np.concatenate(([0], det_in.cumsum()))
    starts, ends, edges = ranking.edges[:-1], ranking.edges[1:], ranking.right_edges
    place, self_in, needed = inside.take(ranking.right + 1), det_in.take(ranking.right), _count_at(labels)
    ap, recall = [], []
    for hit in ranking.hits.T:
        own = hit & match_in
        # a right detection counts by its label's size, not by its own
        correction = np.concatenate(([0], (own.astype(np.int64) - (hit & self_in)).cumsum()))
        before = inside[starts] + correction[edges[:-1]]
        rank = place + correction[1:] - ranking.by_class(before)
        n = inside[ends] + correction[edges[1:]] - before
        ap.append(_ap_of_classes(ranking, own, rank, n, labels, needed, v5_metric))
        recall.append(np.diff(np.concatenate(([0], own.cumsum()))[edges]) / np.maximum(labels, 1))
    return np.stack(ap, 1), np.stack(recall, 1)
