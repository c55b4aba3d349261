"""Label files: finding images and their labels, and checking each pair.

A label file has one object per line: `class cx cy w h`, normalised to 0..1, or `class x y x y ...` with at least four
points, a polygon. Faults of an image or its labels are reported as `Problem`s with file and line. A bad or duplicate
line drops the whole image, as upstream does, unless partial labels are kept.
"""

import contextlib
import logging
import os
import random
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import is_file
from yolov7fast.data.image_io import (
    IMG_FORMATS,
    check_place,
    decode_file,
    decoder_warnings_caught,
    is_image_name,
    is_quarter_turn,
    list_files,
    size_fault,
)

LOGGER = logging.getLogger(__name__)
MIN_SIDE = 10  # pixels
MOST_PIXELS_A_BYTE = 60  # of a file; a photograph has about 10, an image of one colour more
BOX_TOKENS = 5  # numbers of a line: class cx cy w h
POLYGON_TOKENS = 8  # a line with more makes the whole file polygons
LAST_CLASS = 2**24  # largest range of whole numbers that float32 holds exactly
MOST_OBJECTS = 50_000  # lines of a label file
MOST_BYTES = 1 << 26  # of a label file
SLACK = 0.01  # fraction of the image by which a box may exceed it without a note

TRUNCATED = "truncated image"
# kinds of problems of one line, for which a label file is rejected or, with partial labels, loses the line
MISREAD = "other lines of the file are polygons, so this box is read as two corner points"
MIXED = "box among polygons"  # a line that training misreads, as upstream does
LINE_FAULTS = ("wrong columns", "not a number", "non-finite", "bad class", "box outside", "duplicate row")

Paths = str | os.PathLike | Sequence[str | os.PathLike]


class Problem(NamedTuple):
    """A fault of one image or its labels."""

    kind: str  # "missing label", "empty label", "corrupt image", "wrong columns", ...
    path: str  # the file it is in
    line: int  # 1-based; 0 if it concerns the whole file
    text: str
    skipped: bool  # the image is left out

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.path}:{self.line}" if self.line else self.path

    def __str__(self) -> str:
        return f"{'skipped' if self.skipped else 'kept'}  {self.kind}  {self.place}  {self.text}"


class Checked(NamedTuple):
    """One image with its labels after checking; `labels` is None if the image must be left out."""

    labels: np.ndarray | None  # float32 (m, 5): class, cx, cy, w, h
    shape: tuple[int, int]  # width, height as OpenCV will load it
    segments: list[np.ndarray]  # float32 (k, 2) for each row of a polygon file, else empty
    found: bool  # a label file exists
    problems: list[Problem]


class Subset(NamedTuple):
    """A part of a data set: the first `size` images in sorted order, or a random sample by `seed`, in sorted order."""

    size: int
    seed: int | None = None

    def pick(self, n: int) -> list[int]:
        """Return sorted positions among n images."""
        if self.size < 1:
            raise UserError(f"a subset of {self.size} images is empty; ask for at least 1")
        if self.size >= n:
            return list(range(n))
        if self.seed is None:
            return list(range(self.size))
        return sorted(random.Random(self.seed).sample(range(n), self.size))


# --- discovery --------------------------------------------------------------------------------------------------------


def find_images(source: Paths, prefix: str = "") -> list[str]:
    """Return the sorted images of folders (recursive) and text lists (one path per line, `./` = the list's folder)."""
    sources = [source] if isinstance(source, str | os.PathLike) else list(source)
    found: list[str] = []
    others = 0
    for item in sources:
        path = Path(item)
        check_place(path, prefix)
        if os.path.isdir(path):
            images, rest = list_files(path, is_image_name, prefix=prefix)
            found += images
            others += rest
        elif is_file(path):
            names = _read_list(path, prefix)
            images = [name for name in names if is_image_name(name)]
            found += images
            others += len(names) - len(images)
        else:
            raise UserError(
                f"{prefix}{item} is neither a folder of images nor a text file that lists them "
                f"(looked for {path.absolute()}); check the path in the data YAML"
            )
    if not found:
        raise UserError(
            f"{prefix}no images in {', '.join(str(s) for s in sources)} ({others} other names seen); "
            f"image files end in {', '.join(IMG_FORMATS)}"
        )
    return list(dict.fromkeys(sorted(found)))


