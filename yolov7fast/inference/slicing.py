"""Detection on tiles of large images: small objects are seen at full resolution, and the results are merged.

An image is cut into overlapping squares, and the detector runs on each of them and on the whole image. An object cut by
the edge of a tile is complete in a neighbour if it is smaller than the overlap; its cut part is removed if a complete
box of its class covers it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.inference.sources import Frame, network_input
from yolov7fast.predictors.nms import CLASS_OFFSET, MAX_DETECTIONS, greedy_nms

EDGE = 2.0  # pixels within which a box touches the edge of its tile
COVERED = 0.5  # a cut box is removed if a complete one covers more than this fraction of it


@dataclass(frozen=True)
class Slicing:
    """Tiles of `side` x `side` pixels that overlap by a fraction of it."""

    side: int
    overlap: float = 0.25

    def __post_init__(self):
        if self.side < 32:
            raise UserError(f"--slice {self.side}: tiles must be at least 32 pixels wide")
        if not 0 <= self.overlap <= 0.9:
            raise UserError(f"--slice-overlap {self.overlap} is out of range: it is a fraction between 0 and 0.9")

    def starts(self, length: int) -> list[int]:
        """Start positions of the tiles along a side; the last tile ends with the image."""
        if length <= self.side:
            return [0]
        step = max(round(self.side * (1 - self.overlap)), 1)
        return [*range(0, length - self.side, step), length - self.side]

    def tiles(self, height: int, width: int) -> list[tuple[int, int, int, int]]:
        """x1, y1, x2, y2 of every tile, row by row."""
        return [
            (x, y, min(x + self.side, width), min(y + self.side, height))
            for y in self.starts(height)
            for x in self.starts(width)
        ]


def tile_frames(frame: Frame, slicing: Slicing, img_size: int, stride: int, square: bool) -> list[Frame]:
    """A frame for every tile of a frame's image; an empty list if the image fits into one tile."""
    tiles = slicing.tiles(*frame.original.shape[:2])
    if len(tiles) == 1:
        return []
    parts = [frame.original[y1:y2, x1:x2] for x1, y1, x2, y2 in tiles]
    return [Frame(frame.path, network_input(part, img_size, stride, square), part, frame.kind) for part in parts]


def merge(
    whole: torch.Tensor,
    parts: Sequence[torch.Tensor],
    tiles: Sequence[tuple[int, int, int, int]],
    shape: Sequence[int],
    iou_thres: float,
    agnostic: bool = False,
) -> torch.Tensor:
    """Merge detections (k, 6) of an image and of its tiles -> at most 300 detections of the image, best first.

    Args:
        whole: detections on the whole image.
        parts: detections on each tile, in pixels of the tile.
        tiles: x1, y1, x2, y2 of each tile.
        shape: (h, w) of the image.
        iou_thres: IoU threshold of NMS.
        agnostic: class-agnostic NMS.
    """
    moved, cut = [whole], [torch.zeros(len(whole), dtype=torch.bool)]
    for boxes, (x1, y1, x2, y2) in zip(parts, tiles):
        size = torch.tensor([x2 - x1, y2 - y1], dtype=torch.float32)
        # edges of a tile at the border of the image cut nothing
        inner = torch.tensor([x1 > 0, y1 > 0, x2 < shape[1], y2 < shape[0]])
        touching = torch.cat((boxes[:, :2] <= EDGE, boxes[:, 2:4] >= size - EDGE), 1)
        cut.append((touching & inner).any(1))
        moved.append(boxes + torch.tensor([x1, y1, x1, y1, 0, 0], dtype=torch.float32))
    rows, is_cut = torch.cat(moved).numpy(), torch.cat(cut).numpy()
    offsets = rows[:, 5:6] * (0 if agnostic else CLASS_OFFSET)
    apart = rows[:, :4] + offsets
    kept = _suppress(apart, rows[:, 4], ~is_cut, iou_thres)
    for index in _suppress(apart, rows[:, 4], is_cut, iou_thres):
        if not kept or covered(apart[index], apart[kept]).max() <= COVERED:
            kept.append(index)
    best = sorted(kept, key=lambda index: -rows[index, 4])[:MAX_DETECTIONS]
    return torch.from_numpy(rows[best].reshape(-1, 6))


def _suppress(boxes: np.ndarray, scores: np.ndarray, chosen: np.ndarray, iou_thres: float) -> list[int]:
    """Indices of the chosen boxes that NMS keeps, best first."""
    places = np.flatnonzero(chosen)
    return places[greedy_nms(boxes[places], scores[places], iou_thres, len(places) or 1)].tolist()


def covered(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The fraction of `box` (4,) that each of `others` (n, 4) covers."""
    width = np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0])
    height = np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1])
    area = max((box[2] - box[0]) * (box[3] - box[1]), 1e-9)
    return np.maximum(width, 0) * np.maximum(height, 0) / area
