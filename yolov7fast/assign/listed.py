"""Matching on the host, by a list of pairs: only boxes and candidates that are near one another are worked on.

Most boxes of an image lie apart from most of its candidates. A device is fast at a table of all pairs; where reading a
value costs nothing, a list of the near ones gives the same matches, bit for bit, in a fraction of the time. What a pair
that is apart costs at least is known: a box or a candidate for which such a pair might be the best one (a box that no
candidate overlaps, most often) is noticed, and all its pairs are worked out.

Letters: n candidate of the batch, N target, m listed pair, R figure; B, G, P of a block as in `assign.pools`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from yolov7fast.assign.base import Assignment, Predictions
from yolov7fast.assign.pooled import PooledAssigner
from yolov7fast.assign.pools import LOG_FLOOR, ONE_BID, Pools, pairs_at_once
from yolov7fast.assign.rows import Rows, choose, groups, rank_of_each, walks
from yolov7fast.core.boxes import iou_of_sides

LISTED_AT_ONCE = 1 << 20  # near pairs worked on at a time: all of an ordinary batch
SENT = ("candidate", "filled", "bid", "present")  # what the list needs of a block
PARTIAL_SORT = 64  # torch.topk keeps a heap where a row is at least so many times as long as k
RULES: dict[str, Any] = {}  # classes by name, since an operator takes no objects
FAR = 0xFFFF
NOBODY = np.iinfo(np.int64).max


class ListedAssigner(PooledAssigner):
    """A rule that can be worked out on a list, too: its `cost`, `count` and `conflict_cost` take `ListedPairs`."""

    def __init_subclass__(cls):
        super().__init_subclass__()
        RULES[cls.__name__] = cls

    def settings(self) -> list[float]:
        """`top`, then what else the class is built from, in order."""
        return [self.top]

    def regions(self, table: torch.Tensor) -> torch.Tensor:
        """(4, n) xyxy: a candidate is near the boxes that overlap its region. table: (4 + R, n) of `prepare`."""
        raise NotImplementedError

    def least_apart(self, table: torch.Tensor) -> torch.Tensor:
        """(n,): at most what the candidate costs a box that it is not near, and so in a conflict."""
        raise NotImplementedError

    def assign(self, predictions: Predictions, pools: Pools) -> Assignment:
        if not (predictions.corners.is_cpu and predictions.corners.dtype == torch.float32):
            return super().assign(predictions, pools)
        table, score = self.prepare(predictions)
        blocks = [getattr(block, name) for block in pools.blocks for name in SENT]
        targets = [pools.corners, pools.classes]
        given = _match_listed(table, score, targets + blocks, type(self).__name__, self.settings())
        return self.settled(Assignment(*given), predictions, score, pools)


@torch.library.custom_op("yolov7fast::match_listed", mutates_args=())
def _match_listed(
    table: torch.Tensor, score: torch.Tensor, tensors: list[torch.Tensor], rule: str, settings: list[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """taken (n,) bool and target (n,) int64. An operator, since how much it does depends on values."""
    top, *others = settings
    arrays = [t.numpy() for t in tensors]
    matching = _Matching(RULES[rule](int(top), *others), table.detach(), score.detach(), arrays)
    taken, target = matching.run()
    return torch.from_numpy(taken), torch.from_numpy(target)


@_match_listed.register_fake
def _(table, score, tensors, rule, settings):
    n = table.shape[1]
    return table.new_empty(n, dtype=torch.bool), table.new_empty(n, dtype=torch.int64)


class ListedPairs(NamedTuple):
    """m pairs, those of a box together: to a rule the same as `assign.pooled.Pairs`, without padding."""

    iou: torch.Tensor  # (m,)
    figures: tuple[torch.Tensor, ...]  # R of (m,), of the candidates
    box_sides: np.ndarray  # (4, boxes) left, top, right, bottom
    counts: np.ndarray  # (boxes,) pairs of each box
    rows: Rows | None  # the same, laid out
    most_slots: int  # of a pool
    score: np.ndarray  # the scores' memory, flat
    column: np.ndarray  # (m,) int64, where the candidate's score of the box's class stands in it
    width: int  # scores of a candidate

    @property
    def floor(self) -> float:
        return LOG_FLOOR

    @property
    def padding_cost(self) -> float:
        return 0.0

    @property
    def sides(self) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(np.repeat(side, self.counts)) for side in self.box_sides)

    @property
    def present(self) -> torch.Tensor:
        return torch.ones(len(self.counts), dtype=torch.int64)

    def class_score(self) -> torch.Tensor:
        return torch.from_numpy(self.score.take(self.column))

    def best_overlaps(self, top: int) -> torch.Tensor:
        """(boxes, K), in falling order, 0 behind a box's last."""
        rows = self.rows or Rows(self.counts)
        best = -rows.lowest(-self.iou.numpy().view(np.int32), min(top, self.most_slots), 0)
        return torch.from_numpy(best.view(np.float32))

    def number(self, chosen: torch.Tensor) -> torch.Tensor:
        """(boxes,) of each box's pairs, how many are chosen."""
        before = np.concatenate(([0], chosen.numpy().cumsum()))
        ends = self.counts.cumsum()
        return torch.from_numpy(before.take(ends) - before.take(ends - self.counts))


