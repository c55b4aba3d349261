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
    the letterbox, as native-pixel arrays, clipped to the picture.

    shapes: per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h))); hw: size of the network input.
    """
    geometry = _Geometry.of(shapes)
    counts = [len(d) for d in detections]
    det_image = np.repeat(np.arange(len(counts)), counts)
    dets = torch.cat([d[:, :6] for d in detections]).float().cpu().numpy() if sum(counts) else np.zeros((0, 6), "f4")
    dets[:, :4] = geometry.to_native(dets[:, :4], det_image)
    targets = targets.float().cpu().numpy()
    label_image = targets[:, 0].astype(np.int64)
    h, w = hw
    xywh = targets[:, 2:6] * np.array([w, h, w, h], np.float32)
    half = xywh[:, 2:] / 2
    xyxy = np.concatenate((xywh[:, :2] - half, xywh[:, :2] + half), 1)
    labels = np.concatenate((targets[:, 1:2], geometry.to_native(xyxy, label_image)), 1)
    return Batch(dets, det_image, labels, label_image)


class _Geometry(NamedTuple):
    """How the images of a batch were letterboxed; float32 as in `utils.boxes.scale_coords`, which it does for many."""

    limit: np.ndarray  # (B, 4) w, h, w, h of the native picture
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
    """Rows (i, j) with a[i] == b[j], for whole-number keys: i ascending, j ascending within i."""
    order = np.argsort(b, kind="stable")
    sorted_b = b[order]
    first = np.searchsorted(sorted_b, a, side="left")
    count = np.searchsorted(sorted_b, a, side="right") - first
    i = np.repeat(np.arange(len(a)), count)
    within = np.arange(len(i)) - np.repeat(np.cumsum(count) - count, count)
    return i, order[first[i] + within]


def paired_iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Plain IoU of xyxy rows, (p, 4) and (p, 4) -> (p,); float32, no epsilon, two empty boxes give NaN."""
    wh = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
    inter = np.maximum(wh, 0).prod(1)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(1), (b[:, 2:] - b[:, :2]).prod(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return inter / (area_a + area_b - inter)


def match(batch: Batch) -> Matches:
    """Give each detection the label of its image and class that it overlaps most, if above 0.5 and still free.

    A detection whose best label was taken by a better-scored one stays wrong, even where another label overlaps it
    enough, and matching is done once, at 0.5, not anew for every threshold. So the outcome for a label is simply the
    first detection that prefers it, which needs no loop.
    """
    dets, labels = batch.detections, batch.labels
    label = np.full(len(dets), -1, np.int64)
    correct = np.zeros((len(dets), len(IOU_THRESHOLDS)), bool)
    classes = int(max(dets[:, 5].max(initial=0), labels[:, 0].max(initial=0))) + 1
    det_key = batch.det_image * classes + dets[:, 5].astype(np.int64)
    label_key = batch.label_image * classes + labels[:, 0].astype(np.int64)
    i, j = pairs_of_equal_key(det_key, label_key)
    iou = paired_iou(dets[i, :4], labels[j, 1:])
    close = iou > IOU_THRESHOLDS[0]  # only pairs above 0.5 can be a match; NaN is not above
    i, j, iou = i[close], j[close], iou[close]
    best = np.lexsort((j, -iou, i))  # by detection, then falling IoU, then label order
    i, j, iou = i[best], j[best], iou[best]
    i, first = np.unique(i, return_index=True)
    j, iou = j[first], iou[first]
    j, first = np.unique(j, return_index=True)  # detections are in score order within an image: the first has it
    i, iou = i[first], iou[first]
    label[i] = j
    correct[i] = iou[:, None] > IOU_THRESHOLDS
    return Matches(correct, label)
