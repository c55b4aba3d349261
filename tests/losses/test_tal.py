"""Task-aligned assignment against the slow version, and what it makes the loss learn."""

import numpy as np
import pytest
import torch

from tests.losses.loss_golden import HYP, stand_in
from tests.losses.slow_assigner import slow_bce, slow_candidates, slow_ciou
from tests.losses.slow_tal import slow_tal
from tests.losses.test_yolo_loss import small_case
from yolov7fast.losses.candidates import AUX_REACH, LEAD_REACH
from yolov7fast.losses.yolo_loss import AuxiliaryLoss, YoloLoss

SHAPES = ["ordinary", "one", "empty", "identical", "border", "outside", "tiny and huge", "grid lines", "crowd"]


def random_boxes(random, shape: str, n: int) -> np.ndarray:
    xy, wh = random.uniform(0.02, 0.98, (n, 2)), np.exp(random.uniform(np.log(0.02), np.log(0.7), (n, 2)))
    if shape == "identical":
        xy[:], wh[:] = xy[:1], wh[:1]
    elif shape == "border":
        xy = random.choice([0.0, 1.0, 0.999, 0.001], (n, 2))
    elif shape == "outside":
        xy = random.uniform(-0.5, 1.5, (n, 2))
    elif shape == "tiny and huge":
        wh = random.choice([0.0, 1e-4, 0.3, 1.0, 3.0], (n, 2))
    elif shape == "grid lines":
        xy = random.randint(0, 9, (n, 2)) / 8
    elif shape == "crowd":
        xy, wh = xy[:1] + random.uniform(-0.02, 0.02, (n, 2)), wh[:1] * random.uniform(0.9, 1.1, (n, 2))
    return np.concatenate([xy, wh], 1)


