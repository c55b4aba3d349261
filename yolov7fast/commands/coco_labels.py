"""Make YOLO label files from a COCO instances file.

    python tools/coco_labels.py coco/annotations/instances_val2017.json coco/labels/val2017

One text file per image with objects, one line per object: class, then a polygon as fractions of the image (or, with
--boxes, centre and size of the box). Classes are numbered in the order of the category ids: COCO's 90 ids with gaps
become 0..79. Crowd regions are left out, as everywhere in training.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
from tqdm import tqdm

from yolov7fast.core.atomic import atomic_folder
from yolov7fast.core.errors import UserError
from yolov7fast.data.formats.outline import corners, join_rings, with_four_points


def polygon_of(item: dict) -> np.ndarray:
    """Outline (n >= 4, 2) of an annotation in pixels; its box where it has no polygon."""
    parts = item.get("segmentation")
    rings = [np.array(p, float).reshape(-1, 2) for p in parts if len(p) >= 6] if isinstance(parts, list) else []
    if not rings:
        x, y, w, h = item["bbox"]
        return corners(np.array((x, y, x + w, y + h), float))
    return with_four_points(join_rings(rings))


def label_row(item: dict, cls: int, width: int, height: int, boxes: bool) -> tuple[tuple, str] | None:
    """(what makes the row unique, its text), or None for an object without area."""
    if boxes:
        x, y, w, h = item["bbox"]
        points = np.array([(x, y), (x + w, y + h)], float)
    else:
        points = polygon_of(item)
    points = np.clip(points / (width, height), 0, 1)
    (left, top), (right, bottom) = points.min(0), points.max(0)
    if right <= left or bottom <= top:
        return None
    box = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
    values = box if boxes else points.ravel()
    return (cls, *(round(float(v), 5) for v in box)), f"{cls} " + " ".join(f"{v:.6f}" for v in values)


def convert(annotations: Path, folder: Path, boxes: bool = False) -> tuple[int, int]:
    """Write the label files into `folder` (all or nothing); returns numbers of files and of rows."""
    try:
        content = json.loads(annotations.read_text())
        classes = {c["id"]: i for i, c in enumerate(sorted(content["categories"], key=lambda c: c["id"]))}
        images = {image["id"]: image for image in content["images"]}
        by_image = defaultdict(list)
        for item in content["annotations"]:
            if not item.get("iscrowd"):
                by_image[item["image_id"]].append(item)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{annotations} is not a readable COCO instances file ({error!r})") from error
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: remove it first, or name another folder")
    files = total = 0
    with atomic_folder(folder) as build:
        for image_id, items in tqdm(by_image.items(), desc=f"labels {folder.name}", unit="img"):
            image = images[image_id]
            rows = {}  # an object annotated twice would make readers reject the whole file
            for item in items:
                if row := label_row(item, classes[item["category_id"]], image["width"], image["height"], boxes):
                    rows.setdefault(*row)
            if rows:
                (build / f"{Path(image['file_name']).stem}.txt").write_text("\n".join(rows.values()) + "\n")
                files, total = files + 1, total + len(rows)
    return files, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("annotations", type=Path, help="instances_*.json")
    parser.add_argument("folder", type=Path, help="folder for the label files, new or empty")
    parser.add_argument("--boxes", action="store_true", help="boxes instead of polygons (paste-in then has no effect)")
    opt = parser.parse_args()
    files, rows = convert(opt.annotations, opt.folder, opt.boxes)
    print(f"{opt.folder}: {rows} labels in {files} files")
