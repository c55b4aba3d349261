"""Which detection found which label: matching of whole batches at once, without a loop over images or detections.

Arrays: detections (n, 6) xyxy, score, class; labels (m, 5) class, xyxy; both in native pixels, float32, images
concatenated, with a whole number for each row saying to which image it belongs.
"""

from typing import NamedTuple

import numpy as np
import torch

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10, dtype=np.float32)


class Batch(NamedTuple):
    """A batch in native pixels, ready for matching: images concatenated, best detection of an image first."""

    detections: np.ndarray  # (n, 6) float32 xyxy, score, class
    det_image: np.ndarray  # (n,) int64, ascending
    labels: np.ndarray  # (m, 5) float32 class, xyxy
    label_image: np.ndarray  # (m,) int64

    def split(self, images: int) -> list[np.ndarray]:
        """The detections image by image, (k, 6) each."""
        return np.split(self.detections, np.searchsorted(self.det_image, np.arange(1, images)))


class Matches(NamedTuple):
    """Outcome of matching; rows as in the detections."""

    correct: np.ndarray  # (n, 10) bool: right at IoU thresholds .50, .55, ..., .95
    label: np.ndarray  # (n,) int64 row of the label that the detection took, -1 for none


def native_batch(detections: list[torch.Tensor], targets: torch.Tensor, shapes, hw: tuple[int, int]) -> Batch:
    """Detections (k, 6) in letterbox pixels, one tensor an image, and targets (m, 6) image, class, xywh normalised to
    the letterbox, as native-pixel arrays, clipped to the image.

    shapes: per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h))); hw: size of the network input.
    """
    geometry = _Geometry.of(shapes)
    counts = [len(d) for d in detections]
    det_image = np.repeat(np.arange(len(counts)), counts)
    dets = torch.cat([torch.zeros(0, 6), *(d[:, :6].float().cpu() for d in detections)]).numpy()
    dets[:, :4] = geometry.to_native(dets[:, :4], det_image)
    rows = targets.float().cpu().numpy()
    label_image = rows[:, 0].astype(np.int64)
    h, w = hw
    xywh = rows[:, 2:6] * np.array([w, h, w, h], np.float32)
    half = xywh[:, 2:] / 2
    xyxy = np.concatenate((xywh[:, :2] - half, xywh[:, :2] + half), 1)
    labels = np.concatenate((rows[:, 1:2], geometry.to_native(xyxy, label_image)), 1)
    return Batch(dets, det_image, labels, label_image)


class _Geometry(NamedTuple):
    """How the images of a batch were letterboxed; float32 as in `core.boxes.scale_coords`, for many."""

    limit: np.ndarray  # (B, 4) w, h, w, h of the native image
    pad: np.ndarray  # (B, 4) x, y, x, y
    gain: np.ndarray  # (B, 1) height ratio

    @classmethod
    def of(cls, shapes):
        limit = np.array([(w0, h0, w0, h0) for (h0, w0), _ in shapes], np.float32).reshape(-1, 4)
        pad = np.array([(*p, *p) for _, (_, p) in shapes], np.float32).reshape(-1, 4)
        gain = np.array([[ratio[0]] for _, (ratio, _) in shapes], np.float32).reshape(-1, 1)
        return cls(limit, pad, gain)

    def to_native(self, xyxy: np.ndarray, image: np.ndarray) -> np.ndarray:
        boxes = (xyxy - self.pad[image]) / self.gain[image]
        return np.clip(boxes, 0, self.limit[image])


