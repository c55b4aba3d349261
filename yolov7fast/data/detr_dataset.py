"""DETR's training samples: one image, randomly cropped, scaled and flipped, at the top left of a grey square.

Only the augmentation differs from `LoadImagesAndLabels`. The `shapes` of a sample give its content, without padding:
`content` converts them to rectangles, `padding_mask` to a mask.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch

from yolov7fast.core.boxes import xywhn2xyxy
from yolov7fast.data.augment.random_source import RandomSource
from yolov7fast.data.augment.transforms import GREY, box_candidates, resize_to
from yolov7fast.data.dataset import Augmented, LoadImagesAndLabels


class Placement(NamedTuple):
    """The random choices of a sample: a window of the loaded image, its size in the sample, and flips."""

    window: tuple[int, int, int, int]  # x1, y1, x2, y2 in pixels of the loaded image
    size: tuple[int, int]  # width, height in the sample
    left_right: bool
    up_down: bool


def draw_placement(rng: RandomSource, shape: tuple[int, int], img_size: int, hyp: Mapping[str, float]) -> Placement:
    """Draw a placement for an image of `shape` (h, w) in a square of `img_size`.

    hyp: `crop`, probability of a crop; `crop_min`, its minimum fraction of either side; `scale_min`, minimum longer
    side as a fraction of the square; `fliplr`, `flipud`, probabilities. The number of draws is always the same.
    """
    h, w = shape
    gate, fraction_w, fraction_h, at_x, at_y = (rng.random() for _ in range(5))
    window = (0, 0, w, h)
    if gate < hyp["crop"]:
        least = hyp["crop_min"]
        cw = max(round(w * (least + (1 - least) * fraction_w)), 1)
        ch = max(round(h * (least + (1 - least) * fraction_h)), 1)
        x, y = int(at_x * (w - cw + 1)), int(at_y * (h - ch + 1))
        window = (x, y, x + cw, y + ch)
    side = rng.uniform(hyp["scale_min"], 1.0) * img_size
    cw, ch = window[2] - window[0], window[3] - window[1]
    ratio = side / max(cw, ch)
    size = (min(max(round(cw * ratio), 1), img_size), min(max(round(ch * ratio), 1), img_size))
    return Placement(window, size, rng.random() < hyp["fliplr"], rng.random() < hyp["flipud"])


def place_image(img: np.ndarray, placed: Placement, img_size: int) -> np.ndarray:
    """Return uint8 (img_size, img_size, 3): the window of `img` in the top left corner, grey elsewhere."""
    x1, y1, x2, y2 = placed.window
    part = resize_to(img[y1:y2, x1:x2], placed.size)
    if placed.left_right or placed.up_down:
        part = cv2.flip(part, -1 if placed.left_right and placed.up_down else 1 if placed.left_right else 0)
    canvas = np.full((img_size, img_size, 3), GREY, np.uint8)
    canvas[: part.shape[0], : part.shape[1]] = part
    return canvas


def place_labels(labels: np.ndarray, placed: Placement) -> np.ndarray:
    """Convert rows (m, 5) class, xyxy from pixels of the loaded image to pixels of the sample, clipped to the window.

    Boxes of which too little is left are dropped, as in every augmentation (`box_candidates`).
    """
    x1, y1, x2, y2 = placed.window
    w, h = placed.size
    gain = np.array([w / (x2 - x1), h / (y2 - y1)] * 2, np.float32)
    moved = (labels[:, 1:] - np.array([x1, y1] * 2, np.float32)) * gain
    clipped = moved.clip(0, np.array([w, h] * 2, np.float32))
    kept = box_candidates(moved.T, clipped.T)
    rows = np.concatenate((labels[:, :1], clipped), 1)[kept]
    if placed.left_right:
        rows[:, [1, 3]] = w - rows[:, [3, 1]]
    if placed.up_down:
        rows[:, [2, 4]] = h - rows[:, [4, 2]]
    return rows


class DetrDataset(LoadImagesAndLabels):
    """The data set with DETR's augmentation instead of mosaics and warps; `hyp` as in `draw_placement`."""

    def _augmented(self, index: int, rng: RandomSource) -> Augmented:
        loaded = self.load_image(index)
        h, w = loaded.resized
        placed = draw_placement(rng, (h, w), self.img_size, self.hyp)
        labels = self.labels[index].copy()
        labels[:, 1:] = xywhn2xyxy(labels[:, 1:], w, h)
        width, height = placed.size
        shapes = (height, width), ((1.0, 1.0), (0.0, 0.0))  # the window is the whole image, at its own scale
        return Augmented(place_image(loaded.img, placed, self.img_size), place_labels(labels, placed), shapes)

    def _draw_flips(self, rows: np.ndarray, rng: RandomSource) -> None:
        """Do nothing: flips are part of the placement, so padding is not moved."""


# --- content and padding of a batch -----------------------------------------------------------------------------------


def content(shapes: Sequence[Any]) -> torch.Tensor:
    """Return (B, 4) float32 x, y, width, height of the images inside a batch, in pixels of the batch.

    shapes: per image ((h0, w0), ((ratio_h, ratio_w), (pad_w, pad_h))), as loaders return them.
    """
    rows = [(pw, ph, w0 * rw, h0 * rh) for (h0, w0), ((rh, rw), (pw, ph)) in shapes]
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, 4)


def padding_mask(frames: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return (B, height, width) int64: 1 on content, 0 on padding. frames: see `content`."""
    x, y, w, h = (column[:, None] for column in frames.round().long().unbind(1))
    columns, rows = torch.arange(width)[None], torch.arange(height)[None]
    inside_x, inside_y = (columns >= x) & (columns < x + w), (rows >= y) & (rows < y + h)
    return (inside_y[:, :, None] & inside_x[:, None, :]).long()
