"""The slots of lowest cost in each row of a padded cost table, and which of several equal ones.

A cell proposed twice gives two equal columns, so that the k-th slot of a row is often a choice among equals.
WongKinYiu/yolov7 asks torch.topk for k slots of each row by itself; what that gives among equals depends on k and on
the length of the row, which a batched call does not know.
"""

from collections.abc import Iterator

import numpy as np
import torch

PARTIAL_SORT = 64  # rows of so many times k slots are sorted partially by torch.topk, shorter ones otherwise
PART = 256  # slots of a row that NumPy partitions in one go by vector instructions; longer rows take four times as long


def lowest_cost_candidates(cost: torch.Tensor, k: torch.Tensor, filled: torch.Tensor, most: int) -> torch.Tensor:
    """(B, G, K) int64: of each row the k slots of lowest cost; what stands behind them is not to be used.

    cost: (B, G, P), not negative;  k: (B, G) int64, at most `most`, which is K;  filled: (B, P) float, 1 for the slots
    that pool B has, which come first, and 0 for the padding, whose cost is infinite.

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
    """The slots that cost no more than the k-th lowest cost of their row; where that is one too many, as topk chooses.

    An operator of its own because how much it does depends on the values, which a compiler must not look into.
    """
    slots, count = cost.shape[-1], k.numpy().ravel()
    table = cost.view(-1, slots)
    values = as_integers(table).numpy()
    flat = np.flatnonzero(values <= _kth_lowest(values, count))
    row = flat // slots
    found = np.bincount(row, minlength=len(values))
    rank = np.arange(len(flat)) - (np.cumsum(found) - found)[row]
    kept = rank < count[row]
    chosen = torch.zeros(len(values), most, dtype=torch.int64)
    chosen.numpy()[row[kept], rank[kept]] = (flat - row * slots)[kept]
    tied = np.flatnonzero(found > count)
    for rows, slot in _topk_alone(table, tied, count[tied], filled.numpy().sum(1)[tied // cost.shape[1]].astype(int)):
        chosen[rows, : slot.shape[1]] = slot
    return chosen.view(*cost.shape[:2], most)


@_lowest_as_topk.register_fake
def _(cost, k, filled, most):
    return cost.new_empty((*cost.shape[:2], most), dtype=torch.int64)


def _kth_lowest(values: np.ndarray, count: np.ndarray) -> np.ndarray:
    """(R, 1): of each row of whole numbers (R, P) the one at rank `count` (R,), -1 where that is 0."""
    lowest = _lowest(values, int(count.max(initial=1)))
    limit = np.take_along_axis(lowest, (np.maximum(count, 1) - 1)[:, None], 1)
    return np.where(count[:, None] > 0, limit, values.dtype.type(-1))


def _lowest(values: np.ndarray, most: int) -> np.ndarray:
    """(..., K): of each row of whole numbers its `most` lowest, in rising order.

    NumPy's partition is vectorised and two to four times as fast as torch.topk on rows of some hundred slots; those of
    longer rows are among the lowest of their parts.
    """
    if most < PART < values.shape[-1]:
        parts = (values[..., at : at + PART] for at in range(0, values.shape[-1], PART))
        values = np.concatenate([_first_partition(part, most) for part in parts], -1)
    return np.sort(_first_partition(values, most), -1)


def _first_partition(values: np.ndarray, most: int) -> np.ndarray:
    """(..., K): of each row its `most` lowest, or all of them, in any order."""
    return np.partition(values, most - 1, -1)[..., :most] if most < values.shape[-1] else values


def _topk_alone(
    table: torch.Tensor, rows: np.ndarray, count: np.ndarray, sizes: np.ndarray
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(m,) rows of `table` (R, P) and (m, k) the slots that torch.topk gives for the first `sizes` slots of each alone.

    Many rows have to be asked for, some 5%: those of one k together, as long as they are. Where k is small against the
    length, topk reads a row from its start and passes over what is not lower than all it holds: padding at the end.
    """
    length = np.where(count * PARTIAL_SORT <= sizes, table.shape[1], sizes)
    for k, size in sorted(set(zip(count.tolist(), length.tolist()))):
        alike = torch.from_numpy(rows[(count == k) & (length == size)])
        yield alike, table[alike, :size].topk(k, largest=False).indices


def highest(x: torch.Tensor, most: int) -> torch.Tensor:
    """(..., K): of each row its `most` highest values, in falling order; x is not negative."""
    if x.is_cpu and x.dtype == torch.float32:
        return _highest_on_host(x, most)
    return as_integers(x).topk(most, -1).values.view(x.dtype)


@torch.library.custom_op("yolov7fast::highest_on_host", mutates_args=())
def _highest_on_host(x: torch.Tensor, most: int) -> torch.Tensor:
    """By NumPy, see `_lowest`; an operator of its own since a compiler cannot look into NumPy.

    Negated for speed: most overlaps are 0, and a partition at the far end of many equal values is slow.
    """
    return torch.from_numpy(-_lowest(-x.numpy().view(np.int32), most)).view(torch.float32)


@_highest_on_host.register_fake
def _(x, most):
    return x.new_empty((*x.shape[:-1], most))
