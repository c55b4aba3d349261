"""YOLO data sets: label text files next to images, described by a data.yaml (Roboflow, Ultralytics), by darknet's
`obj.data`, or only by the folders and a list of class names (Label Studio)."""

import glob
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from shlex import quote
from typing import Any

import numpy as np
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import is_file
from yolov7fast.core.files.settings_files import read_yaml
from yolov7fast.data.data_yaml import DataYaml, Source, candidates, class_names, source_of
from yolov7fast.data.formats.annotated_set import SPLITS, AnnotatedSet, Fault, Sample, split_of
from yolov7fast.data.formats.dataset_files import has_images, text_lines, unpacked_folder
from yolov7fast.data.image_io import is_image_name
from yolov7fast.data.labels import (
    BOX_TOKENS,
    POLYGON_TOKENS,
    class_fault,
    find_images,
    img2label_paths,
    numbers_of,
    read_lines,
)

KIND = "YOLO"
NAME_LISTS = ("classes.txt", "obj.names", "labels.txt", "_darknet.labels", "class.names", "names.txt")
VAL_WORDS = ("val", "valid", "validation")
TRIANGLE_TOKENS = 7  # of a polygon that training does not read, unless another line of the file has more points
MANY = 5000  # files from which on progress is shown


# --- layout -----------------------------------------------------------------------------------------------------------


def find(root: Path) -> tuple[DataYaml, str] | None:
    """(the data set below `root` with absolute paths, the file or folder that identified it), or None."""
    files = sorted(path for path in (*root.glob("*.yaml"), *root.glob("*.yml")) if is_file(path))
    described = []
    for path in [path for path in files if path.stem in ("data", "dataset")] or files:
        values = read_yaml(path)
        if isinstance(values, dict) and "names" in values and any(s in values for s in (*SPLITS, *VAL_WORDS)):
            described.append(path)
    if len(described) > 1:
        names = ", ".join(p.name for p in described)
        raise UserError(
            f"{root}: several data YAML files ({names}); give the one you mean: --data {quote(str(described[0]))}"
        )
    if described:
        return of_yaml(described[0]), described[0].name
    darknet = sorted(path for path in root.glob("*.data") if is_file(path))
    if len(darknet) == 1:
        return _of_darknet(darknet[0]), darknet[0].name
    sources = _sources_of_folders(root)
    if not sources:
        return None
    names, evidence = _class_names(root, sources)
    return _data(root, names, sources), evidence


def of_yaml(path: Path, own_first: bool = True) -> DataYaml:
    """A data.yaml with absolute paths. Its `download` is ignored: it may be a command.

    own_first: paths relative to the YAML's folder take precedence over those relative to the working directory.
    """
    values = read_yaml(path)
    if not isinstance(values, dict) or values.get("names") is None:
        raise UserError(f"{path} lacks the key 'names:'")
    if values.get("kpt_shape"):
        raise UserError(f"{path}: kpt_shape: this is a data set of key points; boxes or polygons are needed")
    names = class_names(values, str(path))
    values["val"] = next((values[word] for word in VAL_WORDS if values.get(word)), None)
    sources = {split: _resolve(values, split, path, own_first) for split in SPLITS}
    if not any(sources.values()):
        raise UserError(f"{path} names no images: it needs 'train:' and 'val:'")
    return _data(path, names, sources)


def _data(path: Path, names: list[str], sources: Mapping[str, Source | None]) -> DataYaml:
    return DataYaml(str(path), len(names), names, sources.get("train"), sources.get("val"), sources.get("test"))


def _resolve(values: Mapping[str, Any], split: str, path: Path, own_first: bool) -> list[str] | None:
    """The sources of a split as absolute paths."""
    source, base = source_of(values, split, str(path)), values.get("path")
    entries = source if isinstance(source, list) else [source] if source else []
    found = []
    for entry in entries:
        named = candidates(entry, str(path), base if isinstance(base, str) else None)
        places = [Path(os.path.abspath(place)) for place in named]
        if own_first:
            places.sort(key=lambda place: path.parent not in place.parents)
        allowed = [place for place in places if place.exists() and _may_read(place, path.parent)]
        if allowed:
            found.append(str(allowed[0]))
        elif split != "test":  # exporters write 'test:' for a folder they leave out
            tried = ", ".join(dict.fromkeys(map(str, places)))
            raise UserError(f"{path}: {split}: {entry} does not exist (looked for {tried})")
    return found or None


def _may_read(path: Path, root: Path) -> bool:
    """Whether a path that a data set names may be followed: in an unpacked archive it must stay inside its folder."""
    own = unpacked_folder(root)
    return own is None or path.resolve().is_relative_to(own)


