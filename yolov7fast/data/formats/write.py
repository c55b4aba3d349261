"""Data sets written as YOLO, COCO JSON or Pascal VOC: into a new folder, complete or not at all."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import yaml
from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_folder
from yolov7fast.data.formats.files import link
from yolov7fast.data.formats.label_lines import label_lines
from yolov7fast.data.formats.names import unique_names
from yolov7fast.data.formats.samples import AnnotatedSet, Sample
from yolov7fast.data.image_io import image_size

IMAGES = ("copy", "link", "none")  # what becomes of the image files
FORMATS = ("yolo", "coco", "voc")


class Written(NamedTuple):
    """What a writer did: the file that names the new data set, and what it left out or changed."""

    entry: Path
    changes: Counter


class _Target(NamedTuple):
    """A data set on its way into a folder."""

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


def _placed(target: _Target, split: str, samples: list[Sample], folder: str, names=None) -> Iterator:
    """(sample, new name, size in pixels) of each image that exists, its file put into `folder`."""
    names = names or unique_names([os.path.basename(sample.image) for sample in samples])
    place = target.folder / folder
    place.mkdir(parents=True, exist_ok=True)
    bar = tqdm(
        zip(samples, names), f"writing {split}", len(samples), unit="img", leave=False, disable=len(samples) < 200
    )
    for sample, name in bar:
        if sample.unusable:
            target.changes["images left out whose annotations cannot be used"] += 1
            continue
        size = image_size(sample.image)
        if size is None:
            target.changes["images left out that are missing or cannot be read"] += 1
            continue
        if target.images == "copy":
            shutil.copyfile(sample.image, place / name)
        elif target.images == "link":
            link(sample.image, place / name)
        yield sample, name, size


def _kept(sample: Sample, target: _Target, size: tuple[int, int]) -> Iterator[tuple[int, list[float], bool, list]]:
    """(class, box in pixels, crowd, rings in pixels) of each object with an area, cut at the image's edge."""
    scale = size[0] / sample.frame[0], size[1] / sample.frame[1]
    for cls, box, crowd, rings in zip(sample.classes.tolist(), sample.boxes, sample.crowd.tolist(), sample.outlines):
        left, right = sorted(min(max(float(x) * scale[0], 0.0), size[0]) for x in (box[0], box[2]))
        top, bottom = sorted(min(max(float(y) * scale[1], 0.0), size[1]) for y in (box[1], box[3]))
        if right <= left or bottom <= top or box[2] <= box[0] or box[3] <= box[1]:
            target.changes["boxes without area left out"] += 1
            continue
        yield cls, [_round(v) for v in (left, top, right, bottom)], crowd, [ring * scale for ring in rings]


def _round(value: float) -> float:
    """Six decimals of a pixel; whole numbers stay whole."""
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded


# --- the formats ------------------------------------------------------------------------------------------------------


def _write_yolo(target: _Target) -> str:
    """images/SPLIT, labels/SPLIT and data.yaml."""
    for split, samples in target.annotated.splits.items():
        labels = target.folder / "labels" / split
        labels.mkdir(parents=True)
        for sample, name, size in _placed(target, split, samples, f"images/{split}"):
            lines = label_lines(sample, target.changes, target.boxes_only, size)
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
                item |= {"bbox": [left, top, w, h], "area": _round(_area(rings) or w * h), "iscrowd": int(crowd)}
                flat = [] if target.boxes_only else [[_round(v) for v in ring.ravel().tolist()] for ring in rings]
                annotations.append({**item, "segmentation": flat})
        content = {"images": images, "annotations": annotations, "categories": categories}
        (target.folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content), encoding="utf-8")
    return "annotations"


def _area(rings: list) -> float:
    """Area of the parts of an outline, each by the shoelace formula."""
    total = 0.0
    for ring in rings:
        x, y = ring[:, 0], ring[:, 1]
        total += abs(float((x * _next(y) - y * _next(x)).sum())) / 2
    return total


def _next(values):
    return values.take(range(1, len(values) + 1), mode="wrap")


def _write_voc(target: _Target) -> str:
    """JPEGImages, Annotations and ImageSets/Main; image names are unique over all splits, as VOC needs them."""
    lists = target.folder / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (target.folder / "Annotations").mkdir()
    every = unique_names([os.path.basename(sample.image) for sample in target.annotated.samples])
    start = 0
    for split, samples in target.annotated.splits.items():
        names = every[start : start + len(samples)]
        start += len(samples)
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
            target.changes["crowd regions left out"] += 1
            continue
        if rings:
            target.changes["outlines written as boxes"] += 1
        sides = (("xmin", left + 1), ("ymin", top + 1), ("xmax", right), ("ymax", bottom))  # pixels count from 1
        box = "".join(f"<{side}>{_round(value)}</{side}>" for side, value in sides)
        kind = escape(_xml_text(target.annotated.names[cls]))
        parts.append(f"  <object>\n    <name>{kind}</name>\n    <difficult>0</difficult>\n    <bndbox>{box}</bndbox>\n")
        parts.append("  </object>\n")
    return "".join(parts) + "</annotation>\n"


def _xml_text(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c if c.isprintable() else "_" for c in text)
