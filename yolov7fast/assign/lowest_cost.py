"""The cheapest places of each row of a padded cost table, and which of several equal ones.

A cell proposed twice gives two equal columns, so that the k-th cheapest place of a row is often a choice among equals.
The reference asks torch.topk for k places of each row by itself; what that gives among equals depends on k and on the
length of the row, which a batched call does not know.
"""

import torch


def take_cheapest(cost: torch.Tensor, k: torch.Tensor, filled: torch.Tensor, most: int) -> torch.Tensor:
    """(B, G, K) int64: of each row its `most` cheapest places, the k that it takes before the others.

    cost: (B, G, P), not negative;  k: (B, G) int64, at most `most`;  filled: (B, P) float, 1 for the places that pool B
    has, which come first, and 0 for the padding, which costs infinitely much.

    On the host, where asking for a number is free, the choice among equals is the reference's. Elsewhere, where the
    reference's own choice is not defined, it is the first place, by calls whose number and shapes are fixed.
    """
    return _take_as_topk(cost, k, filled, most) if cost.is_cpu else _take_first(cost, most)


def as_integers(x: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: they order as the numbers do where those are not negative, and sort faster."""
    return x.view(torch.int32 if x.dtype == torch.float32 else torch.int64)


def _take_first(cost: torch.Tensor, most: int) -> torch.Tensor:
    if cost.dtype == torch.float64:
        return cost.sort(stable=True).indices[..., :most]
    place = torch.arange(cost.shape[-1], device=cost.device)
    key = torch.add(place, as_integers(cost).long(), alpha=1 << 32)  # unique: a cost and its place in one number
    return key.topk(most, -1, largest=False).indices


@torch.library.custom_op("yolov7_fast::take_as_topk", mutates_args=())
def _take_as_topk(cost: torch.Tensor, k: torch.Tensor, filled: torch.Tensor, most: int) -> torch.Tensor:
    """Rows whose k-th place has an equal that is left out (some 5%) are asked for one by one; others have no choice.

    An operator of its own because how much it does depends on the numbers, which a compiler must not look into.
    """
    cheapest, place = as_integers(cost).topk(min(most + 1, cost.shape[-1]), -1, largest=False)
    last_taken, first_left = (k - 1).clamp(min=0), k.clamp(max=cheapest.shape[-1] - 1)
    tied = cheapest.gather(2, last_taken[..., None]) == cheapest.gather(2, first_left[..., None])
    pool, row = (tied.squeeze(2) & (last_taken < first_left)).nonzero(as_tuple=True)
    sizes = filled.sum(1).long()[pool].tolist()
    for b, g, size, count in zip(pool.tolist(), row.tolist(), sizes, k[pool, row].tolist()):
        place[b, g, :count] = cost[b, g, :size].topk(count, largest=False).indices
    return place[..., :most].contiguous()


@_take_as_topk.register_fake
def _(cost, k, filled, most):
    return cost.new_empty((*cost.shape[:2], most), dtype=torch.int64)
