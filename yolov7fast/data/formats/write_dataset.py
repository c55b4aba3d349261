"""Data sets written as YOLO, COCO JSON or Pascal VOC into a new folder, complete or not at all."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import yaml
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_folder
from yolov7fast.data.formats.annotated_set import AnnotatedSet, Sample
from yolov7fast.data.formats.dataset_files import link, unique_names
from yolov7fast.data.image_io import image_size

IMAGES = ("copy", "link", "none")  # what happens to the image files
FORMATS = ("yolo", "coco", "voc")
ROUGH = 5  # decimals to which two lines must differ: readers reject a file with the same object twice
MOST_PIXELS = 1.0  # by which an outline's extent may differ from its box
MOST_FRACTION = 0.1  # of the union of an outline's extent and its box that may lie outside one of the two


class Written(NamedTuple):
    """The file or folder that names the new data set, and counts of what was left out or changed."""

    entry: Path
    changes: Counter


class _Target(NamedTuple):
    """A data set that is being written."""

    annotated: AnnotatedSet
    folder: Path
    images: str  # one of IMAGES
    boxes_only: bool
    changes: Counter


def write_as(
    form: str, annotated: AnnotatedSet, folder: Path, images: str = "copy", boxes_only: bool = False
) -> Written:
    """Write a data set into `folder`, which must be new or empty, in one of FORMATS."""
    folder = Path(os.path.abspath(folder))
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: name a new folder")
    with atomic_folder(folder) as build:
        target = _Target(annotated, build, images, boxes_only, Counter())
        entry = {"yolo": _write_yolo, "coco": _write_coco, "voc": _write_voc}[form](target)
    return Written(folder / entry, target.changes)


def yolo_yaml(annotated: AnnotatedSet) -> str:
    """The text of a data.yaml for a folder with images/SPLIT and labels/SPLIT."""
    names = annotated.names
    values = {"path": ".", **{s: f"images/{s}" for s in annotated.splits}, "nc": len(names), "names": names}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


# --- YOLO lines -------------------------------------------------------------------------------------------------------


def label_lines(sample: Sample, nc: int, changes: Counter, boxes_only: bool = False, size=None) -> list[str]:
    """The lines of a label file, with what was changed counted in `changes`; see `label_rows`."""
    rows = list(label_rows(sample, nc, boxes_only, size))
    changes.update(what for _, _, made in rows for what in made)
    return [line for _, line, _ in rows if line]


def label_rows(
    sample: Sample, nc: int, boxes_only: bool = False, size: Sequence[float] | None = None
) -> Iterator[tuple[int, str, list[str]]]:
    """(position, line, changes) of each object; the line is empty if the object is left out.

    Lines are `class cx cy w h`, or `class x y x y ...` for all objects if any has an outline. Crowd regions, boxes
    without area, repeated objects and everything outside the image are left out or cut. size: (width, height) of the
    image, needed where the frame is (1, 1).
    """
    frame = np.array(sample.frame)
    polygons = not boxes_only and any(sample.outlines)
    width, height = sample.frame if size is None else size
    known = width > 1
    pixel = frame / (width, height) if known else np.array((0.002, 0.002))  # its sides in the frame
    seen = set()
    for k, (cls, box, rings) in enumerate(zip(sample.classes.tolist(), sample.boxes, sample.outlines)):
        path, made = corners(box), []
        if polygons and rings:
            joined = join_rings(rings)
            if _agrees(joined, box, pixel):
                path = with_four_points(joined)
            else:
                made.append("outline replaced by its box, which it does not fit")
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
            yield k, "", [reason]
            continue
        seen.add(key)
        if np.abs(inside * frame - path).max() > 1e-3 * pixel.max():
            made.append("box cut at the edge of the image")
        yield k, yolo_line(cls, inside, polygons), made


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


def with_four_points(path: np.ndarray) -> np.ndarray:
    """The path with at least four points, below which readers take a line for a box: a triangle's first is repeated."""
    return path if len(path) >= 4 else np.concatenate((path, path[: 4 - len(path)]))


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
    """(sample, new name, size in pixels) of each image that exists, after its file was put into `folder`."""
    names = names or unique_names([os.path.basename(sample.image) for sample in samples])
    place = target.folder / folder
    place.mkdir(parents=True, exist_ok=True)
    hidden = len(samples) < 200
    for sample, name in tqdm(zip(samples, names), f"writing {split}", len(samples), False, unit="img", disable=hidden):
        size = None if sample.unusable else image_size(sample.image)
        if size is None:
            reason = "its annotations cannot be used" if sample.unusable else "it is missing or cannot be read"
            target.changes[f"image left out: {reason}"] += 1
            continue
        if target.images == "copy":
            shutil.copyfile(sample.image, place / name)
        elif target.images == "link":
            link(sample.image, place / name)
        yield sample, name, size


