"""Reading one image at training size: the one place where pixels enter, cached or not.

Images are uint8 arrays (H, W, 3) in BGR order, as OpenCV reads them. Sizes are (height, width).
"""

import contextlib
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

import cv2
import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.core.process.stderr_capture import stderr_lines_caught

# lines that image decoders print to stderr by themselves
DECODER_WARNING = re.compile(r"JPEG file|JPEG data|libpng|TIFFRead|TIFFFetch", re.IGNORECASE)
_reported: set[str] = set()  # truncated files of this process; workers inherit them


class LoadedImage(NamedTuple):
    """An image at training size. Unpacks as (img, (h0, w0), (h, w))."""

    img: np.ndarray  # uint8 (h, w, 3) BGR
    original: tuple[int, int]  # height and width in the file, after EXIF rotation
    resized: tuple[int, int]  # height and width of `img`


def read_image(path: str) -> np.ndarray:
    """Decode a file to uint8 (h0, w0, 3) BGR: EXIF rotation applied, alpha dropped, grey repeated, 16 bit cut to 8."""
    with without_decoder_warnings(path in _reported):
        img = cv2.imread(path)
    if img is None:
        state = "cannot be decoded" if os.path.exists(path) else "does not exist (any more)"
        raise UserError(f"image {path} {state}; fix or remove the file, then start again")
    return img


def decoder_warnings_caught() -> contextlib.AbstractContextManager[list[str]]:
    """While open, the decoder's warnings stay off the terminal; afterwards the list holds them."""
    return stderr_lines_caught(lambda line: bool(DECODER_WARNING.search(line)))


def without_decoder_warnings(truncated: bool) -> contextlib.AbstractContextManager:
    """The same for a truncated file whose name was reported; for others nothing changes."""
    return decoder_warnings_caught() if truncated else contextlib.nullcontext()


def truncation_was_reported(paths: Iterable[str]) -> None:
    """From now on, what the JPEG decoder says about these truncated files on every read stays off the terminal."""
    for path in paths:
        _reported.update((path, os.path.abspath(path)))


def resized_shape(h0: int, w0: int, img_size: int) -> tuple[int, int]:
    """(h, w) of an image whose longer side is brought to `img_size`.

    Truncation is on purpose: with some sizes float error costs a pixel (639 for 640), as it does upstream.
    """
    r = img_size / max(h0, w0)
    return (h0, w0) if r == 1 else (max(int(h0 * r), 1), max(int(w0 * r), 1))


def load_resized(path: str, img_size: int, augment: bool) -> LoadedImage:
    """Read an image and bring its longer side to `img_size`.

    Shrinking for evaluation averages areas; everything else interpolates linearly.
    """
    img = read_image(path)
    h0, w0 = img.shape[:2]
    h, w = resized_shape(h0, w0, img_size)
    r = img_size / max(h0, w0)
    if r != 1:
        interpolation = cv2.INTER_AREA if r < 1 and not augment else cv2.INTER_LINEAR
        img = cv2.resize(img, (w, h), interpolation=interpolation)
    return LoadedImage(img, (h0, w0), (h, w))
