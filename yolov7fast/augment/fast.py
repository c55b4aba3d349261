"""The renderer behind `--fast-augment`: draws and labels of the default one, nearly its image, less work.

For warps without rotation, shear and perspective (all of them, with the default hyper-parameters):

* no canvas and no general warp: the visible part of each image is resized straight into its rectangle of the sample.
  Rectangles end at whole pixels, of the sample and of the image, so that an image may lie up to half a pixel beside
  its place, and does not mix with its neighbours;
* colours are changed where there are fewer pixels: before images are enlarged, else after all;
* saturation and value are changed by the arithmetic that HSV comes down to, without going to HSV and back; hues are
  turned by the same angle everywhere, where the default multiplies them (`colour_into`).

Other warps, and canvases that objects were pasted on, are rendered as by default and then coloured as above.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import cv2
import numpy as np

from yolov7fast.augment.scene import Draft, Scene, render_scene
from yolov7fast.augment.scratch import scratch
from yolov7fast.augment.transforms import CUT_OFF, GREY, LEVELS, Colour

HALF_A_LEVEL = 0.5 / 255
ROOM = 255 * 255 / np.maximum(LEVELS, 1)[None]  # by the largest channel: how far it can grow, in units of 1 / 255
ENLARGED = 1.1  # zoom above which colours are changed first: about where that begins to pay
MIDDLE_HUE = math.pi  # of a circle, in radians: the hue whose shift all hues get

_Span = tuple[int, int, int, int]  # on one axis: edges of the canvas (start, stop) and what they become on the sample
_Piece = tuple[np.ndarray, _Span, _Span]  # the visible part of an image, uint8 (h, w, 3), where it lies across and down


class _Axis(NamedTuple):
    """One axis of an upright warp: edge x between pixels of the canvas lies at zoom * x + offset on the sample.

    `first` and `last` are the edges of the canvas that fall nearest to the sample's, 0 and `out`.
    """

    zoom: float
    offset: float
    first: int
    last: int
    canvas: int
    out: int

    @classmethod
    def of(cls, zoom: float, shift: float, canvas: int, out: int) -> "_Axis":
        """`shift`: where the middle of the canvas's first pixel goes."""
        offset = shift + 0.5 - 0.5 * zoom
        return cls(zoom, offset, round(-offset / zoom), round((out - offset) / zoom), canvas, out)

    def span(self, origin: int, length: int) -> _Span | None:
        """Where an image at [origin, origin + length) of the canvas shows; None if out of sight."""
        start, stop = max(origin, 0, self.first), min(origin + length, self.canvas, self.last)
        low = round(self.zoom * start + self.offset) if start > self.first else 0
        high = round(self.zoom * stop + self.offset) if stop < self.last else self.out
        return (start, stop, low, high) if start < stop and low < high else None


def render(draft: Draft, colour: Colour) -> tuple[np.ndarray, Colour | None]:
    """The sample, uint8 (H, W, 3) BGR in scratch memory, and the change of colours if that is still to be made.

    It is made where there are fewer pixels: on the images if they are enlarged, else on the way into the batch.
    """
    scene = draft.scenes[0]
    if not draft.scenes[1:] and _is_upright(scene) and scene.warp.zoom > ENLARGED:
        return _assemble(scene, scratch("warped", (*scene.warp.size, 3)), colour), None
    return render_geometry(draft), colour


def render_geometry(draft: Draft) -> np.ndarray:
    """The sample before its colours are changed: uint8 (H, W, 3) BGR in scratch memory."""
    img = _render_scene(draft.scenes[0], "warped")
    if not draft.scenes[1:]:
        return img
    return cv2.addWeighted(
        img, draft.blend, _render_scene(draft.scenes[1], "warped2"), 1 - draft.blend, CUT_OFF, dst=img
    )


def _render_scene(scene: Scene, name: str) -> np.ndarray:
    """A scene without its colours changed: uint8 (H, W, 3) in the scratch array `name`."""
    out = scratch(name, (*scene.warp.size, 3))
    if _is_upright(scene):
        return _assemble(scene, out)
    return cv2.cvtColor(render_scene(scene, "four channels"), cv2.COLOR_BGRA2BGR, dst=out)


def _is_upright(scene: Scene) -> bool:
    """Whether the sample can be assembled from its images."""
    return scene.canvas is None and scene.warp.is_upright


