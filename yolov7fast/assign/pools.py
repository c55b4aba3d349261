"""Who competes with whom: candidates and boxes laid out by pool, on the host.

Shape letters: B pool (an image, or the part of an image that one head answers for), G ground-truth box, P slot of a
pool, which holds one candidate. Pools are padded to common (B, G, P), so that no loop runs over images or boxes.
"""

from typing import NamedTuple

import numpy as np
import torch

LOG_FLOOR = float(np.float32(1e-8))  # added to an IoU before its logarithm, the same for fp32 and fp64
ONE_BID = 1 << 32  # a box bids with ONE_BID + its row in targets: a sum of bids gives their number, and who if but one
PAIRS_AT_ONCE = 1 << 23  # (box, candidate) pairs held at a time: some 250 MB of working memory
PAIRS_IN_CACHE = 1 << 18  # the same on a CPU, where a table that stays in the cache is several times faster


def pairs_at_once(device: torch.device) -> int:
    """How many pairs to work on at a time: a device wants few, large calls, a CPU tables that fit its cache."""
    return min(PAIRS_AT_ONCE, PAIRS_IN_CACHE) if device.type == "cpu" else PAIRS_AT_ONCE


class PoolBlock(NamedTuple):
    """Pools padded to common G and P. Empty slots stand at a pool's end."""

    candidate: torch.Tensor  # (B * P,) int64, index of the candidate in each slot; 0 where it is empty
    filled: torch.Tensor  # (B, P) float, 1 or 0
    padding_cost: torch.Tensor  # (B, P) float, 0 or inf
    score_offset: torch.Tensor  # (B, 1, P) int64, where the candidate's scores begin: candidate x C
    corners: torch.Tensor  # (B, G, 4) float, the boxes in pixels, xyxy
    classes: torch.Tensor  # (B, G, 1) int64
    bid: torch.Tensor  # (B, G) int64, ONE_BID + row in targets
    present: torch.Tensor  # (B, G) int64, 1 or 0
    penalty: torch.Tensor  # (B, G, 1) float, factor of what a box pays: 1, or inf for one that is only padding

    def boxes(self, first: int, last: int) -> "PoolBlock":
        """The same pools with boxes first..last of each."""
        if first == 0 and last >= self.present.shape[1]:
            return self
        fields = ("corners", "classes", "bid", "present", "penalty")
        return self._replace(**{name: getattr(self, name)[:, first:last] for name in fields})


class Pools(NamedTuple):
    blocks: tuple[PoolBlock, ...]
    slot: torch.Tensor  # (n,) int64, slot of each candidate in the blocks' (B, P), one block after another
    corners: torch.Tensor  # (N, 4) float, all boxes of the batch in pixels, xyxy
    classes: torch.Tensor  # (N,) int64, column of each box's class among the class logits

    @classmethod
    def of(cls, slot: torch.Tensor, corners: torch.Tensor, classes: torch.Tensor, *fields: torch.Tensor) -> "Pools":
        """Of what `build_pools` gave, sent to the device."""
        width = len(PoolBlock._fields)
        return cls(
            tuple(PoolBlock(*fields[i : i + width]) for i in range(0, len(fields), width)), slot, corners, classes
        )


def build_pools(
    candidate_pool: np.ndarray,
    target_pool: np.ndarray,
    corners: np.ndarray,
    classes: np.ndarray,
    width: int,
    budget: int,
) -> list[np.ndarray]:
    """Lay candidates and boxes out by the pool they belong to: what `Pools.of` takes.

    candidate_pool: (n,), target_pool: (N,) int64, index of the pool;  corners: (N, 4) boxes in pixels;
    classes: (N,) int64, column among the `width` class logits;   budget: most pairs of a block (`pairs_at_once`).
    Boxes in a pool without candidates can match nothing: they are left out.
    """
    pools = int(candidate_pool.max(initial=-1)) + 1
    slots = np.bincount(candidate_pool, minlength=pools)
    known = np.flatnonzero(target_pool < pools)
    known = known[slots[target_pool[known]] > 0]
    boxes = np.bincount(target_pool[known], minlength=pools)
    slot_rank, box_rank = _rank_in_group(candidate_pool, slots), _rank_in_group(target_pool[known], boxes)

    slot = np.empty(len(candidate_pool), dtype=np.int64)
    arrays, start = [slot, corners, classes], 0
    for members in _split_into_blocks(slots, boxes, budget):
        local = np.full(pools, -1)
        local[members] = np.arange(len(members))
        shape = len(members), slots[members].max()
        (index,) = np.nonzero(local[candidate_pool] >= 0)
        at = local[candidate_pool[index]], slot_rank[index]
        candidate, filled = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        candidate[at], filled[at] = index, 1
        padding_cost = np.where(filled == 0, np.float32(np.inf), np.float32(0))
        score_offset = candidate[:, None] * width
        slot[index] = start + at[0] * shape[1] + at[1]
        start += shape[0] * shape[1]

        inside = local[target_pool[known]] >= 0
        row, at = known[inside], (local[target_pool[known[inside]]], box_rank[inside])
        box_shape = len(members), boxes[members].max()
        box, cls, bid, present = np.zeros((*box_shape, 4), corners.dtype), *np.zeros((3, *box_shape), np.int64)
        box[at], cls[at], bid[at], present[at] = corners[row], classes[row], row + ONE_BID, 1
        penalty = np.where(present == 0, np.float32(np.inf), np.float32(1))
        arrays += [candidate.ravel(), filled, padding_cost, score_offset]
        arrays += [box, cls[..., None], bid, present, penalty[..., None]]
    return arrays


def _rank_in_group(group: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Of each element, how many of its group come before it."""
    order = np.argsort(group, kind="stable")
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(group)) - (np.cumsum(sizes) - sizes)[group[order]]
    return rank


def _split_into_blocks(slots: np.ndarray, boxes: np.ndarray, budget: int) -> list[np.ndarray]:
    """Indices of the pools of each block, none beyond `budget` once padded; one block in all ordinary batches.

    Largest pools first, since the padding follows the largest member. A pool beyond the budget stands alone; its boxes
    are then matched a part at a time.
    """
    order = np.argsort(-slots, kind="stable")
    order = order[slots[order] > 0]
    if len(order) * slots.max(initial=0) * boxes.max(initial=0) <= budget:
        return [np.sort(order)] if len(order) else []
    blocks, members, most = [], [], 0
    for pool in order:
        if members and (len(members) + 1) * slots[members[0]] * max(most, boxes[pool]) > budget:
            blocks.append(np.array(members))
            members, most = [], 0
        members.append(pool)
        most = max(most, boxes[pool])
    return [*blocks, np.array(members)]
