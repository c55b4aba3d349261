"""The host's part of a loss: candidates and all that is known of them before any prediction, sent to the device.

It needs targets, anchors and the sizes of the raw outputs alone, so it runs while the device is busy with the network;
every shape that comes later is known here, and the device is never asked for a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from yolov7fast.core.boxes import xywh2xyxy
from yolov7fast.core.device_copy import send
from yolov7fast.core.errors import UserError
from yolov7fast.losses.assignment import GroundTruthBoxes, MatchingChunk, plan_chunks
from yolov7fast.losses.candidates import Candidates, find_candidates, first_on_cell


class Plan(NamedTuple):
    """What is known of a batch before any prediction, on the device: n candidates, N targets.

    Boxes lie side by side, (4, n): what is done with them walks along n, which can be vectorised.
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
    gt: GroundTruthBoxes | None  # what candidates are matched with; None: the assigner compares nothing
    trained: torch.Tensor | None = None  # (n, C) bool, class columns that the candidate's output has; None: all
    fixed: torch.Tensor | None = None  # (n, C) logits that the assigner sees in the place of the others
    places: torch.Tensor | None = None  # (4, n) int64 image, anchor, row, column; None: raw outputs are contiguous


@dataclass(frozen=True)
class HeadLayout:
    """What the host must know of the detection layer. Several heads: each answers for some of the classes."""

    anchors: np.ndarray  # (levels, anchors, 2) in cells
    stride: np.ndarray  # (levels,) float32
    anchor_t: float  # a box fits an anchor if no side is so many times longer or shorter
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
) -> Plan:
    """raw: outputs level by level, in each level head by head; reach: see `find_candidates`.

    height: of the input image, for assigners that compare predictions with boxes. exact: as in `Assigner`.
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
    anchor = layout.anchors[found.level, found.anchor].T.astype(np.float32)
    stride = layout.stride[None, found.level]
    area = np.array([m.shape[:-1].numel() for m in raw], dtype=np.float32)
    balance = np.array(level_weights, np.float64 if raw[0].dtype == torch.float64 else np.float32)
    known = {
        "anchor": anchor,
        "stride": stride,
        "scale": scale,
        "corner": corner,
        "first_duplicate": first_duplicate,
        "target": found.target,
        "target_box": rows[:, 2:6].T,
        "target_class": column,
        "area": area,
        "balance": balance,
        "gains": np.array(gains, np.float32),
    }
    if not all(m.is_contiguous() for m in raw):
        known["places"] = np.stack([found.image, found.anchor, found.row, found.column])
    matched = []
    if height is not None:
        width = sizes[0][1] * layout.stride[0] if exact else height  # upstream's matters off-square
        corners = xywh2xyxy(rows[:, 2:6] * np.array([width, height, width, height], rows.dtype))
        gt_image = image * layout.heads + head
        matched = [corners, *plan_chunks(gt_image[found.target], gt_image)]
    # all in one copy: to compute constants on the device would need values from the host, and a wait for each
    cell, *tensors = send([cell, *known.values(), *matched], raw[0].device)
    fields: dict[str, Any] = dict(zip(known, tensors))
    gt = None
    if height is not None:
        boxes, *chunks = tensors[len(known) :]
        gt = GroundTruthBoxes(boxes, fields["target_class"], tuple(map(MatchingChunk, chunks[::2], chunks[1::2])))
    return Plan(cell.split(counts), gt=gt, **fields)


def check_targets(targets: torch.Tensor, batch: int, nc: int) -> np.ndarray:
    """Targets on the host, fp32 or fp64. Those of a device are waited for here, and only here."""
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
