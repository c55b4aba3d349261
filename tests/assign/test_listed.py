"""Matching by a list of near pairs: the same bits as by the table of all pairs, whatever is predicted."""

import numpy as np
import pytest
import torch

from tests.assign.test_ota import random_case
from tests.losses.loss_golden import stand_in
from yolov7fast.assign import listed, pools
from yolov7fast.assign.candidates import LEAD_REACH
from yolov7fast.assign.pooled import PooledAssigner
from yolov7fast.assign.rows import Rows, choose
from yolov7fast.losses.yolo import YoloLoss


def case(name: str, seed: int, most: int = 9):
    _, maps, targets, height, head = random_case(seed, most)
    return YoloLoss(stand_in({3: "p5", 4: "w6", 5: "five"}[head.nl], head.nc), name), maps, targets, height


def assert_same_as_the_table(loss: YoloLoss, maps, targets, height: int) -> torch.Tensor:
    """By either way on single-precision predictions; returns which candidates are taken."""
    plan = loss.plan(targets, maps, LEAD_REACH, height)
    if not len(plan.target):
        return torch.zeros(0, dtype=torch.bool)
    predicted = loss.predicted(maps, plan)
    by_list = loss.match(predicted, plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listed.ListedAssigner, "assign", PooledAssigner.assign)
        by_table = loss.match(predicted, plan)
    assert torch.equal(by_list.taken, by_table.taken)
    assert torch.equal(by_list.target[by_list.taken], by_table.target[by_table.taken])
    for ours, theirs in ((by_list.weight, by_table.weight), (by_list.objectness, by_table.objectness)):
        assert ours is theirs is None or torch.equal(ours, theirs)
    return by_list.taken


@pytest.mark.parametrize("name", ["ota", "tal"])
@pytest.mark.parametrize("most", [9, 60])
def test_random_cases_are_matched_as_by_the_table(name, most):
    """Empty images, one box, identical boxes, borders, outside, crowds; 1-80 classes, 3-5 levels."""
    taken = [assert_same_as_the_table(*case(name, seed, most)) for seed in range(40)]
    assert sum(bool(each.any()) for each in taken) > 30


@pytest.mark.parametrize("name", ["ota", "tal"])
@pytest.mark.parametrize(("pairs", "at_once"), [(1, 1), (1 << 10, 1 << 20), (1 << 20, 64)])
def test_lists_in_parts_are_matched_as_by_the_table(name, pairs, at_once, monkeypatch):
    whole = assert_same_as_the_table(*case(name, 4, 40))
    monkeypatch.setattr(pools, "PAIRS_AT_ONCE", pairs)
    monkeypatch.setattr(listed, "LISTED_AT_ONCE", at_once)
    assert torch.equal(assert_same_as_the_table(*case(name, 4, 40)), whole)


@pytest.mark.parametrize("name", ["ota", "tal"])
@pytest.mark.parametrize("logit", [-50.0, 50.0])
def test_boxes_that_nothing_overlaps_are_matched_as_by_the_table(name, logit):
    """Boxes of no size, or of four times the anchors' size: most rows, and many conflicts, look at all pairs."""
    loss, maps, targets, height = case(name, 7, 30)
    for m in maps:
        m[..., 2:4] = logit
    assert assert_same_as_the_table(loss, maps, targets, height).any()


def test_a_far_candidate_that_costs_less_than_a_near_one_is_found(monkeypatch):
    """Near ones are sure of all 80 wrong classes, which costs more than not to overlap at all."""
    loss = YoloLoss(stand_in("p5", 80), "ota")
    maps = [torch.full((1, 3, 64 // s, 64 // s, 85), -20.0) for s in (8, 16, 32)]
    for m in maps:
        m[..., :4] = 0
        side = m.shape[2]
        m[:, :, : side // 2, : max(side // 2, 1), 4:] = 20.0
    targets = torch.tensor([[0, 3, 0.2, 0.2, 0.3, 0.3], [0, 5, 0.8, 0.8, 0.3, 0.3]])
    whole = []
    watched = listed._Matching._match_whole

    def match_whole(self, pool, box, *others):
        whole.extend(box.tolist())
        watched(self, pool, box, *others)

    monkeypatch.setattr(listed._Matching, "_match_whole", match_whole)
    assert assert_same_as_the_table(loss, maps, targets, 64).any() and 0 in whole


@pytest.mark.parametrize("seed", range(3))
def test_the_lowest_of_rows_are_found(seed):
    """Rows of 0 to 40 costs of few values: those without equals at the k-th place, as a sort gives them."""
    random = np.random.RandomState(seed)
    counts = random.randint(0, 41, 50)
    cost = random.randint(0, 30, counts.sum()).astype(np.float32)
    k, least = np.minimum(random.randint(0, 11, 50), counts + 1), random.choice([4.0, 100.0], 50)
    chosen = choose(Rows(counts), cost, counts, k, 10, least.astype(np.float32))
    start = counts.cumsum() - counts
    for r in range(50):
        costs = np.sort(cost[start[r] : start[r] + counts[r]])
        sure = k[r] == 0 or (k[r] <= counts[r] and costs[k[r] - 1] < least[r])
        tied = sure and 0 < k[r] < counts[r] and costs[k[r] - 1] == costs[k[r]]
        assert (r in chosen.unsure, r in chosen.tied) == (not sure, tied)
        found = np.sort(cost[chosen.place[chosen.row == r]]).tolist()
        assert found == (costs[: k[r]].tolist() if sure and not tied else [])
