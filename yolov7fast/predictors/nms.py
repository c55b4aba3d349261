"""Non-maximum suppression: from a detector's dense output to at most 300 boxes an image.

The work is bounded by counts (30000 candidates, 300 detections an image), never by the clock: the same input gives the
same output on every machine. Filtering runs over a group of images at once; suppression itself is per image.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch

from yolov7fast.core.boxes import xywh2xyxy
from yolov7fast.core.errors import UserError

MAX_DETECTIONS = 300
MAX_CANDIDATES = 30000
CLASS_OFFSET = 4096  # px between classes, so that one suppression serves all of them; float32 rounding is part of it
GROUP_ROWS = 200_000  # rows of prediction filtered at once: bounds memory without a loop over single images
BLOCK = 128  # candidates compared with one another at once in `greedy_nms`


def non_max_suppression(
    prediction: torch.Tensor,
    conf_thres: float = 0.25,
    iou_thres: float = 0.45,
    classes: Sequence[int] | None = None,
    agnostic: bool = False,
    multi_label: bool = False,
    labels: Sequence[torch.Tensor] = (),
) -> list[torch.Tensor]:
    """(B, N, 5 + nc) xywh, objectness, class probabilities -> B tensors (k, 6) xyxy, score, class, best first.

    classes: keep these class ids only. agnostic: classes suppress one another. multi_label: every class of a row above
    the threshold is a candidate, not only the best. labels: per image (m, 5) class and xywh in pixels, put among the
    candidates with score 1 (hybrid auto-labelling). All comparisons are strict.
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
    """Refuse thresholds that no score or overlap could meet or miss; for commands, before anything is loaded."""
    for flag, value in (("--conf-thres", conf_thres), ("--iou-thres", iou_thres)):
        if not 0 <= value <= 1:
            raise UserError(f"{flag} {value} is out of range: it is a fraction between 0 and 1")


def _candidates(prediction, conf_thres, labels, multi_label):
    """Image index (M,) ascending and candidates (M, 6) float32 of a group of images, in row order within an image."""
    image, row = (prediction[..., 4] > conf_thres).nonzero(as_tuple=True)
    x = prediction[image, row]
    if any(len(lab) for lab in labels):
        image, x = _with_labels(image, x, labels)
    boxes = xywh2xyxy(x[:, :4])
    # a one-class model says everything with its objectness
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
    """Append each image's (m, 5) label rows, objectness and class probability 1, behind its own rows."""
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
    """One image: candidates (n, 6) -> detections (k, 6), best first. operator: as `nms_operator` gives it."""
    if operator is not None and len(x) > MAX_CANDIDATES:
        x = x[x[:, 4].sort(descending=True, stable=True)[1][:MAX_CANDIDATES]]
    boxes = x[:, :4] if agnostic else x[:, :4] + x[:, 5:6] * CLASS_OFFSET
    if operator is not None:
        return x[operator(boxes, x[:, 4], iou_thres)[:MAX_DETECTIONS]]
    return x[torch.from_numpy(greedy_nms(boxes.cpu().numpy(), x[:, 4].cpu().numpy(), iou_thres)).to(x.device)]


@cache
def nms_operator(device_type: str, on_cpu: bool = False) -> Callable | None:
    """torchvision's nms for an accelerator (on_cpu: or the CPU), if it works there; None: our own.

    On the CPU ours is taken: it ends at 300 kept boxes, where the operator works through all candidates. Beside a
    torch of another build, torchvision fails while it is imported, or when the operator is called.
    """
    if device_type == "cpu" and not on_cpu:
        return None
    try:
        from torchvision.ops import nms

        nms(torch.zeros(1, 4, device=device_type), torch.zeros(1, device=device_type), 0.5)
    except (ImportError, RuntimeError, NotImplementedError, AttributeError, OSError, AssertionError):
        return None
    return nms


def greedy_nms(boxes: np.ndarray, scores: np.ndarray, iou_thres: float, most: int = MAX_DETECTIONS) -> np.ndarray:
    """Greedy suppression of xyxy boxes (n, 4) float32: indices of the kept, best first, at most `most`.

    Best score first, equal scores in the order given; a box falls when its IoU with a kept one is above the threshold;
    candidates beyond the best 30000 are not looked at. Works through the sorted boxes in blocks: a block is compared
    with all boxes kept so far, then with itself, so that the result is that of the one-by-one loop while no more than
    the needed pairs are computed.
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
    """(n, m) IoU of xyxy boxes > threshold, in float32 without epsilon; an empty pair (0/0) is not above."""
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
    """Greedy choice from a symmetric (n, n) boolean matrix: a row stays unless a kept earlier row overlaps it."""
    removed, kept = np.zeros(len(overlaps), bool), []
    for i, row in enumerate(overlaps):
        if not removed[i]:
            kept.append(i)
            removed |= row
    return kept
