"""Slow, obviously correct parts of assigners and losses: loops over levels and boxes, as the rules read.

The batched code of `losses` is compared with them. No attempt at speed; autograd is left on.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F


class Candidate(NamedTuple):
    level: int
    image: int
    anchor: int
    row: int
    column: int
    target: int


def slow_candidates(targets, anchors, sizes, anchor_t, reach) -> list[list[Candidate]]:
    """Per level, the cells proposed for each box: offset-major, then anchor, then box. reach: 0.5 or 1.0."""
    levels = []
    for level, (ny, nx) in enumerate(sizes):
        found = []
        for offset in range(5):
            for a, (aw, ah) in enumerate(anchors[level]):
                for t, (image, _, cx, cy, w, h) in enumerate(targets):
                    x, y, w, h = cx * nx, cy * ny, w * nx, h * ny
                    if not max(w / aw, aw / w, h / ah, ah / h) < anchor_t:
                        continue
                    mirrored_x, mirrored_y = nx - x, ny - y
                    along = (None, x, y, mirrored_x, mirrored_y)[offset]
                    if offset and not (along % 1 < reach and along > 1):
                        continue
                    dx, dy = ((0, 0), (-reach, 0), (0, -reach), (reach, 0), (0, reach))[offset]
                    column = min(max(int(x + dx), 0), nx - 1)
                    row = min(max(int(y + dy), 0), ny - 1)
                    found.append(Candidate(level, int(image), a, row, column, t))
        levels.append(found)
    return levels


def pixel_box(prediction, candidate, anchor, stride):
    """Corners in pixels of one predicted box."""
    s = prediction[:4].sigmoid()
    cell = torch.tensor([candidate.column, candidate.row])
    xy = (s[:2] * 2 - 0.5 + cell) * stride
    wh = (s[2:] * 2) ** 2 * anchor * stride
    return torch.cat([xy - wh / 2, xy + wh / 2])


def plain_iou(box, others):
    """IoU of one box (4,) with every one of others (n, 4); all corners."""
    x1, y1, x2, y2 = others.T
    width = (torch.minimum(box[2], x2) - torch.maximum(box[0], x1)).clamp(min=0)
    height = (torch.minimum(box[3], y2) - torch.maximum(box[1], y1)).clamp(min=0)
    inter = width * height
    return inter / ((box[2] - box[0]) * (box[3] - box[1]) + (x2 - x1) * (y2 - y1) - inter)


def slow_ciou(p, t, eps=1e-7):
    """Complete IoU of one predicted and one target box (centre, size), with the epsilons where the rules put them."""
    px1, py1, px2, py2 = p[0] - p[2] / 2, p[1] - p[3] / 2, p[0] + p[2] / 2, p[1] + p[3] / 2
    tx1, ty1, tx2, ty2 = t[0] - t[2] / 2, t[1] - t[3] / 2, t[0] + t[2] / 2, t[1] + t[3] / 2
    inter = (torch.minimum(px2, tx2) - torch.maximum(px1, tx1)).clamp(min=0) * (
        torch.minimum(py2, ty2) - torch.maximum(py1, ty1)
    ).clamp(min=0)
    pw, ph, tw, th = px2 - px1, py2 - py1 + eps, tx2 - tx1, ty2 - ty1 + eps
    iou = inter / (pw * ph + tw * th - inter + eps)
    c2 = (
        (torch.maximum(px2, tx2) - torch.minimum(px1, tx1)) ** 2
        + (torch.maximum(py2, ty2) - torch.minimum(py1, ty1)) ** 2
        + eps
    )
    rho2 = ((tx1 + tx2 - px1 - px2) ** 2 + (ty1 + ty2 - py1 - py2) ** 2) / 4
    v = 4 / math.pi**2 * (torch.atan(tw / (th + eps)) - torch.atan(pw / (ph + eps))) ** 2
    alpha = (v / (v - iou + (1 + eps))).detach()
    return iou - (rho2 / c2 + v * alpha)


def slow_bce(x, t, pos_weight, gamma):
    """Mean BCE with logits, with the focal factor where gamma > 0."""
    loss = F.binary_cross_entropy_with_logits(x, t, pos_weight=torch.tensor(pos_weight), reduction="none")
    if gamma > 0:
        p = x.sigmoid()
        p_t = t * p + (1 - t) * (1 - p)
        loss = loss * (t * 0.25 + (1 - t) * 0.75) * (1 - p_t) ** gamma
    return loss.mean()
