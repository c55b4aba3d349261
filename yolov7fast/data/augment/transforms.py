"""Augmentations of one image with its labels: letterbox, geometric warp, colour, mixup.

Pure functions: random numbers come from the `RandomSource` argument, in upstream's order. Images are uint8
(H, W, 3 or 4) in BGR order; a fourth channel is padding that makes OpenCV's warp about three times as fast with the
same bits in the other three. Label rows are float32 [class, x1, y1, x2, y2] in pixels,
polygons are (k, 2) arrays of points. Sizes are (height, width). Padding is grey, 114 in every channel.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import cv2
import numpy as np

from yolov7fast.data.augment.random_source import GLOBAL, RandomSource

GREY = 114
GREY_PIXEL = (GREY, GREY, GREY, GREY)
IDENTITY = np.eye(3)
LEVELS = np.arange(256, dtype=np.float64)  # of a channel
POLYGON_POINTS = 1000  # to which a polygon is resampled before it is warped


# --- letterbox --------------------------------------------------------------------------------------------------------


class LetterboxFit(NamedTuple):
    """Position of an image in a letterbox."""

    inner: tuple[int, int]  # width and height of the image inside
    ratio: tuple[float, float]  # enlargement in x and y
    pad: tuple[float, float]  # padding (dw, dh) of one side; may end in .5
    border: tuple[int, int, int, int]  # top, bottom, left, right, in whole pixels


def letterbox_fit(shape, new_shape=(640, 640), auto=True, scaleFill=False, scaleup=True, stride=32) -> LetterboxFit:
    """Return the position of an image of `shape` (h, w) in a letterbox of `new_shape`; see `letterbox`."""
    h, w = shape
    if isinstance(new_shape, int):
        new_shape = (new_shape, new_shape)
    r = min(new_shape[0] / h, new_shape[1] / w)
    if not scaleup:
        r = min(r, 1.0)
    ratio = r, r
    inner = round(w * r), round(h * r)
    dw, dh = new_shape[1] - inner[0], new_shape[0] - inner[1]
    if auto:
        dw, dh = dw % stride, dh % stride
    elif scaleFill:
        dw, dh = 0.0, 0.0
        inner = new_shape[1], new_shape[0]
        ratio = new_shape[1] / w, new_shape[0] / h
    dw /= 2
    dh /= 2
    return LetterboxFit(inner, ratio, (dw, dh), (round(dh - 0.1), round(dh + 0.1), round(dw - 0.1), round(dw + 0.1)))


def letterbox(img, new_shape=(640, 640), color=(GREY,) * 3, auto=True, scaleFill=False, scaleup=True, stride=32):
    """LetterboxFit an image into `new_shape` (an int means square) keeping its proportions, and pad the rest.

    auto: pad only to the next multiple of `stride`; scaleFill: stretch instead of padding; scaleup: allow enlarging.
    Returns the image, the ratios (x, y) and the padding (dw, dh) of one side, which may end in .5.
    """
    fit = letterbox_fit(img.shape[:2], new_shape, auto, scaleFill, scaleup, stride)
    img = resize_to(img, fit.inner)
    return cv2.copyMakeBorder(img, *fit.border, cv2.BORDER_CONSTANT, value=color), fit.ratio, fit.pad


def resize_to(img: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize an image to (width, height) with linear interpolation; return it unchanged if it has that size."""
    return img if img.shape[1::-1] == tuple(size) else cv2.resize(img, size, interpolation=cv2.INTER_LINEAR)


# --- geometric warp ---------------------------------------------------------------------------------------------------


class Warp(NamedTuple):
    """A drawn geometric change of an image of `source` size into one of `size`."""

    matrix: np.ndarray  # float64 (3, 3): source pixel (x, y, 1) -> output pixel
    zoom: float
    source: tuple[int, int]
    size: tuple[int, int]
    projective: bool  # the last row of the matrix matters


def draw_warp(
    rng: RandomSource, hyp: Mapping[str, float], source: tuple[int, int], border: tuple[int, int] = (0, 0)
) -> Warp:
    """Draw a warp in eight draws (perspective x2, angle, zoom, shear x2, shift x2).

    hyp: ranges `degrees`, `translate`, `scale`, `shear` and `perspective`. border: (y, x), added on each side: a mosaic
    of 2s x 2s with border -s/2 gives s x s. The zoom is drawn from [1 - scale, 1.1 + scale], also when `scale` is 0.
    """
    degrees, translate, scale = hyp["degrees"], hyp["translate"], hyp["scale"]
    shear, perspective = hyp["shear"], hyp["perspective"]
    h, w = source
    size = h + border[0] * 2, w + border[1] * 2
    centre, project, rotate, skew, shift = (IDENTITY.copy() for _ in range(5))
    centre[0, 2] = -w / 2
    centre[1, 2] = -h / 2
    project[2, 0] = rng.uniform(-perspective, perspective)
    project[2, 1] = rng.uniform(-perspective, perspective)
    angle = rng.uniform(-degrees, degrees)
    zoom = rng.uniform(1 - scale, 1.1 + scale)
    rotate[:2] = cv2.getRotationMatrix2D(angle=angle, center=(0, 0), scale=zoom)
    skew[0, 1] = math.tan(rng.uniform(-shear, shear) * math.pi / 180)
    skew[1, 0] = math.tan(rng.uniform(-shear, shear) * math.pi / 180)
    shift[0, 2] = rng.uniform(0.5 - translate, 0.5 + translate) * size[1]
    shift[1, 2] = rng.uniform(0.5 - translate, 0.5 + translate) * size[0]
    matrix = shift @ skew @ rotate @ project @ centre
    return Warp(matrix, zoom, (h, w), size, bool(perspective))