def _kept(sample: Sample, target: _Target, size: tuple[int, int]) -> Iterator[tuple[int, list[float], bool, list]]:
    """(class, box in pixels, crowd, rings in pixels) of each object with an area, clipped to the image."""
    scale = size[0] / sample.frame[0], size[1] / sample.frame[1]
    clipped = np.clip(sample.boxes * (scale * 2), 0, size * 2)
    crowds = sample.crowd.tolist()
    for cls, box, crowd, rings in zip(sample.classes.tolist(), clipped.tolist(), crowds, sample.outlines):
        beyond = cls >= len(target.annotated.names)
        if beyond or box[2] <= box[0] or box[3] <= box[1]:
            what = "object of a class beyond nc" if beyond else "box without area"
            target.changes[f"{what} left out"] += 1
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
            lines = label_lines(sample, len(target.annotated.names), target.changes, target.boxes_only, size)
            (labels / f"{os.path.splitext(name)[0]}.txt").write_text("".join(f"{line}\n" for line in lines))
    (target.folder / "data.yaml").write_text(yolo_yaml(target.annotated), encoding="utf-8")
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
                item |= {"bbox": [left, top, w, h], "area": _round(_area(rings) or w * h), "iscrowd": int(crowd)}
                flat = [] if target.boxes_only else [[_round(v) for v in ring.ravel().tolist()] for ring in rings]
                annotations.append({**item, "segmentation": flat})
        content = {"images": images, "annotations": annotations, "categories": categories}
        (target.folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content), encoding="utf-8")
    return "annotations"


def _area(rings: list[np.ndarray]) -> float:
    """The sum of the areas of rings (n, 2), by the shoelace formula."""
    following = [np.roll(ring, -1, 0) for ring in rings]
    return sum(abs(float((a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]).sum())) / 2 for a, b in zip(rings, following))


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
            text = _voc_text(name, size, list(_kept(sample, target, size)), target)
            (target.folder / "Annotations" / f"{stems[-1]}.xml").write_text(text, encoding="utf-8")
        (lists / f"{split}.txt").write_text("".join(f"{stem}\n" for stem in stems), encoding="utf-8")
    return "Annotations"


def _voc_text(name: str, size: tuple[int, int], objects: list, target: _Target) -> str:
    parts = [f"<annotation>\n  <folder>JPEGImages</folder>\n  <filename>{escape(name)}</filename>\n"]
    parts.append(f"  <size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>\n")
    for cls, (left, top, right, bottom), crowd, rings in objects:
        if crowd:
            target.changes["crowd region left out"] += 1
            continue
        if rings:
            target.changes["outline written as a box"] += 1
        sides = (("xmin", left + 1), ("ymin", top + 1), ("xmax", right), ("ymax", bottom))  # pixels count from 1
        box = "".join(f"<{side}>{_round(value)}</{side}>" for side, value in sides)
        kind = escape("".join(c if c.isprintable() else "_" for c in target.annotated.names[cls]))
        parts.append(f"  <object>\n    <name>{kind}</name>\n    <difficult>0</difficult>\n    <bndbox>{box}</bndbox>\n")
        parts.append("  </object>\n")
    return "".join(parts) + "</annotation>\n"
