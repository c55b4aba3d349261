"""Assigners in which the boxes of a pool choose among all its candidates.

A box takes the candidates that cost it least, as many as its rule says; a candidate wanted by several boxes goes to one
of them. The rule (`PooledAssigner`) is what a pair of box and candidate costs and how many a box takes; the rest is
here, for the whole batch at once: no loop over images or boxes, nothing read back, nothing recorded by autograd.

Shape letters: n candidate of the whole batch, C class; B pool, G box, P slot as in `assign.pools`.
"""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch

from yolov7fast.assign.base import Assigner, Assignment, Predictions
from yolov7fast.assign.lowest_cost import highest, lowest_cost_candidates
from yolov7fast.assign.pools import ONE_BID, PAIRS_IN_CACHE, PoolBlock, Pools, pairs_at_once
from yolov7fast.core.boxes import box_iou

LEAST_BOXES = 16  # at a time, where boxes are matched in parts: what is done once a part is little against their pairs
FEW_SCORES = 1 << 20  # which a CPU prepares in one go


class Pairs(NamedTuple):
    """The pairs of boxes and slots of a block of pools."""

    block: PoolBlock
    iou: torch.Tensor  # (B, G, P); 0 for padding
    figures: torch.Tensor  # (R, B, P), what `PooledAssigner.candidate_figures` says of the candidates
    score: torch.Tensor  # (n, C), of all candidates, as `PooledAssigner.score` makes it

    def class_score(self) -> torch.Tensor:
        """(B, G, P): of each pair, the candidate's score of the box's class."""
        whole = torch.int32 if self.score.numel() < 1 << 31 else torch.int64  # half the memory to walk through
        column = self.block.score_offset.to(whole) + self.block.classes.to(whole)
        return self.score.flatten().index_select(0, column.flatten()).view(column.shape)

    def without_padding(self, cost: torch.Tensor) -> torch.Tensor:
        """The cost, infinite for empty slots and for boxes that are only padding."""
        real = self.block.present[..., None] * self.block.filled[:, None] > 0
        return torch.where(real, cost, torch.inf)


