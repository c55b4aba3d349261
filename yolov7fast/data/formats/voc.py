"""Pascal VOC: one XML file an image, `Annotations/`, `JPEGImages/`, `ImageSets/Main/*.txt`; also XML beside images."""

import xml.parsers.expat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.data.formats.files import ImageFinder
from yolov7fast.data.formats.samples import SPLITS, AnnotatedSet, Fault, Sample, split_of
from yolov7fast.data.image_io import image_size

KIND = "Pascal VOC"
FOLDERS = ("Annotations", "annotations", "xmls")
IMAGE_FOLDERS = ("JPEGImages", "images", "Images", "imgs", ".")
DEEPEST = 20  # levels of elements; annotation files have five


class Layout(NamedTuple):
    """Where the files of a VOC data set lie."""

    root: Path
    splits: dict[str, list[Path]]  # XML files
    evidence: str


def find(root: Path) -> Layout | None:
    """The layout below `root`, or None if there are no XML annotations where VOC and its exporters put them."""
    for name in FOLDERS:
        files = sorted((root / name).glob("*.xml"))
        if files:
            return Layout(root, _by_lists(root, files), f"{name}/*.xml")
    splits: dict[str, list[Path]] = {}
    for folder in sorted(p for p in root.iterdir() if p.is_dir()):
        split, files = split_of(folder.name), sorted(folder.glob("*.xml"))
        if split and files:
            splits[split] = splits.get(split, []) + files
    if splits:
        return Layout(root, splits, f"{', '.join(splits)}/*.xml")
    files = sorted(root.glob("*.xml"))
    return Layout(root, {"train": files}, "*.xml") if files else None


def _by_lists(root: Path, files: list[Path]) -> dict[str, list[Path]]:
    """The splits that ImageSets/Main names; all files are training files where it names none."""
    lists = sorted((root / "ImageSets" / "Main").glob("*.txt"))
    by_stem = {file.stem: file for file in files}
    named: dict[str, list[Path]] = {}
    for path in lists:
        if path.stem not in (*SPLITS, "trainval", "default", "valid"):  # aeroplane_train.txt and the like
            continue
        try:
            stems = [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.split()]
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read ({error}); a list has one image name a line") from None
        missing = [stem for stem in stems if stem not in by_stem]
        if missing:
            raise UserError(f"{path}: '{missing[0]}' has no {files[0].parent.name}/{missing[0]}.xml; correct the list")
        named[path.stem] = [by_stem[stem] for stem in stems]
    splits = {split: named[split] for split in SPLITS if named.get(split)}
    if named.get("valid"):
        splits.setdefault("val", named["valid"])
    if "train" not in splits and (rest := named.get("trainval") or named.get("default")):
        splits = {"train": rest, **splits}
    return splits or {"train": files}


def read(layout: Layout) -> AnnotatedSet:
    """All samples; classes are the names that occur, in alphabetical order, unless labelmap.txt lists them."""
    parsed = _read_files(layout)
    lines = [item.lines for items in parsed.values() for item in items]
    numbered = any(len(set(of_file)) < len(of_file) for of_file in lines)  # several objects in one line
    if numbered:
        parsed = _read_files(layout, numbered)
    found = {name for items in parsed.values() for item in items for name in item.names}
    names = _label_map(layout.root, found) or sorted(found)
    ids = {name: i for i, name in enumerate(names)}
    finder = ImageFinder(layout.root, IMAGE_FOLDERS)
    splits = {split: [_sample(item, ids, finder) for item in items] for split, items in parsed.items()}
    notes = []
    difficult = sum(item.difficult for items in parsed.values() for item in items)
    if difficult:
        notes.append(f"{difficult} objects are marked difficult; they are used like all others")
    return AnnotatedSet(KIND, layout.root, names, splits, notes, line_word="object" if numbered else "line")


def _read_files(layout: Layout, numbered: bool = False) -> "dict[str, list[_File]]":
    return {
        split: [_read_file(path, numbered) for path in _progress(files, split)]
        for split, files in layout.splits.items()
    }


def _progress(files: list[Path], split: str) -> Iterable[Path]:
    return tqdm(files, desc=f"reading {split} annotations", unit="file", leave=False, disable=len(files) < 1000)