def _read_list(path: Path, prefix: str) -> list[str]:
    """Return the lines of a list. Trailing blanks hide an image, as upstream does; a warning reports it."""
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a text file; a list of images has one path a line") from error
    lines = text.strip().splitlines()
    hides = [not is_image_name(line) and is_image_name(line.rstrip()) for line in lines]
    if any(hides):
        first = text[: len(text) - len(text.lstrip())].count("\n") + 1 + hides.index(True)
        LOGGER.warning(
            f"{prefix}{path}: {sum(hides)} images are left out because blanks follow their names (first: line "
            f"{first}); remove the blanks to use them"
        )
    folder = str(path.parent) + os.sep
    return [folder + line[2:] if line.startswith("./") else line for line in lines]


def img2label_paths(img_paths: Sequence[str]) -> list[str]:
    """Return the label path of each image: the first `/images/` becomes `/labels/`, the extension `txt`."""
    images, labels = f"{os.sep}images{os.sep}", f"{os.sep}labels{os.sep}"
    return [path.replace(images, labels, 1).rpartition(".")[0] + ".txt" for path in img_paths]


def check_class_range(labels: Sequence[np.ndarray], label_files: Sequence[str], nc: int, source: str) -> None:
    """Raise `UserError` for the first label whose class is not below `nc`, as given by the YAML `source`."""
    for rows, path in zip(labels, label_files):
        if len(rows) and rows[:, 0].max() >= nc:
            row = int((rows[:, 0] >= nc).argmax())
            classes = (numbers_of(words[:1], False)[0] for words in read_lines(path)[0])
            line = next((i for i, values in enumerate(classes, 1) if values and values[0] >= nc), row + 1)
            raise UserError(
                f"{path}:{line}: class {rows[row, 0]:g}, but {source} has nc: {nc} (classes 0 to {nc - 1}); "
                "fix the label or nc and names"
            )


# --- checking one pair ------------------------------------------------------------------------------------------------


class _Rejected(Exception):
    """Ends the check of a pair: the image is left out."""

    def __init__(self, *problems: Problem):
        super().__init__()
        self.problems = problems


def check_pair(img_path: str, label_path: str, keep_partial: bool = False) -> Checked:
    """Check an image and its label file. Never raises: any error drops the image and is reported.

    keep_partial: keep the good lines of a label file with bad ones; a file without a good line is still rejected.
    """
    notes: list[Problem] = []
    found = False
    shape = (0, 0)
    try:
        shape = _check_image(img_path, notes)
        found = os.path.exists(label_path)
        if not found:
            notes.append(Problem("missing label", label_path, 0, f"no label file for {img_path}", False))
            return Checked(np.zeros((0, 5), np.float32), shape, [], False, notes)
        labels, segments = _read_labels(label_path, notes, keep_partial)
        return Checked(labels, shape, segments, True, notes)
    except _Rejected as rejected:
        return Checked(None, shape, [], found, [*notes, *rejected.problems])
    except Exception as error:  # one unexpected file must not end the check of a million
        problem = Problem("unreadable", img_path, 0, f"{type(error).__name__}: {error}", True)
        return Checked(None, shape, [], found, [*notes, problem])


