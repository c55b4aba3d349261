"""Reading one image at training size: the one place where pixels enter, cached or not.

Images are uint8 arrays (H, W, 3) in BGR order, as OpenCV reads them. Sizes are (height, width).
"""

import contextlib
import os
import re
import warnings
from collections.abc import Iterable
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from yolov7fast.core.errors import UserError
from yolov7fast.core.process.stderr_capture import stderr_lines_caught

MOST_PIXELS = 178_956_970  # of an image that is read; Pillow refuses more, and so does upstream's check
EXIF_ORIENTATION = 274
# lines that image decoders print to stderr by themselves
DECODER_WARNING = re.compile(r"JPEG file|JPEG data|libpng|TIFFRead|TIFFFetch", re.IGNORECASE)
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # sizes are judged by MOST_PIXELS
_reported: set[str] = set()  # truncated files of this process; workers inherit them


class LoadedImage(NamedTuple):
    """An image at training size. Unpacks as (img, (h0, w0), (h, w))."""

    img: np.ndarray  # uint8 (h, w, 3) BGR
    original: tuple[int, int]  # height and width in the file, after EXIF rotation
    resized: tuple[int, int]  # height and width of `img`


def decode_file(path: str, how: int = cv2.IMREAD_COLOR) -> np.ndarray | None:
    """The pixels of a file as OpenCV reads them; None for what it cannot decode and for FIFOs, devices and folders.

    how: OpenCV's flag. A name that is not UTF-8 ends the process in OpenCV's own file reader, so the bytes of such a
    file are read here and decoded from memory.
    """
    if not os.path.isfile(path):
        return None
    try:
        if is_utf8(path):
            return cv2.imread(path, how)
        return cv2.imdecode(np.fromfile(path, np.uint8), how)
    except (OSError, cv2.error):  # an empty or unreadable file, or more pixels than OpenCV allows
        return None


def is_utf8(path: str) -> bool:
    """Whether a file name holds no bytes outside UTF-8 (Python stands them in for by surrogates)."""
    return path.isascii() or path.encode(errors="replace").decode() == path


def read_image(path: str) -> np.ndarray:
    """Decode a file to uint8 (h0, w0, 3) BGR: EXIF rotation applied, alpha dropped, grey repeated.

    16 bits a channel become 8 by the largest value that 16 bits can hold, as OpenCV does it: 12-bit values stored in 16
    bits give a nearly black image, which `yolov7fast data check` names.
    """
    with without_decoder_warnings(path in _reported):
        img = decode_file(path)
    if img is None:
        raise UserError(f"image {path} {_state(path)}; fix or remove the file, then start again")
    return img


def _state(path: str) -> str:
    """Why a file could not be decoded."""
    if not os.path.exists(path):
        return "does not exist (any more)"
    return "cannot be decoded" if os.path.isfile(path) else "is no regular file"


def read_unchecked_image(path: str) -> np.ndarray:
    """`read_image` for a file that no check has seen: one of more than MOST_PIXELS is refused by its header.

    The message of the `UserError` is the reason alone.
    """
    try:
        with Image.open(path if os.path.isfile(path) else os.devnull) as image:
            fault = size_fault(*image.size)
    except Image.DecompressionBombError as error:
        fault = str(error)
    except Exception:  # damaged, or of a kind that only OpenCV knows
        fault = ""
    if fault:
        raise UserError(f"image {path} is too large: {fault}; shrink it or cut it into tiles")
    img = decode_file(path)
    if img is None:
        raise UserError(f"image {path} {_state(path)}")
    return img


def size_fault(width: int, height: int) -> str:
    """Why an image of this size is not read, or nothing."""
    return f"{width} x {height} pixels; at most {MOST_PIXELS:,} are read" if width * height > MOST_PIXELS else ""


def image_size(path: str | os.PathLike) -> tuple[int, int] | None:
    """(width, height) of an image as it is loaded for training, from its header; None if it cannot be opened."""
    if not os.path.isfile(path):
        return None
    try:
        with Image.open(path) as image:
            size, turned = image.size, image.getexif().get(EXIF_ORIENTATION) in (5, 6, 7, 8)
    except Exception:  # whatever a damaged file makes the readers raise
        return None
    return (size[1], size[0]) if turned else size


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
