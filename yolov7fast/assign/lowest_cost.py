"""The slots of lowest cost in each row of a padded cost table, and which of several equal ones.

A cell proposed twice gives two equal columns, so that the k-th slot of a row is often a choice among equals.
WongKinYiu/yolov7 asks torch.topk for k slots of each row by itself; what that gives among equals depends on k and on
the length of the row, which a batched call does not know.
"""

import numpy as np
import torch


def lowest_cost_candidates(cost: torch.Tensor, k: torch.Tensor, filled: torch.Tensor, most: int) -> torch.Tensor:
    """(B, G, K) int64: of each row its `most` slots of lowest cost, the k that it takes before the others.

    cost: (B, G, P), not negative;  k: (B, G) int64, at most `most`;  filled: (B, P) float, 1 for the slots that pool B
    has, which come first, and 0 for the padding, whose cost is infinite.

    On the host, where reading a value is free, the choice among equals is upstream's. Elsewhere, where upstream's own
    choice is not defined, it is the first slot, by calls whose number and shapes are fixed.
    """
    return _lowest_as_topk(cost, k, filled, most) if cost.is_cpu else _lowest_first(cost, most)


def as_integers(x: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: they order as the values do where those are not negative, and sort faster."""
    return x.view(torch.int32 if x.dtype == torch.float32 else torch.int64)


def _lowest_first(cost: torch.Tensor, most: int) -> torch.Tensor:
    if cost.dtype == torch.float64:
        return cost.sort(stable=True).indices[..., :most]
    slot = torch.arange(cost.shape[-1], device=cost.device)
    key = torch.add(slot, as_integers(cost).long(), alpha=1 << 32)  # unique: a cost and its slot in one integer
    return key.topk(most, -1, largest=False).indices


@torch.library.custom_op("yolov7fast::lowest_as_topk", mutates_args=())
def _lowest_as_topk(cost: torch.Tensor, k: torch.Tensor, filled: torch.Tensor, most: int) -> torch.Tensor:
    """Rows whose k-th slot has an equal that is left out (some 5%) are asked for one by one; others have no choice.

    An operator of its own because how much it does depends on the values, which a compiler must not look into.
    """
    lowest, slot = _lowest_on_host(cost, min(most + 1, cost.shape[-1]))
    last_taken, first_left = (k - 1).clamp(min=0), k.clamp(max=lowest.shape[-1] - 1)
    tied = lowest.gather(2, last_taken[..., None]) == lowest.gather(2, first_left[..., None])
    pool, row = (tied.squeeze(2) & (last_taken < first_left)).nonzero(as_tuple=True)
    sizes = filled.sum(1).long()[pool].tolist()
    for b, g, size, count in zip(pool.tolist(), row.tolist(), sizes, k[pool, row].tolist()):
        slot[b, g, :count] = cost[b, g, :size].topk(count, largest=False).indices
    return slot[..., :most].contiguous()


@_lowest_as_topk.register_fake
def _(cost, k, filled, most):
    return cost.new_empty((*cost.shape[:2], most), dtype=torch.int64)


def _lowest_on_host(cost: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, G, K) int64 each: the lowest costs of each row, ascending, as whole numbers, and their slots.

    NumPy's partition is vectorised and two to four times as fast as torch.topk on rows of some hundred slots.
    """
    if cost.dtype != torch.float32:
        return as_integers(cost).topk(most, -1, largest=False)
    key = cost.numpy().view(np.int32).astype(np.int64)
    key <<= 32
    key += np.arange(key.shape[-1])
    if most < key.shape[-1]:
        key.partition(most - 1, -1)
    key = torch.from_numpy(np.sort(key[..., :most], -1))
    return key >> 32, key & 0xFFFFFFFF


def highest(x: torch.Tensor, most: int) -> torch.Tensor:
    """(..., K): of each row its `most` highest values, in falling order; x is not negative."""
    if x.is_cpu and x.dtype == torch.float32:
        return _highest_on_host(x, most)
    return as_integers(x).topk(most, -1).values.view(x.dtype)


@torch.library.custom_op("yolov7fast::highest_on_host", mutates_args=())
def _highest_on_host(x: torch.Tensor, most: int) -> torch.Tensor:
    """By NumPy, see `_lowest_on_host`; an operator of its own since a compiler cannot look into NumPy.

    Negated for speed: most overlaps are 0, and a partition at the far end of many equal values is slow.
    """
    values = -x.numpy().view(np.int32)
    if most < x.shape[-1]:
        values.partition(most - 1, -1)
    return torch.from_numpy(-np.sort(values[..., :most], -1)).view(torch.float32)


@_highest_on_host.register_fake
def _(x, most):
    return x.new_empty((*x.shape[:-1], most))
