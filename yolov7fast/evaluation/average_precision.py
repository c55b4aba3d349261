"""From matched detections to precision, recall, average precision and fitness.

Inputs are flat arrays over all detections of a data set: correct (n, 10) bool for IoU .50 to .95, scores (n,), classes
(n,); and over all labels: classes (m,). Every sort is stable, so equal scores count in the order of the data set.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

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
    """Metrics of the classes that have labels, in ascending class order."""

    p: np.ndarray  # (c,) precision, recall and F1 at the confidence with the best mean F1
    r: np.ndarray  # (c,)
    ap: np.ndarray  # (c, 10) average precision at IoU .50, .55, ..., .95
    f1: np.ndarray  # (c,)
    classes: np.ndarray  # (c,) int32 class ids


@dataclass(frozen=True)
class Curves:
    """Values of the curve plots at IoU 0.5; rows as in `ClassAP.classes`."""

    x: np.ndarray  # (1000,) from 0 to 1: confidence, or recall for `pr`
    p: np.ndarray  # (c, 1000) over confidence
    r: np.ndarray  # (c, 1000) over confidence
    f1: np.ndarray  # (c, 1000) over confidence
    lines: list[tuple[np.ndarray, int, int]]  # per class: ranks of right detections from 1, detections, labels
    v5_metric: bool

    @cached_property
    def pr(self) -> np.ndarray:
        """(c, 1000) precision over recall, 0 for a class without predictions; computed only for plots."""
        pr = np.zeros((len(self.lines), len(self.x)))
        for row, (rank, n, labels) in zip(pr, self.lines):
            if n:
                _, mpre, mrec = compute_ap(*_curve(rank, n, labels), self.v5_metric)
                row[:] = np.interp(self.x, mrec, mpre)
        return pr


class Ranking(NamedTuple):
    """The detections of the c classes that have labels, class after class, best first within a class.

    Class i holds the places edges[i] to edges[i + 1]; of `right` and `hits`, right_edges[i] to right_edges[i + 1].
    """

    classes: np.ndarray  # (c,) int64, ascending
    labels: np.ndarray  # (c,) how many labels there are
    rows: np.ndarray  # (n,) of the detections, by place
    edges: np.ndarray  # (c + 1,)
    right: np.ndarray  # (m,) places of the detections that are right at some threshold, ascending
    right_edges: np.ndarray  # (c + 1,)
    hits: np.ndarray  # (m, t) at which thresholds these are right

    @property
    def counts(self) -> np.ndarray:
        """(c,) detections of each class."""
        return np.diff(self.edges)

    def lines(self, own: np.ndarray, counted: np.ndarray) -> list[tuple[np.ndarray, int]]:
        """Per class: ranks from 1 of the right detections `own` (m,) bool among those `counted` (n,), and their number.

        counted: bool, true for all of `own`.
        """
        total = np.concatenate(([0], np.cumsum(counted)))
        right = [r[o] for r, o in zip(*(np.split(x, self.right_edges[1:-1]) for x in (self.right, own)))]
        before, after = total[self.edges[:-1]], total[self.edges[1:]]
        return [(total[r + 1] - low, high - low) for r, low, high in zip(right, before, after)]


def rank_by_class(tp, conf, pred_cls, target_cls) -> Ranking:
    """Sort detections by class and falling score, equal scores as given; classes without labels are left out.

    tp (n, t) bool: right at each threshold; conf (n,); pred_cls (n,) and target_cls (m,): whole numbers.
    """
    tp = np.asarray(tp, bool)
    found = np.flatnonzero(tp.any(1))
    return rank_found(found, tp[found], conf, pred_cls, target_cls)


def rank_found(found: np.ndarray, hits: np.ndarray, conf, pred_cls, target_cls) -> Ranking:
    """As `rank_by_class`; found (k,): rows of the detections that are right at any threshold, hits (k, t): at which."""
    classes, labels = np.unique(np.asarray(target_cls).astype(np.int64), return_counts=True)
    pred_cls = np.asarray(pred_cls).astype(np.int64)
    labelled = np.flatnonzero(np.isin(pred_cls, classes))
    rows = labelled[np.lexsort((-np.asarray(conf)[labelled], pred_cls[labelled]))]
    edges = np.append(np.searchsorted(pred_cls[rows], classes), len(rows))
    index = np.full(len(pred_cls), -1)
    index[found] = np.arange(len(found))
    index = index[rows]
    right = np.flatnonzero(index >= 0)
    return Ranking(classes, labels, rows, edges, right, np.searchsorted(right, edges), hits[index[right]])


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
    return class_metrics(rank_by_class(tp, conf, pred_cls, target_cls), conf, v5_metric)[0]


def class_metrics(ranking: Ranking, conf: np.ndarray, v5_metric: bool = False) -> tuple[ClassAP, Curves]:
    """As `ap_per_class`, from detections already ranked, with the curves over confidence and recall."""
    p, r = _over_confidence(ranking, np.asarray(conf))
    f1 = 2 * p * r / (p + r + EPS)
    best = f1.mean(0).argmax() if len(f1) else 0
    everything = np.ones(len(ranking.rows), bool)
    lines = [ranking.lines(hit, everything) for hit in ranking.hits.T]
    ap = [_average_precision(line, ranking.labels, v5_metric) for line in lines]
    at50 = [(rank, int(n), int(labels)) for (rank, n), labels in zip(lines[0], ranking.labels)]
    classes = ranking.classes.astype("int32")
    return ClassAP(p[:, best], r[:, best], np.stack(ap, 1), f1[:, best], classes), Curves(X, p, r, f1, at50, v5_metric)


def _over_confidence(ranking: Ranking, conf: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall (c, 1000) at IoU 0.5 over confidence, linear between detections.

    Above a class's best score precision is 1 and recall 0; a class without detections has 0 everywhere.
    """
    p, r = np.zeros((2, len(ranking.classes), POINTS))
    hit = np.zeros(len(ranking.rows), bool)
    hit[ranking.right[ranking.hits[:, 0]]] = True
    for c in np.flatnonzero(ranking.counts):
        own = slice(ranking.edges[c], ranking.edges[c + 1])
        score, count = conf[ranking.rows[own]].astype(np.float64), np.cumsum(hit[own])
        p[c] = np.interp(-X, -score, count / np.arange(1, len(count) + 1), left=1)
        r[c] = np.interp(-X, -score, count / (ranking.labels[c] + EPS), left=0)
    return p, r


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


