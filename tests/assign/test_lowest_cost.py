"""The slots of lowest cost: on the host as torch.topk gives them for the row alone, elsewhere the first of equals."""

import pytest
import torch

from yolov7fast.assign.lowest_cost import PART, _lowest_first, highest, lowest_cost_candidates

MOST = 10


def table(seed: int, dtype: torch.dtype, values: int, sizes: tuple[int, ...] = (90, 63, 64, 12, 10)):
    """Costs of few different values, so that most rows have to choose among equals; pools of several lengths."""
    random = torch.Generator().manual_seed(seed)
    cost = torch.randint(0, values, (5, 7, max(sizes)), generator=random).to(dtype)
    filled = (torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]).float()
    cost = torch.where(filled[:, None] > 0, cost, torch.inf)
    return cost, torch.randint(0, MOST + 1, (5, 7), generator=random), filled, sizes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", [2, 9, 300])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sizes", [(90, 63, 64, 12, 10), (700, 640, 639, 320, 128)], ids=["short", "long"])
def test_on_the_host_each_row_is_chosen_as_topk_chooses_it(seed, values, dtype, sizes):
    """The long pools lie on both sides of the length at which topk changes its way, for several k."""
    cost, k, filled, sizes = table(seed, dtype, values, sizes)
    slot = lowest_cost_candidates(cost, k, filled, MOST)
    assert slot.shape == (5, 7, MOST) and slot.dtype == torch.int64
    for b, size in enumerate(sizes):
        for g, count in enumerate(k[b].tolist()):
            alone = cost[b, g, :size].topk(count, largest=False).indices
            assert sorted(slot[b, g, :count].tolist()) == sorted(alone.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elsewhere_the_first_of_equals_is_taken(dtype):
    cost, _, _, _ = table(0, dtype, 4)
    assert torch.equal(_lowest_first(cost, MOST), cost.sort(stable=True).indices[..., :MOST])


@pytest.mark.parametrize("slots", [1, 3])
def test_a_row_shorter_than_k_may_be(slots):
    cost = torch.zeros(1, 2, slots)
    slot = lowest_cost_candidates(cost, torch.tensor([[1, slots]]), torch.ones(1, slots), slots)
    assert sorted(slot[0, 1].tolist()) == list(range(slots))
    assert slot[0, 0, 0] == cost[0, 0].topk(1, largest=False).indices[0]


@pytest.mark.parametrize("slots", [1, MOST, PART, PART + 1, 3 * PART - 5])
def test_the_highest_of_rows_of_any_length_are_those_of_topk(slots):
    """Most overlaps are 0, in long rows too, which are divided into parts, the last of them perhaps of one slot."""
    random = torch.Generator().manual_seed(slots)
    overlap = torch.rand(4, 6, slots, generator=random) * (torch.rand(4, 6, slots, generator=random) < 0.1)
    most = min(MOST, slots)
    assert torch.equal(highest(overlap, most), overlap.topk(most).values)
