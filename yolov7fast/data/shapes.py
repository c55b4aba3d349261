"""The synthetic data set `shapes`: images of balls, boxes, cones and stars, drawn in seconds.

For training without a download and for tests that measure learning. Every machine draws the same pixels: the generator
is NumPy's frozen `RandomState`, and all drawing is integer arithmetic. Each image has its own seed, so a smaller set is
the beginning of a larger one. Classes differ in outline, texture, usually colour, and aspect ratio (boxes wide, cones
tall), so they can be grouped by geometry.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_folder
from yolov7fast.core.files.locks import exclusive

VERSION = 3  # raise when a drawn pixel or a label changes: folders of an older version are drawn again
NAMES = ("ball", "box", "cone", "star")
MARKER = "shapes.json"  # written last; describes the contents of the folder
JPEG_QUALITY = 92
EMPTY_EVERY = 13  # every 13th image shows no object
MIN_VISIBLE = 70  # percent of an object that must be visible

UNIT = 4096  # fixed-point one of the sine table
SIN = [round(math.sin(math.radians(d)) * UNIT) for d in range(360)]
ASPECTS = ((4, 3), (4, 3), (3, 2), (5, 4), (1, 1), (3, 4), (4, 5))  # width : height
OBJECTS = (1, 2, 3, 4, 4, 5, 5, 6, 7, 8)  # objects tried in an image
RADII = (28, 45, 58, 70, 70, 85, 100, 120, 145, 175, 210)  # half size, in thousandths of the longer side
HUES = ((1365, 1535), (580, 760), (60, 170), (200, 290))  # usual hue of a class, of 1536: red, green, ...
STRETCH = ((96, 104), (135, 160), (68, 80), (95, 105))  # percent, width against height


@dataclass(frozen=True)
class Shape:
    """One object: class, centre and half sizes in pixels, turn in degrees, BGR colour."""

    cls: int
    x: int
    y: int
    rx: int
    ry: int
    turn: int
    colour: tuple[int, int, int]


def pick(rng: np.random.RandomState, low: int, high: int) -> int:
    """Draw an integer from low to high, inclusive."""
    return int(rng.randint(low, high + 1, dtype=np.int64))


def hue_to_bgr(hue: int, white: int, value: int) -> tuple[int, int, int]:
    """Return the BGR colour of a hue (0..1535) mixed with `white` percent of white, at brightness `value` (0..255)."""
    sector, part = divmod(hue % 1536, 256)
    r, g, b = (
        (255, part, 0),
        (255 - part, 255, 0),
        (0, 255, part),
        (0, 255 - part, 255),
        (part, 0, 255),
        (255, 0, 255 - part),
    )[sector]
    mixed = [(c * (100 - white) + 255 * white) // 100 * value // 255 for c in (b, g, r)]
    return mixed[0], mixed[1], mixed[2]


# ---- planes: (height, width) int32 arrays ----------------------------------------------------------------------------


def lerp_rows(grid: np.ndarray, n: int) -> np.ndarray:
    """Resize (g, m) to (n, m) by linear interpolation in steps of 1/256."""
    at = np.arange(n, dtype=np.int32) * ((len(grid) - 1) * 256) // max(n - 1, 1)
    low = np.minimum(at // 256, len(grid) - 2)
    part = (at - low * 256)[:, None]
    return (grid[low] * (256 - part) + grid[low + 1] * part) // 256


def smooth_noise(rng: np.random.RandomState, width: int, height: int, cells: tuple[int, int], top: int) -> np.ndarray:
    """Return smooth noise of 0..top with `cells` = (across, down) patches."""
    grid = rng.randint(0, top + 1, (cells[1] + 1, cells[0] + 1), dtype=np.int64).astype(np.int32)
    return lerp_rows(lerp_rows(grid, height).T.copy(), width).T


def box_blur(plane: np.ndarray, radius: int) -> np.ndarray:
    """Return the mean over a square of side 2 * radius + 1, edges repeated."""
    side = 2 * radius + 1
    for _ in range(2):  # rows, then columns
        padded = np.pad(plane, ((radius + 1, radius), (0, 0)), mode="edge").cumsum(0, dtype=np.int32)
        plane = ((padded[side:] - padded[:-side]) // side).T
    return plane


def soften(image: np.ndarray) -> np.ndarray:
    """Return a binomial 3x3 blur of (h, w) or (h, w, c)."""
    for axis in (0, 1):
        pad = [(1, 1) if a == axis else (0, 0) for a in range(image.ndim)]
        p = np.moveaxis(np.pad(image, pad, mode="edge"), axis, 0)
        image = np.moveaxis((p[:-2] + 2 * p[1:-1] + p[2:] + 2) // 4, 0, axis)
    return image


# ---- background ------------------------------------------------------------------------------------------------------


def draw_ground(rng: np.random.RandomState, width: int, height: int) -> np.ndarray:
    """Draw a textured background (h, w, 3): plaster, planks, streaks or tiles."""
    kind = pick(rng, 0, 3)
    texture = smooth_noise(rng, width, height, (5, 4), 44) + smooth_noise(rng, width, height, (24, 18), 18)
    x = np.arange(width, dtype=np.int32)[None]
    y = np.arange(height, dtype=np.int32)[:, None]
    if kind == 1:  # planks: boards of slightly different brightness with dark joints
        board = pick(rng, 34, 60)
        shade = rng.randint(-16, 17, height // board + 1, dtype=np.int64).astype(np.int32)
        texture = texture + shade[y // board] - 30 * (y % board < 2)
        texture = texture + smooth_noise(rng, width, height, (4, height // 3), 22)
    elif kind == 2:  # streaks
        texture = texture + smooth_noise(rng, width, height, (width // 3, height // 14), 32)
    elif kind == 3:  # tiles
        tile = pick(rng, 40, 64)
        texture = texture + 12 * ((x // tile + y // tile) % 2) - 20 * ((x % tile < 2) | (y % tile < 2))
    level = pick(rng, 45, 125)
    tint = [pick(rng, -14, 14) for _ in range(3)]
    return np.stack([texture + level + t for t in tint], 2).astype(np.int32)


# ---- the objects -----------------------------------------------------------------------------------------------------


def outline(shape: Shape) -> np.ndarray:
    """Corner points (n, 2) int32 of an object."""
    if shape.cls == 0:
        points = [(SIN[(d + 90) % 360], SIN[d]) for d in range(0, 360, 6)]
    elif shape.cls == 1:
        points = [(-UNIT, -UNIT), (UNIT, -UNIT), (UNIT, UNIT), (-UNIT, UNIT)]
    elif shape.cls == 2:
        points = [(0, -UNIT), (UNIT, UNIT), (-UNIT, UNIT)]
    else:
        reach = [UNIT if i % 2 == 0 else UNIT * 42 // 100 for i in range(10)]
        points = [(r * SIN[36 * i] // UNIT, -r * SIN[(36 * i + 90) % 360] // UNIT) for i, r in enumerate(reach)]
    sin, cos = SIN[shape.turn % 360], SIN[(shape.turn + 90) % 360]
    scaled = [(px * shape.rx, py * shape.ry) for px, py in points]
    half = UNIT * UNIT // 2
    turned = [((px * cos - py * sin + half) // UNIT**2, (px * sin + py * cos + half) // UNIT**2) for px, py in scaled]
    return np.array([(shape.x + px, shape.y + py) for px, py in turned], dtype=np.int32)


def shade(shape: Shape, x: np.ndarray, y: np.ndarray, light: tuple[int, int]) -> np.ndarray:
    """Colour (h, w, 3) of an object at columns x (1, w) and rows y (h, 1): its class's texture, lit from `light`."""
    dx, dy = x - shape.x, y - shape.y
    reach = max(shape.rx, shape.ry)
    if shape.cls == 0:  # a sphere: bright spot towards the light
        sx, sy = dx * 256 // shape.rx - light[0] // 3, dy * 256 // shape.ry - light[1] // 3
        gain = 300 - (sx * sx + sy * sy) // 600
    else:
        gain = 236 + (dx * light[0] + dy * light[1]) // (4 * reach)
    sin, cos = SIN[shape.turn % 360], SIN[(shape.turn + 90) % 360]
    u = (dx * cos + dy * sin) // (shape.rx * (UNIT // 256))  # object axes, -256..256 within the object
    v = (dy * cos - dx * sin) // (shape.ry * (UNIT // 256))
    pale = np.zeros(np.broadcast_shapes(dx.shape, dy.shape), dtype=bool)
    if shape.cls == 1:  # slats and a frame
        gain = gain - 46 * ((v + 256) // 85 % 2) - 30 * ((np.abs(u) > 220) | (np.abs(v) > 215))
    elif shape.cls == 2:  # two pale bands
        pale = ((v > -40) & (v < 50)) | ((v > 130) & (v < 190))
    elif shape.cls == 3:  # ridges from the middle
        gain = gain + 36 * ((u > 0) ^ (v > 0))
    gain = np.clip(gain, 60, 330)
    planes = [np.where(pale, 225, c) * gain // 256 for c in shape.colour]
    return np.stack(planes, 2)


def draw_shape(image: np.ndarray, shape: Shape, light: tuple[int, int]) -> None:
    """Draw an object with its soft shadow into the image (h, w, 3), in place."""
    points = outline(shape)
    reach = max(shape.rx, shape.ry)
    fall = np.array([-light[0] * reach // 1500, -light[1] * reach // 1500])
    blur = max(reach // 7, 1)
    touched = np.concatenate((points, points + fall))
    left, top = touched.min(0) - 2 * blur - 2
    right, bottom = touched.max(0) + 2 * blur + 3

    def cover(corners: np.ndarray) -> np.ndarray:
        # filled whole and cropped afterwards: OpenCV rounds the edges of a cropped polygon differently
        mask = np.zeros((bottom - top, right - left), np.uint8)
        cv2.fillPoly(mask, [(corners - (left, top)).astype(np.int32)], 255)
        return mask.astype(np.int32)

    shadow = box_blur(box_blur(cover(points + fall), blur), blur)
    alpha = soften(cover(points))
    rows = slice(max(top, 0), min(bottom, image.shape[0]))
    columns = slice(max(left, 0), min(right, image.shape[1]))
    seen = (slice(rows.start - top, rows.stop - top), slice(columns.start - left, columns.stop - left))
    shadow, alpha = shadow[seen][..., None], alpha[seen][..., None]
    x = np.arange(columns.start, columns.stop, dtype=np.int32)[None]
    y = np.arange(rows.start, rows.stop, dtype=np.int32)[:, None]
    lit = image[rows, columns] * (640 - shadow) // 640
    image[rows, columns] = (lit * (255 - alpha) + shade(shape, x, y, light) * alpha + 127) // 255


def random_shape(rng: np.random.RandomState, width: int, height: int) -> Shape:
    """Draw an object of random class, size, position, rotation and colour; it may exceed the edge slightly."""
    cls = pick(rng, 0, len(NAMES) - 1)
    half = max(max(width, height) * RADII[pick(rng, 0, len(RADII) - 1)] // 1000, 8)
    stretch = pick(rng, *STRETCH[cls])
    rx, ry = (half * stretch // 100, half) if stretch <= 100 else (half, half * 100 // stretch)
    rx, ry = max(rx, 6), max(ry, 6)
    x = pick(rng, rx * 3 // 4, max(width - rx * 3 // 4, rx))
    y = pick(rng, ry * 3 // 4, max(height - ry * 3 // 4, ry))
    turn = pick(rng, -14, 14) if cls in (1, 2) else pick(rng, 0, 359)
    hue = pick(rng, *HUES[cls]) if pick(rng, 1, 12) > 1 else pick(rng, 0, 1535)  # mostly, not always, its usual colour
    return Shape(cls, x, y, rx, ry, turn, hue_to_bgr(hue, pick(rng, 0, 30), pick(rng, 170, 245)))


def choose_shapes(
    rng: np.random.RandomState, width: int, height: int, count: int
) -> tuple[list[Shape], list[tuple[int, ...]]]:
    """Objects in drawing order and their visible boxes (class, left, top, right, bottom; exclusive ends).

    An object that would hide too much of an earlier one, or is too far outside, is left out: exactly the visible
    objects are labelled.
    """
    margin = max(width, height) // 2
    owner = np.zeros((height + 2 * margin, width + 2 * margin), np.uint8)  # number of the topmost object, 0 = ground
    inside = (slice(margin, margin + height), slice(margin, margin + width))
    shapes: list[Shape] = []
    areas: list[int] = []
    for _ in range(count):
        shape = random_shape(rng, width, height)
        trial = owner.copy()
        cv2.fillPoly(trial, [outline(shape) + margin], len(shapes) + 1)
        area = int((trial == len(shapes) + 1).sum())
        seen = np.bincount(trial[inside].ravel(), minlength=len(shapes) + 2)[1:]
        if all(int(s) * 100 >= a * MIN_VISIBLE for s, a in zip(seen, [*areas, area])):
            owner = trial
            shapes.append(shape)
            areas.append(area)
    boxes = []
    for number, shape in enumerate(shapes, 1):
        rows, columns = np.nonzero(owner[inside] == number)
        boxes.append((shape.cls, int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1))
    return shapes, boxes


def draw_scene(seed: int, index: int, size: int) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Image number `index`: (h, w, 3) uint8 BGR and its boxes (class, left, top, right, bottom) in pixels."""
    rng = np.random.RandomState([seed, index])
    longer = size * pick(rng, 85, 100) // 100
    across, down = ASPECTS[pick(rng, 0, len(ASPECTS) - 1)]
    width, height = longer * across // max(across, down), longer * down // max(across, down)
    image = draw_ground(rng, width, height)
    count = 0 if index % EMPTY_EVERY == EMPTY_EVERY - 1 else OBJECTS[pick(rng, 0, len(OBJECTS) - 1)]
    shapes, boxes = choose_shapes(rng, width, height, count)
    direction = pick(rng, 0, 359)
    light = (SIN[direction] // 16, -abs(SIN[(direction + 90) % 360]) // 16)  # from above, length 256
    for shape in shapes:
        draw_shape(image, shape, light)
    exposure = pick(rng, 195, 225)  # of 256; the light differs from corner to corner
    image = image * (smooth_noise(rng, width, height, (1, 1), 70)[..., None] + exposure) // 256
    for _ in range(max(pick(rng, -2, 2), 0)):  # some images are out of focus
        image = soften(image)
    grain = pick(rng, 1, 6)
    image = image + rng.randint(-grain, grain + 1, image.shape, dtype=np.int64)
    return np.clip(image, 0, 255).astype(np.uint8), boxes


# ---- the folder ------------------------------------------------------------------------------------------------------


def write_images(folder: Path, counts: dict[str, int], size: int, seed: int) -> None:
    """Draw `counts[split]` images for every split into folder/images/SPLIT, labels into folder/labels/SPLIT."""
    with tqdm(total=sum(counts.values()), desc="drawing shapes", unit="img", leave=False) as bar:
        for number, (split, count) in enumerate(counts.items()):
            images, labels = folder / "images" / split, folder / "labels" / split
            images.mkdir(parents=True)
            labels.mkdir(parents=True)
            for i in range(count):
                image, boxes = draw_scene(seed, number * 1_000_000 + i, size)
                cv2.imwrite(str(images / f"{i:06}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
                (h, w), text = image.shape[:2], ""
                for cls, left, top, right, bottom in boxes:
                    values = (left + right) / 2 / w, (top + bottom) / 2 / h, (right - left) / w, (bottom - top) / h
                    text += f"{cls} {' '.join(f'{v:.6f}' for v in values)}\n"
                (labels / f"{i:06}.txt").write_text(text)
                bar.update()


def make_shapes(folder: str | Path, train: int = 200, val: int = 60, size: int = 400, seed: int = 0) -> Path:
    """Draw the data set into `folder` and return it; do nothing if the folder holds the same set.

    size: the longer side of the largest images (they vary from 85% of it). The folder is built under another name
    and renamed when complete, so that a killed process leaves no incomplete set.
    """
    folder = Path(folder)
    wanted = json.dumps({"version": VERSION, "train": train, "val": val, "size": size, "seed": seed}) + "\n"
    marker = folder / MARKER

    def complete() -> bool:
        return marker.is_file() and marker.read_text() == wanted

    if complete():
        return folder
    if folder.exists() and any(folder.iterdir()) and not marker.is_file():
        raise UserError(f"{folder} holds files that are not this data set: move them away, or choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.with_name(f".{folder.name}.lock"), f"waiting for another process that draws {folder}"):
        if not complete():  # another process may have drawn it meanwhile
            with atomic_folder(folder) as build:
                write_images(build, {"train": train, "val": val}, size, seed)
                (build / MARKER).write_text(wanted)
    return folder