def _label_map(root: Path, found: set[str]) -> list[str]:
    """CVAT's labelmap.txt (`name:colour:parts:actions` a line) if it names all classes that occur."""
    path = root / "labelmap.txt"
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    names = [line.split(":")[0] for line in lines if line.strip() and not line.startswith("#")]
    names = [name for name in dict.fromkeys(names) if name != "background" or name in found]
    return names if found <= set(names) else []


# --- one file ---------------------------------------------------------------------------------------------------------


class _File(NamedTuple):
    path: Path
    filename: str
    size: tuple[float, float] | None
    names: list[str]
    boxes: list[list[float]]
    lines: list[int]
    difficult: int
    faults: list[Fault]


class _Object:
    def __init__(self, line: int):
        self.line, self.name, self.difficult = line, "", False
        self.sides: dict[str, float | None] = {}


class _Reader:
    """Takes an annotation out of the XML as it passes by; nothing outside the known elements is looked at."""

    def __init__(self):
        self.path: list[str] = []
        self.text: list[str] = []
        self.top: dict[str, str] = {}
        self.objects: list[_Object] = []

    def parse(self, content: bytes) -> None:
        parser = self.parser = xml.parsers.expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self.text.append
        parser.EntityDeclHandler = self._refuse  # entities can blow a small file up to gigabytes
        parser.Parse(content, True)

    def _refuse(self, *_) -> None:
        raise ValueError("it declares entities, which annotations never need")

    def _start(self, tag: str, _) -> None:
        if len(self.path) >= DEEPEST:
            raise ValueError(f"elements are nested more than {DEEPEST} deep")
        self.path.append(tag)
        self.text.clear()
        if self.path[1:] == ["object"]:
            self.objects.append(_Object(self.parser.CurrentLineNumber))

    def _end(self, tag: str) -> None:
        inside, value = self.path[1:], "".join(self.text).strip()
        if inside[:1] == ["object"]:
            current = self.objects[-1]
            if inside == ["object", "name"]:
                current.name = value
            elif inside == ["object", "difficult"]:
                current.difficult = value == "1"
            elif len(inside) == 3 and inside[1] == "bndbox":
                current.sides[tag] = _number(value)
        elif inside in (["filename"], ["size", "width"], ["size", "height"]):
            self.top[tag] = value
        self.path.pop()
        self.text.clear()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _read_file(path: Path, numbered: bool = False) -> _File:
    """numbered: objects are known by their number in the file, from 1, instead of by their line."""
    reader, faults = _Reader(), []
    try:
        if not path.is_file():
            raise OSError("no regular file")
        reader.parse(path.read_bytes())
    except (OSError, ValueError, xml.parsers.expat.ExpatError) as error:
        line = getattr(error, "lineno", 0)
        return _File(path, "", None, [], [], [], 0, [Fault("unreadable label", str(path), line, str(error))])
    names, boxes, lines, difficult = [], [], [], 0
    for number, item in enumerate(reader.objects, 1):
        item.line = number if numbered else item.line
        values = [item.sides.get(side) for side in ("xmin", "ymin", "xmax", "ymax")]
        known = [v for v in values if v is not None]
        if len(known) < 4:
            faults.append(Fault("not a number", str(path), item.line, f"{item.name!r} has no complete bndbox"))
        elif not np.isfinite(known).all():
            faults.append(Fault("not finite", str(path), item.line, f"{item.name!r}: {known}"))
        elif not item.name:
            faults.append(Fault("bad class", str(path), item.line, "the object has no name"))
        else:
            names.append(item.name)
            boxes.append([known[0] - 1, known[1] - 1, known[2], known[3]])  # pixels count from 1, the last included
            lines.append(item.line)
            difficult += item.difficult
    width, height = (_number(reader.top.get(side, "")) or 0 for side in ("width", "height"))
    size = (width, height) if 0 < width < np.inf and 0 < height < np.inf else None
    return _File(path, reader.top.get("filename", ""), size, names, boxes, lines, difficult, faults)


def _sample(item: _File, ids: dict[str, int], finder: ImageFinder) -> Sample:
    image = finder.find(item.filename, item.path.stem, item.path.parent)
    return Sample(
        image=str(image),
        name=finder.name_of(image),
        frame=item.size or image_size(image) or (1.0, 1.0),
        label_file=str(item.path),
        classes=np.array([ids[name] for name in item.names], np.int64),
        boxes=np.array(item.boxes, np.float64).reshape(-1, 4),
        crowd=np.zeros(len(item.names), bool),
        lines=np.array(item.lines, np.int64),
        faults=item.faults,
    )
