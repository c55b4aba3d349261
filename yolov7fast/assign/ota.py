"""Which cell learns which box: the SimOTA assignment for the whole batch at once.

Every candidate of an image may serve every box of that image. A box takes its k cheapest candidates, k being roughly
the number of candidates that already overlap it; a candidate wanted by several boxes goes to the one it costs least.

Shape letters: B pool (an image, or one head's share of an image), G ground-truth box, P place in a pool, n candidate
of the whole batch, C class, K the most candidates a box may take. Pools are padded to (B, G, P): no loop runs over
images or boxes, nothing is read back from the device, and autograd records nothing.

A cell proposed twice stands in its pool twice, at equal cost; which copy a box takes matters where two boxes each want
one. On the host a box takes what torch.topk gives for its row alone, as the reference does: runs on a CPU can be held
against recorded ones. On other devices, where the reference's choice is not defined, it takes the first in the pool.
"""

from functools import reduce
from typing import NamedTuple

import numpy as np
import torch

from yolov7fast.assign.lowest_cost import as_integers, take_cheapest
from yolov7fast.core.boxes import box_iou

IOU_WEIGHT = 3.0  # of the overlap cost against the class cost
LOG_FLOOR = 1e-8  # added to the IoU before its logarithm
ONE = 1 << 32  # a box bids with ONE + its row number in targets: a sum of bids tells how many, and who if but one
PAIRS_AT_ONCE = 1 << 23  # (box, candidate) pairs held at a time: some 250 MB of working memory


class PoolBlock(NamedTuple):
    """Pools padded to common G and P. An empty place, at a pool's end, overlaps nothing and costs infinitely much."""

    candidate: torch.Tensor  # (B * P,) int64, number of the candidate at each place; 0 where it is empty
    filled: torch.Tensor  # (B, P) float, 1 or 0
    barrier: torch.Tensor  # (B, P) float, 0 or inf
    row: torch.Tensor  # (B, 1, P) int64, where the candidate's scores begin: candidate x C
    corners: torch.Tensor  # (B, G, 4) float, the boxes in pixels, xyxy
    classes: torch.Tensor  # (B, G, 1) int64
    bid: torch.Tensor  # (B, G) int64, ONE + row number in targets
    present: torch.Tensor  # (B, G) int64, 1 or 0
    floor: torch.Tensor  # (B, G, 1) float, LOG_FLOOR or 0

    def boxes(self, first: int, last: int) -> "PoolBlock":
        """The same pools with boxes first..last of each."""
        if first == 0 and last >= self.present.shape[1]:
            return self
        fields = ("corners", "classes", "bid", "present", "floor")
        return self._replace(**{name: getattr(self, name)[:, first:last] for name in fields})


class Pools(NamedTuple):
    blocks: tuple[PoolBlock, ...]
    place: torch.Tensor  # (n,) int64, where each candidate stands in the blocks' (B, P) laid end to end

    @classmethod
    def of(cls, place: torch.Tensor, *fields: torch.Tensor) -> "Pools":
        """Of what `lay_out_pools` gave, sent to the device."""
        width = len(PoolBlock._fields)
        return cls(tuple(PoolBlock(*fields[i : i + width]) for i in range(0, len(fields), width)), place)


class Assignment(NamedTuple):
    """What each of the n candidates was given."""

    taken: torch.Tensor  # (n,) bool
    target: torch.Tensor  # (n,) int64, row number in targets; meaningless where not taken


# --- on the host: who competes with whom ------------------------------------------------------------------------------


