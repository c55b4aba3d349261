"""The batched SimOTA against the recorded matches, and against a slow assigner that loops as the rules read."""

import numpy as np
import pytest
import torch

from tests.losses.loss_golden import GOLDEN, Case, batched_matches, names, stand_in
from tests.losses.slow_assigner import slow_assign, slow_candidates
from yolov7fast.core.boxes import box_iou
from yolov7fast.losses import simota
from yolov7fast.losses.candidates import AUX_REACH, LEAD_REACH
from yolov7fast.losses.simota import AUX_TOP, LEAD_TOP, Pairs, Predictions, SimOTA, lowest_cost, plan_chunks
from yolov7fast.losses.yolo_loss import ComputeLossOTA

ROUNDING = 1e-5  # relative: what two orders of summation in fp32 may differ by


def near_tie(trace) -> bool:
    """Does this image hold a decision that rounding can turn: at the k-th place, at a conflict, or in k itself?"""
    for g, k in enumerate(trace.k):
        costs = trace.cost[g].sort().values
        if k < len(costs) and (costs[k] - costs[k - 1]).abs() <= ROUNDING * costs[k - 1].abs():
            return True
        overlap = trace.iou[g].sort(descending=True).values[: max(LEAD_TOP, AUX_TOP)].sum()
        if (overlap - overlap.round()).abs() <= ROUNDING * max(1.0, float(overlap)):
            return True
    if len(trace.boxes) > 1:
        lowest = trace.cost[:, trace.selected.sum(0) > 1].sort(0).values[:2]
        return bool(((lowest[1] - lowest[0]).abs() <= ROUNDING * lowest[0].abs()).any())
    return False


def compare(ours, theirs, traces) -> None:
    """Equal as sets; an image may differ only where there is a near tie in what the slow assigner saw there."""
    for level, (a, b) in enumerate(zip(ours, theirs)):
        for image in {m[0] for m in set(a) ^ set(b)}:
            trace = next(t for t in traces if t.pool[0].image == image)
            assert near_tie(trace), f"level {level}, image {image}: {sorted(set(a) ^ set(b))}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", names("ota", "aux"))
def test_recorded_matches_are_equal_copies_of_a_cell_included(name, dtype):
    case = Case(name, dtype)
    for kind, reach in case.assignments.items():
        ours = batched_matches(case.loss, case.lead, case.targets, case.height, reach, case.top)
        for mine, recorded in zip(ours, case.recorded(f"{kind}_match")):
            assert sorted(mine) == sorted(recorded)


@pytest.mark.parametrize(
    "name", ["ota_tiny_nc3_b1_img0", "ota_edge_img0", "ota_edge_img3", "ota_fitted_lead", "aux_fitted_aux"]
)
def test_each_step_gives_the_recorded_figures(name):
    """Overlaps, how many to take, class cost, cost."""
    z = np.load(GOLDEN / "loss_debug.npz")
    f = {k.split("/")[1]: z[k] for k in z.files if k.startswith(name + "/")}
    gt_boxes, boxes = torch.from_numpy(f["txyxy"])[None], torch.from_numpy(f["box"])
    iou = box_iou(gt_boxes, boxes[None])
    np.testing.assert_allclose(iou[0], f["iou"], rtol=1e-5, atol=1e-7)
    case = Case(name.rsplit("_", 1)[0])
    level, b, a, gj, gi = f["pool"].T.astype(int)
    rows = torch.stack([case.lead[i][tuple(w)].detach() for i, *w in zip(level, b, a, gj, gi)])
    assigner, nowhere = SimOTA(f["topk_iou"].shape[1]), torch.zeros(4, len(rows))
    features = assigner.prepare(Predictions(boxes.T, rows[:, 4:5], rows[:, 5:], nowhere, nowhere[:1]))
    labels = case.targets[f["gt_rows"].astype(int), 1].long()
    pairs = Pairs(torch.arange(len(rows))[None], gt_boxes, labels[None], iou)
    cost = assigner.cost_matrix(pairs, features)
    assert assigner.dynamic_k(pairs, cost)[0].tolist() == f["k"].tolist()
    np.testing.assert_allclose(cost[0], f["cost"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(cost[0] + 3 * (iou[0] + 1e-8).log(), f["lcls"], rtol=1e-5, atol=1e-5)


# --- random cases -----------------------------------------------------------------------------------------------------

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
    """(loss, maps fp32, targets, height): shapes, classes, levels and sizes by turns."""
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
    return ComputeLossOTA(stand_in(anchors, nc)), maps, targets, h, stand_in(anchors, nc).model[0]


def check_random(seed: int, most: int = 9) -> None:
    loss, maps, targets, height, head = random_case(seed, most)
    reach, top = (LEAD_REACH, LEAD_TOP) if seed % 4 else (AUX_REACH, AUX_TOP)
    sizes = [tuple(m.shape[2:4]) for m in maps]
    found = slow_candidates(targets, head.anchors, sizes, loss.layout.anchor_t, reach)
    for dtype in (torch.float32, torch.float64):
        wide = [m.to(dtype) for m in maps]
        ours = batched_matches(loss, wide, targets, height, reach, top)
        theirs, traces = slow_assign(wide, targets, found, head.anchors, head.stride.tolist(), height, top)
        compare(ours, theirs, traces)
        if all(set(a) == set(b) for a, b in zip(ours, theirs)):
            assert [len(a) for a in ours] == [len(b) for b in theirs]  # copies of a cell counted alike


@pytest.mark.parametrize("block", range(5))
def test_random_cases_agree_with_the_slow_assigner(block):
    """100 cases: empty images, one box, identical boxes, borders, outside, crowds; 1-80 classes, 3-5 levels."""
    for seed in range(block * 20, block * 20 + 20):
        check_random(seed)


# --- further properties -----------------------------------------------------------------------------------------------


def test_every_candidate_meets_every_box_of_its_image_in_chunks_within_the_limit(monkeypatch):
    monkeypatch.setattr(simota, "MAX_PAIRS", 40)
    random = np.random.RandomState(0)
    gt_image = np.sort(random.randint(0, 6, 40))
    candidate_image = random.choice([0, 1, 2, 5], 60)
    arrays, met = plan_chunks(candidate_image, gt_image), []
    for candidate_idx, gt_idx in zip(arrays[::2], arrays[1::2]):
        assert gt_idx.shape[1] == 1 or candidate_idx.size * gt_idx.shape[1] <= 40
        for c, g in zip(candidate_idx, gt_idx):
            met += [(i, j) for i in c[c >= 0].tolist() for j in g[g >= 0].tolist()]
    expected = [(i, j) for i in range(60) for j in range(40) if candidate_image[i] == gt_image[j]]
    assert sorted(met) == expected


@pytest.mark.parametrize("seed", range(5))
def test_among_equal_costs_the_choice_is_that_of_topk_for_the_row_alone(seed):
    """Rows of different lengths with many equal costs, as upstream asks for them, one by one."""
    random = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([30, 90, 700, 1])
    cost = torch.randint(0, 25, (4, 6, 700), generator=random).float()
    cost[torch.arange(700) >= sizes[:, None, None].expand_as(cost)] = torch.inf
    k = torch.minimum(torch.randint(0, 11, (4, 6), generator=random), sizes[:, None])
    chosen = lowest_cost(cost, k, sizes, 10)
    for image, size in enumerate(sizes.tolist()):
        for gt in range(6):
            alone = cost[image, gt, :size].topk(int(k[image, gt]), largest=False).indices
            assert set(chosen[image, gt, : k[image, gt]].tolist()) == set(alone.tolist())
