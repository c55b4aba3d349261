"""Confusion matrix of detections against labels, for whole batches at once."""

from typing import NamedTuple

import numpy as np
import torch

from yolov7fast.evaluation.detection_matching import Batch, closest, paired_iou, pairs_of_equal_key


class Pairing(NamedTuple):
    """The detections of a batch that count, and which of them are paired with which labels."""

    detections: np.ndarray  # (n, 6) above the confidence
    det_image: np.ndarray  # (n,)
    paired: np.ndarray  # (p,) rows of `detections`
    labels: np.ndarray  # (p,) rows of the batch's labels


class ConfusionMatrix:
    """Counts (nc + 1, nc + 1): row = predicted class, column = true class, the last of each = background.

    A detection above the confidence is paired with the label of its image that it overlaps most, whatever the class,
    one to one. A pair counts at [predicted, true], a missed label at [background, true], a detection without a label at
    [predicted, background]; every image counts.

    upstream differs: it counts pairs at [true, predicted] and leaves out images without labels or detections, and false
    positives of images without a pair.
    """

    image_batches = 0

    def __init__(self, nc: int, conf: float = 0.25, iou_thres: float = 0.45):
        self.matrix = np.zeros((nc + 1, nc + 1))
        self.nc = nc
        self.conf = conf
        self.iou_thres = iou_thres

    def __call__(self, batch) -> None:
        """A sink of the evaluation loop; it reads no images."""
        self.update(batch.native)

    def process_batch(self, detections, labels) -> None:
        """One image: detections (n, 6) xyxy, score, class; labels (m, 5) class, xyxy; tensors or arrays."""
        dets, labs = (
            np.asarray(x.cpu() if isinstance(x, torch.Tensor) else x, np.float32) for x in (detections, labels)
        )
        dets, labs = dets.reshape(-1, 6), labs.reshape(-1, 5)
        self.update(Batch(dets, np.zeros(len(dets), np.int64), labs, np.zeros(len(labs), np.int64)))

    def update(self, batch: Batch) -> Pairing:
        """Count a batch of images, detections and labels in the same pixels; returns what was paired."""
        sure = batch.detections[:, 4] > self.conf
        dets, det_image = batch.detections[sure], batch.det_image[sure]
        true, predicted = batch.labels[:, 0].astype(int), dets[:, 5].astype(int)
        t, d = pairs_of_equal_key(batch.label_image, det_image)
        iou = paired_iou(batch.labels[:, 1:], dets, t, d)
        close = iou > self.iou_thres
        t, d, iou = t[close], d[close], iou[close]
        chosen = closest(d, iou)  # label of each detection
        t, d, iou = t[chosen], d[chosen], iou[chosen]
        chosen = closest(t, iou)  # then detection of each label
        t, d = t[chosen], d[chosen]
        missed = np.delete(true, t)
        single = np.ones(len(dets), bool)
        single[d] = False
        np.add.at(self.matrix, (predicted[d], true[t]), 1)
        np.add.at(self.matrix[self.nc], missed, 1)
        np.add.at(self.matrix[:, self.nc], predicted[single], 1)
        return Pairing(dets, det_image, d, t)
