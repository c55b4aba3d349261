"""Which detection found which label: matching of whole batches at once, without a loop over images or detections.

Arrays: detections (n, 6) xyxy, score, class; labels (m, 5) class, xyxy; both in native pixels, float32, images
concatenated, with a whole number for each row saying to which image it belongs.
"""

from typing import NamedTuple

import numpy as np
import torch

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10, dtype=np.float32)
GROUPS = (64, 160)  # detections of an image are matched in groups, best first, which end there and at the last


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
    """Outcome of matching: the k of n detections that took a label, in ascending order of the labels."""

    n: int
    found: np.ndarray  # (k,) int64 rows of detections
    taken: np.ndarray  # (k,) int64 rows of their labels
    iou: np.ndarray  # (k,) float32

    @property
    def hits(self) -> np.ndarray:
        """(k, 10) bool: right at IoU thresholds .50, .55, ..., .95."""
        return self.iou[:, None] > IOU_THRESHOLDS

    @property
    def correct(self) -> np.ndarray:
        """(n, 10) bool: `hits` of all detections."""
        correct = np.zeros((self.n, len(IOU_THRESHOLDS)), bool)
        correct[self.found] = self.hits
        return correct

    @property
    def label(self) -> np.ndarray:
        """(n,) int64 row of the label that the detection took, -1 for none."""
        label = np.full(self.n, -1)
        label[self.found] = self.taken
        return label


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

    The best detections of an image take most of its labels. So they come first; the others are compared with labels
    that are still free, and with those that share image and class with a free one, which they may prefer.
    """
    dets, labels, image = batch.detections, batch.labels, batch.label_image
    edges = np.searchsorted(batch.det_image, np.arange(int(image.max(initial=-1)) + 2))
    columns = np.array(dets.T, order="C")  # a copy, whatever the number of rows: the scores stay as they are
    columns[4] = (columns[2] - columns[0]) * (columns[3] - columns[1])  # here the area is needed, not the score
    cls = labels[:, 0].astype(np.int64)
    key = image * (int(cls.max(initial=0)) + 1) + cls
    owner, iou = np.full(len(labels), -1), np.zeros(len(labels), np.float32)
    for places in np.split(np.arange(np.diff(edges).max(initial=0)), GROUPS):
        asked = np.flatnonzero(np.bincount(key, owner < 0).take(key))
        if len(places) and len(asked):
            i, j, overlap = _preferred(columns, edges, places, labels.take(asked, 0), image.take(asked))
            j = asked.take(j)
            free = np.flatnonzero(owner.take(j) < 0)[::-1]  # written last to first, so that the first stays
            owner[j.take(free)], iou[j.take(free)] = i.take(free), overlap.take(free)
    taken = np.flatnonzero(owner >= 0)
    return Matches(len(dets), owner.take(taken), taken, iou.take(taken))


def _preferred(columns, edges, places, labels, image) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Detection, label and IoU (p,) of each detection above 0.5 with its best label; by label, then by detection.

    columns (6, n): x1, y1, x2, y2, area, class of the detections; those of image b are rows edges[b] to edges[b + 1],
    of which the ones at `places` (w,) are looked at. labels (k, 5) lie in the images `image` (k,).

    Each label is compared with all w detections of its image, of whatever class: rows of numbers that lie side by side
    cost less than picking out those of its class.
    """
    at = edges[:-1, None] + places
    group = columns.take(at, axis=1, mode="clip")
    group[5][at >= edges[1:, None]] = -1  # beyond the last detection of an image
    x1, y1, x2, y2, area, cls = group.take(image, axis=1)
    left, top, right, bottom, own_area = (column[:, None] for column in _columns(labels[:, 1:]))
    iou = _iou(left, top, right, bottom, own_area, x1, y1, x2, y2, area)
    close = np.flatnonzero((iou > IOU_THRESHOLDS[0]) & (cls == labels[:, :1]))  # NaN, of empty boxes, is not above
    j, place = np.divmod(close, len(places))
    i, iou = at[image.take(j), place], iou.take(close)
    best, wish = np.zeros(columns.shape[1], np.float32), np.empty(columns.shape[1], np.int64)
    np.maximum.at(best, i, iou)
    most = np.flatnonzero(iou == best.take(i))
    i, j, iou = i.take(most), j.take(most), iou.take(most)
    wish[i[::-1]] = j[::-1]  # so that the first of equal labels stays
    first = np.flatnonzero(wish.take(i) == j)
    return i.take(first), j.take(first), iou.take(first)


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
