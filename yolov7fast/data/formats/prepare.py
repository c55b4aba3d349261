"""Data sets in any format prepared for training: a data YAML, image lists and converted labels in a cache folder.

Nothing is written into the user's folders. Labels of YOLO data sets are used in place; for other formats the folder
holds label files and links to the images. Its name depends on the content of the data set: a changed data set gets
another folder, and a run that has started keeps its own.
"""

import contextlib
import hashlib
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote

import numpy as np
import yaml

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_folder, write_atomically
from yolov7fast.core.files.locks import exclusive
from yolov7fast.core.files.paths import is_file
from yolov7fast.core.files.settings_files import read_yaml
from yolov7fast.core.text import printable
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.formats import yolo_format
from yolov7fast.data.formats.annotated_set import AnnotatedSet, Fault
from yolov7fast.data.formats.dataset_files import cache_folder, link, plain_name, unique_names
from yolov7fast.data.formats.recognise import Found, recognise
from yolov7fast.data.formats.write_dataset import check_files, write_training_files
from yolov7fast.data.image_facts import groups_of, look_at, near_pairs
from yolov7fast.data.image_io import file_stamps, is_utf8, walk
from yolov7fast.data.labels import img2label_paths

log = logging.getLogger(__name__)
VERSION = 4
YAML_NAME = "data.yaml"


def prepare(path: str | Path, val_fraction: float = 0.0) -> str:
    """The path of the prepared data YAML for a data set in any format; logs in one line what was found.

    val_fraction: this fraction of the training images becomes the validation split of a set that has none.
    """
    found = recognise(path)
    if found.yolo is not None:
        folder = _prepare_yolo(found, found.yolo, str(path), val_fraction)
    else:
        files = [entry.path for entry in walk(found.root)]
        folder = _folder(found, [found.root, found.evidence, val_fraction, *zip(files, file_stamps(files).tolist())])
        with _new_folder(folder) as build:
            if build:
                _convert(found, build, folder, str(path), val_fraction)
    stored = read_yaml(folder / YAML_NAME)
    log.info("%s", stored["found"])
    for note in stored["notes"]:
        log.info("data: %s", note)
    return str(folder / YAML_NAME)


# --- validation split -------------------------------------------------------------------------------------------------


def check_fraction(annotated_has_val: bool, val_fraction: float, path: str) -> None:
    """Refuse a fraction outside 0..1, one for a set that has a validation split, and a set without either."""
    if val_fraction and not 0 < val_fraction < 1:
        raise UserError(f"--val-fraction is {val_fraction:g}; it must lie between 0 and 1, such as 0.1")
    if annotated_has_val and val_fraction:
        raise UserError(f"--val-fraction: {path} already has a validation split; leave the flag out")
    if not annotated_has_val and not val_fraction:
        raise UserError(
            f"{path} has no validation images; split a tenth off its training images with --val-fraction 0.1"
        )


def divide(names: Sequence[str], images: Sequence[str], fraction: float, source: str) -> tuple[list, list, str]:
    """(train positions, val positions, a line that says how) of a data set without validation images."""
    pairs = near_pairs(look_at(images, source, "looking for duplicates"))
    train, val = split_by_hash(names, fraction, pairs)
    how = f"--val-fraction {fraction:g}: {len(train)} train, {len(val)} val images, by a hash of file names"
    if together := len(np.unique(pairs)):
        how += f"; {together} images with near duplicates are kept on one side"
    return train, val, how


def split_off(annotated: AnnotatedSet, fraction: float, said: str) -> str:
    """Move a fraction of the training images to a validation split; returns a line that says how."""
    check_fraction(bool(annotated.splits.get("val")), fraction, said)
    samples, root = annotated.splits.get("train", []), str(annotated.root)
    train, val, how = divide([s.name for s in samples], [s.image for s in samples], fraction, root)
    rest = {split: samples for split, samples in annotated.splits.items() if split not in ("train", "val")}
    annotated.splits = {"train": [samples[i] for i in train], "val": [samples[i] for i in val], **rest}
    return how


def split_by_hash(names: Sequence[str], fraction: float, pairs: np.ndarray) -> tuple[list[int], list[int]]:
    """(train, val positions): the lowest hashes of names go to validation; duplicates, pairs (p, 2), stay together.

    A group of duplicates counts by the name that sorts first, so that an additional image moves hardly any other.
    """
    n = len(names)
    if n < 2:
        raise UserError(f"--val-fraction {fraction:g}: {n} image cannot be split; a data set needs at least 2")
    members: dict[int, list[int]] = defaultdict(list)
    for i, group in enumerate(groups_of(n, pairs).tolist()):
        members[group].append(i)

    def name_hash(group: list[int]) -> int:
        first = min(names[i] for i in group).encode(errors="surrogateescape")
        return int.from_bytes(hashlib.blake2b(first, digest_size=8).digest(), "big")

    wanted = min(max(round(n * fraction), 1), n - 1)
    val: list[int] = []
    for group in sorted(members.values(), key=name_hash):
        if len(val) < wanted and len(val) + len(group) <= min(wanted * 1.5 + 1, n - 1):
            val += group
    if not val and len(members) > 1:  # all groups are large
        val = min(sorted(members.values(), key=name_hash), key=len)
    if not val:
        raise UserError(f"--val-fraction {fraction:g}: all {n} images are duplicates of each other: nothing to split")
    return sorted(set(range(n)) - set(val)), sorted(val)


# --- YOLO: labels used in place ---------------------------------------------------------------------------------------


