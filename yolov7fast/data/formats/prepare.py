"""Any data set made ready for training, in a folder of our cache: a data YAML, lists of images, converted labels.

Nothing is written into the user's folders. A YOLO data set's own labels are used where they are; for other formats
the folder holds label files, and links to the images. Its name depends on the content of the data set, so that a
changed data set gets another folder and a run that is under way keeps its own.
"""

import contextlib
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import yaml
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_folder, write_atomically
from yolov7fast.core.files.locks import exclusive
from yolov7fast.core.files.settings_files import read_yaml
from yolov7fast.core.process.threads import ThreadPool
from yolov7fast.core.text import counted, printable
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.formats import yolo
from yolov7fast.data.formats.files import cache_folder, link, plain_name
from yolov7fast.data.formats.label_lines import label_lines
from yolov7fast.data.formats.names import unique_names
from yolov7fast.data.formats.recognise import Found, recognise
from yolov7fast.data.formats.samples import AnnotatedSet, Fault, Sample
from yolov7fast.data.formats.split import split_by_hash
from yolov7fast.data.image_facts import look_at
from yolov7fast.data.image_io import image_size, walk
from yolov7fast.data.labels import img2label_paths
from yolov7fast.data.near_duplicates import near_pairs

log = logging.getLogger(__name__)
VERSION = 2
YAML_NAME = "data.yaml"
THREADS = 8  # that read headers of images


def prepare(path: str | Path, val_fraction: float = 0.0) -> str:
    """The data YAML of ours for a data set in any format; says in one line what was found.

    val_fraction: this fraction of the training images becomes the validation split of a set that has none.
    """
    found = recognise(path)
    if found.yolo is not None:
        return _prepare_yolo(found, found.yolo, str(path), val_fraction)
    digest = _digest([found.kind, str(found.root), found.evidence, val_fraction, *_stamps(found.root)])
    folder = _folder(found.root.name, digest)
    with _locked(folder):
        if not (folder / YAML_NAME).is_file():
            _convert(found, folder, str(path), val_fraction)
    return _announced(folder)


def _announced(folder: Path) -> str:
    """The data YAML in a folder, after saying what it was made from."""
    stored = read_yaml(folder / YAML_NAME)
    log.info("%s", stored["found"])
    for note in stored["notes"]:
        log.info("data: %s", note)
    return str(folder / YAML_NAME)


def check_fraction(annotated_has_val: bool, val_fraction: float, path: str) -> None:
    """Refuse a fraction that makes no sense, one for a set with a split of its own, and a set without any."""
    if val_fraction and not 0 < val_fraction < 1:
        raise UserError(f"--val-fraction is {val_fraction:g}; it must lie between 0 and 1, such as 0.1")
    if annotated_has_val and val_fraction:
        raise UserError(f"--val-fraction: {path} has a validation split of its own; leave the flag out")
    if not annotated_has_val and not val_fraction:
        raise UserError(
            f"{path} has no validation images; split a tenth off its training images with --val-fraction 0.1"
        )


def divide(names: Sequence[str], images: Sequence[str], fraction: float, source: str) -> tuple[list, list, str]:
    """(train, val positions, how they were divided) of a data set without validation images."""
    facts = look_at(images, source, "looking for duplicates")
    split = split_by_hash(names, fraction, near_pairs(facts))
    how = f"--val-fraction {fraction:g}: {len(split.train)} train, {len(split.val)} val images, by a hash of file names"
    if split.together:
        how += f"; {split.together} images with near duplicates are kept on one side"
    return split.train, split.val, how


# --- YOLO: labels as they are -----------------------------------------------------------------------------------------