def lay_out_pools(
    candidate_pool: np.ndarray, target_pool: np.ndarray, corners: np.ndarray, classes: np.ndarray, width: int
) -> list[np.ndarray]:
    """Lay candidates and boxes out by the pool they belong to: what `Pools.of` takes.

    candidate_pool: (n,), target_pool: (N,) int64, number of the pool;  corners: (N, 4) boxes in pixels;
    classes: (N,) int64, column among the `width` class logits. Boxes in a pool without candidates can match nothing:
    they are left out.
    """
    pools = int(candidate_pool.max(initial=-1)) + 1
    places = np.bincount(candidate_pool, minlength=pools)
    known = np.flatnonzero(target_pool < pools)
    known = known[places[target_pool[known]] > 0]
    boxes = np.bincount(target_pool[known], minlength=pools)
    place_rank, box_rank = _rank_in_group(candidate_pool, places), _rank_in_group(target_pool[known], boxes)

    place = np.empty(len(candidate_pool), dtype=np.int64)
    arrays, start = [place], 0
    for members in _share_out(places, boxes):
        local = np.full(pools, -1)
        local[members] = np.arange(len(members))
        shape = len(members), places[members].max()
        (number,) = np.nonzero(local[candidate_pool] >= 0)
        at = local[candidate_pool[number]], place_rank[number]
        candidate, filled = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        candidate[at], filled[at] = number, 1
        barrier = np.where(filled == 0, np.float32(np.inf), np.float32(0))
        scores = candidate[:, None] * width
        place[number] = start + at[0] * shape[1] + at[1]
        start += shape[0] * shape[1]

        inside = local[target_pool[known]] >= 0
        row, at = known[inside], (local[target_pool[known[inside]]], box_rank[inside])
        box_shape = len(members), boxes[members].max()
        box, cls, bid, present = np.zeros((*box_shape, 4), corners.dtype), *np.zeros((3, *box_shape), np.int64)
        box[at], cls[at], bid[at], present[at] = corners[row], classes[row], row + ONE, 1
        floor = (present * LOG_FLOOR).astype(np.float32)
        arrays += [candidate.ravel(), filled, barrier, scores]
        arrays += [box, cls[..., None], bid, present, floor[..., None]]
    return arrays


