"""Rows of different lengths, one after another in flat arrays, on the host: their elements, and the lowest of each."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


def rank_of_each(counts: np.ndarray) -> np.ndarray:
    """Of each element of groups of `counts` elements, one after another: how many of its group come before it."""
    rank = np.arange(counts.sum())
    rank -= np.repeat(counts.cumsum() - counts, counts)
    return rank


def walks(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """first[0], first[0] + 1, ..., counts[0] of them, then from first[1] on."""
    return np.repeat(first, counts) + rank_of_each(counts)


def groups(counts: np.ndarray, most: int) -> Iterator[slice]:
    """Slices of rows that have about `most` elements together, at least one row each."""
    ends, start = counts.cumsum(), 0
    while start < len(counts):
        before = ends[start] - counts[start]
        end = max(start + 1, int(np.searchsorted(ends, before + most, "right")))
        yield slice(start, end)
        start = end


class Rows:
    """Rows of `counts` values each, one after another, laid out as tables of rows of about the same length.

    Many short sorts are faster than a long one, and the layout serves for overlaps and costs alike.
    """

    def __init__(self, counts: np.ndarray):
        length = np.frexp(counts)[1]
        self.groups = [np.flatnonzero(length == each) for each in np.unique(length[counts > 0])]
        self.widths = [int(counts[rows].max()) for rows in self.groups]
        first, self.size = np.zeros_like(counts), 0
        for rows, width in zip(self.groups, self.widths):
            first[rows] = self.size + np.arange(len(rows)) * width
            self.size += len(rows) * width
        self.number = len(counts)
        self.place = np.repeat(first - (counts.cumsum() - counts), counts)
        self.place += np.arange(len(self.place))

    def lowest(self, values: np.ndarray, width: int, fill: int, ranked: bool = False) -> np.ndarray:
        """(rows, width): the lowest of values int32 (m,), ascending; `fill` (no lower than any) behind a row's last.

        ranked: as int64 value x 2^32 + the value's place in its row, so that equal ones come in their order.
        """
        laid = np.full(self.size, fill, np.int32)
        laid[self.place] = values
        dtype = np.int64 if ranked else np.int32
        lowest, start = np.full((self.number, width), np.int64(fill) << 32 if ranked else fill, dtype), 0
        for rows, most in zip(self.groups, self.widths):
            table = laid[start : start + len(rows) * most].reshape(-1, most)
            start += table.size
            if ranked:
                table = table.astype(np.int64)
                table <<= 32
                table += np.arange(most)
            if most > width:
                table.partition(width - 1, 1)
            lowest[rows, :most] = np.sort(table[:, :width], 1)
        return lowest


class Chosen(NamedTuple):
    """The k lowest costs of each row of a list."""

    place: np.ndarray  # in the list
    row: np.ndarray  # of each place
    tied: np.ndarray  # rows that are left out: the k-th has an equal, and which is chosen depends on the whole row
    unsure: np.ndarray  # rows that are left out: a pair that is not listed may be among the k


def choose(rows: Rows, cost: np.ndarray, counts: np.ndarray, k: np.ndarray, top: int, least: np.ndarray) -> Chosen:
    """cost (m,), counts (rows,) of each row, k (rows,) at most `top`; least (rows,) that other pairs cost."""
    first = rows.lowest(cost.view(np.int32), top + 1, np.iinfo(np.int32).max, ranked=True)
    value, rank = first >> 32, first & 0xFFFFFFFF
    number, start, last = np.arange(len(counts)), counts.cumsum() - counts, np.maximum(k - 1, 0)
    kth = value[number, last]
    sure = (k == 0) | ((k <= counts) & (kth.astype(np.int32).view(np.float32) < least))
    tied = sure & (k > 0) & (k < counts) & (value[number, np.minimum(k, top)] == kth)
    row, at = np.nonzero((np.arange(top + 1) < k[:, None]) & (sure & ~tied)[:, None])
    return Chosen(start.take(row) + rank[row, at], row, np.flatnonzero(tied), np.flatnonzero(~sure))
