"""Non-maximum suppression: from the dense output of a detector to at most 300 boxes per image.

The work is bounded by counts (30000 candidates, 300 detections per image) and not by time, so the same input gives the
same output on every machine. Filtering runs on a group of images at once, NMS itself per image.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch

from yolov7fast.core.boxes import xywh2xyxy
from yolov7fast.core.errors import UserError

MAX_DETECTIONS = 300
MAX_CANDIDATES = 30000
CLASS_OFFSET = 4096  # px between the boxes of different classes, so that one NMS call handles all classes
GROUP_ROWS = 200_000  # prediction rows filtered at once, which bounds memory
BLOCK = 128  # candidates compared with each other at once in `greedy_nms`


def non_max_suppression(
    prediction: torch.Tensor,
    conf_thres: float = 0.25,
    iou_thres: float = 0.45,
    classes: Sequence[int] | None = None,
    agnostic: bool = False,
    multi_label: bool = False,
    labels: Sequence[torch.Tensor] = (),
) -> list[torch.Tensor]:
    """Predictions (B, N, 5 + nc) -> B tensors (k, 6) xyxy, score, class, best first. All comparisons are strict.

    Args:
        prediction: xywh in pixels, objectness, class probabilities.
        conf_thres: confidence threshold.
        iou_thres: IoU above which the box with the lower score is removed.
        classes: keep only these class ids.
        agnostic: boxes of different classes suppress each other.
        multi_label: every class of a row above the threshold is a candidate, not only the best one.
        labels: per image (m, 5) class and xywh in pixels, added as candidates with score 1 (hybrid auto-labelling).
    """
    batch, rows, columns = prediction.shape
    multi_label = multi_label and columns > 6
    operator = nms_operator(prediction.device.type)
    results = []
    step = max(1, GROUP_ROWS // max(rows, 1))
    for start in range(0, batch, step):
        group = prediction[start : start + step]
        image, candidates = _candidates(group, conf_thres, labels[start : start + step], multi_label)
        if classes is not None:
            wanted = torch.as_tensor(list(classes), device=prediction.device, dtype=candidates.dtype)
            keep = (candidates[:, 5:6] == wanted).any(1)
            image, candidates = image[keep], candidates[keep]
        counts = torch.bincount(image, minlength=len(group)).tolist()
        results += [_suppress(x, iou_thres, agnostic, operator) for x in candidates.split(counts)]
    return results


def check_thresholds(conf_thres: float, iou_thres: float) -> None:
    """Raise UserError for thresholds outside 0..1, before anything is loaded."""
    for flag, value in (("--conf-thres", conf_thres), ("--iou-thres", iou_thres)):
        if not 0 <= value <= 1:
            raise UserError(f"{flag} {value} is out of range: it is a fraction between 0 and 1")


def _candidates(prediction, conf_thres, labels, multi_label):
    """Image index (M,), ascending, and candidates (M, 6) float32 of a group of images, in row order within an image."""
    image, row = (prediction[..., 4] > conf_thres).nonzero(as_tuple=True)
    x = prediction[image, row]
    if any(len(lab) for lab in labels):
        image, x = _with_labels(image, x, labels)
    boxes = xywh2xyxy(x[:, :4])
    # the confidence of a one-class model is its objectness
    scores = x[:, 4:5] if x.shape[1] == 6 else x[:, 5:] * x[:, 4:5]
    if multi_label:
        i, j = (scores > conf_thres).nonzero(as_tuple=True)
        score = scores[i, j]
    else:
        score, j = scores.max(1)
        i = (score > conf_thres).nonzero(as_tuple=True)[0]
        score, j = score[i], j[i]
    return image[i], torch.cat((boxes[i].float(), score[:, None].float(), j[:, None].float()), 1)


def _with_labels(image, x, labels):
    """Append the (m, 5) label rows of each image, with objectness and class probability 1, after its own rows."""
    images, rows = [image], [x]
    for index, lab in enumerate(labels):
        extra = x.new_zeros(len(lab), x.shape[1])
        extra[:, :4] = lab[:, 1:5]
        extra[:, 4] = 1.0
        extra[torch.arange(len(lab)), lab[:, 0].long() + 5] = 1.0
        images.append(image.new_full((len(lab),), index))
        rows.append(extra)
    image, order = torch.cat(images).sort(stable=True)
    return image, torch.cat(rows)[order]


def _suppress(x: torch.Tensor, iou_thres: float, agnostic: bool, operator: Callable | None) -> torch.Tensor:
    """Candidates (n, 6) of one image -> detections (k, 6), best first. operator: see `nms_operator`."""
    if operator is not None and len(x) > MAX_CANDIDATES:
        x = x[x[:, 4].sort(descending=True, stable=True)[1][:MAX_CANDIDATES]]
    boxes = x[:, :4] if agnostic else x[:, :4] + x[:, 5:6] * CLASS_OFFSET
    if operator is not None:
        return x[operator(boxes, x[:, 4], iou_thres)[:MAX_DETECTIONS]]
    return x[torch.from_numpy(greedy_nms(boxes.cpu().numpy(), x[:, 4].cpu().numpy(), iou_thres)).to(x.device)]


@cache
def nms_operator(device_type: str) -> Callable | None:
    """torchvision's nms for an accelerator if it works there, else None for `greedy_nms`.

    On the CPU `greedy_nms` is faster, because it stops at 300 boxes. If torchvision was built for another torch, its
    import or the operator fails.
    """
    if device_type == "cpu":
        return None
    try:
        from torchvision.ops import nms

        nms(torch.zeros(1, 4, device=device_type), torch.zeros(1, device=device_type), 0.5)
    except (ImportError, RuntimeError, NotImplementedError, AttributeError, OSError, AssertionError):
        return None
    return nms


def greedy_nms(boxes: np.ndarray, scores: np.ndarray, iou_thres: float, most: int = MAX_DETECTIONS) -> np.ndarray:
    """Indices of the boxes that greedy NMS keeps, best first, at most `most`.

    boxes: (n, 4) float32 xyxy. Boxes are visited by descending score, equal scores in the given order, at most 30000. A
    box is removed if its IoU with a kept one is above the threshold. The sorted boxes are processed in blocks: each
    block is compared with the kept boxes and then with itself, which gives the result of the one-by-one loop.
    """
    kept = np.empty(most, dtype=np.int64)
    n_kept = 0
    order = np.argsort(-scores, kind="stable")[:MAX_CANDIDATES]
    for start in range(0, len(order), BLOCK):
        block = order[start : start + BLOCK]
        if n_kept:
            block = block[~_iou_above(boxes[kept[:n_kept]], boxes[block], iou_thres).any(0)]
        survivors = block[_first_come(_iou_above(boxes[block], boxes[block], iou_thres))][: most - n_kept]
        kept[n_kept : n_kept + len(survivors)] = survivors
        n_kept += len(survivors)
        if n_kept == most:
            break
    return kept[:n_kept]


def _iou_above(a: np.ndarray, b: np.ndarray, threshold: float) -> np.ndarray:
    """(n, m) whether the IoU of xyxy boxes is above the threshold, in float32; False for two empty boxes (0/0)."""
    ax1, ay1, ax2, ay2 = np.ascontiguousarray(a.T)[:, :, None]
    bx1, by1, bx2, by2 = np.ascontiguousarray(b.T)
    width = np.minimum(ax2, bx2)
    width -= np.maximum(ax1, bx1)
    height = np.minimum(ay2, by2)
    height -= np.maximum(ay1, by1)
    inter = np.maximum(width, 0, out=width)
    inter *= np.maximum(height, 0, out=height)
    union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1)
    union -= inter
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(inter, union, out=inter) > threshold


def _first_come(overlaps: np.ndarray) -> list[int]:
    """Rows of a symmetric boolean matrix (n, n), except those that overlap an earlier kept row."""
    removed, kept = np.zeros(len(overlaps), bool), []
    for i, row in enumerate(overlaps):
        if not removed[i]:
            kept.append(i)
            removed |= row
    return kept
