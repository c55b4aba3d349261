"""Task-aligned assignment written as its rules read: one image, one box, one cell at a time, in double precision."""

import math
from typing import NamedTuple

import torch

from tests.losses.slow_assigner import pixel_box, plain_iou


class Positive(NamedTuple):
    target: int
    weight: float
    objectness: float


class Image(NamedTuple):
    """What came out for an image, and whether rounding could have turned a decision."""

    positives: dict[tuple, Positive]  # by (level, image, anchor, row, column)
    close: bool


def logarithm(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def slow_tal(maps, targets, candidates, anchors, strides, size, top=13, alpha=1.0, beta=6.0, close=1e-9) -> list[Image]:
    """size: (height, width) of the input in pixels; candidates: of each level, as `slow_candidates` gives them.

    close: relative difference of two alignments, or difference of two overlaps, that rounding could turn.
    """
    return [
        _image(maps, targets, candidates, anchors, strides, size, image, top, alpha, beta, close)
        for image in range(maps[0].shape[0])
    ]


def _image(maps, targets, candidates, anchors, strides, size, image, top, alpha, beta, close) -> Image:
    height, width = size
    rows = [t for t in range(len(targets)) if int(targets[t, 0]) == image]
    cells = list(dict.fromkeys(c[:5] for level in candidates for c in level if c.image == image))
    if not rows or not cells:
        return Image({}, False)
    proposals = {c[:5]: c for level in reversed(candidates) for c in level}
    boxes, scores = [], []
    for level, _, anchor, row, column in cells:
        p = maps[level][image, anchor, row, column].double()
        boxes.append(pixel_box(p, proposals[level, image, anchor, row, column], anchors[level][anchor], strides[level]))
        classes = p[5:].sigmoid() if len(p) > 6 else torch.ones(1)
        scores.append((p[4].sigmoid() * classes).tolist())
    boxes = torch.stack(boxes)
    overlaps, alignments = {}, {}  # by target row: by cell that lies inside, IoU and logarithm of the alignment
    taken, near = {}, False
    for t in rows:
        x, y, w, h = (targets[t, 2:6] * torch.tensor([width, height, width, height])).tolist()
        corners = torch.tensor([x - w / 2, y - h / 2, x + w / 2, y + h / 2])
        iou = plain_iou(corners, boxes).nan_to_num(0).tolist()
        cls, overlaps[t], alignments[t] = int(targets[t, 1]), {}, {}
        for at, cell in enumerate(cells):
            stride = strides[cell[0]]
            dx, dy = abs((cell[4] + 0.5) * stride - x), abs((cell[3] + 0.5) * stride - y)
            near |= any(abs(d - max(s, stride) / 2) < 1e-4 and d != max(s, stride) / 2 for d, s in ((dx, w), (dy, h)))
            if dx <= max(w, stride) / 2 and dy <= max(h, stride) / 2:
                overlaps[t][cell] = iou[at]
                score = scores[at][cls if len(scores[at]) > 1 else 0]
                alignments[t][cell] = alpha * logarithm(score) + beta * logarithm(iou[at] + 1e-8)
        best = sorted(alignments[t], key=alignments[t].get, reverse=True)
        if len(best) > top:
            near |= alignments[t][best[top - 1]] - alignments[t][best[top]] < close * abs(alignments[t][best[top]])
        taken[t] = best[:top]
    given = {}
    for cell in cells:
        takers = [t for t in rows if cell in taken[t]]
        if len(takers) == 1:
            given[cell] = takers[0]
        elif takers:
            holders = [t for t in rows if cell in overlaps[t]]
            ranked = sorted((overlaps[t][cell] for t in holders), reverse=True)
            given[cell] = max(holders, key=lambda t: overlaps[t][cell])  # the first of equals
            near |= 0 < ranked[0] - ranked[1] < close
    positives = {}
    for cell, t in given.items():
        mine = [other for other, its in given.items() if its == t]
        weight = math.exp(alignments[t][cell] - max(alignments[t][other] for other in mine))
        positives[cell] = Positive(t, weight, weight * max(overlaps[t][other] for other in mine))
    return Image(positives, near)
