"""Images of a page as data URLs, small enough together for the page's limit."""

import base64
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from yolov7fast.data.image_io import decode_file

STEPS = ((320, 72), (288, 60), (224, 50), (160, 40))  # longer side and quality: the first that fits is taken
REDUCED = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}


class Thumbnails:
    """Remembers images that were made: the first ones of a validation are the same every time."""

    def __init__(self):
        self._made: dict[tuple[str, int, int], str] = {}

    def fit(self, paths: Sequence[str], bytes_in_all: int, scale: float = 1.0) -> dict[str, str]:
        """Data URL by path; files that cannot be read are left out, and the last ones if nothing else fits.

        scale: of the sides in STEPS, for images that need more room.
        """
        paths = list(dict.fromkeys(paths))
        made: dict[str, str] = {}
        for side, quality in STEPS:
            made = {path: url for path in paths if (url := self._url(path, round(side * scale), quality))}
            if sum(map(len, made.values())) <= bytes_in_all:
                break
        kept, used = {}, 0
        for path, url in made.items():
            used += len(url)
            if used > bytes_in_all:
                break
            kept[path] = url
        return kept

    def forget_others(self, paths: Sequence[str]) -> None:
        """Keep the images of these files alone."""
        wanted = set(paths)
        self._made = {key: url for key, url in self._made.items() if key[0] in wanted}

    def _url(self, path: str, side: int, quality: int) -> str:
        key = path, side, quality
        if key not in self._made:
            self._made[key] = _encoded(_small(path, side), quality)
        return self._made[key]


def _small(path: str, side: int) -> np.ndarray | None:
    """The image with its longer side brought to `side`; a large JPEG is decoded at a fraction of its size."""
    try:
        size = max(_size_of(path))
        factor = max((f for f in REDUCED if size >= side * f * 2), default=1)
        image = decode_file(path, REDUCED.get(factor, cv2.IMREAD_COLOR))
    except (OSError, cv2.error, ValueError):
        return None
    if image is None:
        return None
    scale = side / max(image.shape[:2])
    width, height = (max(round(n * scale), 1) for n in image.shape[1::-1])
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)


def _size_of(path: str) -> tuple[int, int]:
    from PIL import Image  # reads the header alone

    with Image.open(Path(path)) as image:
        return image.size


def _encoded(image: np.ndarray | None, quality: int) -> str:
    """As a data URL; empty where there is no image."""
    if image is None:
        return ""
    ok, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode() if ok else ""


def heat_map(matrix: np.ndarray) -> str:
    """A matrix of 0 to 1 as an image of one pixel a cell: white to blue."""
    light, dark = np.array([255, 255, 255]), np.array([120, 60, 0])  # BGR
    pixels = light + matrix[..., None].clip(0, 1) ** 0.5 * (dark - light)
    ok, data = cv2.imencode(".png", pixels.astype(np.uint8))
    return "data:image/png;base64," + base64.b64encode(data.tobytes()).decode() if ok else ""