def _assemble(scene: Scene, out: np.ndarray, colour: Colour | None = None) -> np.ndarray:
    """Resize the visible part of each image, with its colours changed if asked for, into its place on grey, in order.

    Intel's own resize, where OpenCV has it, is within a level of OpenCV's and takes half the time. OpenCV leaves it
    aside unless told otherwise, thread by thread.
    """
    (zoom_x, _, shift_x), (_, zoom_y, shift_y) = scene.warp.matrix[:2].tolist()
    (canvas_h, canvas_w), (out_h, out_w) = scene.warp.source, scene.warp.size
    across, down = _Axis.of(zoom_x, shift_x, canvas_w, out_w), _Axis.of(zoom_y, shift_y, canvas_h, out_h)
    pieces = _pieces(scene, across, down)
    if colour is None:
        out[:], pieces = GREY, _copied(pieces)
    else:
        out[:], pieces = min(max(int(colour.gains[2] * GREY), 0), 255), _coloured_pieces(pieces, colour, across, down)
    before = cv2.ipp.useIPP_NotExact()
    cv2.ipp.setUseIPP_NotExact(True)
    try:
        for source, (_, _, left, right), (_, _, top, bottom) in pieces:
            cv2.resize(source, (right - left, bottom - top), dst=out[top:bottom, left:right])
    finally:
        cv2.ipp.setUseIPP_NotExact(before)
    return out


def _pieces(scene: Scene, across: _Axis, down: _Axis) -> list[_Piece]:
    """The images that show, in order."""
    pieces = []
    for img, (ox, oy) in zip(scene.images, scene.origins):
        if img is None:
            continue
        x, y = across.span(ox, img.shape[1]), down.span(oy, img.shape[0])
        if x and y:
            pieces.append((img[y[0] - oy : y[1] - oy, x[0] - ox : x[1] - ox], x, y))
    return pieces


def _copied(pieces: list[_Piece]) -> Iterator[_Piece]:
    """The same, each in scratch memory until the next: what is not in the CPU's cache, as images that are mapped from a
    file mostly are not, is copied much faster than a resize reads it."""
    for source, across, down in pieces:
        near = scratch("piece", source.shape)
        np.copyto(near, source)
        yield near, across, down


def _coloured_pieces(pieces: list[_Piece], colour: Colour, across: _Axis, down: _Axis) -> list[_Piece]:
    """The same with colours changed, all at once on the visible part of the canvas."""
    left, top = across.first, down.first
    seen = scratch("seen", (down.last - top, across.last - left, 3))  # undefined where there is no image
    for source, (x1, x2, *_), (y1, y2, *_) in pieces:
        seen[y1 - top : y2 - top, x1 - left : x2 - left] = source
    seen = coloured(seen, colour)
    return [(seen[y[0] - top : y[1] - top, x[0] - left : x[1] - left], x, y) for _, x, y in pieces]


def colour_into(img: np.ndarray, colour: Colour, planes: list[np.ndarray]) -> None:
    """`augment.transforms.apply_colour` without HSV: uint8 (H, W, 3) -> three planes (H, W), in the same order.

    With m the largest channel of a pixel, scaling saturation by s and value by v makes of each channel c
    v * (m - s * (m - c)); a value that would exceed 255 becomes 255, and the pixel's other channels keep their
    proportion to it. Beyond full saturation channels are cut off at 0, where HSV keeps the middle one's proportion.
    """
    hue, saturation, value = colour.gains
    h, w = img.shape[:2]
    largest, limits = scratch("largest", (2, h, w))
    cv2.split(_turn_hues(img, hue), planes)
    cv2.max(cv2.max(planes[0], planes[1], dst=largest), planes[2], dst=largest)
    if value <= 1:
        for plane in planes:
            cv2.addWeighted(plane, value * saturation, largest, value * (1 - saturation), CUT_OFF, dst=plane)
        return
    cv2.LUT(largest, cv2.convertScaleAbs(ROOM, alpha=1 / value), dst=limits)
    brightest = cv2.convertScaleAbs(largest, alpha=value, beta=CUT_OFF, dst=scratch("brightest", (h, w)))
    for plane in planes:
        cv2.multiply(cv2.subtract(largest, plane, dst=plane), limits, dst=plane, scale=value * saturation / 255)
        cv2.subtract(brightest, plane, dst=plane)


def coloured(img: np.ndarray, colour: Colour) -> np.ndarray:
    """`colour_into` as an image: uint8 (H, W, 3) BGR in scratch memory."""
    planes = list(scratch("planes", (3, *img.shape[:2])))
    colour_into(img, colour, planes)
    return cv2.merge(planes, dst=scratch("coloured", img.shape))


def _turn_hues(img: np.ndarray, gain: float) -> np.ndarray:
    """Turn all hues by the angle that multiplying them by `gain` turns the middle one: green-blue."""
    angle = (gain - 1) * MIDDLE_HUE
    cos, sin = math.cos(angle), math.sin(angle)
    near, far = (1 - cos) / 3 + sin / math.sqrt(3), (1 - cos) / 3 - sin / math.sqrt(3)
    if max(abs(near), abs(far)) < HALF_A_LEVEL:
        return img
    same = (1 + 2 * cos) / 3
    # about the axis of greys, red towards green for a positive angle; rows and columns are blue, green, red
    matrix = np.array([[same, near, far], [far, same, near], [near, far, same]])
    return cv2.transform(img, matrix, dst=scratch("turned", img.shape))