def _check_image(path: str, notes: list[Problem]) -> tuple[int, int]:
    """Return (width, height) as OpenCV will load the file."""

    def reject(text: str, kind: str = "corrupt image") -> _Rejected:
        return _Rejected(Problem(kind, path, 0, text, True))

    if not os.path.exists(path):
        raise reject(f"no such file (looked for {os.path.abspath(path)})", "missing image")
    if not is_file(path):  # reading a FIFO or a device may never end
        raise reject("is not a regular file")
    try:
        with Image.open(path) as image:
            image.verify()
            form, size, exif = (image.format or "").lower(), image.size, image.info.get("exif")
    except Exception as error:
        raise reject(str(error) or type(error).__name__) from error
    if fault := size_fault(*size):
        raise reject(fault)
    if min(size) < MIN_SIDE:
        raise reject(f"{size[0]} x {size[1]} pixels; both sides must be at least {MIN_SIDE}")
    if form not in IMG_FORMATS:
        raise reject(f"is a {form.upper()} file, which training does not read")
    truncated = False
    if form in ("jpeg", "mpo"):
        with open(path, "rb") as f:
            f.seek(-min(os.path.getsize(path), 4096), os.SEEK_END)  # some cameras write padding after the end marker
            truncated = b"\xff\xd9" not in f.read()
    sparse = size[0] * size[1] > MOST_PIXELS_A_BYTE * os.path.getsize(path)  # the header may state a wrong size
    if truncated or sparse or form not in ("jpeg", "mpo", "png", "webp"):  # Pillow does not read the pixels of these
        with decoder_warnings_caught(truncated):
            img = decode_file(path)
        if img is None:
            raise reject("cannot be decoded by OpenCV")
        size = img.shape[1], img.shape[0]
        if truncated:
            text = "JPEG without end marker: missing pixels are grey"
            notes.append(Problem(TRUNCATED, path, 0, text, False))
    elif exif:
        with contextlib.suppress(Exception):  # damaged EXIF is ignored by OpenCV too
            tags = Image.Exif()
            tags.load(exif)
            size = (size[1], size[0]) if is_quarter_turn(tags) else size
    return size


def read_lines(path: str) -> tuple[list[list[str]], tuple[str, str] | None]:
    """Return the words of each line of a label file and kind and text of the file's fault, if it cannot be used."""
    try:
        if not is_file(path):  # reading a FIFO may never end
            return [], ("unreadable label", "not a regular file")
        if (size := os.path.getsize(path)) > MOST_BYTES:
            return [], ("too many objects", f"{size:,} bytes; at most {MOST_BYTES:,} are read")
        with open(path, encoding="utf-8") as file:
            lines = file.read().rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return [], ("unreadable label", str(error))
    if len(lines) > MOST_OBJECTS:
        return [], ("too many objects", f"{len(lines):,} lines; at most {MOST_OBJECTS:,} are read")
    return [line.split() for line in lines], None


Row = tuple[int, list[str]]  # line number and words of one line