def _of_darknet(path: Path) -> DataYaml:
    """darknet's `obj.data`: lines such as `train = data/train.txt`, `names = data/obj.names`."""
    pairs = [line.split("=", 1) for line in text_lines(path, "lines such as train = train.txt") if "=" in line]
    values = {key.strip(): value.strip() for key, value in pairs}

    def file_of(key: str) -> str | None:
        given = values.get(key)
        names = [given, Path(given).name] if given else []  # data/train.txt of another machine lies next to it
        found = next((path.parent / n for n in names if (path.parent / n).exists()), None)
        return os.path.abspath(found) if found and _may_read(found, path.parent) else None

    names = file_of("names")
    if names is None:
        raise UserError(f"{path}: names = {values.get('names', '')}: no such file; it lists the class names")
    sources = {"train": file_of("train"), "val": file_of("valid"), "test": file_of("test")}
    if not any(sources.values()):
        raise UserError(f"{path}: neither train = nor valid = leads to a list of images")
    return _data(path, _read_names(Path(names)), sources)


def _sources_of_folders(root: Path) -> dict[str, str]:
    """Splits by folders: images/train, train/images, or images and labels in one folder. Label files must exist."""
    sources: dict[str, str] = {}
    folders = [root / "images", root]
    for base in folders:
        for folder in sorted(p for p in base.iterdir() if p.is_dir()) if base.is_dir() else []:
            split = split_of(folder.name)
            images = next((f for f in (folder / "images", folder) if has_images(f)), None)
            if split and images and split not in sources and _has_labels(images):
                sources[split] = os.path.abspath(images)
        if sources:
            return sources
    return next(({"train": os.path.abspath(f)} for f in folders if has_images(f) and _has_labels(f)), {})


def _has_labels(images: Path) -> bool:
    """Whether at least one image of a folder has a label file where YOLO looks for it."""
    some = [entry.path for entry in os.scandir(images) if is_image_name(entry.name)][:2000]
    return any(is_file(label_of(path)) for path in some)


def _class_names(root: Path, sources: dict[str, str]) -> tuple[list[str], str]:
    """(class names, the files that identified the data set): from a list of names, else the class numbers in use."""
    for name in NAME_LISTS:
        if is_file(root / name):
            return _read_names(root / name), f"labels/*.txt, {name}"
    samples = [sample for source in sources.values() for sample in read_samples(find_images(source), root)]
    highest = max((int(sample.classes.max()) for sample in samples if len(sample.classes)), default=-1)
    if highest < 0:
        raise UserError(f"{root}: no class names: add classes.txt with one name a line, or a data.yaml with names:")
    return [str(i) for i in range(highest + 1)], "labels/*.txt, no list of class names: classes are numbers"


def _read_names(path: Path) -> list[str]:
    names = [line.strip() for line in text_lines(path, "one class name a line")]
    while names and not names[-1]:
        names.pop()
    if not names:
        raise UserError(f"{path} is empty; it has one class name a line")
    return names


# --- files ------------------------------------------------------------------------------------------------------------


def label_of(image: str) -> str:
    """The label file of an image: by upstream's rule, unless it exists only for another `/images/` of the path."""
    usual = img2label_paths([image])[0]
    if is_file(usual):
        return usual
    images, labels = f"{os.sep}images{os.sep}", f"{os.sep}labels{os.sep}"
    parts = image.rpartition(".")[0].split(images)
    others = (labels.join((images.join(parts[:i]), images.join(parts[i:]))) for i in range(len(parts) - 1, 1, -1))
    return next((f"{other}.txt" for other in others if is_file(f"{other}.txt")), usual)


def root_of(data: DataYaml) -> Path:
    """The folder of a data set: that of its YAML, or the one that was recognised."""
    return Path(data.path).parent if Path(data.path).suffix else Path(data.path)


def images_by_split(data: DataYaml) -> dict[str, list[str]]:
    """The images of every split that the data set has."""
    root = root_of(data)
    return {split: images_of(source, root) for split in SPLITS if (source := getattr(data, split))}


def images_of(source: Source, root: Path) -> list[str]:
    """Images of a split.

    Where a list names files that do not exist, or that an archive may not name, the longest suffix of the path that
    exists below `root` is used: lists are often written for another machine (`data/images/a.jpg`).
    """
    images = find_images(source)
    if all(os.path.isdir(item) for item in ([source] if isinstance(source, str) else source)):
        return images
    own = unpacked_folder(root)
    there = [is_file(image) and (own is None or Path(image).resolve().is_relative_to(own)) for image in images]
    return [image if found else _below(image, root) for image, found in zip(images, there)]


