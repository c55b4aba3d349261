"""Boxes: conversions between forms, overlap measures, and the detector's box code.

Forms: xyxy = left, top, right, bottom; xywh = centre x, centre y, width, height; a trailing n = normalised to 0..1.
Sizes are (height, width). Functions take tensors or NumPy arrays where both occur, and return copies unless stated.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch

Boxes = TypeVar("Boxes", torch.Tensor, np.ndarray)


def _copy(x) -> Any:
    return x.clone() if isinstance(x, torch.Tensor) else np.copy(x)


# --- conversions ------------------------------------------------------------------------------------------------------


def xyxy2xywh(x: Boxes) -> Boxes:
    """(n, >=4) corners to centre and size; further columns are kept."""
    y = _copy(x)
    y[:, :2] = (x[:, :2] + x[:, 2:4]) / 2
    y[:, 2:4] = x[:, 2:4] - x[:, :2]
    return y


def xywh2xyxy(x: Boxes) -> Boxes:
    """(n, >=4) centre and size to corners; further columns are kept."""
    y = _copy(x)
    y[:, :2] = x[:, :2] - x[:, 2:4] / 2
    y[:, 2:4] = x[:, :2] + x[:, 2:4] / 2
    return y


def xywhn2xyxy(x: Boxes, w: float = 640, h: float = 640, padw: float = 0, padh: float = 0) -> Boxes:
    """(n, 4) normalised centre and size to pixel corners of a w x h image that is shifted by the padding."""
    y = _copy(x)
    y[:, 0] = w * (x[:, 0] - x[:, 2] / 2) + padw
    y[:, 1] = h * (x[:, 1] - x[:, 3] / 2) + padh
    y[:, 2] = w * (x[:, 0] + x[:, 2] / 2) + padw
    y[:, 3] = h * (x[:, 1] + x[:, 3] / 2) + padh
    return y


def xyn2xy(x: Boxes, w: float = 640, h: float = 640, padw: float = 0, padh: float = 0) -> Boxes:
    """(n, 2) normalised points to pixels."""
    y = _copy(x)
    y[:, 0] = w * x[:, 0] + padw
    y[:, 1] = h * x[:, 1] + padh
    return y


def clip_coords(boxes: torch.Tensor | np.ndarray, shape: Sequence[int]) -> None:
    """Clamp xyxy boxes, in place, to an image of `shape` (h, w); the limits themselves are allowed."""
    h, w = shape[0], shape[1]
    if isinstance(boxes, torch.Tensor):
        boxes[:, 0::2][:, :2].clamp_(0, w)
        boxes[:, 1::2][:, :2].clamp_(0, h)
    else:
        boxes[:, [0, 2]] = boxes[:, [0, 2]].clip(0, w)
        boxes[:, [1, 3]] = boxes[:, [1, 3]].clip(0, h)


def scale_coords(img1_shape: Sequence[int], coords: Boxes, img0_shape: Sequence[int], ratio_pad=None) -> Boxes:
    """Letterbox pixels back to native pixels, in place: undo padding and gain, then clip.

    img1_shape: (h, w) of the network input; img0_shape: (h, w) of the native image;
    ratio_pad: ((ratio_h, ratio_w), (pad_w, pad_h)) as the data set gives it; only the height ratio is used.
    """
    if ratio_pad is None:
        gain = min(img1_shape[0] / img0_shape[0], img1_shape[1] / img0_shape[1])
        pad = (img1_shape[1] - img0_shape[1] * gain) / 2, (img1_shape[0] - img0_shape[0] * gain) / 2
    else:
        gain = ratio_pad[0][0]
        pad = ratio_pad[1]
    boxes: Any = coords
    boxes[:, [0, 2]] -= pad[0]
    boxes[:, [1, 3]] -= pad[1]
    boxes[:, :4] /= gain
    clip_coords(boxes, img0_shape)
    return coords


# --- decoding of the four box outputs ---------------------------------------------------------------------------------


def decode_xy(sigmoid_xy: torch.Tensor, cell_xy=None) -> torch.Tensor:
    """Centre in cells: the sigmoid reaches from -0.5 to 1.5 around its cell. Without a cell: relative to it."""
    xy = sigmoid_xy * 2.0 - 0.5
    return xy if cell_xy is None else xy + cell_xy


def decode_wh(sigmoid_wh: torch.Tensor, anchor_wh) -> torch.Tensor:
    """Size in the anchor's unit: up to four times the anchor."""
    return (sigmoid_wh * 2.0) ** 2 * anchor_wh


