"""The renderer behind `--fast-augment`: draws and labels of the default one, nearly its image, less work.

For warps without rotation, shear and perspective (all of them, with the default hyper-parameters):

* no canvas and no general warp: the visible part of each image is resized straight into its rectangle of the sample.
  Rectangles end at whole pixels, so that an image may lie up to half a pixel beside its place, and does not mix with
  its neighbours;
* saturation and value are changed by the arithmetic that HSV comes down to, without going to HSV and back; hues are
  turned by the same angle everywhere, where the default multiplies them (`colour_into`).

Other warps, and canvases that objects were pasted on, are rendered as by default and then coloured as above.
"""

import math
from typing import NamedTuple

import cv2
import numpy as np

from yolov7fast.augment.scene import Draft, Scene, render_scene
from yolov7fast.augment.scratch import scratch
from yolov7fast.augment.transforms import CUT_OFF, GREY, LEVELS, Colour

HALF_A_LEVEL = 0.5 / 255
MIDDLE_HUE = math.pi  # of a circle, in radians: the hue whose shift all hues get


class _Span(NamedTuple):
    """One axis of an image's visible part: source pixels [start, stop) become `length` pixels, and those from `skip`
    on are the sample's pixels `target`."""

    start: int
    stop: int
    length: int
    skip: int
    target: slice


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
    if scene.canvas is None and scene.warp.is_upright:
        return _assemble(scene, scratch(name, (*scene.warp.size, 3)))
    img = render_scene(scene, "four channels")
    return cv2.cvtColor(img, cv2.COLOR_BGRA2BGR, dst=scratch(name, (*scene.warp.size, 3)))


def _assemble(scene: Scene, out: np.ndarray) -> np.ndarray:
    """Resize the visible part of each image into its place on grey, in order."""
    (zoom_x, _, shift_x), (_, zoom_y, shift_y) = scene.warp.matrix[:2].tolist()
    (canvas_h, canvas_w), (out_h, out_w) = scene.warp.source, scene.warp.size
    out[:] = GREY
    for img, (ox, oy) in zip(scene.images, scene.origins):
        if img is None:
            continue
        h, w = img.shape[:2]
        x = _span(max(ox, 0), min(ox + w, canvas_w), zoom_x, shift_x, out_w)
        y = _span(max(oy, 0), min(oy + h, canvas_h), zoom_y, shift_y, out_h)
        if x is None or y is None:
            continue
        source, target = img[y.start - oy : y.stop - oy, x.start - ox : x.stop - ox], out[y.target, x.target]
        if target.shape[:2] == (y.length, x.length):
            cv2.resize(source, (x.length, y.length), dst=target)
            continue
        piece = cv2.resize(source, (x.length, y.length), dst=scratch("piece", (y.length, x.length, 3)))
        np.copyto(target, piece[y.skip : y.skip + target.shape[0], x.skip : x.skip + target.shape[1]])
    return out


def _span(first: int, last: int, zoom: float, shift: float, out: int) -> _Span | None:
    """Where source pixels [first, last) of the canvas fall on an axis of `out` pixels; None if out of sight.

    Edges of the image go to the nearest edge between two pixels of the sample. Where the sample cuts the image, the
    cut is made at the source pixel whose edge falls nearest to the sample's.
    """
    offset = shift + 0.5 - 0.5 * zoom  # edge x of the source lies at zoom * x + offset on the sample
    begin, end = round(zoom * first + offset), round(zoom * last + offset)
    low, high = max(begin, 0), min(end, out)
    if low >= high:
        return None
    start, stop = first, last
    if begin < 0:
        start = min(max(round(-offset / zoom), first), last - 1)
        start -= round(zoom * start + offset) > 0
        begin = round(zoom * start + offset)
    if end > out:
        stop = max(min(round((out - offset) / zoom), last), start + 1)
        stop += round(zoom * stop + offset) < out
        end = round(zoom * stop + offset)
    return _Span(start, stop, end - begin, low - begin, slice(low, high))


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
    allowed = np.minimum(255 / np.maximum(LEVELS, 1) / value, 1)  # fraction of `value` for each largest channel
    cv2.LUT(largest, np.rint(255 * allowed).astype(np.uint8), dst=limits)
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
