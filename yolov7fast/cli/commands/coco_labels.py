"""Make YOLO label files from a COCO instances file.

    python tools/coco_labels.py coco/annotations/instances_val2017.json coco/labels/val2017

One text file per image with objects, one line per object: class, then a polygon as fractions of the image (or, with
--boxes, centre and size of the box). Classes are numbered in the order of the category ids: COCO's 90 ids with gaps
become 0..79. Crowd regions are left out, as everywhere in training. Images in several folders have their labels in
folders of the same names; a folder that all of them share is left out.
"""

import math
import os
from collections import defaultdict
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

import numpy as np
from tqdm import tqdm

from yolov7fast.cli.programs import program
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import atomic_folder
from yolov7fast.core.text import printable
from yolov7fast.data.formats.coco_format import load_annotations
from yolov7fast.data.formats.write_dataset import corners, join_rings, with_four_points

LARGEST_SIDE = 10**7  # pixels; more is a damaged file


def convert(annotations: Path, folder: Path, boxes: bool = False) -> tuple[int, int]:
    """Write the label files into `folder` (all or nothing); returns numbers of files and of rows."""
    content = load_annotations(annotations)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder: remove it first, or name another one")
    classes = {category: i for i, category in enumerate(sorted({c["id"] for c in content["categories"]}))}
    images = {image["id"]: image for image in content["images"]}
    if len(images) < len(content["images"]):
        raise UserError(f"{annotations}: {len(content['images']) - len(images)} images have the id of another image")
    names = label_names(list(images.values()), annotations)
    by_image = defaultdict(list)
    for number, item in enumerate(content["annotations"], 1):
        place = f"{annotations}: annotation {number}"
        if not isinstance(item, dict):
            raise UserError(f"{place} is not an object")
        if item.get("iscrowd"):
            continue
        image_id, category = item.get("image_id"), item.get("category_id")
        if not isinstance(image_id, int | str) or image_id not in images:
            raise UserError(f"{place}: image_id {printable(repr(image_id), 60)} is not among the images")
        if not isinstance(category, int) or category not in classes:
            raise UserError(f"{place}: category_id {printable(repr(category), 60)} is not among the categories")
        by_image[image_id].append((place, classes[category], item))
    files = total = 0
    with atomic_folder(folder) as build:
        for image_id, items in tqdm(by_image.items(), desc=f"labels {folder.name}", unit="img"):
            size = image_size(images[image_id], annotations)
            rows: dict[tuple, str] = {}  # an object annotated twice would make readers reject the whole file
            for place, cls, item in items:
                if row := label_row(item, cls, size, boxes, place):
                    rows.setdefault(*row)
            if rows:
                target = build / names[image_id]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text("\n".join(rows.values()) + "\n")
                files, total = files + 1, total + len(rows)
    return files, total


def label_names(images: list[dict[str, Any]], annotations: Path) -> dict[Any, str]:
    """The label file of each image, by its id: the path of its `file_name` without the folders that all share."""
    paths = {}
    for image in images:
        path = PurePosixPath(image["file_name"].replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or not path.name or "\0" in image["file_name"]:
            name = printable(image["file_name"], 100)
            raise UserError(f"{annotations}: image {image['id']}: file_name {name!r} leads out of the label folder")
        paths[image["id"]] = path
    folders = {str(path.parent) for path in paths.values()}
    shared = os.path.commonpath(folders) if folders else "."
    names, owners = {}, {}
    for image_id, path in paths.items():
        name = str(path.relative_to(shared).with_suffix(".txt"))
        other = owners.setdefault(name.lower(), path)
        if other is not path:
            raise UserError(
                f"{annotations}: {printable(other, 100)} and {printable(path, 100)} would have one label file, {name}; "
                "rename one of the images"
            )
        names[image_id] = name
    return names


def image_size(image: dict[str, Any], annotations: Path) -> tuple[float, float]:
    """(width, height) of an image as its entry says."""
    width, height = image.get("width"), image.get("height")
    if is_side(width) and is_side(height):
        return float(width), float(height)
    shown = printable(f"{width!r} x {height!r}", 60)
    raise UserError(f"{annotations}: image {printable(image['file_name'], 100)}: {shown} pixels is not a size")


def is_side(value: Any) -> TypeGuard[float]:
    return is_finite(value) and 0 < value <= LARGEST_SIDE


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether this is a finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def box_of(item: dict[str, Any], place: str) -> np.ndarray:
    """(4,) left, top, right, bottom of an annotation in pixels."""
    box = item.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(is_finite(v) for v in box):
        raise UserError(f"{place}: bbox {printable(repr(box), 80)} is not four finite numbers x, y, width, height")
    x, y, w, h = map(float, box)
    return np.array((x, y, x + w, y + h))


def polygon_of(item: dict[str, Any], place: str) -> np.ndarray:
    """Outline (n >= 4, 2) of an annotation in pixels; its box where it has no polygon."""
    parts = item.get("segmentation")
    rings = []
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, list) or len(part) % 2 or not all(is_finite(v) for v in part):
            raise UserError(
                f"{place}: segmentation {printable(repr(part), 60)} is not a list of finite x, y, x, y, ..."
            )
        if len(part) >= 6:
            rings.append(np.array(part, np.float64).reshape(-1, 2))
    return with_four_points(join_rings(rings)) if rings else corners(box_of(item, place))


def label_row(
    item: dict[str, Any], cls: int, size: tuple[float, float], boxes: bool, place: str
) -> tuple[tuple, str] | None:
    """(what makes the row unique, its text), or None for an object without area."""
    points = box_of(item, place).reshape(2, 2) if boxes else polygon_of(item, place)
    points = np.clip(points / size, 0, 1)
    (left, top), (right, bottom) = points.min(0), points.max(0)
    if right <= left or bottom <= top:
        return None
    box = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
    values = box if boxes else points.ravel()
    return (cls, *(round(float(v), 5) for v in box)), f"{cls} " + " ".join(f"{v:.6f}" for v in values)


def main() -> None:
    parser = program("coco-labels").parser(__doc__)
    parser.add_argument("annotations", type=Path, help="instances_*.json")
    parser.add_argument("folder", type=Path, help="folder for the label files, new or empty")
    parser.add_argument("--boxes", action="store_true", help="boxes instead of polygons (paste-in then has no effect)")
    opt = parser.parse_args()
    files, rows = convert(opt.annotations, opt.folder, opt.boxes)
    print(f"{opt.folder}: {rows} labels in {files} files")
