"""The upper rows of a JPEG for the work of decoding these rows alone.

A decoder reads no further than the height that the header names, so in a copy in memory a smaller height is written
there. The rows are bit for bit those of the whole image, but for the last one: its colours are interpolated from the
row below. This holds where rows are coded once, from top to bottom: in baseline files of one scan.
"""

import os

import cv2
import numpy as np

START, END = b"\xff\xd8", b"\xff\xd9"
BASELINE, SCAN = (0xC0, 0xC1), 0xDA  # markers of the frame header and of the pixels
EXIF_MARKER, EXIF = 0xE1, b"Exif"
LARGEST_BLOCK = 32  # rows that are coded together, at the most
# tables, comments and application data; not restart intervals, whose markers would be taken for damage
WITHOUT_CONSEQUENCE = {0xDB, 0xC4, 0xFE, *range(0xE0, 0xF0)}


def upper_rows(path: str | os.PathLike, size: tuple[int, int], rows: int) -> np.ndarray | None:
    """The first `rows` of a file that holds an image of `size` (h0, w0): uint8 (rows, w0, 3) BGR.

    None if that cannot be had: no JPEG of this size and kind, or cut short, or with EXIF, which may rotate the image,
    or so many rows that the decoder might come to the end of the file.
    """
    if rows + 1 > size[0] - LARGEST_BLOCK:
        return None
    try:
        with open(path, "rb") as f:
            data = bytearray(f.read())
    except OSError:
        return None
    at = _height_at(data, size)
    if at is None:
        return None
    data[at : at + 2] = (rows + 1).to_bytes(2, "big")
    # without its end: the decoder would complain about the rows that it finds in front of it
    img = cv2.imdecode(np.frombuffer(data, np.uint8)[: -len(END)], cv2.IMREAD_COLOR)
    return None if img is None or img.shape[:2] != (rows + 1, size[1]) else img[:rows]


def _height_at(data: bytearray, size: tuple[int, int]) -> int | None:
    """Where the height of an image of `size` (h0, w0) stands, two bytes; None if changing it would not do."""
    if not data.startswith(START):
        return None
    at, found, components = len(START), None, 0
    while at + 9 < len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in BASELINE and found is None:
            found, components = at + 5, data[at + 9]
            if (int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 9], "big")) != size:
                return None
        elif marker == SCAN:
            whole = data.find(END, at) == len(data) - len(END)
            return found if whole and data[at + 4] == components else None
        elif marker not in WITHOUT_CONSEQUENCE or (marker == EXIF_MARKER and data[at + 4 : at + 8] == EXIF):
            return None
        at += 2 + length
    return None