def _prepare_yolo(found: Found, data: DataYaml, said: str, val_fraction: float) -> str:
    check_fraction(bool(data.val), val_fraction, said)
    splits = yolo.images_by_split(data)
    notes = []
    if val_fraction:
        images = splits["train"]
        names = [os.path.relpath(image, found.root) for image in images]
        train, val, how = divide(names, images, val_fraction, str(found.root))
        splits = {**splits, "train": [images[i] for i in train], "val": [images[i] for i in val]}
        notes.append(how)
    for split, images in splits.items():
        splits[split] = [image for image in images if _can_be_listed(image)]
        if odd := len(images) - len(splits[split]):
            notes.append(f"{odd} {split} images are left out: their names hold line breaks or bytes that are no text")
    every = [image for images in splits.values() for image in images]
    moved = [yolo.label_of(image) for image in every] != img2label_paths(every)
    digest = _digest([found.kind, said, data.names, *(f"{s}\0{i}" for s, images in splits.items() for i in images)])
    folder = _folder(found.root.name, digest)
    with _locked(folder):
        if not (folder / YAML_NAME).is_file():
            with _building(folder) as build:
                for split, images in splits.items():
                    lines = _link_pairs(build, split, images) if moved else images
                    write_atomically(build / f"{split}.txt", "\n".join(lines) + "\n")
                counts = ", ".join(f"{split} {len(images):,} images" for split, images in splits.items())
                text = f"data: {found.kind} ({found.evidence}) in {said}: {counts}, {data.nc} classes"
                _write_yaml(build, folder, data.names, list(splits), text, notes, said)
    return _announced(folder)


def _can_be_listed(image: str) -> bool:
    """Whether a line of a text file can hold this path."""
    text = image.encode(errors="replace").decode() == image
    return text and len(image.splitlines()) == 1 and image.strip() == image


def _link_pairs(build: Path, split: str, images: Sequence[str]) -> list[str]:
    """Links to images and labels where training finds both, for folders in which it would not; the list of images."""
    names = unique_names([os.path.basename(image) for image in images])
    for kind in ("images", "labels"):
        (build / kind / split).mkdir(parents=True)
    for image, name in zip(images, names):
        link(image, build / "images" / split / name)
        label = yolo.label_of(image)
        if os.path.isfile(label):
            link(label, build / "labels" / split / f"{name.rpartition('.')[0]}.txt")
    return [f"./images/{split}/{name}" for name in names]


# --- other formats: converted labels ----------------------------------------------------------------------------------


def _convert(found: Found, folder: Path, said: str, val_fraction: float) -> None:
    annotated = found.read()
    splits = {split: [s for s in samples if os.path.isfile(s.image)] for split, samples in annotated.splits.items()}
    missing = [s for samples in annotated.splits.values() for s in samples if not os.path.isfile(s.image)]
    notes = list(annotated.notes)
    if not any(splits.values()):
        first = f" (first: {printable(missing[0].image)})" if missing else ""
        raise UserError(f"{said}: none of the {len(missing)} images that {found.evidence} names exists{first}")
    if missing:
        notes.append(
            f"{len(missing)} images that the annotations name are missing, first {printable(missing[0].image)}"
        )
    unusable = [s.unusable for samples in splits.values() for s in samples if s.unusable]
    if unusable:
        splits = {split: [s for s in samples if not s.unusable] for split, samples in splits.items()}
        first = f"first {printable(_place(unusable[0]))}: {unusable[0].kind}, {printable(unusable[0].text, 200)}"
        notes.append(f"{counted(len(unusable), 'image')} left out because their annotations cannot be used, {first}")
        if not any(splits.values()):
            raise UserError(f"{said}: {notes[-1]}; no image is left")
    notes += _aspect_notes([s for samples in splits.values() for s in samples], said)
    check_fraction(bool(splits.get("val")), val_fraction, said)
    if val_fraction:
        samples = splits["train"]
        train, val, how = divide([s.name for s in samples], [s.image for s in samples], val_fraction, str(found.root))
        splits = {**splits, "train": [samples[i] for i in train], "val": [samples[i] for i in val]}
        notes.append(how)
    faults = [fault for samples in splits.values() for sample in samples for fault in sample.faults]
    if faults:
        place = _place(faults[0], annotated.line_word)
        notes.append(
            f"{len(faults)} objects could not be read, first {printable(place)}: {printable(faults[0].text, 100)}; "
            f"for all of them: yolov7fast data check {quote(said)}"
        )
    with _building(folder) as build:
        changes: Counter = Counter()
        for split, samples in splits.items():
            lines = _write_split(build, split, samples, changes)
            write_atomically(build / f"{split}.txt", "\n".join(lines) + "\n")
        notes += [f"{count} {what}" for what, count in changes.items() if not what.startswith("crowd")]
        counts = AnnotatedSet(annotated.kind, annotated.root, annotated.names, splits).counts()
        text = f"data: {found.kind} ({found.evidence}) in {said}: {counts}; labels converted to {folder}"
        annotations = _annotation_file(annotated, splits, val_fraction)
        _write_yaml(build, folder, annotated.names, list(splits), text, notes, said, annotations)


