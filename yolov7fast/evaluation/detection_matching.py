"""Which detection found which label: matching of whole batches at once, without a loop over images or detections.

Arrays: detections (n, 6) xyxy, score, class; labels (m, 5) class, xyxy; both in native pixels, float32, images
concatenated, with a whole number for each row saying to which image it belongs.
"""

from typing import NamedTuple

import numpy as np
import torch

from yolov7fast.core.boxes import scale_coords, xywh2xyxy

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
    """Outcome of matching n detections."""

    label: np.ndarray  # (n,) int64 row of the label that the detection took, -1 for none
    correct: np.ndarray  # (n, 10) bool: right at IoU thresholds .50, .55, ..., .95


def native_batch(detections: list[torch.Tensor], targets: torch.Tensor, shapes, hw: tuple[int, int]) -> Batch:
    """Detections (k, 6) in letterbox pixels, one tensor an image, and targets (m, 6) image, class, xywh normalised to
    the letterbox, as native-pixel arrays, clipped to the image.

    shapes: per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h))); hw: size of the network input.
    """
    h, w = hw
    rows, dets, labels = targets.float().cpu().numpy(), [np.zeros((0, 6), np.float32)], [np.zeros((0, 5), np.float32)]
    for image, (size, ratio_pad) in enumerate(shapes):
        found = detections[image][:, :6].float().cpu().numpy().copy()
        scale_coords(hw, found, size, ratio_pad)
        own = rows[rows[:, 0] == image, 1:]
        own[:, 1:] = xywh2xyxy(own[:, 1:] * np.array([w, h, w, h], np.float32))
        scale_coords(hw, own[:, 1:], size, ratio_pad)
        dets.append(found)
        labels.append(own)
    images = np.arange(-1, len(shapes))
    counts = ([len(part) for part in parts] for parts in (dets, labels))
    det_image, label_image = (np.repeat(images, count) for count in counts)
    return Batch(np.concatenate(dets), det_image, np.concatenate(labels), label_image)


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
    ax1, ay1, ax2, ay2 = a[i, :4].T
    bx1, by1, bx2, by2 = b[j, :4].T
    width = np.maximum(np.minimum(ax2, bx2) - np.maximum(ax1, bx1), 0)
    inter = width * np.maximum(np.minimum(ay2, by2) - np.maximum(ay1, by1), 0)
    union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - inter
    with np.errstate(divide="ignore", invalid="ignore"):
        return inter / union


def closest(key: np.ndarray, iou: np.ndarray) -> np.ndarray:
    """For each value of `key`, ascending, the row with the greatest IoU, the first of equal ones."""
    order = np.lexsort((-iou, key))
    return order[np.unique(key[order], return_index=True)[1]]


def match(batch: Batch) -> Matches:
    """Give each detection the label of its image and class that it overlaps most, if above 0.5 and still free.

    A detection whose best label was taken by one with a better score counts as wrong, even if another label overlaps it
    enough, and matching is done once, at 0.5, not for every threshold. So a label goes to the first detection that
    prefers it, which needs no loop over detections.
    """
    det_cls, label_cls = batch.detections[:, 5].astype(np.int64), batch.labels[:, 0].astype(np.int64)
    classes = 1 + max(det_cls.max(initial=0), label_cls.max(initial=0))
    det, label = pairs_of_equal_key(batch.det_image * classes + det_cls, batch.label_image * classes + label_cls)
    iou = paired_iou(batch.detections, batch.labels[:, 1:], det, label)
    close = iou > IOU_THRESHOLDS[0]  # NaN, of empty boxes, is not above
    det, label, iou = det[close], label[close], iou[close]
    best = closest(det, iou)
    det, label, iou = det[best], label[best], iou[best]  # ascending: best score of an image first
    taken, first = np.unique(label, return_index=True)
    found = Matches(np.full(len(batch.detections), -1), np.zeros((len(batch.detections), len(IOU_THRESHOLDS)), bool))
    found.label[det[first]] = taken
    found.correct[det[first]] = iou[first, None] > IOU_THRESHOLDS
    return found