def warp_image(img: np.ndarray, warp: Warp) -> np.ndarray:
    """Apply a warp (linear interpolation, grey outside): (H, W, 4).

    Three channels are made four; a warp that changes nothing gives the image itself.
    """
    if warp.size == warp.source and (warp.matrix == IDENTITY).all():
        return img
    if img.shape[2] == 3:
        img = cv2.cvtColor(img, cv2.COLOR_BGR2BGRA)
    size = warp.size[1], warp.size[0]
    if warp.projective:
        return cv2.warpPerspective(img, warp.matrix, size, borderValue=GREY_PIXEL)
    return cv2.warpAffine(img, warp.matrix[:2], size, borderValue=GREY_PIXEL)


def visible_source(warp: Warp) -> tuple[int, int, int, int]:
    """Return the rectangle (x1, y1, x2, y2) of the source that the warp reads, with a margin."""
    h, w = warp.source
    (a, b, tx), (c, d, ty) = warp.matrix[:2].tolist()
    det = a * d - b * c
    if warp.projective or not det:
        return 0, 0, w, h
    out_h, out_w = warp.size
    corners = [(x - tx, y - ty) for x in (0, out_w) for y in (0, out_h)]
    xs = [(d * x - b * y) / det for x, y in corners]
    ys = [(a * y - c * x) / det for x, y in corners]
    x1, y1 = max(math.floor(min(xs)) - 2, 0), max(math.floor(min(ys)) - 2, 0)
    x2, y2 = min(math.ceil(max(xs)) + 3, w), min(math.ceil(max(ys)) + 3, h)
    return min(x1, w), min(y1, h), max(x2, 0), max(y2, 0)


def warp_labels(labels: np.ndarray, segments: list[np.ndarray], warp: Warp) -> np.ndarray:
    """Warp label rows and drop boxes of which too little is left.

    Without polygons a row becomes the box around its four warped corners; with polygons (one for each row, in order)
    the box around the part of the warped outline that is inside the image.
    """
    if not len(labels):
        return labels
    use_segments = any(segment.any() for segment in segments)
    boxes = _warp_polygons(segments, warp) if use_segments else _warp_corners(labels, warp)
    keep = box_candidates(labels[:, 1:5].T * warp.zoom, boxes.T, area_thr=0.01 if use_segments else 0.10)
    labels = labels[keep]
    labels[:, 1:5] = boxes[keep]
    return labels


def _transform(points: np.ndarray, warp: Warp) -> np.ndarray:
    """Multiply points (n, 2) by the matrix: float64 (n, 3), x and y first."""
    xy = np.ones((len(points), 3))
    xy[:, :2] = points
    xy = xy @ warp.matrix.T
    if warp.projective:
        xy[:, :2] /= xy[:, 2:3]
    return xy


def _warp_corners(labels: np.ndarray, warp: Warp) -> np.ndarray:
    """Return float64 boxes (n, 4) around the warped corners of rows (n, 5), clipped to the output."""
    n = len(labels)
    corners = _transform(labels[:, [1, 2, 3, 4, 1, 4, 3, 2]].reshape(n * 4, 2), warp).reshape(n, 4, 3)[:, :, :2]
    h, w = warp.size
    return np.concatenate((corners.min(1), corners.max(1)), 1).clip(0, (w, h, w, h))


def resample_polygon(segment: np.ndarray) -> np.ndarray:
    """Close a polygon (k, 2) and spread 1000 points along it, evenly in the index of the corner: (1000, 2) float64."""
    closed = np.concatenate((segment, segment[0:1]), axis=0)
    at = np.linspace(0, len(closed) - 1, POLYGON_POINTS)
    return np.stack([np.interp(at, np.arange(len(closed)), closed[:, axis]) for axis in range(2)], axis=1)