class PooledAssigner(Assigner):
    """A rule for boxes that choose. top: the most candidates that a box can take."""

    pooled = True
    top: int

    def score(self, objectness: torch.Tensor, class_logits: torch.Tensor) -> torch.Tensor:
        """(n, C) from logits (n, 1) and (n, C): how much the network believes in each class at each candidate."""
        return class_logits.float().sigmoid() * objectness.sigmoid()

    def candidate_figures(self, predictions: Predictions, score: torch.Tensor) -> torch.Tensor:
        """(R, n): figures of the candidates that `cost` needs, worked out once for each."""
        return score.new_empty(0, len(score))

    def cost(self, pairs: Pairs) -> torch.Tensor:
        """(B, G, P), not negative; infinite for padding, see `Pairs.without_padding`."""
        raise NotImplementedError

    def count(self, pairs: Pairs, cost: torch.Tensor) -> torch.Tensor:
        """(B, G) int64: how many candidates each box takes, at most `top`; 0 for boxes that are only padding."""
        raise NotImplementedError

    def conflict_cost(self, pairs: Pairs, cost: torch.Tensor) -> torch.Tensor:
        """(B, G, P): a candidate that several boxes took goes to the box of its pool for which this is least."""
        return cost

    def settled(self, given: Assignment, predictions: Predictions, score: torch.Tensor, pools: Pools) -> Assignment:
        """Add weights and objectness targets to who got what, for rules by which positives are not all alike."""
        return given

    @torch.no_grad()
    def __call__(
        self, proposed: torch.Tensor, predictions: Predictions | None = None, pools: Pools | None = None
    ) -> Assignment:
        if predictions is None or pools is None:
            raise TypeError(f"{type(self).__name__} needs predictions and pools")
        if not pools.blocks:
            nothing = torch.zeros_like(pools.slot)
            return Assignment(nothing.bool(), nothing)
        table, score = self.prepare(predictions)
        # laid out by slot before, not in `match_block`: a compiler would look up every figure once for each pair
        matched = [self.match_block(b, table.index_select(1, b.candidate), score) for b in pools.blocks]
        taken, target = (_concatenated(field).index_select(0, pools.slot) for field in zip(*matched))
        return self.settled(Assignment(taken, target), predictions, score, pools)

    def prepare(self, predictions: Predictions) -> tuple[torch.Tensor, torch.Tensor]:
        """(4 + R, n) corners and figures of the candidates, and (n, C) scores.

        Many candidates are a part at a time on a CPU: tables that leave its cache are three times as slow.
        """
        logits = predictions.class_logits
        if not logits.is_cpu or torch.compiler.is_compiling() or logits.numel() <= FEW_SCORES:
            return self._prepare(predictions)
        step = max(1, PAIRS_IN_CACHE // logits.shape[1])
        tables, scores = zip(*(self._prepare(part) for part in predictions.split(step)))
        return torch.cat(tables, 1), torch.cat(scores)

    def _prepare(self, predictions: Predictions) -> tuple[torch.Tensor, torch.Tensor]:
        score = self.score(predictions.objectness, predictions.class_logits)
        return torch.cat([predictions.corners, self.candidate_figures(predictions, score)]), score

    def match_block(
        self, block: PoolBlock, table: torch.Tensor, score: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of every slot, (B, P), of a block of pools, whether it is taken, and the row of its target.

        table: (4 + R, B * P) corners, figures of the candidates in the slots.
        """
        pools, slots = block.padding_cost.shape
        boxes = block.present.shape[1]
        pooled = table.view(-1, pools, slots)
        corners = (pooled[:4] * block.filled).permute(1, 2, 0)  # (B, P, 4), each side contiguous
        budget = pairs_at_once(table.device)
        if pools * slots * boxes <= budget:  # all ordinary batches
            bids = self._bid(block, corners, pooled[4:], score)
        else:
            step = max(LEAST_BOXES, budget // (pools * slots))  # boxes at a time
            block, score = self._by_class(block, score)
            parts = (block.boxes(at, at + step) for at in range(0, boxes, step))
            bids = reduce(_merge, (self._bid(part, corners, pooled[4:], score) for part in parts))
        winner = torch.where(bids.taken >= 2 * ONE_BID, bids.favourite, bids.taken)
        return bids.taken >= ONE_BID, winner & (ONE_BID - 1)

    def _by_class(self, block: PoolBlock, score: torch.Tensor) -> tuple[PoolBlock, torch.Tensor]:
        """The scores of a block's slots class by class, and the block with their places: a box, whose class is one,
        then reads them one after another, where it would jump from candidate to candidate.
        """
        by_slot = score.index_select(0, block.candidate)  # (B * P, C)
        place = torch.arange(len(by_slot), device=score.device).view_as(block.score_offset)
        block = block._replace(score_offset=place, classes=block.classes * len(by_slot))
        return block, by_slot.T.contiguous().view_as(by_slot)

    def _bid(self, block: PoolBlock, corners: torch.Tensor, figures: torch.Tensor, score: torch.Tensor) -> "_Bids":
        """What the boxes of every pool want: overlaps, how many to take, costs, the ones of lowest cost."""
        iou = box_iou(block.corners, corners).nan_to_num_(0)  # (B, G, P); two empty boxes: no overlap
        pairs = Pairs(block, iou, figures, score)
        cost = self.cost(pairs)
        k = self.count(pairs, cost)
        most = min(self.top, cost.shape[-1])
        slot = lowest_cost_candidates(cost, k, block.filled, most)
        chosen = torch.arange(most, device=cost.device) < k[..., None]

        bids = (block.bid[..., None] * chosen).flatten(1)
        taken = torch.zeros_like(block.padding_cost, dtype=torch.int64).scatter_add_(1, slot.flatten(1), bids)
        lowest, favourite = self.conflict_cost(pairs, cost).min(1)
        return _Bids(taken, lowest, block.bid.gather(1, favourite))


class _Bids(NamedTuple):
    """What the boxes of a pool want of each slot, all (B, P)."""

    taken: torch.Tensor  # the sum of the bids of boxes that took the slot
    lowest: torch.Tensor  # least conflict cost among all boxes, whether they took it or not
    favourite: torch.Tensor  # the bid of the box that has it, the earliest at equal cost


def _merge(a: _Bids, b: _Bids) -> _Bids:
    """Bids of two sets of boxes, the earlier ones first."""
    later = b.lowest < a.lowest
    lowest, favourite = torch.where(later, b.lowest, a.lowest), torch.where(later, b.favourite, a.favourite)
    return _Bids(a.taken + b.taken, lowest, favourite)


def _concatenated(fields: Sequence[torch.Tensor]) -> torch.Tensor:
    return fields[0].flatten() if len(fields) == 1 else torch.cat([field.flatten() for field in fields])


def dynamic_k(iou: torch.Tensor, least: torch.Tensor, top: int) -> torch.Tensor:
    """(B, G): how many candidates a box takes, the sum of its `top` best overlaps, at least `least` (B, G)."""
    best = highest(iou, min(top, iou.shape[-1]))
    return torch.maximum(best.sum(-1).long(), least)