class _Layout(NamedTuple):
    """Candidates and boxes by pool, without padding."""

    candidates: np.ndarray  # pool after pool, each in the order of its slots
    first: np.ndarray  # (pools,) where a pool's candidates begin
    size: np.ndarray  # (pools,)
    slot: np.ndarray  # (n,) place of each candidate in its pool
    boxes: np.ndarray  # rows of targets, pool after pool
    first_box: np.ndarray  # (pools,)
    box_count: np.ndarray  # (pools,)

    @classmethod
    def of(cls, blocks: list[list[np.ndarray]]) -> "_Layout":
        candidates, sizes, boxes, counts = [], [], [], []
        for candidate, filled, bid, present in blocks:
            candidates.append(candidate.reshape(filled.shape)[filled > 0])
            boxes.append(bid[present > 0] & (ONE_BID - 1))
            sizes.append((filled > 0).sum(1))
            counts.append(present.sum(1))
        size, count = np.concatenate(sizes), np.concatenate(counts)
        order, slot = np.concatenate(candidates), np.empty(size.sum(), np.int64)
        slot[order] = rank_of_each(size)
        first, first_box = size.cumsum() - size, count.cumsum() - count
        return cls(order, first, size, slot, np.concatenate(boxes), first_box, count)


class _Matching:
    """One batch being matched. Boxes are rows of targets, candidates are numbered over the whole batch."""

    def __init__(self, rule: ListedAssigner, table: torch.Tensor, score: torch.Tensor, arrays: list[np.ndarray]):
        corners, self.classes, *fields = arrays
        self.blocks = [fields[i : i + len(SENT)] for i in range(0, len(fields), len(SENT))]
        self.rule: Any = rule  # what is declared for `Pairs` takes `ListedPairs`
        self.table, n = table.numpy(), table.shape[1]
        self.budget, self.width = pairs_at_once(table.device), score.shape[1]
        self.sides = np.ascontiguousarray(corners.T)  # (4, N)
        self.score_step, length = score.stride(0), (n - 1) * score.stride(0) + self.width
        self.score = score.as_strided((length,), (1,)).numpy()  # as it lies: a copy would cost more than what is read
        self.layout = _Layout.of(self.blocks)
        self.regions, self.apart = rule.regions(table).numpy(), rule.least_apart(table).numpy()
        self.least = np.minimum.reduceat(self.apart.take(self.layout.candidates), self.layout.first)  # (pools,)
        self.takers = np.zeros(n, np.int64)
        self.target = np.zeros(n, np.int64)
        self.favourite = np.full(n, NOBODY)  # least conflict cost, as a whole number, x 2^32 + the box that has it

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        waiting, size = [], 0
        for part in self._near():
            waiting.append(part)
            size += len(part[0])
            if size >= LISTED_AT_ONCE:
                self._match(*map(np.concatenate, zip(*waiting)))
                waiting, size = [], 0
        if waiting:
            self._match(*map(np.concatenate, zip(*waiting)))
        self._settle_conflicts()
        return self.takers > 0, self.target

    def _near(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Candidates (m,) near each of some boxes, box after box; pairs (boxes,) of each; pool, box (boxes, 2).

        Places are compared as whole numbers of 16 bits, rounded alike: a few pairs more are listed, in half the time.
        """
        low = min(np.fmin.reduce(x, None, initial=0) for x in (self.regions, self.sides))
        high = max(np.fmax.reduce(x, None, initial=0) for x in (self.regions, self.sides))
        regions, sides = (_whole(x, low, high) for x in (self.regions, self.sides))
        first_pool = 0
        for candidate, filled, bid, present in self.blocks:
            pools, slots = filled.shape
            left, top, right, bottom = regions.take(candidate, 1).reshape(4, pools, 1, slots)
            left[:, 0][filled == 0] = FAR  # near nothing
            box = bid & (ONE_BID - 1)
            box_left, box_top, box_right, box_bottom = sides.take(box, 1)[..., None]
            box_left[present == 0] = FAR
            step = max(1, self.budget // (pools * slots))
            both, one = np.empty((2, pools, min(step, box.shape[1]), slots), bool)
            for at in range(0, box.shape[1], step):
                some = slice(at, at + step)
                near, more = both[:, : len(box[0, some])], one[:, : len(box[0, some])]
                np.less_equal(left, box_right[:, some], out=near)
                near &= np.less_equal(box_left[:, some], right, out=more)
                near &= np.less_equal(top, box_bottom[:, some], out=more)
                near &= np.less_equal(box_top[:, some], bottom, out=more)
                place = np.flatnonzero(near)
                rows = np.arange(pools * near.shape[1])
                pool = rows // near.shape[1]
                counts = np.diff(np.searchsorted(place, np.append(rows, len(rows)) * slots))
                place -= np.repeat((rows - pool) * slots, counts)
                real = np.flatnonzero(present[:, some])
                boxes = np.stack([first_pool + pool.take(real), box[:, some].ravel().take(real)], 1)
                yield candidate.take(place), counts.take(real), boxes
            first_pool += pools

    def _match(self, candidate: np.ndarray, counts: np.ndarray, boxes: np.ndarray) -> None:
        """Let boxes, rows of (pool, box), take candidates; arguments as `_near` gives them."""
        pool, box = boxes.T
        rows = Rows(counts)
        pairs = self._pairs(candidate, counts, box, rows=rows)
        cost = self.rule.cost(pairs)
        k = self.rule.count(pairs, cost).numpy()
        self._ask(candidate, np.repeat(box, counts), self.rule.conflict_cost(pairs, cost))
        cost, least = cost.numpy(), self.least.take(pool)
        chosen = choose(rows, cost, counts, k, self.rule.top, least)
        self._take(candidate.take(chosen.place), box.take(chosen.row))
        heap = k * PARTIAL_SORT <= self.layout.size.take(pool)
        for some, match in (
            (chosen.tied[heap[chosen.tied]], self._match_tied),
            (np.append(chosen.tied[~heap[chosen.tied]], chosen.unsure), self._match_whole),
        ):
            if len(some):
                own = counts.take(some)
                listed = walks((counts.cumsum() - counts).take(some), own)
                near = candidate.take(listed), cost.take(listed), own
                match(pool.take(some), box.take(some), k.take(some), least.take(some), *near)

    def _match_tied(self, pool, box, k, least, near, near_cost, counts) -> None:
        """Boxes whose k-th candidate has an equal that is left out: as torch.topk chooses for the whole row.

        near (m,): candidates near each box, counts (boxes,) of them, at near_cost. Of a row much longer than k, topk
        keeps the k lowest so far in a heap. Once k of the near ones that cost less than `least` have come by, no pair
        that is apart can enter it any more: only pairs before that place, and near ones, make a difference.
        """
        starts, row = counts.cumsum() - counts, np.repeat(np.arange(len(box)), counts)
        slot = self.layout.slot.take(near)
        good = near_cost < least.take(row)
        seen = good.cumsum()
        seen -= np.repeat((seen - good).take(starts), counts)
        end = slot[good & (seen == k.take(row))] + 1  # (boxes,) where the k-th of them has come by
        early = slot < end.take(row)
        length = end + counts - np.bincount(row[early], minlength=len(box))
        place = np.where(early, slot, np.repeat(length - counts, counts) + rank_of_each(counts))
        first = self.layout.candidates.take(walks(self.layout.first.take(pool), end))
        first_cost = self.rule.cost(self._pairs(first, end, box, torch.zeros(len(first)))).numpy()
        kind = k * 64 + np.frexp(np.maximum(length, k * PARTIAL_SORT))[1]
        for some in (np.flatnonzero(kind == each) for each in np.unique(kind)):
            each = int(k[some[0]])
            table = np.full((len(some), max(length[some].max(), each * PARTIAL_SORT)), np.inf, np.float32)
            candidates = np.zeros(table.shape, np.int64)
            early = walks((end.cumsum() - end)[some], end[some])
            own = walks(starts[some], counts[some])
            number = np.arange(len(some))
            for where, candidate, cost in (
                ((np.repeat(number, end[some]), rank_of_each(end[some])), first[early], first_cost[early]),
                ((np.repeat(number, counts[some]), place[own]), near[own], near_cost[own]),
            ):
                table[where], candidates[where] = cost, candidate
            chosen = torch.from_numpy(table).topk(each, 1, largest=False).indices.numpy()
            self._take(np.take_along_axis(candidates, chosen, 1).ravel(), np.repeat(box[some], each))

    def _match_whole(self, pool, box, k, least, near, near_cost, counts) -> None:
        """Boxes for which all candidates of their pool count, chosen as torch.topk does; arguments as `_match_tied`."""
        size, ends = self.layout.size.take(pool), counts.cumsum()
        for some in groups(size, LISTED_AT_ONCE):
            sizes = size[some]
            candidate = self.layout.candidates.take(walks(self.layout.first.take(pool[some]), sizes))
            cost = self.rule.cost(self._pairs(candidate, sizes, box[some], torch.zeros(len(candidate))))
            own, start = slice(ends[some][0] - counts[some][0], ends[some][-1]), sizes.cumsum() - sizes
            cost.numpy()[np.repeat(start, counts[some]) + self.layout.slot.take(near[own])] = near_cost[own]
            rows = zip(cost.split(sizes.tolist()), k[some].tolist())
            place = torch.cat([row.topk(count, largest=False).indices for row, count in rows]).numpy()
            self._take(candidate.take(place + np.repeat(start, k[some])), np.repeat(box[some], k[some]))

    def _pairs(
        self,
        candidate: np.ndarray,
        counts: np.ndarray,
        box: np.ndarray,
        iou: torch.Tensor | None = None,
        rows: Rows | None = None,
    ) -> ListedPairs:
        """Of candidates (m,), those of each box (b,) together, counts (b,) of them; iou (m,), if it is known."""
        sides = self.sides.take(box, 1)
        if iou is None:
            corners = [torch.from_numpy(side.take(candidate)) for side in self.table[:4]]
            of_boxes = [torch.from_numpy(np.repeat(side, counts)) for side in sides]
            iou = iou_of_sides(of_boxes, corners).nan_to_num_(0)
        figures = tuple(torch.from_numpy(row.take(candidate)) for row in self.table[4:])
        column = candidate * self.score_step
        column += np.repeat(self.classes.take(box), counts)
        most = int(self.layout.size.max())
        return ListedPairs(iou, figures, sides, counts, rows, most, self.score, column, self.width)

    def _ask(self, candidate: np.ndarray, box: np.ndarray, cost: torch.Tensor) -> None:
        """Remember for which box a candidate costs least, the earliest at equal cost."""
        key = cost.numpy().view(np.int32).astype(np.int64)
        key <<= 32
        key += box
        np.minimum.at(self.favourite, candidate, key)

    def _take(self, candidate: np.ndarray, box: np.ndarray) -> None:
        np.add.at(self.takers, candidate, 1)
        self.target[candidate] = box

    def _settle_conflicts(self) -> None:
        """Candidates that several boxes took go to the box of their pool for which they cost least."""
        (contested,) = np.nonzero(self.takers > 1)
        least = (self.favourite.take(contested) >> 32).astype(np.int32).view(np.float32)
        unsure = contested[~(least < self.apart.take(contested))]
        if len(unsure):
            pool_of = np.empty(len(self.takers), np.int64)
            pool_of[self.layout.candidates] = np.repeat(np.arange(len(self.layout.size)), self.layout.size)
            pool = pool_of.take(unsure)
            number = self.layout.box_count.take(pool)
            for some in groups(number, LISTED_AT_ONCE):
                box = self.layout.boxes.take(walks(self.layout.first_box.take(pool[some]), number[some]))
                candidate = np.repeat(unsure[some], number[some])
                pairs = self._pairs(candidate, np.ones(len(box), np.int64), box)
                self._ask(candidate, box, self.rule.conflict_cost(pairs, self.rule.cost(pairs)))
        self.target[contested] = self.favourite.take(contested) & (ONE_BID - 1)


def _whole(places: np.ndarray, low: float, high: float) -> np.ndarray:
    """Places between low and high as whole numbers from 0, in the same order, below FAR."""
    with np.errstate(invalid="ignore"):  # NaN becomes anything
        return ((places - low) * np.float32((FAR - 1) / max(high - low, 1))).clip(0, FAR - 1).astype(np.uint16)
