"""Pascal VOC: one XML file for each image, in `Annotations/` (with `ImageSets/Main/*.txt`) or next to the images."""

import xml.parsers.expat
from pathlib import Path
from typing import Any

from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import is_file
from yolov7fast.data.formats.annotated_set import SPLITS, AnnotatedSet, Fault, Layout, Sample, finite_number, split_of
from yolov7fast.data.formats.dataset_files import ImageFinder, text_lines
from yolov7fast.data.image_io import image_size

KIND = "Pascal VOC"
FOLDERS = ("Annotations", "annotations", "xmls")
IMAGE_FOLDERS = ("JPEGImages", "images", "Images", "imgs", ".")
SIDES = ("bndbox/xmin", "bndbox/ymin", "bndbox/xmax", "bndbox/ymax")
DEEPEST = 20  # levels of elements; annotation files have five


def find(root: Path) -> Layout | None:
    """The layout below `root`, or None if there are no XML annotations where VOC and its exporters put them."""
    for name in FOLDERS:
        files = sorted((root / name).glob("*.xml"))
        if files:
            return Layout(root, _by_lists(root, files), f"{name}/*.xml", root / name)
    splits: dict[str, list[Path]] = {}
    for folder in sorted(p for p in root.iterdir() if p.is_dir()):
        split, files = split_of(folder.name), sorted(folder.glob("*.xml"))
        if split and files:
            splits[split] = splits.get(split, []) + files
    if splits:
        return Layout(root, splits, f"{', '.join(splits)}/*.xml", next(iter(splits.values()))[0].parent)
    files = sorted(root.glob("*.xml"))
    return Layout(root, {"train": files}, "*.xml", root) if files else None


def _by_lists(root: Path, files: list[Path]) -> dict[str, list[Path]]:
    """The splits that ImageSets/Main lists; without lists all files are training files."""
    by_stem = {file.stem: file for file in files}
    named: dict[str, list[Path]] = {}
    for path in sorted((root / "ImageSets" / "Main").glob("*.txt")):
        if path.stem not in (*SPLITS, "trainval", "default", "valid"):  # aeroplane_train.txt and the like
            continue
        stems = [line.split()[0] for line in text_lines(path, "one image name a line") if line.split()]
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
    parsed: dict[str, list[_VocFile]] = {}
    for split, paths in layout.splits.items():
        bar = tqdm(paths, desc=f"reading {split} annotations", unit="file", leave=False, disable=len(paths) < 1000)
        parsed[split] = [_VocFile(path) for path in bar]
    files = [file for own in parsed.values() for file in own]
    # a line that holds several objects does not identify one: their number in the file does
    one_line = any(len({item["line"] for item in file.objects}) < len(file.objects) for file in files)
    good = [item for file in files for item in file.objects if not _fault(item)]
    found = {item["name"] for item in good}
    names = _label_map(layout.root, found) or sorted(found)
    ids = {name: i for i, name in enumerate(names)}
    finder = ImageFinder(layout.root, IMAGE_FOLDERS)
    splits = {split: [_sample(file, ids, finder, one_line) for file in own] for split, own in parsed.items()}
    difficult = sum(item.get("difficult") == "1" for item in good)
    notes = [f"{difficult} objects are marked difficult; they are used like all others"] if difficult else []
    return AnnotatedSet(KIND, layout.root, names, splits, notes, line_word="object" if one_line else "line")


def _label_map(root: Path, found: set[str]) -> list[str]:
    """Class names of CVAT's labelmap.txt (`name:colour:parts:actions` a line) if it names all classes that occur."""
    path = root / "labelmap.txt"
    lines = text_lines(path, "lines such as name:colour:parts:actions") if path.exists() else []
    names = [line.split(":")[0] for line in lines if line.strip() and not line.startswith("#")]
    names = [name for name in dict.fromkeys(names) if name != "background" or name in found]
    return names if found <= set(names) else []


# --- one file ---------------------------------------------------------------------------------------------------------


class _VocFile:
    """The annotation of one image, read by a parser that ignores unknown elements and refuses entities."""

    def __init__(self, path: Path):
        self.path = path
        self.top: dict[str, str] = {}  # text of filename, size/width, size/height, ...
        # of each object: its line, and the text of name, difficult, bndbox/xmin, ...
        self.objects: list[dict[str, Any]] = []
        self.fault: Fault | None = None  # the file cannot be read; then there are no objects
        tags: list[str] = []  # elements that are open
        text: list[str] = []

        def start(tag: str, _) -> None:
            if len(tags) >= DEEPEST:
                raise ValueError(f"elements are nested more than {DEEPEST} deep")
            tags.append(tag)
            text.clear()
            if tags[1:] == ["object"]:
                self.objects.append({"line": parser.CurrentLineNumber})

        def end(_) -> None:
            inside = tags[1:]
            if inside[:1] == ["object"]:
                self.objects[-1].setdefault("/".join(inside[1:]), "".join(text).strip())
            else:
                self.top.setdefault("/".join(inside), "".join(text).strip())
            tags.pop()
            text.clear()

        def refuse(*_) -> None:
            raise ValueError("it declares entities, which annotations never need")

        parser = xml.parsers.expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text.append
        parser.EntityDeclHandler = refuse  # entities can expand a small file to gigabytes
        try:
            if not is_file(path):
                raise OSError("not a regular file")
            parser.Parse(path.read_bytes(), True)
        except (OSError, ValueError, xml.parsers.expat.ExpatError) as error:
            self.fault = Fault("unreadable label", str(path), getattr(error, "lineno", 0), str(error))
            self.objects, self.top = [], {}


def _fault(item: dict[str, Any]) -> tuple[str, str] | None:
    """(kind, text) of what is wrong with an object, or None."""
    name = item.get("name", "")
    if None in [finite_number(item.get(side, "")) for side in SIDES]:
        return "not a number", f"{name!r} has no complete bndbox"
    return None if name else ("bad class", "the object has no name")


def _sample(file: _VocFile, ids: dict[str, int], finder: ImageFinder, one_line: bool) -> Sample:
    """one_line: objects are identified by their number in the file, from 1, instead of by their line."""
    image = finder.find(file.top.get("filename", ""), file.path.stem, file.path.parent)
    width, height = (finite_number(file.top.get(f"size/{side}", "")) or 0.0 for side in ("width", "height"))
    stated = (width, height) if min(width, height) > 0 else None
    sample = Sample(str(image), finder.name_of(image), stated or image_size(image) or (1.0, 1.0), str(file.path))
    good = []
    for number, item in enumerate(file.objects, 1):
        place = number if one_line else item["line"]
        if fault := _fault(item):
            sample.faults.append(Fault(fault[0], str(file.path), place, fault[1]))
        else:
            left, top, right, bottom = (float(item[side]) for side in SIDES)  # pixels count from 1, the last included
            good.append((ids[item["name"]], (left - 1, top - 1, right, bottom), place))
    sample.set_objects([cls for cls, _, _ in good], [box for _, box, _ in good], [place for _, _, place in good])
    sample.faults += [file.fault] if file.fault else []
    return sample
