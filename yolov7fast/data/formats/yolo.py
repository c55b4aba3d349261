"""YOLO data sets: label text files beside images, described by a data.yaml (Roboflow, Ultralytics), by darknet's
`obj.data`, or by the folders alone with a list of class names (Label Studio)."""

import glob
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.settings_files import read_yaml
from yolov7fast.data.data_yaml import DataYaml, Source, candidates, class_names
from yolov7fast.data.formats.files import cache_root, has_images
from yolov7fast.data.formats.samples import SPLITS, AnnotatedSet, Fault, Sample, split_of
from yolov7fast.data.formats.yolo_text import parse_label_texts
from yolov7fast.data.labels import find_images, img2label_paths, size_of_labels_fault

KIND = "YOLO"
NAME_LISTS = ("classes.txt", "obj.names", "labels.txt", "_darknet.labels", "class.names", "names.txt")
VAL_WORDS = ("val", "valid", "validation")
BLOCK = 256  # label files whose numbers are converted together
MANY = 5000  # files from which on progress is shown


# --- finding ----------------------------------------------------------------------------------------------------------


def find(root: Path) -> tuple[DataYaml, str] | None:
    """(the data set below `root` with absolute paths, what it was known by), or None."""
    described = _yamls(root)
    if len(described) > 1:
        names = ", ".join(p.name for p in described)
        raise UserError(f"{root}: several data YAML files ({names}); give the one you mean: --data {described[0]}")
    if described:
        return of_yaml(described[0]), described[0].name
    darknet = sorted(root.glob("*.data"))
    if len(darknet) == 1:
        return _of_darknet(darknet[0]), darknet[0].name
    sources = _sources_of_folders(root)
    if not sources:
        return None
    names, evidence = _names_beside(root, sources)
    return _data(root, names, sources), evidence


def _yamls(root: Path) -> list[Path]:
    """YAML files in `root` that describe a data set; data.yaml alone if there is one."""
    files = sorted([*root.glob("*.yaml"), *root.glob("*.yml")])
    usual = [path for path in files if path.stem in ("data", "dataset")]
    found = []
    for path in usual or files:
        values = read_yaml(path)
        if isinstance(values, dict) and "names" in values and any(s in values for s in (*SPLITS, *VAL_WORDS)):
            found.append(path)
    return found


def of_yaml(path: Path, own_first: bool = True) -> DataYaml:
    """A data.yaml with absolute paths. Its `download` is left alone: it may be a command.

    own_first: what lies in the YAML's own folder comes before what lies in the working directory.
    """
    values = read_yaml(path)
    if not isinstance(values, dict) or values.get("names") is None:
        raise UserError(f"{path} lacks the key 'names:'")
    if values.get("kpt_shape"):
        raise UserError(f"{path}: kpt_shape: this is a data set of key points; boxes or polygons are needed")
    names = class_names(values["names"], str(path))
    nc = values.get("nc", len(names))
    if nc != len(names):
        raise UserError(f"{path}: nc is {nc!r}, but there are {len(names)} names; make them agree")
    values["val"] = next((values[word] for word in VAL_WORDS if values.get(word)), None)
    sources = {split: _resolve(values.get(split), split, path, values.get("path"), own_first) for split in SPLITS}
    if not any(sources.values()):
        raise UserError(f"{path} names no images: it needs 'train:' and 'val:'")
    return _data(path, names, sources)


def _data(path: Path, names: list[str], sources: Mapping[str, Source | None]) -> DataYaml:
    return DataYaml(str(path), len(names), names, sources.get("train"), sources.get("val"), sources.get("test"))


def _resolve(value: Any, split: str, path: Path, base: Any, own_first: bool) -> list[str] | None:
    """The sources of a split as absolute paths."""
    if value is None:
        return None
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, str) and entry for entry in entries):
        raise UserError(f"{path}: {split} must be a folder, a text file of image paths, or a list of these")
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
    """Whether a path that a data set names may be followed: one out of an archive must stay inside what it unpacked."""
    own = unpacked_folder(root)
    return own is None or own in path.resolve().parents or own == path.resolve()


