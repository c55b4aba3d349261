"""Copy-paste (mirrored objects) and paste-in (objects of other images), cut out along their polygons.

Label rows are float32 [class, x1, y1, x2, y2] in pixels; polygons are (k, 2) arrays of points, one for each row.
"""

from typing import NamedTuple

import cv2
import numpy as np

from yolov7fast.data.augment.random_source import RandomSource

MAX_OVERLAP = 0.30  # of an existing box that a pasted one may cover
ENOUGH_CUTOUTS = 30  # mosaics are cut until there are so many
PASTE_SIZES = [0.75] * 2 + [0.5] * 4 + [0.25] * 4 + [0.125] * 4 + [0.0625] * 6  # fraction of the image's sides


class CutOut(NamedTuple):
    """An object on black: uint8 (h, w, 3); channel values above 0 are pasted."""

    label: float
    img: np.ndarray


def overlap(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return the fraction of each of `boxes` (n, 4) that is inside `box` (4,)."""
    lo, hi = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) + 1e-16
    return (hi - lo).clip(0).prod(1) / area


def _fill(mask: np.ndarray, polygon: np.ndarray, value: int = 255) -> None:
    cv2.drawContours(mask, [polygon.astype(np.int32)], -1, (value,) * 4, cv2.FILLED)


def copy_paste(img, labels, segments, probability: float, rng: RandomSource):
    """Mirror a fraction of the objects onto the image where they cover little else.

    Changes `img` in place; returns it with the longer labels and segments. A channel value of 0 inside an object is
    treated as background, as upstream does.
    """
    n = len(segments)
    if not (probability and n):
        return img, labels, segments
    width = img.shape[1]
    mask = np.zeros_like(img)
    segments = list(segments)
    for j in rng.sample(range(n), k=round(probability * n)):
        row, polygon = labels[j], segments[j]
        box = np.array([width - row[3], row[2], width - row[1], row[4]])
        if (overlap(box, labels[:, 1:5]) < MAX_OVERLAP).all():
            labels = np.concatenate((labels, np.array([[row[0], *box]], dtype=np.float32)), 0)
            segments.append(np.concatenate((width - polygon[:, 0:1], polygon[:, 1:2]), 1))
            _fill(mask, polygon)
    pasted = cv2.flip(cv2.bitwise_and(img, mask), 1)
    np.copyto(img, pasted, where=pasted > 0)
    return img, labels, segments


def cut_out(img, labels, segments, rng: RandomSource, fraction: float = 0.5) -> list[CutOut]:
    """Cut a fraction of the objects out of an image (H, W, 3).

    Inside the polygon a channel value of 0 becomes 255: image and mask are one array upstream.
    """
    h, w = img.shape[:2]
    mask = np.zeros((h, w, 3), np.uint8)
    found = []
    for j in rng.sample(range(len(segments)), k=round(fraction * len(segments))) if segments else ():
        x1, y1, x2, y2 = labels[j, 1:5].astype(int).clip(0, [w - 1, h - 1, w - 1, h - 1]).tolist()
        if x2 <= x1 or y2 <= y1:
            continue
        _fill(mask, segments[j])
        crop = mask[y1:y2, x1:x2].copy()
        _fill(mask, segments[j], 0)
        source = img[y1:y2, x1:x2]
        np.copyto(crop, source, where=(crop & source) > 0)
        found.append(CutOut(labels[j, 0], crop))
    return found


def paste_in(img, labels, cutouts: list[CutOut], rng: RandomSource) -> np.ndarray:
    """Paste cut-outs into free areas of `img` (H, W, 3), in place; return the longer labels.

    The draws are made whether or not there is anything to paste, so later draws do not depend on it.
    """
    h, w = img.shape[:2]
    for fraction in PASTE_SIZES:
        if rng.random() < 0.2:
            continue
        mask_h = rng.randint(1, int(h * fraction))
        mask_w = rng.randint(1, int(w * fraction))
        x1 = max(0, rng.randint(0, w) - mask_w // 2)
        y1 = max(0, rng.randint(0, h) - mask_h // 2)
        x2, y2 = min(w, x1 + mask_w), min(h, y1 + mask_h)
        if not cutouts or x2 <= x1 + 20 or y2 <= y1 + 20:
            continue
        if len(labels) and (overlap(np.array([x1, y1, x2, y2], np.float32), labels[:, 1:5]) >= MAX_OVERLAP).any():
            continue
        chosen = cutouts[rng.randint(0, len(cutouts) - 1)]
        box = _paste(img, chosen.img, x1, y1, x2, y2)
        if box is not None:
            row = np.array([[chosen.label, *box]], dtype=np.float32)
            labels = np.concatenate((labels, row), 0) if len(labels) else row
    return labels


def _paste(img, crop, x1: int, y1: int, x2: int, y2: int) -> tuple[int, int, int, int] | None:
    """Fit `crop` into the rectangle and copy values above 0; return its box, None if too little is visible."""
    crop_h, crop_w = crop.shape[:2]
    scale = min((y2 - y1) / crop_h, (x2 - x1) / crop_w)
    new_w, new_h = int(crop_w * scale), int(crop_h * scale)
    if new_w <= 10 or new_h <= 10:
        return None
    crop = cv2.resize(crop, (new_w, new_h))
    shown = crop > 0
    if np.count_nonzero(shown) <= 60:
        return None
    img[y1 : y1 + new_h, x1 : x1 + new_w][shown] = crop[shown]
    return x1, y1, x1 + new_w, y1 + new_h
