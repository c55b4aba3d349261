"""Which cells may answer for which box: found on the host, from targets, anchors and grid sizes alone.

Nothing here looks at a prediction, so it can run in a loader's worker or while the network's forward is under way, and
every shape that the matching needs afterwards is known without asking the device. NumPy only.

Order is part of the contract (the last of several matches on one cell wins the objectness target): level by level;
inside a level by offset (centre, left, up, right, down), then anchor, then target row.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEAD_REACH = 0.5  # the ordinary rule: the centre cell and the nearer neighbour on each axis
AUX_REACH = 1.0  # the auxiliary head's rule: the centre cell and all four neighbours

# centre, left, up, right, down: where the neighbour lies, in units of the reach
_OFFSETS = np.array([[0, 0], [-1, 0], [0, -1], [1, 0], [0, 1]], dtype=np.float32)


class Candidates(NamedTuple):
    """n proposed cells, level-major; every field is (n,) int64."""

    level: np.ndarray
    image: np.ndarray
    anchor: np.ndarray
    row: np.ndarray
    column: np.ndarray
    target: np.ndarray  # row of the target that proposed the cell

    def cell(self, sizes: Sequence[tuple[int, int]], anchors: int) -> np.ndarray:
        """(n,) index of each cell in its level's raw output, flattened over (image, anchor, row, column)."""
        ny, nx = np.asarray(sizes, dtype=np.int64).reshape(-1, 2)[self.level].T
        return ((self.image * anchors + self.anchor) * ny + self.row) * nx + self.column


def find_candidates(
    targets: np.ndarray, anchors: np.ndarray, sizes: Sequence[tuple[int, int]], anchor_t: float, reach: float
) -> Candidates:
    """Cells proposed for each target box.

    targets: (N, 6) image, class, centre x, centre y, width, height, the box normalised to 0..1
    anchors: (levels, anchors, 2) width, height in cells of their level;   sizes: (rows, columns) of each level's grid
    anchor_t: a box fits an anchor if no side is anchor_t times longer or shorter;   reach: LEAD_REACH or AUX_REACH

    A centre on a grid line proposes its own cell again (as the "right" or "down" neighbour): the copies are kept, they
    count as positives of their own. A centre outside the grid is clamped into it and keeps its true offset.
    """
    size_yx = np.asarray(sizes, dtype=np.int64).reshape(-1, 2)
    size_xy = size_yx[:, None, ::-1].astype(targets.dtype)  # (levels, 1, 2)
    centre = targets[None, :, 2:4] * size_xy  # (levels, N, 2), cells
    extent = targets[None, :, 4:6] * size_xy

    with np.errstate(divide="ignore", invalid="ignore"):  # an empty box gives an infinite ratio and fits nothing
        ratio = extent[:, None] / anchors[:, :, None]  # (levels, anchors, N, 2)
        fits = np.maximum(ratio, 1 / ratio).max(-1) < anchor_t
    mirrored = size_xy - centre
    near = np.concatenate([_within(centre, reach), _within(mirrored, reach)], -1)  # (levels, N, 4) left up right down
    proposed = np.concatenate([np.ones_like(near[..., :1]), near], -1).transpose(0, 2, 1)  # (levels, 5, N)

    level, offset, anchor, target = np.nonzero(proposed[:, :, None] & fits[:, None])
    shift = (_OFFSETS * reach).astype(targets.dtype)[offset]
    column_row = (centre[level, target] + shift).astype(np.int64)  # rounds towards zero, as the clamp below expects
    column_row = np.clip(column_row, 0, size_yx[level, ::-1] - 1)
    image = targets[:, 0].astype(np.int64)[target]
    return Candidates(level, image, anchor, column_row[:, 1], column_row[:, 0], target)


def _within(position: np.ndarray, reach: float) -> np.ndarray:
    """Is the cell before this position close enough, and does it exist?"""
    return (position % 1 < reach) & (position > 1)


def first_on_cell(level: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """(n,) index of the first candidate on each candidate's cell; `cell` as Candidates.cell, `level` its raw output."""
    if not len(cell):
        return cell
    cell = cell + level * (cell.max() + 1)  # one index over all levels
    first = np.empty(cell.max() + 1, dtype=np.int64)  # only the proposed cells are ever touched
    first[cell[::-1]] = np.arange(len(cell))[::-1]  # of several on one cell the last to write is the first in order
    return first[cell]
