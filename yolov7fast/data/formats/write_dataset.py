"""Data sets written as YOLO, COCO JSON or Pascal VOC into a new folder, complete or not at all.

The copy has no fault that has only one possible correction: what training leaves out or misreads is left out or
rewritten, and boxes are cut at the edge of the image. changes.txt lists every change.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import yaml
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_folder
from yolov7fast.core.process.threads import ThreadPool
from yolov7fast.core.text import printable
from yolov7fast.data.formats.annotated_set import AnnotatedSet, Fault, Sample
from yolov7fast.data.formats.dataset_files import link, unique_names
from yolov7fast.data.labels import check_pair

IMAGES = ("copy", "link", "none")  # what happens to the image files
FORMATS = ("yolo", "coco", "voc")
ROUGH = 5  # decimals to which two lines must differ: readers reject a file with the same object twice
MOST_PIXELS = 1.0  # by which an outline's extent may differ from its box
THREADS = 8  # that read headers of images
ODD_ASPECT = "image with another aspect ratio than the annotation says, so boxes are wrong"
MOST_FRACTION = 0.1  # of the union of an outline's extent and its box that may lie outside one of the two


class Written(NamedTuple):
    """The file or folder that names the new data set, and how often each kind of change was made."""

    entry: Path
    changes: Counter


class _Target(NamedTuple):
    """A data set that is being written."""

    annotated: AnnotatedSet
    folder: Path
    images: str  # one of IMAGES
    boxes_only: bool
    changes: list[Fault]


def write_as(
    form: str, annotated: AnnotatedSet, folder: Path, images: str = "copy", boxes_only: bool = False, remarks: str = ""
) -> Written:
    """Write a data set into `folder`, which must be new or empty, in one of FORMATS. remarks: end of changes.txt."""
    folder = Path(os.path.abspath(folder))
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: name a new folder")
    with atomic_folder(folder) as build:
        target = _Target(annotated, build, images, boxes_only, check_files(annotated))
        entry = {"yolo": _write_yolo, "coco": _write_coco, "voc": _write_voc}[form](target)
        lines = [f"{change.place(annotated.line_word)}: {change.kind}: {change.text}" for change in target.changes]
        lines = [f"# {len(lines)} changes", *(printable(line.removesuffix(": ")) for line in lines), remarks]
        (build / "changes.txt").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return Written(folder / entry, Counter(change.kind for change in target.changes))


def write_training_files(annotated: AnnotatedSet, folder: Path) -> list[Fault]:
    """Write labels, and links to images, of a set that `check_files` has seen into an empty folder; return changes."""
    target = _Target(annotated, folder, "link", False, [])
    _write_yolo(target)
    return target.changes


def check_files(annotated: AnnotatedSet) -> list[Fault]:
    """Remove images from a set that training cannot use, and set the `size` of the others.

    Returns these images, the lines that cannot be read as they are, and doubtful sizes.
    """
    found = []
    samples, word = annotated.samples, annotated.line_word
    with ThreadPool(THREADS) as pool:
        checked = pool.map(check_pair, [sample.image for sample in samples], repeat(""))  # without labels
        bar = tqdm(
            zip(samples, checked), "checking images", len(samples), False, unit="img", disable=len(samples) < 500
        )
        for sample, image in bar:
            if image.labels is None:
                problem = image.problems[-1]
                found.append(Fault(f"image left out: {problem.kind}", sample.image, 0, problem.text))
                continue
            if fault := sample.unusable:
                found.append(fault._replace(kind=f"image left out: {fault.kind}"))
                continue
            sample.size, known = image.shape, set(sample.lines.tolist())
            for fault in sample.faults:
                verb = "rewritten" if fault.line in known else "removed"
                found.append(fault._replace(kind=f"{word} {verb}: {fault.kind}"))
            if sample.differs_in_aspect(sample.size):
                text = "{:g} x {:g} in the annotation, {} x {} in the file".format(*sample.frame, *sample.size)
                found.append(Fault(ODD_ASPECT, sample.image, 0, text))
    for split, own in annotated.splits.items():
        annotated.splits[split] = [sample for sample in own if sample.size[0]]
    return found


# --- YOLO lines -------------------------------------------------------------------------------------------------------


def label_lines(
    sample: Sample, nc: int, boxes_only: bool = False, size: Sequence[float] | None = None
) -> tuple[list[str], list[Fault]]:
    """(lines of a label file, what was changed).

    Lines are `class cx cy w h`, or `class x y x y ...` for all objects if any has an outline. Crowd regions, boxes
    without area, repeated objects and everything outside the image are left out or cut. size: (width, height) of the
    image, needed where the frame is (1, 1).
    """
    lines: list[str] = []
    changes: list[Fault] = []
    frame = np.array(sample.frame)
    polygons = not boxes_only and any(sample.outlines)
    width, height = sample.frame if size is None else size
    known = width > 1
    pixel = frame / (width, height) if known else np.array((0.002, 0.002))  # its sides in the frame
    seen = set()
    for k, (cls, box, rings) in enumerate(zip(sample.classes.tolist(), sample.boxes, sample.outlines)):
        path = corners(box)
        if polygons and rings:
            joined = join_rings(rings)
            if _agrees(joined, box, pixel):  # a line of fewer than four points is read as a box
                path = joined if len(joined) >= 4 else np.concatenate((joined, joined[: 4 - len(joined)]))
            else:
                changes.append(sample.changed(k, "outline replaced by its box, which it does not fit"))
        inside = np.clip(path / frame, 0, 1)
        low, high = inside.min(0), inside.max(0)
        sides = high - low
        key = (cls, *np.round((*(low + high) / 2, *sides), ROUGH).tolist())
        reason = ""
        if sample.crowd[k]:
            reason = "crowd region left out"
        elif cls >= nc:
            reason = "object of a class beyond nc left out"
        elif (box[2:] <= box[:2]).any():
            reason = "box without area left out"
        elif ((sides <= known * 0.5 * pixel / frame) & (sides < (box[2:] - box[:2]) / frame)).any():
            reason = "box outside the image left out"  # less than half a pixel is inside
        elif key in seen:
            reason = "object given twice, kept once"
        if reason:
            changes.append(sample.changed(k, reason, yolo_line(cls, path / frame, polygons)))
            continue
        seen.add(key)
        lines.append(yolo_line(cls, inside, polygons))
        if np.abs(inside * frame - path).max() > 1e-3 * pixel.max():
            before = yolo_line(cls, path / frame, polygons)
            changes.append(sample.changed(k, "box cut at the edge of the image", f"{before} -> {lines[-1]}"))
    return lines, changes


def yolo_line(cls: int, path: np.ndarray, polygon: bool) -> str:
    """`class x y x y ...` of a path (n, 2) in fractions of the image, or `class cx cy w h` of its extent."""
    low, high = path.min(0), path.max(0)
    values = path.ravel() if polygon else (*(low + high) / 2, *(high - low))
    return f"{cls} " + " ".join(f"{v:.8g}" for v in values)


def join_rings(rings: list[np.ndarray]) -> np.ndarray:
    """One closed path (n, 2) through all parts of an object, which are connected where they are nearest.

    The connecting lines run there and back, so the filled area and the extent stay those of the parts.
    """
    path = rings[0]
    for ring in rings[1:]:
        from scipy.spatial import KDTree  # slow to import, and few data sets have objects of several parts

        distances, nearest = KDTree(path).query(ring)
        j = int(distances.argmin())
        i = int(np.asarray(nearest)[j])
        path = np.concatenate((path[: i + 1], ring[j:], ring[: j + 1], path[i:]))
    return path


def corners(box: np.ndarray) -> np.ndarray:
    """The outline (4, 2) of a box left, top, right, bottom."""
    left, top, right, bottom = box
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float64)


def _agrees(path: np.ndarray, box: np.ndarray, pixel: np.ndarray) -> bool:
    """Whether the extent of a path (n, 2) is its box, up to a pixel or a tenth of their union. pixel: its sides."""
    own = np.concatenate((path.min(0), path.max(0)))
    if (np.abs(own - box) <= MOST_PIXELS * np.array((*pixel, *pixel))).all():
        return True
    low, high = np.maximum(own[:2], box[:2]), np.minimum(own[2:], box[2:])
    inside = np.prod(np.maximum(high - low, 0))
    union = np.prod(own[2:] - own[:2]) + np.prod(box[2:] - box[:2]) - inside
    return bool(union > 0 and inside / union >= 1 - MOST_FRACTION)


# --- images and objects -----------------------------------------------------------------------------------------------


def _placed(target: _Target, split: str, samples: list[Sample], folder: str, names=None) -> Iterator:
    """(sample, new name, size in pixels) of each image, after its file was put into `folder`."""
    names = names or unique_names([os.path.basename(sample.image) for sample in samples])
    place = target.folder / folder
    place.mkdir(parents=True, exist_ok=True)
    hidden = len(samples) < 200
    for sample, name in tqdm(zip(samples, names), f"writing {split}", len(samples), False, unit="img", disable=hidden):
        if name != os.path.basename(sample.image):
            target.changes.append(Fault("image renamed", sample.image, 0, name))
        if target.images == "copy":
            shutil.copyfile(sample.image, place / name)
        elif target.images == "link":
            link(sample.image, place / name)
        yield sample, name, sample.size


def _kept(sample: Sample, target: _Target, size: tuple[int, int]) -> Iterator[tuple[int, list[float], bool, list]]:
    """(class, box in pixels, crowd, rings in pixels) of each object with an area, clipped to the image."""
    scale = size[0] / sample.frame[0], size[1] / sample.frame[1]
    clipped = np.clip(sample.boxes * (scale * 2), 0, size * 2)
    objects = zip(sample.classes.tolist(), clipped.tolist(), sample.crowd.tolist(), sample.outlines)
    for k, (cls, box, crowd, rings) in enumerate(objects):
        beyond = cls >= len(target.annotated.names)
        if beyond or box[2] <= box[0] or box[3] <= box[1]:
            what = "object of a class beyond nc left out" if beyond else "box without area left out"
            target.changes.append(sample.changed(k, what))
            continue
        yield cls, [_round(v) for v in box], crowd, [ring * scale for ring in rings]


def _round(value: float) -> float:
    """Six decimals of a pixel; whole numbers become integers."""
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded


# --- formats ----------------------------------------------------------------------------------------------------------


def _write_yolo(target: _Target) -> str:
    """images/SPLIT, labels/SPLIT and data.yaml."""
    for split, samples in target.annotated.splits.items():
        labels = target.folder / "labels" / split
        labels.mkdir(parents=True)
        for sample, name, size in _placed(target, split, samples, f"images/{split}"):
            lines, changes = label_lines(sample, len(target.annotated.names), target.boxes_only, size)
            target.changes.extend(changes)
            if not sample.labelled:
                target.changes.append(Fault("empty label file added", sample.label_file, 0, ""))
            (labels / f"{os.path.splitext(name)[0]}.txt").write_text("".join(f"{line}\n" for line in lines))
    names = target.annotated.names
    values = {"path": ".", **{s: f"images/{s}" for s in target.annotated.splits}, "nc": len(names), "names": names}
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    (target.folder / "data.yaml").write_text(text, encoding="utf-8")
    return "data.yaml"


def _write_coco(target: _Target) -> str:
    """images/SPLIT and annotations/instances_SPLIT.json; ids count from 1."""
    categories = [{"id": i + 1, "name": name, "supercategory": ""} for i, name in enumerate(target.annotated.names)]
    (target.folder / "annotations").mkdir()
    for split, samples in target.annotated.splits.items():
        images, annotations = [], []
        for sample, name, size in _placed(target, split, samples, f"images/{split}"):
            images.append({"id": len(images) + 1, "file_name": name, "width": size[0], "height": size[1]})
            for cls, (left, top, right, bottom), crowd, rings in _kept(sample, target, size):
                w, h = _round(right - left), _round(bottom - top)
                item = {"id": len(annotations) + 1, "image_id": len(images), "category_id": cls + 1}
                following = [np.roll(ring, -1, 0) for ring in rings]  # the shoelace formula
                products = (a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0] for a, b in zip(rings, following))
                area = sum(abs(float(product.sum())) / 2 for product in products) or w * h
                item |= {"bbox": [left, top, w, h], "area": _round(area), "iscrowd": int(crowd)}
                flat = [] if target.boxes_only else [[_round(v) for v in ring.ravel().tolist()] for ring in rings]
                annotations.append({**item, "segmentation": flat})
        content = {"images": images, "annotations": annotations, "categories": categories}
        (target.folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content), encoding="utf-8")
    return "annotations"


def _write_voc(target: _Target) -> str:
    """JPEGImages, Annotations and ImageSets/Main; image names are unique over all splits, as VOC requires."""
    lists = target.folder / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (target.folder / "Annotations").mkdir()
    every = iter(unique_names([os.path.basename(sample.image) for sample in target.annotated.samples]))
    for split, samples in target.annotated.splits.items():
        names = [next(every) for _ in samples]
        stems = []
        for sample, name, size in _placed(target, split, samples, "JPEGImages", names):
            stems.append(os.path.splitext(name)[0])
            text = _voc_text(name, size, sample, target)
            (target.folder / "Annotations" / f"{stems[-1]}.xml").write_text(text, encoding="utf-8")
        (lists / f"{split}.txt").write_text("".join(f"{stem}\n" for stem in stems), encoding="utf-8")
    return "Annotations"


def _voc_text(name: str, size: tuple[int, int], sample: Sample, target: _Target) -> str:
    parts = [f"<annotation>\n  <folder>JPEGImages</folder>\n  <filename>{escape(name)}</filename>\n"]
    parts.append(f"  <size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>\n")
    for cls, (left, top, right, bottom), crowd, rings in _kept(sample, target, size):
        if crowd or rings:
            what = "crowd region left out" if crowd else "outline written as a box"
            target.changes.append(Fault(what, sample.label_file, 0, ""))
        if crowd:
            continue
        sides = (("xmin", left + 1), ("ymin", top + 1), ("xmax", right), ("ymax", bottom))  # pixels count from 1
        box = "".join(f"<{side}>{_round(value)}</{side}>" for side, value in sides)
        kind = escape("".join(c if c.isprintable() else "_" for c in target.annotated.names[cls]))
        parts.append(f"  <object>\n    <name>{kind}</name>\n    <difficult>0</difficult>\n    <bndbox>{box}</bndbox>\n")
        parts.append("  </object>\n")
    return "".join(parts) + "</annotation>\n"
