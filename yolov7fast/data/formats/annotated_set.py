"""The representation that every reader returns and every writer takes: images with their objects."""

import math
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import is_file
from yolov7fast.core.text import printable
from yolov7fast.data.labels import MOST_OBJECTS

SPLITS = ("train", "val", "test")
# faults for which training leaves the image out, because its objects are not known
UNUSABLE = ("unreadable label", "too many objects", "image id given twice", "image named twice")
ASPECT_SLACK = 0.02  # relative difference of aspect ratio between annotation and file


class Fault(NamedTuple):
    """Something in an annotation file that could not be read as an object, or that a copy of it changes."""

    kind: str  # "wrong columns", "not a number", ...
    file: str
    line: int  # 1-based; 0 if it concerns the whole file
    text: str

    def place(self, line_word: str = "line") -> str:
        """'labels/a.txt:3', or 'a.json, annotation 3'."""
        return place_of(self.file, self.line, line_word)


def place_of(file: str, line: int, line_word: str) -> str:
    """Where a fault is, as text; line_word: what `line` counts."""
    where = printable(file, 400)
    return where if not line else f"{where}:{line}" if line_word == "line" else f"{where}, {line_word} {line}"


@dataclass
class Sample:
    """One image with its m objects, as its files state them: nothing is clipped, corrected or left out.

    Coordinates are relative to `frame` = (width, height): (1, 1) where the format states fractions of the image, else
    the image's size in pixels as the annotation states it.
    """

    image: str  # path of the file; it may not exist
    name: str  # path relative to the data set's root, as its files name the image
    frame: tuple[float, float]
    label_file: str  # the file that lists the objects
    labelled: bool = True  # the label file exists and names this image
    classes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # (m,)
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 4)))  # (m, 4) float64 left, top, right, bottom
    crowd: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # (m,) crowd regions, not trained on
    lines: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # (m,) line, or id of the annotation
    rings: list[list[np.ndarray]] = field(default_factory=list)  # outlines of each object, (k, 2) each; [] = box only
    faults: list[Fault] = field(default_factory=list)
    size: tuple[int, int] = (0, 0)  # width and height of the image file; zeros until it is checked

    def set_objects(self, classes: list[int], boxes: list, lines: list[int], crowd: list[bool] | None = None) -> None:
        """Store lists of m objects as arrays."""
        self.classes, self.boxes = np.array(classes, np.int64), np.array(boxes, np.float64).reshape(-1, 4)
        self.lines = np.array(lines, np.int64)
        self.crowd = np.zeros(len(classes), bool) if crowd is None else np.array(crowd, bool)

    def changed(self, k: int, what: str, text: str = "") -> Fault:
        """An entry in the list of changes of a copy, about object k."""
        return Fault(what, self.label_file, int(self.lines[k]), text)

    @property
    def unusable(self) -> Fault | None:
        """The fault for which training leaves the image out."""
        return next((fault for fault in self.faults if fault.kind in UNUSABLE), None)

    def differs_in_aspect(self, size: Sequence[float]) -> bool:
        """Whether the annotation's frame has another aspect ratio than the file's `size` (width, height).

        Boxes are then in the wrong place. Another scale is harmless, and so is rounding to whole pixels.
        """
        w, h = self.frame
        if w <= 1:
            return False  # fractions
        return abs((w / h) / (size[0] / size[1]) - 1) > max(ASPECT_SLACK, 1 / min(size))

    @property
    def fractions(self) -> np.ndarray:
        """(m, 4) boxes as fractions of the image: left, top, right, bottom."""
        return self.boxes / np.array((*self.frame, *self.frame))

    @property
    def outlines(self) -> list[list[np.ndarray]]:
        """Rings of each of the m objects, none for boxes."""
        return self.rings or [[] for _ in self.classes]


@dataclass
class AnnotatedSet:
    """A data set in memory."""

    kind: str  # of its files, in words: "COCO JSON"
    root: Path
    names: list[str]  # of the classes
    splits: dict[str, list[Sample]]
    notes: list[str] = field(default_factory=list)  # decisions of the reader that a user should know
    line_word: str = "line"  # what `lines` counts: "line", "annotation" or "object"

    @property
    def samples(self) -> list[Sample]:
        """The samples of all splits, split by split."""
        return [sample for samples in self.splits.values() for sample in samples]

    def mark_unusable(self) -> "AnnotatedSet":
        """Add a fault to images of too many objects, and to those that several entries of a split name.

        Each of these entries has only a part of the image's objects.
        """
        for samples in self.splits.values():
            by_image = defaultdict(list)
            for sample in samples:
                if (count := len(sample.classes)) > MOST_OBJECTS:
                    text = f"{count:,} objects; at most {MOST_OBJECTS:,} are read"
                    sample.faults.append(Fault("too many objects", sample.image, 0, text))
                by_image[os.path.realpath(sample.image)].append(sample)
            for own in (own for own in by_image.values() if len(own) > 1 and is_file(own[0].image)):
                text = f"{len(own)} entries name {printable(own[0].name, 200)}, each with a part of its objects"
                for sample in own:
                    sample.faults.append(Fault("image named twice", sample.label_file, 0, text))
        return self

    def counts(self) -> str:
        """'train 205 images, val 87 images, 3 classes'."""
        parts = [f"{split} {len(samples):,} images" for split, samples in self.splits.items()]
        return ", ".join([*parts, f"{len(self.names)} class{'es' * (len(self.names) != 1)}"])


class Layout(NamedTuple):
    """The annotation files of a COCO, VOC or CSV data set."""

    root: Path
    splits: dict[str, list[Path]]  # under "": the splits are in a column of the file, or it is all training data
    evidence: str  # the files that identified it
    direct: Path  # the file or folder that selects this format, as --data


def finite_number(text: str) -> float | None:
    """The number that a text holds, if it is one and finite."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def split_of(name: str) -> str | None:
    """The split that a folder, list or annotation file belongs to by its name: train2017, valid, _test, ..."""
    words = name.lower().replace("-", "_").replace(".", "_").split("_")
    for split, beginnings in (("train", ("train",)), ("val", ("val", "dev")), ("test", ("test",))):
        if any(word.startswith(beginnings) for word in words):
            return split
    return None


def files_by_split(root: Path, files: Sequence[Path]) -> dict[str, list[Path]]:
    """Annotation files by split, known from their names or folders; a single file may be for training.

    Two files for one split, or several of which one belongs to none, are an error that names them.
    """
    splits: dict[str, list[Path]] = {}
    for path in files:
        split = split_of(path.stem) or split_of(path.parent.name) or ("train" if len(files) == 1 else "")
        if not split or split in splits:
            names = ", ".join(str(file.relative_to(root)) for file in files)
            raise UserError(
                f"{root}: {len(files)} annotation files ({names}), not one for each of train, val and test; give the "
                f"one to train on (--data {quote(str(files[0]))}), or move the others elsewhere"
            )
        splits[split] = [path]
    return {split: splits[split] for split in SPLITS if split in splits}