# --- overlap ----------------------------------------------------------------------------------------------------------


def _inter_union(box1, box2):
    """Intersection and union area of every xyxy pair, (..., n, m) each; leading sizes broadcast.

    Computed with one tensor per coordinate instead of (..., 2) rows, for memory access with unit stride.
    """
    left1, top1, right1, bottom1 = box1[..., None, :4].unbind(-1)  # (..., n, 1)
    left2, top2, right2, bottom2 = box2[..., None, :, :4].unbind(-1)  # (..., 1, m)
    width = torch.minimum(right1, right2).sub_(torch.maximum(left1, left2)).clamp_(min=0)
    height = torch.minimum(bottom1, bottom2).sub_(torch.maximum(top1, top2)).clamp_(min=0)
    inter = width.mul_(height)
    return inter, ((right1 - left1) * (bottom1 - top1) + (right2 - left2) * (bottom2 - top2)).sub_(inter)


def box_iou(box1: torch.Tensor, box2: torch.Tensor) -> torch.Tensor:
    """Plain IoU of every xyxy pair, (..., n, 4) and (..., m, 4) -> (..., n, m); leading sizes broadcast.

    No epsilon, so two empty boxes give NaN.
    """
    inter, union = _inter_union(box1, box2)
    return inter / union


def bbox_iou(box1, box2, x1y1x2y2=True, GIoU=False, DIoU=False, CIoU=False, eps=1e-7):
    """IoU or a variant, pair by pair: box1 is one box (4,) or transposed boxes (4, n), box2 is (n, 4) -> (n,).

    Epsilon is added to the heights only. DIoU takes precedence over CIoU, both over GIoU. CIoU's weight of the aspect
    term has no gradient.
    """
    low1, high1 = _corners(box1 if box1.ndim == 2 else box1[:, None], x1y1x2y2)  # (2, n): x and y together
    low2, high2 = _corners(box2.T, x1y1x2y2)
    width, height = (torch.minimum(high1, high2) - torch.maximum(low1, low2)).clamp(min=0).unbind()
    inter = width * height
    w1, h1 = (high1 - low1).unbind()
    w2, h2 = (high2 - low2).unbind()
    h1, h2 = h1 + eps, h2 + eps
    union = w1 * h1 + w2 * h2 - inter + eps
    iou = inter / union
    if not (GIoU or DIoU or CIoU):
        return iou
    enclosing = torch.maximum(high1, high2) - torch.minimum(low1, low2)
    if DIoU or CIoU:
        c2 = _sum_of_squares(enclosing) + eps
        rho2 = _sum_of_squares(low2 + high2 - low1 - high1) / 4
        if DIoU:
            return iou - rho2 / c2
        aspect2 = w2 / (h2 + eps)
        angle2 = torch.atan(aspect2.to(iou.dtype)).to(aspect2.dtype)  # fp32 box2 with fp64 box1: correctly rounded
        v = (4 / math.pi**2) * (angle2 - torch.atan(w1 / (h1 + eps))) ** 2
        with torch.no_grad():
            alpha = v / (v - iou + (1 + eps))
        return iou - (rho2 / c2 + v * alpha)
    c_area = enclosing[0] * enclosing[1] + eps
    return iou - (c_area - union) / c_area


def _corners(box, x1y1x2y2):
    """(4, n) boxes to their lower and upper corners, (2, n) each."""
    first, second = box.chunk(2)
    if x1y1x2y2:
        return first, second
    half = second / 2
    return first - half, first + half


def _sum_of_squares(xy):
    x, y = (xy**2).unbind()
    return x + y


def wh_iou(wh1: torch.Tensor, wh2: torch.Tensor) -> torch.Tensor:
    """IoU of boxes that share a corner: sizes (n, 2) and (m, 2) -> (n, m)."""
    inter = torch.minimum(wh1[:, None], wh2).prod(-1)
    return inter / (wh1.prod(-1)[:, None] + wh2.prod(-1) - inter)