def _prepare_yolo(found: Found, data: DataYaml, said: str, val_fraction: float) -> Path:
    """The cache folder of a YOLO data set. said: the path that the user gave, in messages."""
    check_fraction(bool(data.val), val_fraction, said)
    splits = yolo_format.images_by_split(data)
    notes = []
    if val_fraction:
        images = splits.get("train", [])
        names = [os.path.relpath(image, found.root) for image in images]
        train, val, how = divide(names, images, val_fraction, str(found.root))
        splits = {**splits, "train": [images[i] for i in train], "val": [images[i] for i in val]}
        notes.append(how)
    for split, images in splits.items():
        plain = (image for image in images if is_utf8(image))  # and one line, as a list of images needs
        splits[split] = [image for image in plain if len(image.splitlines()) == 1 and image.strip() == image]
        if odd := len(images) - len(splits[split]):
            notes.append(f"{odd} {split} images are left out: their names hold line breaks or bytes that are not text")
    every = [image for images in splits.values() for image in images]
    moved = [yolo_format.label_of(image) for image in every] != img2label_paths(every)
    folder = _folder(found, [said, data.names, *(f"{s}\0{i}" for s, images in splits.items() for i in images)])
    with _new_folder(folder) as build:
        if build:
            for split, images in splits.items():
                lines = images  # training finds their labels itself, or all are linked to where it looks for them
                if moved:
                    for kind in ("images", "labels"):
                        (build / kind / split).mkdir(parents=True)
                    names = unique_names([os.path.basename(image) for image in images])
                    lines = [f"./images/{split}/{name}" for name in names]
                    for image, name in zip(images, names):
                        link(image, build / "images" / split / name)
                        if is_file(label := yolo_format.label_of(image)):
                            link(label, build / "labels" / split / f"{os.path.splitext(name)[0]}.txt")
                write_atomically(build / f"{split}.txt", "\n".join(lines) + "\n")
            counts = ", ".join(f"{split} {len(images):,} images" for split, images in splits.items())
            text = f"data: {found.kind} ({found.evidence}) in {said}: {counts}, {data.nc} classes"
            _write_yaml(build, folder, data.names, splits, text, notes, said)
    return folder


# --- other formats: converted labels ----------------------------------------------------------------------------------


def _convert(found: Found, build: Path, folder: Path, said: str, val_fraction: float) -> None:
    """Fill the folder `build`, which will be named `folder`, with labels, links to images and the data YAML."""
    annotated = found.read()
    check_fraction(bool(annotated.splits.get("val")), val_fraction, said)
    given, changes = len(annotated.samples), check_files(annotated)
    if not annotated.samples:
        what = _counted(changes, annotated.line_word)[0] if changes else "it names none"
        raise UserError(f"{said}: none of the {given} images that {found.evidence} names can be used ({what})")
    if not annotated.names:
        raise UserError(f"{said}: {found.evidence} has no object that can be read, so there is no class to learn")
    notes = annotated.notes
    if val_fraction:
        notes.append(split_off(annotated, val_fraction, said))
    changes += write_training_files(annotated, build)
    if changes := [fault for fault in changes if not fault.kind.startswith("crowd")]:  # crowds are noted already
        notes += _counted(changes, annotated.line_word)
        notes.append(f"for all of them: yolov7fast data check {quote(said)}")
    for split in annotated.splits:
        names = sorted(os.listdir(build / "images" / split))
        write_atomically(build / f"{split}.txt", "".join(f"./images/{split}/{name}\n" for name in names))
    text = f"data: {found.kind} ({found.evidence}) in {said}: {annotated.counts()}; labels converted to {folder}"
    # the COCO file by which pycocotools can evaluate the validation split: crowds and areas are then COCO's own
    files = {sample.label_file for sample in annotated.splits["val"]}
    own = annotated.line_word == "annotation" and len(files) == 1 and not val_fraction
    _write_yaml(build, folder, annotated.names, annotated.splits, text, notes, said, files.pop() if own else None)


def _counted(changes: Sequence[Fault], line_word: str) -> list[str]:
    """One text for each kind of change, with its number and the first place."""
    counts, first = Counter(change.kind for change in changes), {change.kind: change for change in reversed(changes)}
    return [
        f"{count} x {kind}, first {first[kind].place(line_word)}: {printable(first[kind].text, 200)}"
        for kind, count in counts.items()
    ]


# --- folder -----------------------------------------------------------------------------------------------------------


def _folder(found: Found, parts: Sequence) -> Path:
    """The cache folder of a data set, named by a hash of what its content depends on."""
    text = "\n".join(str(part) for part in (VERSION, found.kind, *parts))
    digest = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=6).hexdigest()
    return cache_folder("sets") / f"{plain_name(found.root.name)}-{digest}"


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path | None]:
    """A folder to fill that is renamed to `folder` once it is complete; None if another process has filled it."""
    with exclusive(folder.with_name(f".{folder.name}.lock"), f"waiting for another process that prepares {folder}"):
        if (folder / YAML_NAME).is_file():
            yield None
        else:
            with atomic_folder(folder, remedy="free some space in the cache") as build:
                yield build


def _write_yaml(
    build: Path,
    folder: Path,
    names: list[str],
    splits: Iterable[str],
    text: str,
    notes: list[str],
    said: str,
    annotations: str | None = None,
) -> None:
    """Write the data YAML, with what was found and decided."""
    values = {split: str(folder / f"{split}.txt") for split in splits}
    values |= {"nc": len(names), "names": names}
    if annotations:
        values["annotations"] = annotations
    values |= {"source": printable(os.path.abspath(said)), "found": printable(text), "notes": notes}
    write_atomically(build / YAML_NAME, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