def polygon_box(points: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return the box (4,) around the points (k, 2) that are inside the image; zeros if there are none."""
    x, y = points.T
    inside = (x >= 0) & (y >= 0) & (x <= width) & (y <= height)
    x, y = x[inside], y[inside]
    return np.array([x.min(), y.min(), x.max(), y.max()]) if x.any() else np.zeros(4)


def _warp_polygons(segments: list[np.ndarray], warp: Warp) -> np.ndarray:
    """Return float64 boxes (n, 4) of n warped polygons; those that are certainly outside the output are skipped."""
    h, w = warp.size
    corners = _transform(np.concatenate(segments), warp)[:, :2]
    starts = np.cumsum([0, *map(len, segments[:-1])])
    low, high = np.minimum.reduceat(corners, starts), np.maximum.reduceat(corners, starts)
    seen = ((high > -0.01) & (low < (w + 0.01, h + 0.01))).all(1) | warp.projective
    boxes = np.zeros((len(segments), 4))
    for i in np.flatnonzero(seen).tolist():
        boxes[i] = polygon_box(_transform(resample_polygon(segments[i]), warp)[:, :2], w, h)
    return boxes


def box_candidates(box1, box2, wh_thr=2, ar_thr=20, area_thr=0.1, eps=1e-16):
    """Return which boxes to keep, (n,) bool: box1 (4, n) before the warp (already zoomed), box2 (4, n) after.

    A box is kept if it is over `wh_thr` pixels wide and high, over `area_thr` of the old area, and its aspect ratio is
    below `ar_thr`.
    """
    (w1, h1), (w2, h2) = box1[2:4] - box1[:2], box2[2:4] - box2[:2]
    short, long = np.minimum(w2, h2), np.maximum(w2, h2)
    return (short > wh_thr) & (w2 * h2 / (w1 * h1 + eps) > area_thr) & (long / (short + eps) < ar_thr)


def random_perspective(
    img,
    targets=(),
    segments=(),
    degrees=10,
    translate=0.1,
    scale=0.1,
    shear=10,
    perspective=0.0,
    border=(0, 0),
    rng: RandomSource = GLOBAL,
):
    """Draw a warp and apply it to an image and its label rows; the image keeps its number of channels."""
    ranges = {"degrees": degrees, "translate": translate, "scale": scale, "shear": shear, "perspective": perspective}
    warp = draw_warp(rng, ranges, img.shape[:2], border)
    channels = img.shape[2]
    img = warp_image(img, warp)
    if img.shape[2] != channels:
        img = cv2.cvtColor(img, cv2.COLOR_BGRA2BGR)
    return img, warp_labels(np.asarray(targets), list(segments), warp)


# --- colour -----------------------------------------------------------------------------------------------------------


class Colour(NamedTuple):
    """Gains of hue, saturation and value."""

    gains: list[float]

    @property
    def tables(self) -> list[np.ndarray]:
        """Lookup tables of the three channels, uint8 (256,): hue wraps at 180, the others saturate at 255."""
        tables = np.multiply.outer(self.gains, LEVELS)
        tables[0] %= 180
        np.minimum(tables[1:], 255, out=tables[1:])
        return list(np.maximum(tables, 0, out=tables).astype(np.uint8))


def draw_colour(rng: RandomSource, hgain: float, sgain: float, vgain: float) -> Colour:
    """Draw three gains around 1 in one call of the NumPy generator."""
    return Colour([draw * gain + 1 for draw, gain in zip(rng.np_uniform(-1, 1, 3).tolist(), (hgain, sgain, vgain))])


def apply_colour(img: np.ndarray, colour: Colour, out: np.ndarray | None = None) -> np.ndarray:
    """Return a BGR(A) image as BGR, in `out` or new, with hue, saturation and value mapped by their tables."""
    planes = cv2.split(cv2.cvtColor(img, cv2.COLOR_BGR2HSV))
    mapped = [cv2.LUT(plane, table) for plane, table in zip(planes, colour.tables)]
    return cv2.cvtColor(cv2.merge(mapped), cv2.COLOR_HSV2BGR, dst=out)


def augment_hsv(img: np.ndarray, hgain=0.5, sgain=0.5, vgain=0.5, rng: RandomSource = GLOBAL) -> None:
    """Draw three gains and change the colours of a BGR image in place."""
    apply_colour(img, draw_colour(rng, hgain, sgain, vgain), out=img)


# --- mixup ------------------------------------------------------------------------------------------------------------


def mixup(img1: np.ndarray, img2: np.ndarray, ratio: float) -> np.ndarray:
    """`uint8(img1 * ratio + img2 * (1 - ratio))` in float64, truncated: looked up in a table of all 256 x 256 sums."""
    table = np.add.outer(LEVELS * ratio, LEVELS * (1 - ratio)).astype(np.uint8).ravel()
    pair = np.left_shift(img1, 8, dtype=np.uint16)
    pair |= img2
    return table.take(pair)