def _rank_in_group(group: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Of each element, how many of its group come before it."""
    order = np.argsort(group, kind="stable")
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(group)) - (np.cumsum(sizes) - sizes)[group[order]]
    return rank


def _share_out(places: np.ndarray, boxes: np.ndarray) -> list[np.ndarray]:
    """Numbers of the pools of each block, none beyond PAIRS_AT_ONCE once padded; one block in all ordinary batches.

    Largest pools first, since the padding follows the largest member. A pool beyond the budget stands alone, and
    `_match` walks over its boxes.
    """
    order = np.argsort(-places, kind="stable")
    order = order[places[order] > 0]
    if len(order) * places.max(initial=0) * boxes.max(initial=0) <= PAIRS_AT_ONCE:
        return [np.sort(order)] if len(order) else []
    blocks, members, most = [], [], 0
    for pool in order:
        if members and (len(members) + 1) * places[members[0]] * max(most, boxes[pool]) > PAIRS_AT_ONCE:
            blocks.append(np.array(members))
            members, most = [], 0
        members.append(pool)
        most = max(most, boxes[pool])
    return [*blocks, np.array(members)]


# --- on the device ----------------------------------------------------------------------------------------------------


class _Bids(NamedTuple):
    """What the boxes of a pool want of each place, all (B, P)."""

    taken: torch.Tensor  # the sum of the bids of boxes that took the place
    lowest: torch.Tensor  # least cost among all boxes, whether they took it or not
    cheapest: torch.Tensor  # the bid of the box that has it, the earliest at equal cost


@torch.no_grad()
def assign(
    corners: torch.Tensor, objectness: torch.Tensor, class_logits: torch.Tensor, pools: Pools, top: int
) -> Assignment:
    """Give candidates to boxes.

    corners: (n, 4) predicted boxes in pixels, xyxy;  objectness: (n, 1), class_logits: (n, C) raw logits;
    top: how many of a box's best overlaps count towards its k, and so the most candidates it can take.
    """
    if not pools.blocks:
        nothing = torch.zeros_like(pools.place)
        return Assignment(nothing.bool(), nothing)
    score = joint_score(objectness, class_logits)
    table = torch.cat([corners.T, sum_log(1 - score).T])
    matched = [_match(block, table, score, top) for block in pools.blocks]
    taken, target = (_end_to_end(field).index_select(0, pools.place) for field in zip(*matched))
    return Assignment(taken, target)


def _end_to_end(fields) -> torch.Tensor:
    return fields[0].flatten() if len(fields) == 1 else torch.cat([field.flatten() for field in fields])


def joint_score(objectness: torch.Tensor, class_logits: torch.Tensor) -> torch.Tensor:
    """sqrt(class probability x objectness), (n, C), kept off 0 and 1 so that its logarithms are finite.

    The class probability is taken in fp32 whatever the network computes in. Saturated logits (beyond about +-16)
    would make the cost infinite or NaN; here they cost what the nearest representable score costs.
    """
    score = class_logits.float().sigmoid() * objectness.sigmoid()
    limits = torch.finfo(score.dtype)
    return score.sqrt_().clamp_(limits.tiny**0.5, 1 - limits.eps / 2)


def sum_log(x: torch.Tensor) -> torch.Tensor:
    """Sum of logarithms over the last axis (kept, size 1), by the logarithm of products: fewer of them to take.

    Four factors of at least 2^-24 do not underflow in fp32.
    """
    for _ in range(2):
        if x.shape[-1] % 2 == 0:
            first, second = x.chunk(2, -1)
            x = first * second
    return x.log().sum(-1, keepdim=True)


def _match(block: PoolBlock, table: torch.Tensor, score: torch.Tensor, top: int) -> Assignment:
    """Assignment of every place, (B, P), of a block of pools. table: (5, n) corners, sum of log(1 - score)."""
    pools, places = block.barrier.shape
    boxes = block.present.shape[1]
    pooled = table.index_select(1, block.candidate).view(5, pools, places)
    corners = (pooled[:4] * block.filled).permute(1, 2, 0)  # (B, P, 4), each side contiguous
    absent_cost = block.barrier - pooled[4]  # what the candidate costs a box of no class
    step = max(1, PAIRS_AT_ONCE // (pools * places))  # boxes at a time: all of them in all ordinary batches
    bids = reduce(
        _merge,
        (_bid(block.boxes(at, at + step), corners, absent_cost, score, top) for at in range(0, boxes, step)),
    )
    winner = torch.where(bids.taken >= 2 * ONE, bids.cheapest, bids.taken)
    return Assignment(bids.taken >= ONE, winner & (ONE - 1))


def _bid(block: PoolBlock, corners, absent_cost, score, top) -> _Bids:
    """What the boxes of every pool want: overlaps, how many to take, costs, the cheapest ones."""
    iou = box_iou(block.corners, corners).nan_to_num_(0)  # (B, G, P); two empty boxes: no overlap
    k = dynamic_k(iou, block.present, top)
    cost = _pair_cost(iou, absent_cost, score, block)
    most = min(top, cost.shape[-1])
    place = take_cheapest(cost, k, block.filled, most)
    chosen = torch.arange(most, device=cost.device) < k[..., None]

    bids = (block.bid[..., None] * chosen).flatten(1)
    taken = torch.zeros_like(absent_cost, dtype=torch.int64).scatter_add_(1, place.flatten(1), bids)
    lowest, cheapest = cost.min(1)
    return _Bids(taken, lowest, block.bid.gather(1, cheapest))


def dynamic_k(iou: torch.Tensor, least: torch.Tensor, top: int) -> torch.Tensor:
    """(B, G): how many candidates a box takes, the sum of its `top` best overlaps, at least `least` (B, G)."""
    best = as_integers(iou).topk(min(top, iou.shape[-1]), -1).values.view(iou.dtype)
    return torch.maximum(best.sum(-1).long(), least)


def _pair_cost(iou: torch.Tensor, absent_cost: torch.Tensor, score: torch.Tensor, block: PoolBlock) -> torch.Tensor:
    """(B, G, P) class cost + weighted overlap cost.

    The class cost, a BCE against the box's one-hot class, is the candidate's cost for no class at all less the log-odds
    of the box's class: no (G, P, C) is ever formed. A box that is only padding gets log(0): infinite everywhere.
    """
    cost = (iou + block.floor).log_().mul_(-IOU_WEIGHT)
    column = block.row + block.classes
    own_class = score.flatten().index_select(0, column.flatten()).view(column.shape)
    return cost.add_(absent_cost[:, None]).sub_(own_class.logit_())


def _merge(a: _Bids, b: _Bids) -> _Bids:
    """Bids of two sets of boxes, the earlier ones first."""
    later = b.lowest < a.lowest
    lowest, cheapest = torch.where(later, b.lowest, a.lowest), torch.where(later, b.cheapest, a.cheapest)
    return _Bids(a.taken + b.taken, lowest, cheapest)