def pairs_of_equal_key(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows (i, j) with a[i] == b[j], for small whole numbers from 0: i ascending, j ascending within i."""
    order = np.argsort(b, kind="stable")
    counts = np.bincount(b, minlength=int(a.max(initial=0)) + 1)
    starts = np.cumsum(counts) - counts
    count = counts.take(a)
    some = np.flatnonzero(count)
    count = count.take(some)
    first = starts.take(a.take(some)) - (np.cumsum(count) - count)  # plus the pair's number: a walk through b's rows
    place = np.repeat(first, count)
    place += np.arange(len(place))
    return np.repeat(some, count), order.take(place)


def paired_iou(a: np.ndarray, b: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """Plain IoU of xyxy rows a[i] and b[j] -> (p,); float32, no epsilon, two empty boxes give NaN."""
    first, second = _columns(a[:, :4]), _columns(b[:, :4])
    return _iou(*(column.take(i) for column in first), *(column.take(j) for column in second))


def _overlap(a1, a2, b1, b2):
    """Length of the overlap of intervals; a1 and a2 are overwritten."""
    np.minimum(a2, b2, out=a2)
    a2 -= np.maximum(a1, b1, out=a1)
    return np.maximum(a2, 0, out=a2)


def match(batch: Batch) -> Matches:
    """Give each detection the label of its image and class that it overlaps most, if above 0.5 and still free.

    A detection whose best label was taken by a better-scored one stays wrong, even where another label overlaps it
    enough, and matching is done once, at 0.5, not anew for every threshold. So the outcome for a label is simply the
    first detection that prefers it, which needs no loop over detections.
    """
    dets, labels = batch.detections, batch.labels
    columns = np.ascontiguousarray(dets.T)  # numbers that are used together lie together
    i, j = _near_pairs(batch, columns)
    iou = paired_iou(columns[:4].T, labels[:, 1:], i, j)
    close = np.flatnonzero(iou > IOU_THRESHOLDS[0])  # NaN, of empty boxes, is not above
    i, j, iou = i.take(close), j.take(close), iou.take(close)
    best = np.zeros(len(dets), np.float32)
    np.maximum.at(best, i, iou)
    wanted = np.flatnonzero(iou == best.take(i))[::-1]
    wish = np.full(len(dets), -1)
    wish[i.take(wanted)] = j.take(wanted)  # written last to first, so that the first of equal labels stays
    rows = np.flatnonzero(wish >= 0)[::-1]
    owner = np.full(len(labels), -1)
    owner[wish.take(rows)] = rows  # so that a label's first, best-scored detection stays
    taken = np.flatnonzero(owner >= 0)
    rows = owner.take(taken)
    label = np.full(len(dets), -1)
    label[rows] = taken
    correct = np.zeros((len(dets), len(IOU_THRESHOLDS)), bool)
    correct[rows] = best.take(rows)[:, None] > IOU_THRESHOLDS
    return Matches(correct, label)


def _near_pairs(batch: Batch, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Detections and labels (p,) of equal image and class among which are all pairs of an IoU above 0.5.

    columns (6, n): the detections, transposed.

    Boxes that overlap by more than half have their centres in one another, so a detection is paired with the labels
    between whose left and right its centre lies. All detections are tried with the first label of their image and
    class, then those that have a second one with that, and so on; a detection's labels come in ascending order.
    """
    labels = batch.labels
    cls, label_cls = columns[5].astype(np.int64), labels[:, 0].astype(np.int64)
    classes = int(max(cls.max(initial=0), label_cls.max(initial=0))) + 1
    det_key, label_key = batch.det_image * classes + cls, batch.label_image * classes + label_cls
    counts = np.bincount(label_key, minlength=int(det_key.max(initial=0)) + 1)
    count = counts.take(det_key)
    most = int(count.max(initial=0))
    # those with most labels come first, so that each turn works on the front part of the same columns
    fewer = (most - count).astype(np.min_scalar_type(most))  # of few bits, which a radix sort is quick with
    rows = np.argsort(fewer, kind="stable")
    turns = np.searchsorted(fewer.take(rows), np.arange(most, 0, -1))  # how many have more than 0, 1, ... labels
    rows = rows[: turns[0]] if most else rows[:0]
    first = (counts.cumsum() - counts).take(det_key.take(rows))
    centre = ((columns[0] + columns[2]) / 2).take(rows)
    by_key = np.argsort(label_key, kind="stable")
    left, right = labels[:, 1].take(by_key), labels[:, 3].take(by_key)
    margin = 0.01 * (right - left) + 1e-5 * (np.abs(left) + np.abs(right))  # far above what rounding can do
    left, right = left - margin, right + margin
    near, places = [rows[:0]], [rows[:0]]
    for turn, n in enumerate(turns.tolist()):
        at = first[:n]
        inside = left[turn:].take(at) <= centre[:n]
        inside &= centre[:n] <= right[turn:].take(at)
        inside = np.flatnonzero(inside)
        near.append(inside)
        places.append(at.take(inside) + turn)
    return rows.take(np.concatenate(near)), by_key.take(np.concatenate(places))


def _columns(xyxy: np.ndarray) -> tuple[np.ndarray, ...]:
    """x1, y1, x2, y2 and area of boxes (n, 4), each contiguous."""
    x1, y1, x2, y2 = np.ascontiguousarray(xyxy.T)
    return x1, y1, x2, y2, (x2 - x1) * (y2 - y1)


def _iou(ax1, ay1, ax2, ay2, area, bx1, by1, bx2, by2, union) -> np.ndarray:
    """IoU of xyxy boxes (n,) with their areas; what stands for the second boxes is overwritten."""
    union += area
    inter = _overlap(bx1, bx2, ax1, ax2)
    inter *= _overlap(by1, by2, ay1, ay2)
    union -= inter
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(inter, union, out=inter)