def random_case(seed: int, most: int = 9):
    """(loss, maps fp32, targets, (height, width) in pixels, head): shapes, classes, levels and sizes by turns."""
    random = np.random.RandomState(seed)
    nc = int(random.choice([1, 2, 3, 20, 80]))
    levels = 3 + seed % 3
    anchors = {3: "p5", 4: "w6", 5: "five"}[levels]
    unit = 8 * 2 ** (levels - 1)
    h, w = (unit * random.randint(1, 4), unit * random.randint(1, 4)) if levels < 5 else (unit, unit * 2)
    batch = random.randint(1, 4)
    rows = []
    for image in range(batch):
        shape = SHAPES[(seed + image) % len(SHAPES)]
        n = {"one": 1, "empty": 0}.get(shape, random.randint(1, most + 1))
        boxes = random_boxes(random, shape, n)
        rows.append(np.concatenate([np.full((n, 1), image), random.randint(0, nc, (n, 1)), boxes], 1))
    targets = torch.from_numpy(np.concatenate(rows).astype(np.float32))
    spread, bias = random.choice([0.5, 1.5, 3.0]), random.choice([-4.0, 0.0])
    maps = []
    for level in range(levels):
        m = random.randn(batch, 3, h // (8 << level), w // (8 << level), 5 + nc).astype(np.float32) * spread
        m[..., 4] += bias
        maps.append(torch.from_numpy(m))
    model = stand_in(anchors, nc)
    return YoloLoss(model, "tal"), maps, targets, (h, w), model.model[0]


def matches(loss, maps, targets, height: int, reach: float) -> dict[tuple, tuple]:
    """By (level, image, anchor, row, column) of each positive: target row, weight, objectness target."""
    plan = loss.plan(targets, maps, reach, height)
    if not len(plan.target):
        return {}
    given = loss.match(loss.predicted(maps, plan), plan)
    assert not given.weight[~given.positive_mask].any() and not given.objectness[~given.positive_mask].any()
    found, start = {}, 0
    for level, (cells, m) in enumerate(zip(plan.cells, maps)):
        part = slice(start, start + len(cells))
        start += len(cells)
        taken = given.positive_mask[part]
        where = np.unravel_index(cells[taken].numpy(), m.shape[:4])
        fields = (given.matched_gt[part][taken], given.weight[part][taken], given.objectness[part][taken])
        for *place, target, weight, objectness in zip(*(w.tolist() for w in where), *(f.tolist() for f in fields)):
            assert (level, *place) not in found  # a cell is a positive once
            found[level, *place] = target, weight, objectness
    return found


def slow(maps, targets, size, head, reach, close):
    found = slow_candidates(targets, head.anchors, [tuple(m.shape[2:4]) for m in maps], HYP["anchor_t"], reach)
    return slow_tal(maps, targets, found, head.anchors, head.stride.tolist(), size, close=close)


def check_random(seed: int, dtype: torch.dtype) -> int:
    """Returns how many images were not compared, for a decision that rounding can turn."""
    loss, maps, targets, size, head = random_case(seed)
    reach = LEAD_REACH if seed % 4 else AUX_REACH
    single = dtype == torch.float32
    theirs = slow(maps, targets, size, head, reach, close=1e-5 if single else 1e-9)
    ours = matches(loss, [m.to(dtype) for m in maps], targets, size[0], reach)
    skipped = 0
    for image, expected in enumerate(theirs):
        mine = {cell: given for cell, given in ours.items() if cell[1] == image}
        same = {c: g[0] for c, g in mine.items()} == {c: p.target for c, p in expected.positives.items()}
        if not same and expected.close:
            skipped += 1
            continue
        assert same, f"seed {seed}, image {image}"
        for cell, positive in expected.positives.items():
            assert mine[cell][1:] == pytest.approx(positive[1:], rel=1e-3 if single else 1e-6, abs=1e-6)
    return skipped


@pytest.mark.parametrize("block", range(2))
def test_random_cases_agree_with_the_slow_version(block):
    """40 cases: empty images, one box, identical boxes, borders, outside, crowds; 1-80 classes, 3-5 levels."""
    skipped = sum(check_random(seed, torch.float64) for seed in range(block * 20, block * 20 + 20))
    assert skipped <= 1
    assert sum(check_random(seed, torch.float32) for seed in range(block * 20, block * 20 + 20, 5)) <= 1


def test_a_box_smaller_than_a_cell_is_not_lost():
    """No cell's centre lies inside: the cell that holds the box answers for it."""
    maps, _, images = small_case(boxes=1, batch=1)
    targets = torch.tensor([[0, 1, 0.26, 0.26, 0.05, 0.05]])  # 5 pixels, off the centres of all cells
    found = matches(YoloLoss(stand_in("p5", 5), "tal"), maps, targets, images.shape[2], LEAD_REACH)
    assert found and {(level, row, column) for level, _, _, row, column in found} <= {(0, 3, 3), (1, 1, 1), (2, 0, 0)}


def slow_loss(maps, targets, positives, anchors, nc):
    """Box, objectness and class loss from the formulas of docs/ota.md."""
    box = obj = cls = torch.zeros(1)
    for level, m in enumerate(maps):
        ny, nx = m.shape[2:4]
        wanted = torch.zeros_like(m[..., 0])
        boxes, classes, total = torch.zeros(1), torch.zeros(1), 0.0
        for (at, *place), positive in positives.items():
            if at != level:
                continue
            b, a, gj, gi = place
            p, t = m[b, a, gj, gi], positive.target
            s = p[:4].sigmoid()
            predicted = torch.cat([s[:2] * 2 - 0.5, (s[2:] * 2) ** 2 * anchors[level][a]])
            box_t = targets[t, 2:6] * torch.tensor([nx, ny, nx, ny]) - torch.tensor([gi, gj, 0, 0])
            row = torch.zeros(nc)
            row[int(targets[t, 1])] = 1
            boxes = boxes + positive.weight * (1 - slow_ciou(predicted, box_t))
            classes = classes + positive.weight * slow_bce(p[5:], row, 1.0, 0.0)
            total += positive.weight
            wanted[b, a, gj, gi] = positive.objectness
        box, cls = box + boxes / max(total, 1), cls + classes / max(total, 1)
        obj = obj + (4.0, 1.0, 0.4)[level] * slow_bce(m[..., 4], wanted, 1.0, 0.0)
    return box * HYP["box"], obj * HYP["obj"], cls * HYP["cls"]


def test_the_loss_is_the_one_of_the_formulas():
    maps, targets, images = small_case()
    model = stand_in("p5", 5)
    ours, theirs = ([m.clone().requires_grad_() for m in maps] for _ in range(2))
    value, items = YoloLoss(model, "tal")(ours, targets, images)
    value.backward()
    head = model.model[0]
    images_found = slow([m.detach() for m in maps], targets, (96, 96), head, LEAD_REACH, 1e-5)
    positives = {cell: p for image in images_found for cell, p in image.positives.items()}
    parts = slow_loss(theirs, targets, positives, head.anchors, 5)
    (sum(parts) * 2).backward()
    torch.testing.assert_close(items[:3], torch.cat(parts).detach(), rtol=1e-4, atol=1e-6)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-6)


def test_both_heads_learn_the_leads_alignment():
    """The auxiliary head's own predictions decide nothing: its objectness target is the lead's."""
    maps, targets, images = small_case()
    loss = AuxiliaryLoss(stand_in("p5", 5), "tal")
    other = [torch.zeros_like(m).requires_grad_() for m in maps]
    value, _ = loss([*maps, *other], targets, images)
    value.backward()
    moved = [(m.grad[..., :4].abs().sum(-1) > 0).nonzero().tolist() for m in other]
    learnt = {(level, *cell) for level, cells in enumerate(moved) for cell in cells}
    found = matches(loss, maps, targets, 96, AUX_REACH)
    assert {cell for cell, (_, weight, _) in found.items() if weight > 1e-6} <= learnt <= set(found)
