"""Four or nine images on one canvas: who goes where, and the labels on it.

The canvas is 2s x 2s for training size s; the warp that follows cuts the finished s x s sample out of it. The
nine-tile mosaic is laid out on 3s x 3s and a 2s x 2s window of it is taken.
Origins and windows are (x, y); label rows are float32 [class, x1, y1, x2, y2] in canvas pixels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from yolov7fast.core.boxes import xyn2xy
from yolov7fast.data.augment.random_source import RandomSource

# [cx, cy, w, h] @ CORNERS = [x1, y1, x2, y2]; products are exact, so that each sum is rounded once
CORNERS = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]], np.float32)


class Plan(NamedTuple):
    """A drawn mosaic: which images, and the number that fixes the layout."""

    tiles: list[int]  # 4 or 9 image numbers; the first is the sample's own
    at: tuple[int, int]  # four tiles: where they meet (x, y); nine: corner of the window (x, y)


class Layout(NamedTuple):
    """Where the tiles of a mosaic lie."""

    origins: list[tuple[int, int]]  # of each tile, before the window is taken
    window: tuple[int, int]  # its corner; (0, 0) with four tiles
    size: int  # side of the canvas, 2s

    @property
    def on_canvas(self) -> list[tuple[int, int]]:
        """Origins on the canvas, that is from the window's corner."""
        wx, wy = self.window
        return [(x - wx, y - wy) for x, y in self.origins]


def draw_four(rng: RandomSource, index: int, indices: Sequence[int], size: int) -> Plan:
    """Draws: centre y, centre x, three partners."""
    half = size // 2
    yc, xc = (int(rng.uniform(half, 2 * size - half)) for _ in range(2))
    return Plan([index, *rng.choices(indices, k=3)], (xc, yc))


def draw_nine(rng: RandomSource, index: int, indices: Sequence[int], size: int) -> Plan:
    """Draws: eight partners, window y, window x."""
    tiles = [index, *rng.choices(indices, k=8)]
    y, x = (int(rng.uniform(0, size)) for _ in range(2))
    return Plan(tiles, (x, y))


def layout(plan: Plan, shapes: Sequence[tuple[int, int]], size: int) -> Layout:
    """Lay tiles of the given (h, w) out as planned."""
    if len(plan.tiles) == 4:
        return Layout(_four_origins(shapes, *plan.at), (0, 0), 2 * size)
    return Layout(_nine_origins(shapes, size), plan.at, 2 * size)


def _four_origins(shapes, xc: int, yc: int) -> list[tuple[int, int]]:
    """Top left, top right, bottom left, bottom right of (xc, yc)."""
    (h0, w0), (h1, _), (_, w2), _ = shapes
    return [(xc - w0, yc - h0), (xc, yc - h1), (xc - w2, yc), (xc, yc)]


def _nine_origins(shapes, s: int) -> list[tuple[int, int]]:
    """Centre, then round it: top, top right, right, bottom right, bottom, bottom left, left, top left."""
    (h0, w0), (h1, w1), (h2, _), (h3, _), _, (_, w5), (_, w6), (h7, w7), (h8, w8) = shapes
    return [
        (s, s),
        (s, s - h1),
        (s + w1, s - h2),
        (s + w0, s),
        (s + w0, s + h3),
        (s + w0 - w5, s + h0),
        (s + w0 - w5 - w6, s + h0),
        (s - w7, s + h0 - h7),
        (s - w8, s + h0 - h7 - h8),
    ]


def mosaic_labels(labels: Sequence[np.ndarray], shapes: Sequence[tuple[int, int]], where: Layout) -> np.ndarray:
    """Normalised rows [class, cx, cy, w, h] of each tile -> pixel rows on the canvas, clipped to it, in tile order.

    All tiles at once, in float32 operation by operation: size * (centre -+ side / 2) + origin - window.
    """
    rows = np.concatenate(labels, 0)
    frame = [(w, h, w, h, x, y, x, y) for (h, w), (x, y) in zip(shapes, where.origins)]
    frame = np.repeat(np.array(frame, np.float32), [len(x) for x in labels], axis=0)
    boxes = rows[:, 1:5] @ CORNERS
    boxes *= frame[:, :4]
    boxes += frame[:, 4:]
    if where.window != (0, 0):
        boxes -= np.array(where.window * 2, np.float32)
    rows[:, 1:5] = np.minimum(np.maximum(boxes, 0, out=boxes), where.size, out=boxes)
    return rows


def mosaic_segments(
    segments: Sequence[Sequence[np.ndarray]], shapes: Sequence[tuple[int, int]], where: Layout, shift: bool
) -> list[np.ndarray]:
    """Normalised polygons of each tile -> pixel polygons on the canvas, clipped to it, in tile order.

    shift: subtract the window's corner even when it is (0, 0); this makes the points float64, as nine tiles need.
    """
    points = [
        xyn2xy(polygon, w, h, x, y)
        for polygons, (h, w), (x, y) in zip(segments, shapes, where.origins)
        for polygon in polygons
    ]
    if shift:
        corner = np.array(where.window)
        points = [p - corner for p in points]
    return [p.clip(0, where.size) for p in points]
