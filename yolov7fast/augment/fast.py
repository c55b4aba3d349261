"""The renderer behind `--fast-augment`: the draws and labels of the default one, the same image up to interpolation.

What it saves, for warps without rotation, shear and perspective (all of them, with the default hyper-parameters):

* no canvas: each image is warped straight into its rectangle of the sample. Where two images meet, or an image
  ends, pixels within one source pixel of the edge are not mixed with the other side;
* colours are changed where there are fewer pixels, before the warp if it enlarges, else after it, and not on padding;
* saturation and value are scaled by one vectorised pass each instead of a table.

Other warps, and canvases that objects were pasted on, go through the default renderer; blended samples mix in integers.
"""

import math
from typing import NamedTuple

import cv2
import numpy as np

from yolov7fast.augment.scene import Draft, Scene, render_scene
from yolov7fast.augment.scratch import scratch
from yolov7fast.augment.transforms import GREY, Colour

TRUNCATE = -0.4999  # added before rounding: cuts fractions off, as a cast to uint8 does


class _Piece(NamedTuple):
    """The part of an image that a sample shows, and where."""

    source: np.ndarray  # uint8 (h, w, 3), a view
    target: tuple[slice, slice]  # rows, columns of the sample
    matrix: np.ndarray  # float64 (2, 3): pixel of the source in a frame of one pixel -> pixel of the target


def render(draft: Draft, colour: Colour) -> np.ndarray:
    """The sample with its colours: uint8 (H, W, 3 or 4) in scratch memory, BGR first."""
    if draft.scenes[1:]:
        first, second = (_render_scene(scene, name) for scene, name in zip(draft.scenes, ("warped", "warped2")))
        img = cv2.addWeighted(first, draft.blend, second, 1 - draft.blend, TRUNCATE, dst=first)
        return _apply_colour(img, colour, scratch("coloured", (*img.shape[:2], 3)))
    scene = draft.scenes[0]
    if _is_separable(scene):
        return _assemble(_cut(scene), scene.warp.size, "warped", colour)
    img = render_scene(scene)
    return _apply_colour(img, colour, scratch("coloured", (*img.shape[:2], 3)))


def _render_scene(scene: Scene, name: str) -> np.ndarray:
    """A scene without its colours changed: uint8 (H, W, 4) in the scratch array `name`."""
    return _assemble(_cut(scene), scene.warp.size, name) if _is_separable(scene) else render_scene(scene, name)


def _is_separable(scene: Scene) -> bool:
    """Whether images can be warped one by one, each into its own rectangle."""
    return scene.canvas is None and scene.warp.is_upright and not scene.warp.changes_nothing


def _cut(scene: Scene) -> list[_Piece]:
    """The visible part of each image, in rendering order."""
    (zx, _, tx), (_, zy, ty) = scene.warp.matrix[:2].tolist()
    canvas_h, canvas_w = scene.warp.source
    out_h, out_w = scene.warp.size
    pieces = []
    for img, (ox, oy) in zip(scene.images, scene.origins):
        h, w = img.shape[:2]
        across = _cut_axis(ox, w, canvas_w, zx, tx, out_w)
        down = _cut_axis(oy, h, canvas_h, zy, ty, out_h)
        if across is None or down is None:
            continue
        (columns, x1, x2, dx), (rows, y1, y2, dy) = across, down
        matrix = np.array([[zx, 0.0, dx], [0.0, zy, dy]])
        pieces.append(_Piece(img[y1:y2, x1:x2], (rows, columns), matrix))
    return pieces


def _cut_axis(origin: int, length: int, canvas: int, zoom: float, shift: float, out: int):
    """One axis of a piece: (target slice, source start, source end, shift of its matrix), or None if out of sight.

    A sample pixel belongs to the image whose pixel is nearest, so that neighbours leave no gap.
    """
    first, last = max(origin, 0), min(origin + length, canvas)  # the canvas cuts images off
    start = max(math.ceil(zoom * (first - 0.5) + shift), 0)
    stop = min(math.ceil(zoom * (last - 0.5) + shift), out)
    if start >= stop:
        return None
    x1 = max(math.floor((start - shift) / zoom) - 1, first)
    x2 = min(math.ceil((stop - 1 - shift) / zoom) + 2, last)
    return slice(start, stop), x1 - origin, x2 - origin, zoom * (x1 - 1) + shift - start


def _assemble(pieces: list[_Piece], size: tuple[int, int], name: str, colour: Colour | None = None) -> np.ndarray:
    """Warp all pieces into the scratch array `name`, uint8 (H, W, 4), with changed colours if these are given."""
    out = scratch(name, (*size, 4))
    out[:] = GREY if colour is None else colour.tables[2][GREY]  # grey has no hue and no saturation
    for piece in pieces:
        h, w = piece.source.shape[:2]
        framed, target = scratch("bgra", (h + 2, w + 2, 4)), out[piece.target]
        enlarges = h * w < target.shape[0] * target.shape[1]
        if colour is not None and enlarges:
            _apply_colour(piece.source, colour, framed[1:-1, 1:-1])
        else:
            cv2.cvtColor(piece.source, cv2.COLOR_BGR2BGRA, dst=framed[1:-1, 1:-1])
        _repeat_edges(framed)
        cv2.warpAffine(framed, piece.matrix, target.shape[1::-1], dst=target)
        if colour is not None and not enlarges:
            _apply_colour(target, colour, target)
    return out


def _repeat_edges(framed: np.ndarray) -> None:
    """Fill the frame of an image with its edge pixels: OpenCV's warp is a fifth slower if it must see to a border."""
    framed[0], framed[-1] = framed[1], framed[-2]
    framed[:, 0], framed[:, -1] = framed[:, 1], framed[:, -2]


def _apply_colour(img: np.ndarray, colour: Colour, out: np.ndarray) -> np.ndarray:
    """`augment.transforms.apply_colour` with three or four channels in `out`, within a level of it."""
    h, w = img.shape[:2]
    hsv = cv2.cvtColor(img, cv2.COLOR_BGR2HSV, dst=scratch("hsv", (h, w, 3)))
    planes = list(scratch("planes", (3, h, w)))
    cv2.split(hsv, planes)
    cv2.LUT(planes[0], colour.tables[0], dst=planes[0])
    for plane, gain in zip(planes[1:], colour.gains[1:]):
        cv2.convertScaleAbs(plane, dst=plane, alpha=gain, beta=TRUNCATE)
    return cv2.cvtColor(cv2.merge(planes, hsv), cv2.COLOR_HSV2BGR, dst=out, dstCn=out.shape[2])
