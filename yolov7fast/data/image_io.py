"""Image files: finding them, reading their sizes, decoding them and resizing them to training size.

Images are uint8 arrays (H, W, 3) in BGR order, as OpenCV reads them. Sizes are (height, width) unless noted.
"""

import contextlib
import logging
import multiprocessing
import os
import re
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import KERNEL_FOLDERS, is_file, is_kernel_path
from yolov7fast.core.process.output import stderr_lines_caught
from yolov7fast.core.process.threads import ThreadPool
from yolov7fast.core.text import counted, printable

LOGGER = logging.getLogger(__name__)
IMG_FORMATS = ("bmp", "jpg", "jpeg", "png", "tif", "tiff", "dng", "webp", "mpo")  # by file name, and by Pillow's name
IGNORED_FOLDERS = frozenset({"__MACOSX", "__pycache__"})  # and all whose name begins with a dot
MOST_ENTRIES = 10_000_000  # files and folders below one folder
MOST_PIXELS = 178_956_970  # of an image; Pillow and upstream's check refuse more
EXIF_ORIENTATION = 274
# lines that image decoders print to stderr
DECODER_WARNING = re.compile(r"JPEG file|JPEG data|libpng|TIFFRead|TIFFFetch", re.IGNORECASE)
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # sizes are judged by MOST_PIXELS
_reported: set[str] = set()  # truncated files of this process; workers inherit them


# --- finding files ----------------------------------------------------------------------------------------------------


def is_image_name(name: str) -> bool:
    return name.rpartition(".")[2].lower() in IMG_FORMATS


def check_place(path: str | os.PathLike, prefix: str = "") -> None:
    """Refuse files and folders of the kernel. prefix: of the message."""
    if is_kernel_path(os.path.realpath(path)):
        raise UserError(
            f"{prefix}{path} belongs to the kernel's file systems ({', '.join(KERNEL_FOLDERS)}), which hold no data "
            "sets; correct the path"
        )


def walk(
    root: str | os.PathLike,
    ignored: Collection[str] = IGNORED_FOLDERS,
    deep: bool = True,
    left_out: list[str] | None = None,
) -> Iterator[os.DirEntry]:
    """Yield every entry below a folder that is not a folder, sorted within each folder; hidden folders are skipped.

    Each folder is visited once, under its own name if it is below `root`, otherwise through the first link to it. Links
    to a folder that contains `root`, and into the kernel's file systems, are not followed.

    Args:
        root: the folder; one of the kernel's file systems raises `UserError`, as do more than MOST_ENTRIES entries.
        ignored: names of folders that are not visited.
        deep: whether sub-folders are visited.
        left_out: receives the paths of links that are not followed.
    """
    check_place(root)
    top = os.path.join(os.path.realpath(root), "")
    seen: set[str] = set()
    folders, links = [os.fspath(root)], deque[str]()
    entries_seen = 0
    while folders or links:
        folder = folders.pop() if folders else links.popleft()
        real = os.path.realpath(folder)
        if real in seen or (seen and (top.startswith(os.path.join(real, "")) or is_kernel_path(real))):
            if left_out is not None:
                left_out.append(folder)
            continue
        seen.add(real)
        try:
            with os.scandir(folder) as listing:
                entries = sorted(islice(listing, MOST_ENTRIES + 1 - entries_seen), key=lambda entry: entry.name)
        except OSError:
            continue
        entries_seen += len(entries)
        if entries_seen > MOST_ENTRIES:
            raise UserError(
                f"{root} holds more than {MOST_ENTRIES:,} files and folders (reached in {folder}); name the folder of "
                "the images, or a text file that lists them"
            )
        below = []
        for entry in entries:
            if not _is_folder(entry):
                yield entry
            elif deep and entry.name not in ignored and not entry.name.startswith("."):
                below.append(entry)
        folders += [entry.path for entry in reversed(below) if not entry.is_symlink()]
        links.extend(entry.path for entry in below if entry.is_symlink())


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def list_files(
    folder: str | os.PathLike, wanted: Callable[[str], bool], deep: bool = True, prefix: str = ""
) -> tuple[list[str], int]:
    """Return the regular files of a folder whose names are wanted, and the number of other files; no hidden files.

    Each file counts once: a link to one that is listed under its own name is left out. So are FIFOs, devices and
    sockets; a warning that starts with `prefix` counts what was left out. Links to files that do not exist are kept:
    later checks report them as missing. deep: whether sub-folders are searched.
    """
    left_out: list[str] = []
    files, links, others = [], [], 0
    for entry in walk(Path(folder), ignored=(), deep=deep, left_out=left_out):
        if entry.name.startswith(".") or "." not in entry.name:
            continue
        if not wanted(entry.name):
            others += 1
        elif entry.is_symlink():
            links.append(entry.path)
        elif entry.is_file():
            files.append(entry.path)
        else:
            left_out.append(entry.path)
    known = {os.path.realpath(file) for file in files} if links else set()
    for path in sorted(links):
        real = os.path.realpath(path)
        if real in known or (os.path.exists(path) and not is_file(path)):
            left_out.append(path)
        else:
            known.add(real)
            files.append(path)
    if left_out:
        count = counted(len(left_out), "entry", "entries")
        LOGGER.warning(
            f"{prefix}{folder}: {count} left out (first: {printable(left_out[0])}): links to images counted already, "
            "or not regular files; to use an image more than once, list its names in a text file"
        )
    return files, others


