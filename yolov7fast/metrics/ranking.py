"""Detections of a data set by class and falling score: what every figure of average precision starts from."""

from typing import NamedTuple

import numpy as np
import torch

PART = 1 << 14  # detections that are packed for sorting at once


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
    tp = np.ascontiguousarray(tp, bool)
    found = np.flatnonzero(_any_right(tp))
    return rank_found(found, tp.take(found, 0), conf, pred_cls, target_cls)


def rank_found(found: np.ndarray, hits: np.ndarray, conf, pred_cls, target_cls) -> Ranking:
    """As `rank_by_class`; found (k,): rows of the detections that are right at any threshold, hits (k, t): at which."""
    labels = np.bincount(np.asarray(target_cls).astype(np.int64))
    classes = np.flatnonzero(labels)
    position = np.full(65536, len(classes), np.uint16)  # of each class among the labelled; the last: none of them
    position[classes] = np.arange(len(classes))
    rows, edges = _order(np.asarray(pred_cls), position, len(classes), np.asarray(conf))
    is_right, index = np.zeros(len(conf), bool), np.empty(len(conf), np.int32)
    is_right[found], index[found] = True, np.arange(len(found))
    right = np.flatnonzero(is_right.take(rows))
    hits = hits.take(index.take(rows.take(right)), 0)
    return Ranking(classes, labels.take(classes), rows, edges, right, np.searchsorted(right, edges), hits)


def _any_right(tp: np.ndarray) -> np.ndarray:
    """(n,) bool: rows with any flag; flags are few, so they are looked for eight at a time."""
    flat = tp.reshape(-1)
    found, whole = np.zeros(len(tp), bool), len(flat) // 8 * 8
    words = np.flatnonzero(flat[:whole].view(np.uint64) != 0)
    near = (words[:, None] * 8 + np.arange(8)).reshape(-1)
    near = np.concatenate((near, np.arange(whole, len(flat))))
    found[near[flat.take(near)] // max(tp.shape[1], 1)] = True
    return found


def _order(cls: np.ndarray, position: np.ndarray, groups: int, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows by ascending position of their class and, within it, falling score, equal ones as given; and its edges.

    cls (n,); position: of each class, `groups` and above for those to be left out. edges (groups + 1,): group i holds
    rows[edges[i]:edges[i + 1]].

    For float32 from 0 up, whose bits sort as the numbers do, position and the higher bits of the score make one whole
    number of 31 bits: PyTorch sorts those digit by digit, in a third of the time of any sort that compares. The few
    that differ in lower bits alone are settled afterwards. They are packed part by part, so that what lies between
    stays in the processor's cache.
    """
    n, wanted = len(score), np.arange(groups + 1)
    bits = np.ascontiguousarray(score).view(np.uint32) if score.dtype == np.float32 else np.zeros(0, np.uint32)
    best, least = bits.max(initial=0), bits.min(initial=0xFFFFFFFF)  # of a negative number or NaN: above infinity
    if not len(bits) or best > 0x7F800000:
        group = position.take(cls.astype(np.int64))
        rows = np.lexsort((-score, group))
        edges = np.searchsorted(group.take(rows), wanted)
        return rows[: edges[-1]], edges
    for_score = min((int(best) - int(least)).bit_length(), 31 - groups.bit_length())
    cut_off = (int(best) - int(least)).bit_length() - for_score  # lower bits without a place
    key = np.empty(n, np.int32)
    for start in range(0, n, PART):
        part = key[start : start + PART]
        part[:] = position.take(cls[start : start + PART].astype(np.int64))
        part <<= for_score
        part |= ((best - bits[start : start + PART]) >> np.uint32(cut_off)).view(np.int32)
    key, rows = (found.numpy() for found in torch.sort(torch.from_numpy(key), stable=True))
    if cut_off:
        _settle(rows, key, bits)
    edges = np.searchsorted(key, wanted << for_score)
    return rows[: edges[-1]], edges


def _settle(rows: np.ndarray, key: np.ndarray, bits: np.ndarray) -> None:
    """Bring rows of equal keys, of which each is a run, into falling order of their bits; equal ones stay as given."""
    after = np.flatnonzero(key[1:] == key[:-1]) + 1
    if (bits.take(rows.take(after)) > bits.take(rows.take(after - 1))).any():
        tied = np.union1d(after - 1, after)
        own = rows.take(tied)
        rows[tied] = own.take(np.lexsort((~bits.take(own), key.take(tied))))