def _place(fault: Fault, line_word: str = "line") -> str:
    return f"{fault.file}, {line_word} {fault.line}" if fault.line else fault.file


def _aspect_notes(samples: Sequence[Sample], said: str) -> list[str]:
    """One note if annotations state sizes of another aspect ratio than the image files have."""
    with ThreadPool(THREADS) as pool:
        sizes = pool.map(image_size, [sample.image for sample in samples], chunksize=64)
        bar = tqdm(
            zip(samples, sizes), "image sizes", len(samples), unit="img", leave=False, disable=len(samples) < 1000
        )
        odd = [(sample, size) for sample, size in bar if size and sample.differs_in_aspect(size)]
    if not odd:
        return []
    sample, (width, height) = odd[0]
    return [
        f"{counted(len(odd), 'image')} with another aspect ratio than the annotation says, so boxes are wrong; first "
        f"{printable(sample.image)}: {sample.frame[0]:g} x {sample.frame[1]:g} in the annotation, {width} x {height} "
        f"in the file; correct width and height in the annotations; for all of them: yolov7fast data check {said}"
    ]


def _write_split(build: Path, split: str, samples: Sequence[Sample], changes: Counter) -> list[str]:
    """Label files of a split, links to its images; the list of images."""
    for kind in ("images", "labels"):
        (build / kind / split).mkdir(parents=True)
    names = unique_names([os.path.basename(sample.image) for sample in samples])
    bar = tqdm(zip(samples, names), f"labels {split}", len(names), unit="img", leave=False, disable=len(names) < 1000)
    for sample, name in bar:
        link(sample.image, build / "images" / split / name)
        lines = label_lines(sample, changes)
        (build / "labels" / split / f"{name.rpartition('.')[0]}.txt").write_text("".join(f"{x}\n" for x in lines))
    return [f"./images/{split}/{name}" for name in names]


def _annotation_file(annotated: AnnotatedSet, splits: dict[str, list[Sample]], val_fraction: float) -> str | None:
    """The COCO file that pycocotools can judge the validation split by: crowds and areas are then COCO's own."""
    files = {sample.label_file for sample in splits.get("val", ())}
    return files.pop() if annotated.line_word == "annotation" and len(files) == 1 and not val_fraction else None


# --- the folder -------------------------------------------------------------------------------------------------------


def _folder(name: str, digest: str) -> Path:
    return cache_folder("sets") / f"{plain_name(name)}-{digest}"


def _digest(parts: Sequence) -> str:
    text = "\n".join(str(part) for part in (VERSION, *parts))
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=6).hexdigest()


def _stamps(root: Path) -> list[str]:
    """Name, size and time of every file of a data set."""
    stamps = []
    for entry in walk(root):
        try:
            status = entry.stat()
            stamps.append(f"{entry.path}\0{status.st_size}\0{status.st_mtime_ns}")
        except OSError:  # a broken link
            stamps.append(f"{entry.path}\0broken")
    return stamps


def _locked(folder: Path) -> contextlib.AbstractContextManager:
    return exclusive(folder.with_name(f".{folder.name}.lock"), f"waiting for another process that prepares {folder}")


def _building(folder: Path) -> contextlib.AbstractContextManager[Path]:
    """A folder that takes its name when it is complete, and leaves nothing behind if it never is."""
    return atomic_folder(folder, remedy="free some space in the cache")


def _write_yaml(
    build: Path,
    folder: Path,
    names: list[str],
    splits: list[str],
    text: str,
    notes: list[str],
    said: str,
    annotations: str | None = None,
) -> None:
    """The data YAML, with what was found and decided."""
    values = {split: str(folder / f"{split}.txt") for split in splits}
    values |= {"nc": len(names), "names": names}
    if annotations:
        values["annotations"] = annotations
    values |= {"source": printable(os.path.abspath(said)), "found": printable(text), "notes": notes}
    write_atomically(build / YAML_NAME, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