def file_stamps(paths: Sequence[str]) -> np.ndarray:
    """Return int64 (n, 2) sizes and modification times (ns) of files, (-1, -1) for a missing one."""

    def stamp(path: str) -> tuple[int, int]:
        try:
            status = os.stat(path)
        except OSError:
            return -1, -1
        return status.st_size, status.st_mtime_ns

    with ThreadPool(8) as pool:  # on network file systems each stat is slow
        parts = (paths[i : i + 1000] for i in range(0, len(paths), 1000))
        found = pool.map(lambda part: [stamp(path) for path in part], parts)
        return np.array([stamp for part in found for stamp in part], np.int64).reshape(-1, 2)


def matching_files(pattern: str) -> list[str]:
    """Return the regular files that match a glob pattern; `**` matches any number of folders, but no links to them."""
    path = Path(pattern)
    return [str(file) for file in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if is_file(file)]


def file_workers(files: int, many: int) -> Executor:
    """Return workers for checking this number of files: forked processes from `many` files on, otherwise threads."""
    cores = os.cpu_count() or 1
    if files < many or cores == 1 or sys.platform != "linux":
        return ThreadPool(8)
    ignore = signal.SIGINT, signal.SIG_IGN  # the main process handles Ctrl-C
    return ProcessPoolExecutor(min(cores, 16), multiprocessing.get_context("fork"), signal.signal, ignore)


# --- reading files ----------------------------------------------------------------------------------------------------


class LoadedImage(NamedTuple):
    """An image at training size. Unpacks as (img, (h0, w0), (h, w))."""

    img: np.ndarray  # uint8 (h, w, 3) BGR
    original: tuple[int, int]  # in the file, after EXIF rotation
    resized: tuple[int, int]  # of `img`


def decode_file(path: str, how: int = cv2.IMREAD_COLOR) -> np.ndarray | None:
    """Return the pixels of a file as OpenCV reads them; None if it cannot decode them or it is not a regular file.

    how: OpenCV's flag. OpenCV's file reader crashes on names that are not UTF-8, so such files are decoded from memory.
    """
    if not is_file(path):
        return None
    try:
        if is_utf8(path):
            return cv2.imread(path, how)
        return cv2.imdecode(np.fromfile(path, np.uint8), how)
    except (OSError, cv2.error):  # an empty or unreadable file, or more pixels than OpenCV allows
        return None


def is_utf8(path: str) -> bool:
    """Return whether a file name is UTF-8 (Python replaces other bytes by surrogates)."""
    return path.isascii() or path.encode(errors="replace").decode() == path


def read_image(path: str) -> np.ndarray:
    """Decode a file to uint8 (h0, w0, 3) BGR: EXIF rotation applied, alpha dropped, grey repeated.

    16-bit channels are scaled by the largest 16-bit value, as OpenCV does: 12-bit values stored in 16 bits give a
    nearly black image, which `yolov7fast data check` reports.
    """
    with decoder_warnings_caught(path in _reported):
        img = decode_file(path)
    if img is None:
        state = "cannot be decoded" if is_file(path) else "is not a regular file"
        state = state if os.path.exists(path) else "does not exist (any more)"
        raise UserError(f"image {path} {state}; fix or remove the file")
    return img


def read_unchecked_image(path: str) -> np.ndarray:
    """Decode a file that was not checked before: an image of more than MOST_PIXELS is refused by its header."""
    try:
        with Image.open(path if is_file(path) else os.devnull) as image:
            fault = size_fault(*image.size)
    except Image.DecompressionBombError as error:
        fault = str(error)
    except Exception:  # damaged, or of a kind that only OpenCV knows
        fault = ""
    if fault:
        raise UserError(f"image {path} is too large: {fault}; shrink it or cut it into tiles")
    return read_image(path)


def size_fault(width: int, height: int) -> str:
    """Return why an image of this size is not read; empty if it is."""
    return f"{width} x {height} pixels; at most {MOST_PIXELS:,} are read" if width * height > MOST_PIXELS else ""


def image_size(path: str | os.PathLike) -> tuple[int, int] | None:
    """Return (width, height) of an image as loaded for training, from its header; None if it cannot be opened."""
    if not is_file(path):
        return None
    try:
        with Image.open(path) as image:
            size, turned = image.size, is_quarter_turn(image.getexif())
    except Exception:  # damaged files raise many types
        return None
    return (size[1], size[0]) if turned else size


def is_quarter_turn(exif: Image.Exif) -> bool:
    """Return whether the EXIF orientation turns the image by 90 degrees, which swaps its sides when it is loaded."""
    return exif.get(EXIF_ORIENTATION) in (5, 6, 7, 8)


def decoder_warnings_caught(active: bool = True) -> contextlib.AbstractContextManager[list[str]]:
    """Keep the decoder's warnings off the terminal, if active; afterwards the list holds them."""
    return (
        stderr_lines_caught(lambda line: bool(DECODER_WARNING.search(line))) if active else contextlib.nullcontext([])
    )


def truncation_was_reported(paths: Iterable[str]) -> None:
    """Keep the JPEG decoder's warnings about these truncated files off the terminal from now on."""
    for path in paths:
        _reported.update((path, os.path.abspath(path)))


def resized_shape(h0: int, w0: int, img_size: int) -> tuple[int, int]:
    """Return (h, w) of an image whose longer side is scaled to `img_size`.

    Truncation is intended: for some sizes float error costs a pixel (639 for 640), as it does upstream.
    """
    r = img_size / max(h0, w0)
    return (h0, w0) if r == 1 else (max(int(h0 * r), 1), max(int(w0 * r), 1))


def load_resized(path: str, img_size: int, augment: bool) -> LoadedImage:
    """Read an image and scale its longer side to `img_size`.

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
