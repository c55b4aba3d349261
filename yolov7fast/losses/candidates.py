"""The host part of a loss, computed from targets, anchors and grid sizes: the candidates and their properties.

No prediction is needed, so this runs while the device executes the network's forward pass, and the shapes of all later
tensors are known without a host sync. Device part: `losses.yolo_loss`.

The order of candidates matters (the last of several positives on one cell sets the objectness target): level by level;
within a level by offset (centre, left, up, right, down), then anchor, then target row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from yolov7fast.core.boxes import xywh2xyxy
from yolov7fast.core.device import send
from yolov7fast.core.errors import UserError
from yolov7fast.losses.simota import GroundTruthBoxes, MatchingChunk, plan_chunks

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
    count as separate positives. A centre outside the grid is clamped into it and keeps its true offset.
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
    """Whether the cell before this position is within reach and exists."""
    return (position % 1 < reach) & (position > 1)


def first_on_cell(level: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """(n,) index of the first candidate on each candidate's cell; `cell` as Candidates.cell, `level` its raw output."""
    if not len(cell):
        return cell
    cell = cell + level * (cell.max() + 1)  # one index over all levels
    first = np.empty(cell.max() + 1, dtype=np.int64)  # only the proposed cells are written
    first[cell[::-1]] = np.arange(len(cell))[::-1]  # reversed, so that the first candidate is written last
    return first[cell]


class LossPlan(NamedTuple):
    """The properties of a batch that do not depend on predictions, on the device: n candidates, N targets.

    Boxes are (4, n), so that operations on them are vectorised along n.
    """

    cells: tuple[torch.Tensor, ...]  # of each raw output, the flat indices of its candidates' cells
    anchor: torch.Tensor  # (2, n) in cells
    stride: torch.Tensor  # (1, n) pixels of a cell
    scale: torch.Tensor  # (4, n) columns, rows, columns, rows of the candidate's raw output
    corner: torch.Tensor  # (4, n) column, row, 0, 0 of the cell
    first_duplicate: torch.Tensor  # (n,) int64, the first candidate on the same cell
    target: torch.Tensor  # (n,) int64, row of the target that proposed the cell
    target_box: torch.Tensor  # (4, N) normalised centre and size
    target_class: torch.Tensor  # (N,) int64
    area: torch.Tensor  # (outputs,) float, cells of each raw output
    balance: torch.Tensor  # (levels,) float, level weights of the objectness loss
    gains: torch.Tensor  # (3,) float, of box, objectness and class loss
    gt: GroundTruthBoxes | None  # None: the assigner does not compare predictions with boxes
    trained: torch.Tensor | None = None  # (n, C) bool, class columns that the candidate's head trains; None: all
    fixed: torch.Tensor | None = None  # (n, C) logits that replace the others for the assigner


@dataclass(frozen=True)
class HeadLayout:
    """Settings of the detection layer. With several heads each predicts some of the classes."""

    anchors: np.ndarray  # (levels, anchors, 2) in cells
    stride: np.ndarray  # (levels,) float32
    anchor_t: float  # a box fits an anchor if no side is longer or shorter by this factor
    nc: int
    heads: int
    head_of: np.ndarray  # (nc,) head of each class
    column_of: np.ndarray  # (nc,) class column of each class in its head's raw outputs


def make_plan(
    layout: HeadLayout,
    targets: torch.Tensor,
    raw: Sequence[torch.Tensor],
    level_weights: Sequence[float],
    gains: Sequence[float],
    reach: float,
    height: int | None,
    exact: bool = False,
) -> LossPlan:
    """The plan of a batch, copied to the device of `raw` in one transfer per dtype.

    raw: raw outputs level by level, in each level head by head. reach: see `find_candidates`. height: of the input
    image, for assigners that compare predictions with boxes. exact: as in `Assigner`.
    """
    batch, na = raw[0].shape[:2]
    sizes = [(m.shape[2], m.shape[3]) for m in raw[:: layout.heads]]
    rows = check_targets(targets, batch, layout.nc)
    image, classes = rows[:, :2].astype(np.int64).T
    head, column = layout.head_of[classes], layout.column_of[classes]
    found = find_candidates(rows, layout.anchors, sizes, layout.anchor_t, reach)
    output = found.level * layout.heads + head[found.target]  # index of the raw output
    if layout.heads > 1:
        order = np.argsort(output, kind="stable")
        found, output = Candidates(*(field[order] for field in found)), output[order]
    cell = found.cell(sizes, na)
    first_duplicate = first_on_cell(output, cell)
    if exact:
        kept = np.flatnonzero(first_duplicate == np.arange(len(cell)))
        found, output, cell = Candidates(*(field[kept] for field in found)), output[kept], cell[kept]
        first_duplicate = np.arange(len(cell))
    counts = np.bincount(output, minlength=len(raw)).tolist()
    scale = np.array([[nx, ny, nx, ny] for ny, nx in sizes], dtype=rows.dtype).T[:, found.level]
    corner = np.stack([found.column, found.row, *np.zeros((2, len(cell)), np.int64)]).astype(rows.dtype)
    known = {
        "anchor": layout.anchors[found.level, found.anchor].T.astype(np.float32),
        "stride": layout.stride[None, found.level],
        "scale": scale,
        "corner": corner,
        "first_duplicate": first_duplicate,
        "target": found.target,
        "target_box": rows[:, 2:6].T,
        "target_class": column,
        "area": np.array([m.shape[:-1].numel() for m in raw], dtype=np.float32),
        "balance": np.array(level_weights, np.float64 if raw[0].dtype == torch.float64 else np.float32),
        "gains": np.array(gains, np.float32),
    }
    matched = []
    if height is not None:
        width = sizes[0][1] * layout.stride[0] if exact else height  # upstream's, which differs for non-square images
        corners = xywh2xyxy(rows[:, 2:6] * np.array([width, height, width, height], rows.dtype))
        gt_image = image * layout.heads + head
        matched = [corners, *plan_chunks(gt_image[found.target], gt_image)]
    # constants are copied too: creating them on the device from host values would synchronise each time
    cell, *tensors = send([cell, *known.values(), *matched], raw[0].device)
    fields: dict[str, Any] = dict(zip(known, tensors))
    gt = None
    if height is not None:
        boxes, *chunks = tensors[len(known) :]
        gt = GroundTruthBoxes(boxes, fields["target_class"], tuple(map(MatchingChunk, chunks[::2], chunks[1::2])))
    return LossPlan(cell.split(counts), gt=gt, **fields)


def check_targets(targets: torch.Tensor, batch: int, nc: int) -> np.ndarray:
    """Targets on the host, fp32 or fp64; UserError for a class that the model does not have."""
    targets = targets.cpu()
    rows = (targets if targets.dtype == torch.float64 else targets.float()).numpy()
    image, cls = rows[:, :2].astype(np.int64).T
    bad = np.flatnonzero((cls < 0) | (cls >= nc))
    if len(bad):
        raise UserError(
            f"class {cls[bad[0]]} in the labels, but the model has {nc} (0..{nc - 1}): "
            "correct the labels, or nc in the data file"
        )
    bad = np.flatnonzero((image < 0) | (image >= batch))
    if len(bad):
        raise IndexError(f"target row {bad[0]} names image {image[bad[0]]} of a batch of {batch}")
    return rows
