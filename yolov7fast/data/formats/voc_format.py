"""Pascal VOC: one XML file for each image, in `Annotations/` (with `ImageSets/Main/*.txt`) or next to the images."""

import math
import xml.parsers.expat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.data.formats.annotated_set import SPLITS, AnnotatedSet, Fault, Sample, split_of
from yolov7fast.data.formats.dataset_files import ImageFinder
from yolov7fast.data.image_io import image_size

KIND = "Pascal VOC"
FOLDERS = ("Annotations", "annotations", "xmls")
IMAGE_FOLDERS = ("JPEGImages", "images", "Images", "imgs", ".")
SIDES = ("xmin", "ymin", "xmax", "ymax")
DEEPEST = 20  # levels of elements; annotation files have five


class VocLayout(NamedTuple):
    """The annotation files of a VOC data set."""

    root: Path
    splits: dict[str, list[Path]]  # XML files
    evidence: str


def find(root: Path) -> VocLayout | None:
    """The layout below `root`, or None if there are no XML annotations where VOC and its exporters put them."""
    for name in FOLDERS:
        files = sorted((root / name).glob("*.xml"))
        if files:
            return VocLayout(root, _by_lists(root, files), f"{name}/*.xml")
    splits: dict[str, list[Path]] = {}
    for folder in sorted(p for p in root.iterdir() if p.is_dir()):
        split, files = split_of(folder.name), sorted(folder.glob("*.xml"))
        if split and files:
            splits[split] = splits.get(split, []) + files
    if splits:
        return VocLayout(root, splits, f"{', '.join(splits)}/*.xml")
    files = sorted(root.glob("*.xml"))
    return VocLayout(root, {"train": files}, "*.xml") if files else None


def _by_lists(root: Path, files: list[Path]) -> dict[str, list[Path]]:
    """The splits that ImageSets/Main lists; without lists all files are training files."""
    by_stem = {file.stem: file for file in files}
    named: dict[str, list[Path]] = {}
    for path in sorted((root / "ImageSets" / "Main").glob("*.txt")):
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


def read(layout: VocLayout) -> AnnotatedSet:
    """All samples; classes are the names that occur, in alphabetical order, unless labelmap.txt lists them."""
    parsed: dict[str, list[_VocFile]] = {}
    for split, paths in layout.splits.items():
        bar = tqdm(paths, desc=f"reading {split} annotations", unit="file", leave=False, disable=len(paths) < 1000)
        parsed[split] = [_VocFile(path).read() for path in bar]
    files = [file for own in parsed.values() for file in own]
    # a line that holds several objects does not identify one: their number in the file does
    one_line = any(len({item.line for item in file.objects}) < len(file.objects) for file in files)
    found = {item.name for file in files for item in file.objects if not item.fault}
    names = _label_map(layout.root, found) or sorted(found)
    ids = {name: i for i, name in enumerate(names)}
    finder = ImageFinder(layout.root, IMAGE_FOLDERS)
    splits = {split: [_sample(file, ids, finder, one_line) for file in own] for split, own in parsed.items()}
    difficult = sum(item.difficult for file in files for item in file.objects if not item.fault)
    notes = [f"{difficult} objects are marked difficult; they are used like all others"] if difficult else []
    return AnnotatedSet(KIND, layout.root, names, splits, notes, line_word="object" if one_line else "line")


def _label_map(root: Path, found: set[str]) -> list[str]:
    """Class names of CVAT's labelmap.txt (`name:colour:parts:actions` a line) if it names all classes that occur."""
    try:
        lines = (root / "labelmap.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    names = [line.split(":")[0] for line in lines if line.strip() and not line.startswith("#")]
    names = [name for name in dict.fromkeys(names) if name != "background" or name in found]
    return names if found <= set(names) else []


# --- one file ---------------------------------------------------------------------------------------------------------


@dataclass
class _VocObject:
    line: int
    name: str = ""
    difficult: bool = False
    sides: dict[str, float | None] = field(default_factory=dict)

    @property
    def box(self) -> list[float]:
        """Left, top, right, bottom; VOC's pixels count from 1 and the last one is included."""
        left, top, right, bottom = (self.sides[side] or 0.0 for side in SIDES)
        return [left - 1, top - 1, right, bottom]

    @property
    def fault(self) -> tuple[str, str] | None:
        """(kind, text) of what is wrong with the object, or None."""
        values = [self.sides.get(side) for side in SIDES]
        if None in values:
            return "not a number", f"{self.name!r} has no complete bndbox"
        if not all(value is not None and math.isfinite(value) for value in values):
            return "not finite", f"{self.name!r}: {values}"
        return None if self.name else ("bad class", "the object has no name")


class _VocFile:
    """The annotation of one image, read by a parser that ignores unknown elements and refuses entities."""

    def __init__(self, path: Path):
        self.path = path
        self.open: list[str] = []  # elements that are open
        self.text: list[str] = []
        self.top: dict[str, str] = {}  # filename, width, height
        self.objects: list[_VocObject] = []
        self.fault: Fault | None = None  # the file cannot be read

    def read(self) -> "_VocFile":
        """Parse the file; an error leaves no object and is kept as `fault`."""
        parser = self.parser = xml.parsers.expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self.text.append
        parser.EntityDeclHandler = self._refuse  # entities can expand a small file to gigabytes
        try:
            if not self.path.is_file():
                raise OSError("no regular file")
            parser.Parse(self.path.read_bytes(), True)
        except (OSError, ValueError, xml.parsers.expat.ExpatError) as error:
            self.fault = Fault("unreadable label", str(self.path), getattr(error, "lineno", 0), str(error))
            self.objects, self.top = [], {}
        del self.parser  # it refers back to this object
        return self

    def _refuse(self, *_) -> None:
        raise ValueError("it declares entities, which annotations never need")

    def _start(self, tag: str, _) -> None:
        if len(self.open) >= DEEPEST:
            raise ValueError(f"elements are nested more than {DEEPEST} deep")
        self.open.append(tag)
        self.text.clear()
        if self.open[1:] == ["object"]:
            self.objects.append(_VocObject(self.parser.CurrentLineNumber))

    def _end(self, tag: str) -> None:
        inside, value = self.open[1:], "".join(self.text).strip()
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
        self.open.pop()
        self.text.clear()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _sample(file: _VocFile, ids: dict[str, int], finder: ImageFinder, one_line: bool) -> Sample:
    """one_line: objects are identified by their number in the file, from 1, instead of by their line."""
    image = finder.find(file.top.get("filename", ""), file.path.stem, file.path.parent)
    stated = tuple(_number(file.top.get(side, "")) or 0.0 for side in ("width", "height"))
    frame = stated if all(0 < side < math.inf for side in stated) else image_size(image) or (1.0, 1.0)
    sample = Sample(str(image), finder.name_of(image), (frame[0], frame[1]), str(file.path))
    places = [number if one_line else item.line for number, item in enumerate(file.objects, 1)]
    good = [(item, place) for item, place in zip(file.objects, places) if not item.fault]
    sample.set_objects([ids[item.name] for item, _ in good], [item.box for item, _ in good], [p for _, p in good])
    faults = ((item.fault, place) for item, place in zip(file.objects, places))
    sample.faults = [Fault(fault[0], str(file.path), place, fault[1]) for fault, place in faults if fault]
    sample.faults += [file.fault] if file.fault else []
    return sample