def unpacked_folder(root: Path) -> Path | None:
    """The folder of the cache that an archive was unpacked into, if `root` lies in one."""
    unpacked, real = (cache_root() / "unpacked").resolve(), root.resolve()
    return unpacked / real.relative_to(unpacked).parts[0] if unpacked in real.parents else None


def _of_darknet(path: Path) -> DataYaml:
    """darknet's `obj.data`: lines such as `train = data/train.txt`, `names = data/obj.names`."""
    try:
        pairs = [line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if "=" in line]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error})") from None
    values = {key.strip(): value.strip() for key, value in pairs}

    def file_of(key: str) -> str | None:
        given = values.get(key)
        names = [given, Path(given).name] if given else []  # data/train.txt, as trained elsewhere, lies beside it
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
    """Splits by folders alone: images/train, train/images, or images and labels in one place. Labels must be there."""
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
    for folder in folders:
        if has_images(folder) and _has_labels(folder):
            return {"train": os.path.abspath(folder)}
    return {}


def _has_labels(images: Path) -> bool:
    """Whether at least one image of a folder has a label file where YOLO looks for it."""
    some = [entry.path for entry in os.scandir(images) if entry.is_file()][:2000]
    return any(os.path.isfile(label_of(path)) for path in some)


def _names_beside(root: Path, sources: dict[str, str]) -> tuple[list[str], str]:
    """(class names, what the data set was known by): a list of names, else the numbers that occur."""
    for name in NAME_LISTS:
        if (root / name).is_file():
            return _read_names(root / name), f"labels/*.txt, {name}"
    samples = [sample for source in sources.values() for sample in read_samples(find_images(source), root)]
    highest = max((int(sample.classes.max()) for sample in samples if len(sample.classes)), default=-1)
    if highest < 0:
        raise UserError(f"{root}: no class names: add classes.txt with one name a line, or a data.yaml with names:")
    return [str(i) for i in range(highest + 1)], "labels/*.txt, no list of class names: classes are numbers"


def _read_names(path: Path) -> list[str]:
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); it has one class name a line") from None
    while names and not names[-1]:
        names.pop()
    if not names:
        raise UserError(f"{path} is empty; it has one class name a line")
    return names


def label_of(image: str) -> str:
    """The label file of an image: by upstream's rule, unless only another `/images/` of the path leads to one."""
    usual = img2label_paths([image])[0]
    if os.path.isfile(usual):
        return usual
    parts = image.rpartition(".")[0].split(f"{os.sep}images{os.sep}")
    for i in range(len(parts) - 1, 1, -1):
        rest = f"{os.sep}images{os.sep}".join(parts[:i]), f"{os.sep}images{os.sep}".join(parts[i:])
        other = f"{os.sep}labels{os.sep}".join(rest) + ".txt"
        if os.path.isfile(other):
            return other
    return usual


def root_of(data: DataYaml) -> Path:
    """The folder of a data set: that of its YAML, or the one that was recognised."""
    return Path(data.path).parent if Path(data.path).suffix else Path(data.path)


def images_of(source: Source, root: Path) -> list[str]:
    """Images of a split. Where a list names files that are not there, or that its archive may not name, the longest end
    of the name that fits below `root` counts: lists are often written for another machine (`data/images/a.jpg`)."""
    images = find_images(source)
    if all(os.path.isdir(item) for item in ([source] if isinstance(source, str) else source)):
        return images
    own = unpacked_folder(root)
    there = [os.path.isfile(image) and (own is None or own in Path(image).resolve().parents) for image in images]
    return [image if found else _below(image, root) for image, found in zip(images, there)]


