"""Detections of a data set by class and falling score: what every figure of average precision starts from."""

from typing import NamedTuple

import numpy as np


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

    def by_class(self, values: np.ndarray) -> np.ndarray:
        """Values (c,) of classes for each of the m right detections."""
        return np.repeat(values, np.diff(self.right_edges))


def rank_by_class(tp, conf, pred_cls, target_cls) -> Ranking:
    """Sort detections by class and falling score, equal scores as given; classes without labels are left out.

    tp (n, t) bool: right at each threshold; conf (n,); pred_cls (n,) and target_cls (m,): whole numbers below 65536.
    """
    tp, conf = np.ascontiguousarray(tp, bool), np.asarray(conf)
    classes, labels = np.unique(np.asarray(target_cls).astype(np.int64), return_counts=True)
    position = np.full(65536, len(classes), np.uint16)  # of each class among the labelled; the last: none of them
    position[classes] = np.arange(len(classes))
    of = position.take(np.asarray(pred_cls).astype(np.uint16))
    counts = np.bincount(of, minlength=len(classes) + 1)[: len(classes)]
    edges = np.concatenate(([0], counts.cumsum()))
    rows = _order(of, conf)[: edges[-1]]
    right = np.flatnonzero(_any_right(tp).take(rows))
    return Ranking(classes, labels, rows, edges, right, np.searchsorted(right, edges), tp.take(rows.take(right), 0))


def _any_right(tp: np.ndarray) -> np.ndarray:
    """(n,) bool: rows with any flag; flags are few, so they are looked for eight at a time."""
    flat = tp.reshape(-1)
    found, whole = np.zeros(len(tp), bool), len(flat) // 8 * 8
    words = np.flatnonzero(flat[:whole].view(np.uint64))
    near = (words[:, None] * 8 + np.arange(8)).reshape(-1)
    near = np.concatenate((near, np.arange(whole, len(flat))))
    found[near[flat.take(near)] // max(tp.shape[1], 1)] = True
    return found


def _order(group: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Rows by ascending group (n,) uint16 and, within a group, falling score, equal ones as given.

    For float32 from 0 up, whose bits sort as the numbers do, group, score and row are packed into one whole number:
    numbers sort several times faster than an index does, and the row makes equal scores unequal.
    """
    n = len(score)
    if n and score.dtype == np.float32:
        bits = np.ascontiguousarray(score).view(np.uint32)
        best = bits.max()  # of a negative number or NaN: above infinity
        for_row, for_score = n.bit_length(), int(best - bits.min()).bit_length()
        if best <= 0x7F800000 and int(group.max()).bit_length() + for_score + for_row <= 64:
            key = group.astype(np.uint64)
            key <<= np.uint64(for_score)
            key |= best - bits
            key <<= np.uint64(for_row)
            key |= np.arange(n, dtype=np.uint64)
            key.sort()
            key &= np.uint64((1 << for_row) - 1)
            return key.view(np.int64)
    return np.lexsort((-score, group))
