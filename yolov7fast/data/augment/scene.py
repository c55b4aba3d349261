"""What a training sample shows, before any pixel is rendered: images, where they lie, how they are warped.

All random numbers of a sample are drawn first and its labels computed from them; rendering is deterministic after that.
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

from yolov7fast.data.augment.transforms import scratch
from yolov7fast.data.augment.transforms import GREY, Colour, Warp, apply_colour, mixup, visible_source, warp_image


class Scene(NamedTuple):
    """Images on a grey canvas of size `warp.source`, later ones on top, and the warp that makes a sample of it."""

    images: Sequence[np.ndarray | None]  # uint8 (h, w, 3) BGR, None if not visible
    origins: list[tuple[int, int]]  # (x, y) of each on the canvas; may lie outside of it
    warp: Warp
    canvas: np.ndarray | None = None  # the finished canvas, if more was done to it than placing images


class Draft(NamedTuple):
    """A training sample as drawn."""

    scenes: list[Scene]  # one, or two that are blended
    blend: float  # weight of the first scene
    labels: np.ndarray  # float32 (m, 5): class, x1, y1, x2, y2 in pixels of the sample
    shapes: tuple | None  # ((h0, w0), ((h / h0, w / w0), (dw, dh))); None for a mosaic


def draw_canvas(
    images: Sequence[np.ndarray | None],
    origins: Sequence[tuple[int, int]],
    size: tuple[int, int],
    visible: tuple[int, int, int, int] | None = None,
) -> np.ndarray:
    """Images on grey: uint8 (h, w, 4) in scratch memory, the fourth channel only makes the warp faster.

    visible: rectangle (x1, y1, x2, y2) that will be looked at; what lies outside it is left undefined.
    """
    left, top, right, bottom = visible or (0, 0, size[1], size[0])
    canvas = scratch("canvas", (*size, 4))
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
    """Whether images of these (h, w) at these positions on the canvas can contribute a pixel to the sample."""
    left, top, right, bottom = visible_source(warp)
    return [
        max(x, left) < min(x + w, right) and max(y, top) < min(y + h, bottom) for (x, y), (h, w) in zip(origins, shapes)
    ]


def render_scene(scene: Scene, name: str = "warped") -> np.ndarray:
    """uint8 (H, W, 4) in the scratch array `name`, BGR first."""
    canvas = scene.canvas
    if canvas is None:
        canvas = draw_canvas(scene.images, scene.origins, scene.warp.source, visible_source(scene.warp))
    return warp_image(canvas, scene.warp, name)


def render_geometry(draft: Draft) -> np.ndarray:
    """The sample before its colours are changed: uint8 (H, W, 4) in scratch memory, BGR first."""
    first = render_scene(draft.scenes[0])
    return mixup(first, render_scene(draft.scenes[1], "warped2"), draft.blend) if draft.scenes[1:] else first


def render(draft: Draft, colour: Colour) -> np.ndarray:
    """The sample with its colours: uint8 (H, W, 3) BGR in scratch memory."""
    img = render_geometry(draft)
    return apply_colour(img, colour, out=scratch("coloured", (*img.shape[:2], 3)))
