"""Drawing on images: boxes with labels, and grids of a batch.

Images are uint8 arrays (H, W, 3) in BGR order, as OpenCV holds them.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from yolov7fast.core.boxes import xywh2xyxy
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.text import printable

# the ten colours of matplotlib's "tab10", as R, G, B
TAB10 = "1f77b4ff7f0e2ca02cd627289467bd8c564be377c27f7f7fbcbd2217becf"
PALETTE = [tuple(bytes.fromhex(TAB10[i : i + 6])) for i in range(0, len(TAB10), 6)]
LONGEST_NAME = 100  # characters of a class name
SHOWN_CONFIDENCE = 0.25  # predictions at or below it are not drawn
Names = Sequence[str] | Mapping[int, str] | None


def class_colour(class_id: int) -> tuple[int, int, int]:
    """B, G, R of a class: always the same one, repeating after ten."""
    red, green, blue = PALETTE[int(class_id) % len(PALETTE)]
    return blue, green, red


def class_name(names: Names, class_id: int) -> str:
    """The name of a class with control characters escaped; its number if it has no name."""
    class_id = int(class_id)
    if isinstance(names, Mapping):
        return printable(names.get(class_id, class_id), LONGEST_NAME)
    if names is None or not 0 <= class_id < len(names):
        return str(class_id)
    return printable(names[class_id], LONGEST_NAME)


def draw_text(img: np.ndarray, text: str, corner: tuple[int, int], size: int, colour, background=None) -> None:
    """Write `text` in place with its top left corner at (x, y), moved into the image if needed.

    OpenCV's outline font covers Latin, Chinese, Japanese and Korean.
    """
    text = printable(text)  # OpenCV crashes on text that is not UTF-8, such as the name of an image
    font = cv2.FontFace("sans")
    # measured on a huge canvas: OpenCV clips the text at the edge of the canvas
    text_width = cv2.getTextSize((1 << 14, 1 << 14), text, (0, 0), font, size, 600)[2]
    pad = max(size // 6, 1)
    width, height = text_width + 2 * pad, size + 2 * pad
    x = min(max(corner[0], 0), max(img.shape[1] - width, 0))
    y = min(max(corner[1], 0), max(img.shape[0] - height, 0))
    if background is not None:
        cv2.rectangle(img, (x, y), (x + width - 1, y + height - 1), background, cv2.FILLED)
    cv2.putText(img, text, (x + pad, y + pad + round(0.82 * size)), colour, font, size, 600)


def draw_boxes(
    img: np.ndarray,
    boxes: Iterable,
    labels: Sequence[str],
    colours: Sequence[tuple[int, int, int]],
    style: tuple[int, int] | None = None,
) -> None:
    """Draw xyxy boxes in place, then their labels, so that no line crosses a label.

    A label is drawn above its box, or inside if there is no space. `style`: (line width, font size) in pixels;
    default: proportional to the image.
    """
    sides = sum(img.shape[:2])
    line, size = style or (max(round(sides * 0.0015), 1), max(round(sides * 0.0125), 8))
    height = size + 2 * max(size // 6, 1)
    corners = [[int(v) for v in box] for box in boxes]
    for (x1, y1, x2, y2), colour in zip(corners, colours):
        cv2.rectangle(img, (x1, y1), (x2, y2), colour, line, cv2.LINE_AA)
    for (x1, y1, _, _), label, colour in zip(corners, labels, colours):
        top = y1 - height if y1 >= height else y1
        luma = 0.114 * colour[0] + 0.587 * colour[1] + 0.299 * colour[2]
        draw_text(img, label, (x1 - line // 2, top), size, (0, 0, 0) if luma > 150 else (255, 255, 255), colour)


def save_image(img: np.ndarray, path: str | os.PathLike) -> None:
    """Write an image atomically, encoded by the path's suffix."""
    path = Path(path)
    try:
        ok, data = cv2.imencode(path.suffix.lower(), img)
    except cv2.error as error:
        raise UserError(f"cannot write images of type '{path.suffix}' ({path}); use .jpg or .png") from error
    if not ok:
        raise UserError(f"cannot encode {path}")
    write_atomically(path, data.tobytes(), durable=False)


def plot_images(
    images,
    targets,
    paths: Sequence[str] | None = None,
    fname: str | os.PathLike | None = "images.jpg",
    names: Names = None,
    max_size: int = 640,
    max_subplots: int = 16,
) -> np.ndarray:
    """Draw a batch as a grid and save it; returns the grid, whose longer side is at most 1280.

    images: (B, 3, H, W) RGB, uint8 or 0..1 floats, tensor or array; neither they nor the targets are changed.
    targets: labels (n, 6) = image, class, xywh; predictions (n, 7) with the confidence last (those of 0.25 or less
    are left out). Boxes are normalised, or pixels of the batch where any value exceeds 1.5.
    Image i is in column i // n, row i % n, n = ceil(sqrt(count)).
    """
    images, targets = _to_numpy(images), _to_numpy(targets).reshape(-1, np.shape(targets)[-1] if len(targets) else 6)
    if images.dtype != np.uint8:
        images = (images.astype(np.float32) * 255).round().clip(0, 255).astype(np.uint8)
    count, _, height, width = images.shape
    count = min(count, max_subplots)
    side = math.ceil(count**0.5)
    shrink = min(max_size / max(height, width), 1280 / (side * max(height, width)), 1.0)
    h, w = math.ceil(height * shrink), math.ceil(width * shrink)
    boxes = xywh2xyxy(targets[:, 2:6].astype(np.float64))
    boxes *= (w, h, w, h) if boxes.size == 0 or targets[:, 2:6].max() <= 1.5 else (shrink,) * 4

    columns = math.ceil(count / side)
    grid = np.full((side * h, columns * w, 3), 255, np.uint8)
    for i in range(count):
        tile = cv2.cvtColor(np.ascontiguousarray(images[i].transpose(1, 2, 0)), cv2.COLOR_RGB2BGR)
        tile = cv2.resize(tile, (w, h), interpolation=cv2.INTER_AREA) if shrink < 1 else tile
        own = targets[:, 0] == i
        _draw_tile(tile, targets[own], boxes[own], names, Path(paths[i]).name[:40] if paths else "")
        x, y = i // side * w, i % side * h
        grid[y : y + h, x : x + w] = tile
    if fname is not None:
        save_image(grid, fname)
    return grid


def _draw_tile(tile: np.ndarray, targets: np.ndarray, boxes: np.ndarray, names: Names, title: str) -> None:
    """One image of a grid, in place: its boxes (pixels of the tile), its file name, a white frame."""
    h, w = tile.shape[:2]
    size = max(round(min(h, w) * 0.035), 9)
    line = 3 if max(h, w) > 400 else 2 if max(h, w) > 200 else 1
    labels = [class_name(names, c) for c in targets[:, 1]]
    if targets.shape[1] > 6:
        sure = targets[:, 6] > SHOWN_CONFIDENCE
        labels = [f"{label} {row[6]:.1f}" for label, row in zip(labels, targets) if row[6] > SHOWN_CONFIDENCE]
        targets, boxes = targets[sure], boxes[sure]
    draw_boxes(tile, boxes.round(), labels, [class_colour(c) for c in targets[:, 1]], (line, size))
    if title:
        draw_text(tile, title, (3, 3), size, (255, 255, 255), (60, 60, 60))
    cv2.rectangle(tile, (0, 0), (w - 1, h - 1), (255, 255, 255), 2)


def _to_numpy(x) -> np.ndarray:
    """A tensor on any device, or an array-like, as an array."""
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)
