"""Mosaics of four or nine images: layout, labels, and the canvas from which a training sample is warped.

All random numbers of a sample are drawn first and its labels computed from them; rendering is deterministic after that.

The canvas is 2s x 2s for training size s; the warp that follows takes the s x s sample from it. The nine-image mosaic
is laid out on 3s x 3s, and a 2s x 2s window of it is used. Origins and windows are (x, y); label rows are float32
[class, x1, y1, x2, y2] in canvas pixels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

from yolov7fast.core.boxes import xyn2xy
from yolov7fast.data.augment.random_source import RandomSource
from yolov7fast.data.augment.transforms import (
    GREY,
    Colour,
    Warp,
    apply_colour,
    mixup,
    visible_source,
    warp_image,
)

# --- layout and labels ------------------------------------------------------------------------------------------------

# [cx, cy, w, h] @ CORNERS = [x1, y1, x2, y2]; products are exact, so each sum is rounded once
CORNERS = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]], np.float32)


class MosaicPlan(NamedTuple):
    """The random choices of a mosaic."""

    tiles: list[int]  # 4 or 9 image indices; the first is the sample's own
    at: tuple[int, int]  # four images: where they meet (x, y); nine: corner of the window (x, y)


class MosaicLayout(NamedTuple):
    """Positions of the images of a mosaic."""

    origins: list[tuple[int, int]]  # of each image, before the window is applied
    window: tuple[int, int]  # its corner; (0, 0) for four images
    size: int  # side of the canvas, 2s

    @property
    def on_canvas(self) -> list[tuple[int, int]]:
        """Origins relative to the corner of the window."""
        wx, wy = self.window
        return [(x - wx, y - wy) for x, y in self.origins]


def draw_four(rng: RandomSource, index: int, indices: Sequence[int], size: int) -> MosaicPlan:
    """Draw a four-image mosaic: centre y, centre x, three more images."""
    half = size // 2
    yc, xc = (int(rng.uniform(half, 2 * size - half)) for _ in range(2))
    return MosaicPlan([index, *rng.choices(indices, k=3)], (xc, yc))


def draw_nine(rng: RandomSource, index: int, indices: Sequence[int], size: int) -> MosaicPlan:
    """Draw a nine-image mosaic: eight more images, window y, window x."""
    tiles = [index, *rng.choices(indices, k=8)]
    y, x = (int(rng.uniform(0, size)) for _ in range(2))
    return MosaicPlan(tiles, (x, y))


def layout(plan: MosaicPlan, shapes: Sequence[tuple[int, int]], size: int) -> MosaicLayout:
    """Return the positions of images of the given (h, w).

    Four: top left, top right, bottom left and bottom right of a point; nine: the centre image and those around it,
    clockwise from the top.
    """
    if len(plan.tiles) == 4:
        xc, yc = plan.at
        (h0, w0), (h1, _), (_, w2), _ = shapes
        return MosaicLayout([(xc - w0, yc - h0), (xc, yc - h1), (xc - w2, yc), (xc, yc)], (0, 0), 2 * size)
    s = size
    (h0, w0), (h1, w1), (h2, _), (h3, _), _, (_, w5), (_, w6), (h7, w7), (h8, w8) = shapes
    origins = [
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
    return MosaicLayout(origins, plan.at, 2 * size)


def mosaic_labels(labels: Sequence[np.ndarray], shapes: Sequence[tuple[int, int]], where: MosaicLayout) -> np.ndarray:
    """Convert normalised rows [class, cx, cy, w, h] of each image to pixel rows on the canvas, clipped to it.

    All images at once, in float32, in upstream's order of operations: size * (centre -+ side / 2) + origin - window.
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
    segments: Sequence[Sequence[np.ndarray]], shapes: Sequence[tuple[int, int]], where: MosaicLayout, shift: bool
) -> list[np.ndarray]:
    """Convert normalised polygons of each image to pixel polygons on the canvas, clipped to it.

    shift: subtract the window's corner even when it is (0, 0); this makes the points float64, as upstream's are.
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


# --- rendering --------------------------------------------------------------------------------------------------------


class Scene(NamedTuple):
    """Images on a grey canvas of size `warp.source`, later ones on top, and the warp that gives the sample."""

    images: Sequence[np.ndarray | None]  # uint8 (h, w, 3) BGR, None if not visible
    origins: list[tuple[int, int]]  # (x, y) of each on the canvas; may be outside of it
    warp: Warp
    canvas: np.ndarray | None = None  # the finished canvas, if objects were pasted into it


class SampleDraft(NamedTuple):
    """A training sample before rendering."""

    scenes: list[Scene]  # one, or two for mixup
    blend: float  # weight of the first scene
    labels: np.ndarray  # float32 (m, 5): class, x1, y1, x2, y2 in pixels of the sample
    shapes: tuple | None  # ((h0, w0), ((h / h0, w / w0), (dw, dh))); None for a mosaic


def draw_canvas(
    images: Sequence[np.ndarray | None],
    origins: Sequence[tuple[int, int]],
    size: tuple[int, int],
    visible: tuple[int, int, int, int] | None = None,
) -> np.ndarray:
    """Copy images to a grey canvas: uint8 (h, w, 4); the fourth channel makes the warp faster.

    visible: rectangle (x1, y1, x2, y2) that the warp reads; pixels outside it are undefined.
    """
    left, top, right, bottom = visible or (0, 0, size[1], size[0])
    canvas = np.empty((*size, 4), np.uint8)
    canvas[top:bottom, left:right] = GREY
    for img, (ox, oy) in zip(images, origins):
        if img is None:
            continue
        h, w = img.shape[:2]
        x1, y1, x2, y2 = max(ox, left), max(oy, top), min(ox + w, right), min(oy + h, bottom)
        if x1 < x2 and y1 < y2:
            cv2.cvtColor(img[y1 - oy : y2 - oy, x1 - ox : x2 - ox], cv2.COLOR_BGR2BGRA, dst=canvas[y1:y2, x1:x2])
    return canvas


def visible_images(origins: Sequence[tuple[int, int]], shapes: Sequence[tuple[int, int]], warp: Warp) -> list[bool]:
    """Return for each image of these (h, w) at these origins whether it can contribute a pixel to the sample."""
    left, top, right, bottom = visible_source(warp)
    return [
        max(x, left) < min(x + w, right) and max(y, top) < min(y + h, bottom) for (x, y), (h, w) in zip(origins, shapes)
    ]


def render_scene(scene: Scene) -> np.ndarray:
    """Render one scene: uint8 (H, W, 4), BGR first."""
    canvas = scene.canvas
    if canvas is None:
        canvas = draw_canvas(scene.images, scene.origins, scene.warp.source, visible_source(scene.warp))
    return warp_image(canvas, scene.warp)


def render_geometry(draft: SampleDraft) -> np.ndarray:
    """Render a sample without colour changes: uint8 (H, W, 4), BGR first."""
    first = render_scene(draft.scenes[0])
    return mixup(first, render_scene(draft.scenes[1]), draft.blend) if draft.scenes[1:] else first


def render(draft: SampleDraft, colour: Colour) -> np.ndarray:
    """Render a sample: uint8 (H, W, 3) BGR."""
    return apply_colour(render_geometry(draft), colour)