def _read_labels(path: str, notes: list[Problem], keep_partial: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return rows (m, 5) and polygons of a label file."""
    lines, fault = read_lines(path)
    if fault:
        raise _Rejected(Problem(fault[0], path, 0, fault[1], True))
    rows = list(dropwhile(lambda row: not row[1], enumerate(lines, 1)))  # blank lines at the start are allowed
    if not rows:
        notes.append(Problem("empty label", path, 0, "no objects", False))
        return np.zeros((0, 5), np.float32), []
    dropped: list[Problem] = []
    labels, segments, faults = _parse(rows, path)
    while faults and keep_partial and all(fault.kind in LINE_FAULTS for fault in faults):
        dropped += faults
        bad = {fault.line for fault in faults}
        rows = [row for row in rows if row[0] not in bad]
        if not rows:
            raise _Rejected(*dropped)
        labels, segments, faults = _parse(rows, path)
    if faults:
        raise _Rejected(*dropped, *faults)
    notes += [fault._replace(text=f"{fault.text}; the line is left out", skipped=False) for fault in dropped]
    notes += _value_notes(labels, path, [line for line, _ in rows])
    if segments:
        notes += [Problem(MIXED, path, line, MISREAD, False) for line, row in rows if len(row) == 5]
    return labels, segments


def _parse(rows: list[Row], path: str) -> tuple[np.ndarray, list[np.ndarray], list[Problem]]:
    """Return rows (m, 5), polygons and faults of these lines; the rows are valid only without faults."""
    words = [row for _, row in rows]
    try:
        labels, segments = _numbers(words)
    except (ValueError, IndexError) as error:
        polygons = any(len(row) > POLYGON_TOKENS for row in words)
        found = ((line, numbers_of(row, polygons)[1]) for line, row in rows)
        faults = [Problem(fault[0], path, line, fault[1], True) for line, fault in found if fault]
        unknown = Problem("unreadable label", path, 0, str(error)[:200], True)
        return np.zeros((0, 5), np.float32), [], faults or [unknown]
    in_range = (labels >= 0).all() and (labels[:, 1:] <= 1).all() and (labels[:, 0] <= LAST_CLASS).all()
    if in_range and len(set(map(tuple, labels.tolist()))) == len(labels):
        return labels, segments, []
    return labels, segments, _value_faults(labels, path, [line for line, _ in rows])


def _numbers(tokens: list[list[str]]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return rows (m, 5) and polygons; `ValueError` or `IndexError` unless all lines have one of the two forms."""
    if not any(len(row) > POLYGON_TOKENS for row in tokens):
        labels = np.array(tokens, np.float32)
        if labels.shape[1] != 5:
            raise ValueError("a box needs 5 numbers")
        return labels, []
    classes = np.array([row[0] for row in tokens], np.float32)
    segments = [np.array(row[1:], np.float32).reshape(-1, 2) for row in tokens]
    return np.concatenate((classes.reshape(-1, 1), segments2boxes(segments)), 1), segments


def segments2boxes(segments: Sequence[np.ndarray]) -> np.ndarray:
    """Return (n, 4) boxes (centre and size) around polygons (k, 2)."""
    from yolov7fast.core.boxes import xyxy2xywh  # imports torch, which readers of other formats do not need

    return xyxy2xywh(np.array([[*s.min(0), *s.max(0)] for s in segments]))


def numbers_of(words: list[str], polygons: bool) -> tuple[list[float], tuple[str, str] | None]:
    """Return the numbers of a line and kind and text of its fault, if it does not have the form of the file's lines."""
    values: list[float] = []
    for word in words:
        try:
            values.append(float(word))
        except ValueError:
            return values, ("not a number", repr(word[:40]))
    n, fault = len(words), None
    if not n:
        fault = "blank line between objects"
    elif polygons and (n < 3 or n % 2 == 0):
        fault = f"{n} numbers; a polygon needs x and y for every point"
    elif not polygons and n != BOX_TOKENS:
        fault = f"{n} numbers; a box needs 5: class cx cy w h"
    return values, ("wrong columns", fault) if fault else None


def class_fault(cls: float) -> str:
    """Return why a number cannot be a class; empty if it can."""
    return "" if 0 <= cls <= LAST_CLASS else f"class {cls:g} is {'negative' if cls < 0 else 'too large'}"


def _value_faults(labels: np.ndarray, path: str, lines: list[int]) -> list[Problem]:
    """Return the faults for which upstream leaves an image out, and classes out of range, row by row."""
    faults = []
    seen: dict[bytes, int] = {}
    for line, row in zip(lines, labels, strict=True):
        values = " ".join(f"{v:g}" for v in row)
        if not np.isfinite(row).all():
            faults.append(Problem("non-finite", path, line, values, True))
        elif text := class_fault(row[0]):
            faults.append(Problem("bad class", path, line, text, True))
        elif (row[1:] < 0).any() or (row[1:] > 1).any():
            faults.append(Problem("box outside", path, line, f"{values}: coordinates must lie in 0..1", True))
        else:
            first_seen = seen.setdefault((row + 0).tobytes(), line)  # + 0: minus zero equals zero
            if first_seen != line:
                faults.append(Problem("duplicate row", path, line, f"same as line {first_seen}", True))
    return faults


def _value_notes(labels: np.ndarray, path: str, lines: list[int]) -> list[Problem]:
    """Return notes on rows that upstream trains on silently but that are probably unintended."""
    half = labels[:, 3:5] / 2
    beyond = ((labels[:, 1:3] - half < -SLACK) | (labels[:, 1:3] + half > 1 + SLACK)).any(1)
    notes = []
    for mask, kind, text in (
        (beyond, "box over edge", "reaches beyond the image"),
        (labels[:, 0] % 1 != 0, "fractional class", "is cut to a whole number"),
        ((labels[:, 3:5] == 0).any(1), "empty box", "has no area and is never learnt"),
    ):
        notes += [Problem(kind, path, lines[i], text, False) for i in np.flatnonzero(mask)]
    return notes
