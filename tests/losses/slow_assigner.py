"""A slow, obviously correct assigner and loss: loops over images, levels and boxes, written as the rules read.

The batched code of `losses` is compared with this. No attempt at speed; autograd is left on
where a gradient is wanted and every quantity is formed the long way (one-hot rows, objectness maps, GT x cell x class).
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


class PoolTrace(NamedTuple):
    """What the assigner saw in one image: rows are its boxes, columns its pool of candidates."""

    boxes: list[int]  # target rows
    pool: list[Candidate]
    iou: torch.Tensor
    cost: torch.Tensor
    k: list[int]
    selected: torch.Tensor  # bool, before conflicts are settled
    settled: torch.Tensor  # bool, after


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


def class_cost(predictions, cls):
    """(n, 5 + nc) -> (n,): BCE of the joint score's logit against the one-hot row of the class, summed over classes."""
    y = (predictions[:, 5:].float().sigmoid() * predictions[:, 4:5].sigmoid()).sqrt()
    one_hot = torch.zeros_like(y)
    one_hot[:, cls] = 1
    return F.binary_cross_entropy_with_logits(torch.log(y / (1 - y)), one_hot, reduction="none").sum(1)


@torch.no_grad()
def slow_match_image(maps, targets, rows, pool, anchors, strides, height, top) -> PoolTrace:
    """Settle one image: rows are its boxes (target rows), pool its candidates over all levels."""
    predictions = torch.stack([maps[c.level][c.image, c.anchor, c.row, c.column] for c in pool])
    corners = torch.stack(
        [pixel_box(p, c, anchors[c.level][c.anchor], strides[c.level]) for p, c in zip(predictions, pool)]
    )
    costs, ious = [], []
    for t in rows:
        box = targets[t, 2:6] * height
        box = torch.cat([box[:2] - box[2:] / 2, box[:2] + box[2:] / 2])
        ious.append(plain_iou(box, corners))
        costs.append(class_cost(predictions, int(targets[t, 1])) + 3 * -torch.log(ious[-1] + 1e-8))
    iou, cost = torch.stack(ious), torch.stack(costs)
    k = [max(int(torch.topk(row, min(top, len(pool))).values.sum()), 1) for row in iou]
    selected = torch.zeros_like(cost, dtype=torch.bool)
    for g in range(len(rows)):
        selected[g, torch.topk(cost[g], k[g], largest=False).indices] = True  # among equals whatever that gives
    settled = selected.clone()
    for p in range(len(pool)):
        if selected[:, p].sum() > 1:
            settled[:, p] = False
            settled[cost[:, p].argmin(), p] = True
    return PoolTrace(rows, pool, iou, cost, k, selected, settled)


def slow_assign(maps, targets, candidates, anchors, strides, height, top):
    """Matches per level [(image, anchor, row, column, target)] in emission order, and what each image saw."""
    matches = [[] for _ in maps]
    traces = []
    for image in range(maps[0].shape[0]):
        rows = [t for t in range(len(targets)) if int(targets[t, 0]) == image]
        pool = [c for level in candidates for c in level if c.image == image]
        if not rows or not pool:
            continue
        trace = slow_match_image(maps, targets, rows, pool, anchors, strides, height, top)
        traces.append(trace)
        for p, c in enumerate(pool):
            for g in trace.settled[:, p].nonzero().flatten().tolist():
                matches[c.level].append((*c[1:5], rows[g]))
    return matches, traces


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


def slow_terms(maps, targets, matches, anchors, hyp, gr, nc, balance):
    """(box, obj, cls) before the gains, for matches per level in emission order."""
    box = obj = cls = torch.zeros(1)
    eps = hyp.get("label_smoothing", 0.0)
    for level, prediction in enumerate(maps):
        ny, nx = prediction.shape[2:4]
        wanted = torch.zeros_like(prediction[..., 0])
        losses, logits, rows = [], [], []
        for b, a, gj, gi, t in matches[level]:
            s = prediction[b, a, gj, gi, :4].sigmoid()
            p = torch.cat([s[:2] * 2 - 0.5, (s[2:] * 2) ** 2 * anchors[level][a]])
            box_t = targets[t, 2:6] * torch.tensor([nx, ny, nx, ny]) - torch.tensor([gi, gj, 0, 0])
            ciou = slow_ciou(p, box_t)
            losses.append(1 - ciou)
            wanted[b, a, gj, gi] = (1 - gr) + gr * ciou.detach().clamp(min=0)
            row = torch.full((nc,), eps / 2, dtype=prediction.dtype)
            row[int(targets[t, 1])] = 1 - eps / 2
            logits.append(prediction[b, a, gj, gi, 5:])
            rows.append(row)
        if losses:
            box = box + torch.stack(losses).mean()
            if nc > 1:
                cls = cls + slow_bce(torch.stack(logits), torch.stack(rows), hyp["cls_pw"], hyp["fl_gamma"])
        obj = obj + balance[level] * slow_bce(prediction[..., 4], wanted, hyp["obj_pw"], hyp["fl_gamma"])
    return box, obj, cls