def _average_precision(lines: list[tuple[np.ndarray, int]], labels: np.ndarray, v5_metric: bool) -> np.ndarray:
    """(c,) average precision of classes whose detections are `lines`, as `Ranking.lines` gives them."""
    ap = np.zeros(len(lines))
    for c, (rank, n) in enumerate(lines):
        if len(rank):
            ap[c] = compute_ap(*_curve(rank, n, labels[c]), v5_metric)[0]
    return ap


def ap_by_size(ranking: Ranking, target_cls, det_area, match_area, target_area, v5_metric=False) -> dict[str, SizeAP]:
    """AP and average recall for all, small, medium and large objects, by the areas (native px) that COCO uses.

    match_area (n,): area of the label a detection took, anything where it took none. As in COCO's protocol, labels
    outside the range are ignored, and so are correct detections of them and wrong detections outside the range. Uses
    the matching of the other metrics. AR: recall of all detections, mean over classes and IoU thresholds.
    """
    result = {}
    det_area, match_area = det_area.take(ranking.rows), match_area.take(ranking.rows.take(ranking.right))
    position = np.searchsorted(ranking.classes, np.asarray(target_cls).astype(np.int64))
    for name, (low, high) in SIZES.items():
        det_in = (det_area >= low) & (det_area <= high)
        match_in = (match_area >= low) & (match_area <= high)
        target_in = (target_area >= low) & (target_area <= high)
        labels = np.bincount(position[target_in], minlength=len(ranking.classes))
        present = labels > 0
        ap, recall = np.full((2, 1, 1), np.nan)
        if present.any():
            ap, recall = (x[present] for x in _metrics_of_size(ranking, det_in, match_in, labels, v5_metric))
        means = (float(x.mean()) for x in (ap[:, 0], ap, recall))
        result[name] = SizeAP(int(target_in.sum()), *means)
    return result


def _metrics_of_size(ranking: Ranking, det_in, match_in, labels, v5_metric: bool) -> tuple[np.ndarray, np.ndarray]:
    """(c, t) AP and recall within one size range; det_in (n,) and match_in (m,) as in the ranking, labels (c,)."""
    ap, recall = [], []
    for hit in ranking.hits.T:
        counted = det_in.copy()
        counted[ranking.right[hit]] = match_in[hit]  # a right detection counts by its label's size, not by its own
        lines = ranking.lines(hit & match_in, counted)
        ap.append(_average_precision(lines, labels, v5_metric))
        recall.append([len(rank) for rank, _ in lines] / np.maximum(labels, 1))
    return np.stack(ap, 1), np.stack(recall, 1)