def _below(image: str, root: Path) -> str:
    """The file below `root` with the longest suffix of the path `image`, or the path it should have."""
    parts = [part for part in PurePath(image.replace("\\", "/")).parts if part not in (os.sep, "..")]
    found = (root.joinpath(*parts[k:]) for k in range(len(parts)))
    return next((str(path) for path in found if is_file(path)), str(root.joinpath(*parts)))


def orphan_labels(annotated: AnnotatedSet) -> list[str]:
    """Label files without an image, in the folders that hold labels of this set."""
    known = {sample.label_file for sample in annotated.samples}
    found = []
    for folder in {os.path.dirname(path) for path in known}:
        found += [p for p in glob.glob(os.path.join(glob.escape(folder), "*.txt")) if p not in known]
    listed = (*NAME_LISTS, "train.txt", "val.txt", "test.txt")
    return sorted(p for p in found if os.path.basename(p) not in listed and "README" not in os.path.basename(p))


# --- labels -----------------------------------------------------------------------------------------------------------


def read(data: DataYaml) -> AnnotatedSet:
    """All samples of all splits. Files that are missing or unreadable are faults of their samples."""
    root = root_of(data)
    splits = {split: read_samples(images, root, split) for split, images in images_by_split(data).items()}
    return AnnotatedSet(KIND, root, data.names, splits)


def read_samples(images: Sequence[str], root: Path, split: str = "") -> list[Sample]:
    """Images with the objects of their label files, in order; progress is shown under the split's name."""
    hidden = len(images) < MANY or not split
    bar = tqdm(images, desc=f"reading {split} labels", unit="file", leave=False, disable=hidden)
    return [_read_sample(image, root) for image in bar]


def _read_sample(image: str, root: Path) -> Sample:
    start = os.path.join(root, "")
    name = image.removeprefix(start) if image.startswith(start) else os.path.relpath(image, root)
    name = os.path.basename(image) if name.startswith("..") else name
    sample = Sample(image, name, (1.0, 1.0), label_of(image))
    sample.labelled = os.path.exists(sample.label_file)
    if sample.labelled:
        parse_labels(sample)
    return sample


def parse_labels(sample: Sample) -> None:
    """Store the objects and faults of its label file in a sample.

    `data.labels` reads the same files for training, where one bad line rejects the whole image, as upstream does. Here
    every line is judged separately: the checks name the bad ones, and conversions keep the good ones.
    """
    rows, unreadable = read_lines(sample.label_file)
    if unreadable:
        sample.faults.append(Fault(unreadable[0], sample.label_file, 0, unreadable[1]))
    first = next((i for i, row in enumerate(rows) if row), 0)  # blank lines before the first object are allowed
    polygons = any(len(row) > POLYGON_TOKENS for row in rows)
    classes, boxes, lines, rings = [], [], [], []
    for line, row in enumerate(rows[first:], first + 1):
        values, fault = _numbers(row, polygons)
        if fault:
            sample.faults.append(Fault(fault[0], sample.label_file, line, fault[1]))
        if values is None:
            continue
        if len(values) == BOX_TOKENS:
            _, cx, cy, w, h = values
            boxes.append((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2))
            rings.append([])
        else:
            ring = np.array(values[1:]).reshape(-1, 2)
            boxes.append((*ring.min(0), *ring.max(0)))
            rings.append([ring])
        classes.append(int(values[0]))
        lines.append(line)
    sample.set_objects(classes, boxes, lines)
    sample.rings = rings if any(rings) else []


def _numbers(row: list[str], polygons: bool) -> tuple[list[float] | None, tuple[str, str] | None]:
    """(the numbers of a line that is an object, else None; its fault, if it has one: kind and text)."""
    values, fault = numbers_of(row, polygons)
    if fault and (fault[0] != "wrong columns" or len(row) != TRIANGLE_TOKENS):
        return None, fault
    if not all(map(math.isfinite, values)):
        return None, ("not finite", " ".join(row)[:80])
    if len(row) < BOX_TOKENS:
        return None, ("wrong columns", f"{len(row)} numbers; a polygon needs at least 3 points")
    if text := class_fault(values[0]):
        return None, ("bad class", text)
    if len(row) == BOX_TOKENS and polygons:
        fault = ("box among polygons", "the line is read as two points, because other lines are polygons")
    elif not fault and values[0] % 1:
        fault = ("fractional class", f"class {values[0]:g} is cut to {int(values[0])}")
    return values, fault