def _below(image: str, root: Path) -> str:
    """The file below `root` that a name leads to, or where it should lie."""
    parts = [part for part in PurePath(image.replace("\\", "/")).parts if part not in (os.sep, "..")]
    found = (root.joinpath(*parts[k:]) for k in range(len(parts)))
    return next((str(path) for path in found if path.is_file()), str(root.joinpath(*parts)))


# --- reading ----------------------------------------------------------------------------------------------------------


def images_by_split(data: DataYaml) -> dict[str, list[str]]:
    """The images of every split that the data set has."""
    root = root_of(data)
    return {split: images_of(source, root) for split in SPLITS if (source := getattr(data, split))}


def read(data: DataYaml, images: Mapping[str, Sequence[str]] | None = None) -> AnnotatedSet:
    """All samples with all objects of all splits. Files that are missing or unreadable are faults of their samples.

    images: those of `images_by_split`, where the caller has them.
    """
    root = root_of(data)
    by_split = images_by_split(data) if images is None else images
    splits = {split: read_samples(own, root, split) for split, own in by_split.items()}
    return AnnotatedSet(KIND, root, data.names, splits)


def read_samples(images: Sequence[str], root: Path, split: str = "") -> list[Sample]:
    """Images with the objects of their label files, in order; progress is shown under the split's name."""
    samples = []
    hidden = len(images) < MANY or not split
    with tqdm(total=len(images), desc=f"reading {split} labels", unit="file", leave=False, disable=hidden) as bar:
        for start in range(0, len(images), BLOCK):
            samples += _read_block(images[start : start + BLOCK], root)
            bar.update(len(samples) - start)
    return samples


def _read_block(images: Sequence[str], root: Path) -> list[Sample]:
    labels = [label_of(image) for image in images]
    texts = [_read_text(label) for label in labels]
    there = {i: text for i, text in enumerate(texts) if isinstance(text, str)}
    parsed = dict(zip(there, parse_label_texts(list(there.values()), [labels[i] for i in there])))
    start = os.path.join(root, "")
    samples = []
    for i, (image, label, text) in enumerate(zip(images, labels, texts)):
        name = image[len(start) :] if image.startswith(start) else os.path.relpath(image, root)  # which is slow
        name = os.path.basename(image) if name.startswith("..") else name
        if i in parsed:
            classes, boxes, rings, lines, faults = parsed[i]
            crowd = np.zeros(len(classes), bool)
            samples.append(Sample(image, name, (1.0, 1.0), label, True, classes, boxes, crowd, lines, rings, faults))
        else:
            faults = [text] if isinstance(text, Fault) else []
            samples.append(Sample(image, name, (1.0, 1.0), label, labelled=bool(faults), faults=faults))
    return samples


def _read_text(label: str) -> str | Fault | None:
    """A label file's text, what is wrong with the file, or None if there is none."""
    try:
        if not stat.S_ISREG(os.stat(label).st_mode):
            return Fault("unreadable label", label, 0, "no regular file")
        if fault := size_of_labels_fault(label):
            return Fault("too many objects", label, 0, fault)
        with open(label, "rb", buffering=0) as file:
            return file.read().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        return Fault("unreadable label", label, 0, f"byte {error.start + 1} is no UTF-8 text")
    except OSError as error:
        return Fault("unreadable label", label, 0, error.strerror or str(error))


def orphan_labels(annotated: AnnotatedSet) -> list[str]:
    """Label files without an image, in the folders where labels of this set lie."""
    known = {sample.label_file for sample in annotated.samples}
    folders = {os.path.dirname(path) for path in known}
    found = []
    for folder in sorted(folders):
        found += [p for p in glob.glob(os.path.join(glob.escape(folder), "*.txt")) if p not in known]
    listed = {name for name in NAME_LISTS} | {"train.txt", "val.txt", "test.txt"}
    return sorted(p for p in found if os.path.basename(p) not in listed and "README" not in os.path.basename(p))
