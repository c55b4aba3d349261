"""The batched SimOTA against the recorded matches and numbers of each step."""

import numpy as np
import pytest
import torch

from tests.losses.loss_golden import GOLDEN, Case, batched_matches, names
from yolov7fast.core.boxes import box_iou
from yolov7fast.losses import simota
from yolov7fast.losses.simota import Pairs, Predictions, SimOTA, lowest_cost, plan_chunks


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
