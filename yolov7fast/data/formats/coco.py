"""COCO JSON: `annotations/instances_*.json`, Roboflow's `train/_annotations.coco.json`, or one file with its images.

Categories are numbered densely in the order of their ids. Polygons and run-length masks are kept as outlines; crowd
regions are marked, so that training leaves them out, as COCO's own tools do.
"""

import json
import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import cv2
import numpy as np
from tqdm import tqdm

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.settings_files import is_number, is_whole
from yolov7fast.core.text import printable
from yolov7fast.data.formats.files import ImageFinder
from yolov7fast.data.formats.samples import AnnotatedSet, Fault, Sample, split_of
from yolov7fast.data.image_io import image_size

KIND = "COCO JSON"
FOLDERS = ("annotations", "Annotations")
PEEK = 1 << 16  # bytes in which a COCO file shows one of its lists
FARTHEST = 1e9  # pixels from the corner of an image
LARGEST_MASK = 1 << 28  # pixels; more is a damaged or hostile size


class Layout(NamedTuple):
    """Where the files of a COCO data set lie."""

    root: Path
    splits: dict[str, Path]  # JSON files
    evidence: str


def find(root: Path) -> Layout | None:
    """The layout below `root`, or None. Two files for one split are an error that names them."""
    for name in FOLDERS:
        files = sorted(path for path in (root / name).glob("*.json") if looks_like_coco(path))
        instances = [path for path in files if path.stem.startswith("instances")]
        if files:
            return _layout(root, instances or files, f"{name}/{'instances_' if instances else ''}*.json")
    files = sorted(p for p in root.glob("*/*.json") if split_of(p.parent.name) and looks_like_coco(p))
    if files:
        return _layout(root, files, f"{', '.join(p.parent.name for p in files)}/{files[0].name}")
    files = sorted(p for p in root.glob("*.json") if looks_like_coco(p))
    return _layout(root, files, ", ".join(p.name for p in files)) if files else None


def of_file(path: Path) -> Layout:
    """The layout of one annotation file: `annotations/x.json` belongs to the folder above."""
    root = path.parent.parent if path.parent.name in FOLDERS else path.parent
    return Layout(root, {split_of(path.stem) or "train": path}, path.name)


def _layout(root: Path, files: list[Path], evidence: str) -> Layout:
    splits: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        split = split_of(path.stem) or split_of(path.parent.name)
        if split is None and len(files) > 1:
            names = ", ".join(str(p.relative_to(root)) for p in files)
            raise UserError(f"{root}: which of {names} is for training? Name one: --data {files[0]}")
        splits[split or "train"].append(path)
    for split, paths in splits.items():
        if len(paths) > 1:
            raise UserError(
                f"{root}: {len(paths)} annotation files for {split}: {', '.join(p.name for p in paths)}; "
                f"give one of them (--data {paths[0]}), or move the others elsewhere"
            )
    order = [split for split in ("train", "val", "test") if split in splits]
    return Layout(root, {split: splits[split][0] for split in order}, evidence)


def looks_like_coco(path: Path) -> bool:
    """Whether the beginning of a JSON file shows a list that COCO files have."""
    if not path.is_file():
        return False
    try:
        with open(path, "rb") as file:
            head = file.read(PEEK)
    except OSError:
        return False
    return bool(re.search(rb'"(images|annotations|categories|licenses)"\s*:\s*\[|"info"\s*:\s*\{', head))


def read(layout: Layout) -> AnnotatedSet:
    """All samples of all splits; the splits' categories must agree."""
    contents = {split: load_annotations(path) for split, path in layout.splits.items()}
    named: dict[int, str] = {}
    for split, content in contents.items():
        for category in content["categories"]:
            before = named.setdefault(category["id"], category["name"])
            if before != category["name"]:
                raise UserError(
                    f"{layout.splits[split]}: category {category['id']} is {category['name']!r}, "
                    f"but {before!r} in another annotation file; make the files agree"
                )
    ids = sorted(named)
    dense = {category: i for i, category in enumerate(ids)}
    finder = ImageFinder(layout.root, (".", "images"))
    splits = {split: _samples(content, layout.splits[split], dense, finder) for split, content in contents.items()}
    notes = [] if ids == list(range(len(ids))) else [f"category ids -> classes: {_mapping_text(ids, named)}"]
    crowds = sum(int(s.crowd.sum()) for samples in splits.values() for s in samples)
    if crowds:
        notes.append(f"{crowds} crowd regions are left out of the training labels")
    return AnnotatedSet(KIND, layout.root, [named[i] for i in ids], splits, notes, line_word="annotation")


def _mapping_text(ids: list[int], named: dict[int, str]) -> str:
    """'1-11 -> 0-10, 13 -> 11': runs of consecutive ids."""
    runs: list[list[int]] = []  # first id, last id, first class
    for i, category in enumerate(ids):
        if runs and category == runs[-1][1] + 1:
            runs[-1][1] = category
        else:
            runs.append([category, category, i])

    def run(first: int, last: int) -> str:
        return str(first) if first == last else f"{first}-{last}"

    if len(ids) <= 10:
        return ", ".join(f"{category} ({printable(named[category], 30)}) -> {i}" for i, category in enumerate(ids))
    return ", ".join(f"{run(a, b)} -> {run(c, c + b - a)}" for a, b, c in runs)


def load_annotations(path: Path) -> dict[str, Any]:
    """The content of an annotation file with its three lists checked; a UserError says what is wrong."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not readable as JSON ({printable(error, 200)})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no COCO data set: the file must be one object with images and annotations")
    for key, wanted in (("images", ("id", "file_name")), ("categories", ("id", "name"))):
        entries = content.get(key)
        if not isinstance(entries, list) or not all(isinstance(e, dict) and e.keys() >= set(wanted) for e in entries):
            raise UserError(f"{path} needs '{key}', a list of objects with {' and '.join(wanted)}")
    if not isinstance(content.setdefault("annotations", []), list):
        raise UserError(f"{path}: 'annotations' must be a list")
    if not all(isinstance(c["id"], int) and isinstance(c["name"], str) for c in content["categories"]):
        raise UserError(f"{path}: categories need whole numbers as id and text as name")
    if not all(isinstance(i["id"], int | str) and isinstance(i["file_name"], str) for i in content["images"]):
        raise UserError(f"{path}: images need an id and text as file_name")
    return content


def _samples(content: dict[str, Any], path: Path, dense: dict[int, int], finder: ImageFinder) -> list[Sample]:
    by_image: dict[Any, list] = defaultdict(list)
    known = {image["id"] for image in content["images"]}
    lost = []
    for i, item in enumerate(content["annotations"]):
        values: dict[str, Any] = item if isinstance(item, dict) else {}
        image_id, own = values.get("image_id"), values.get("id")
        place = int(own) if own is not None and is_whole(own, 0, 1 << 62) else i + 1
        if isinstance(image_id, int | str) and image_id in known:
            by_image[image_id].append((place, item))
        else:
            lost.append(
                Fault("label without image", str(path), place, f"image_id {shown(image_id)} is not in the file")
            )
    beside = _image_folder(content["images"], path, finder)
    samples = [
        _sample(image, by_image[image["id"]], path, dense, finder, beside)
        for image in tqdm(content["images"], f"reading {path.name}", leave=False, disable=len(known) < 5000)
    ]
    times = Counter(image["id"] for image in content["images"])
    for sample, image in zip(samples, content["images"]):
        if times[image["id"]] > 1:
            text = (
                f"{times[image['id']]} images have the id {shown(image['id'])}: which annotations are whose is unknown"
            )
            sample.faults.append(Fault("image id given twice", str(path), 0, f"{printable(sample.name, 200)}: {text}"))
    if samples:
        samples[0].faults += lost
    return samples


def _image_folder(images: list[dict], path: Path, finder: ImageFinder) -> Path:
    """The folder that holds this file's images: beside it, or one named like it (instances_train2017: train2017)."""
    stem = path.stem.removeprefix("instances_")
    names = [stem, f"images/{stem}"]
    split = split_of(path.stem) or split_of(path.parent.name)
    if split:
        names += [f"{base}{name}" for base in ("", "images/") for name in (split, "valid" if split == "val" else split)]
    folders = [path.parent, *(finder.root / name for name in names)]
    firsts = [image["file_name"] for image in images[:20]]

    def present(folder: Path) -> int:
        return sum(os.path.isfile(folder / name) for name in firsts if not Path(name).is_absolute())

    return max(folders, key=present) if firsts else path.parent


def _sample(image: dict, items: list, path: Path, dense: dict, finder: ImageFinder, beside: Path) -> Sample:
    file = finder.find(image["file_name"], beside=beside)
    width, height = image.get("width"), image.get("height")
    said = (width, height) if _is_side(width) and _is_side(height) else image_size(file) or (1.0, 1.0)
    sample = Sample(str(file), finder.name_of(file), said, str(path))
    classes, boxes, crowd, lines, rings = [], [], [], [], []
    for place, item in items:
        box = item.get("bbox")
        if not (isinstance(box, list) and len(box) == 4 and all(_is_number(v) for v in box)):
            sample.faults.append(Fault("not a number", str(path), place, f"bbox {shown(box)} is not [x, y, w, h]"))
        elif not all(is_number(v, -FARTHEST, FARTHEST) for v in box):
            sample.faults.append(Fault("not finite", str(path), place, f"bbox {shown(box)}"))
        elif not isinstance(item.get("category_id"), int) or item["category_id"] not in dense:
            text = f"category_id {shown(item.get('category_id'))} is not among the categories"
            sample.faults.append(Fault("bad class", str(path), place, text))
        else:
            classes.append(dense[item["category_id"]])
            boxes.append([box[0], box[1], box[0] + box[2], box[1] + box[3]])
            crowd.append(bool(item.get("iscrowd")))
            lines.append(place)
            rings.append(outlines(item.get("segmentation")))
    sample.classes, sample.crowd = np.array(classes, np.int64), np.array(crowd, bool)
    sample.boxes, sample.lines = np.array(boxes, np.float64).reshape(-1, 4), np.array(lines, np.int64)
    sample.rings = rings if any(rings) else []
    return sample


def _is_side(value: Any) -> TypeGuard[float]:
    return _is_number(value) and 0 < value < 1e6


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- masks ------------------------------------------------------------------------------------------------------------


def outlines(segmentation: Any) -> list[np.ndarray]:
    """Rings (k, 2) in pixels of a polygon list or a run-length mask; none where it cannot be read."""
    if isinstance(segmentation, list):
        parts = [p for p in segmentation if isinstance(p, list) and len(p) >= 6 and len(p) % 2 == 0]
        known = [p for p in parts if all(is_number(v, -FARTHEST, FARTHEST) for v in p)]
        return [np.array(p, np.float64).reshape(-1, 2) for p in known]
    if isinstance(segmentation, dict):
        mask = decode_rle(segmentation)
        if mask is not None:
            found, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
            return [_around(contour.reshape(-1, 2)) for contour in found]
    return []


def _around(contour: np.ndarray) -> np.ndarray:
    """A contour through pixel centres, moved out to the edges of the pixels it runs through."""
    points = contour.astype(np.float64)
    middle = (points.min(0) + points.max(0)) / 2
    ring = points + (points > middle)
    if len(ring) >= 3 and (np.ptp(ring, axis=0) > 0).all():
        return ring
    (left, top), (right, bottom) = points.min(0), points.max(0) + 1  # a dot or a line of pixels
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


def decode_rle(segmentation: dict) -> np.ndarray | None:
    """uint8 (h, w) mask of COCO's run lengths, plain or packed; None where they are damaged."""
    size, counts = segmentation.get("size"), segmentation.get("counts")
    if not (isinstance(size, list) and len(size) == 2 and all(isinstance(s, int) and s > 0 for s in size)):
        return None
    h, w = size
    if h * w > LARGEST_MASK:
        return None
    if isinstance(counts, str | bytes):
        counts = _unpack_counts(counts.encode("latin1", "replace") if isinstance(counts, str) else counts)
    if not isinstance(counts, list) or not all(isinstance(c, int) and c >= 0 for c in counts) or sum(counts) != h * w:
        return None
    values = np.arange(len(counts)) % 2
    return np.repeat(values.astype(np.uint8), counts).reshape(w, h).T.copy()


def _unpack_counts(packed: bytes) -> list[int] | None:
    """COCO's packed run lengths: six bits a character; from the fourth count on, relative to the one two before."""
    counts: list[int] = []
    position = 0
    while position < len(packed):
        value, shift = 0, 0
        while True:
            if position >= len(packed) or shift > 60:
                return None
            bits = packed[position] - 48
            position += 1
            value |= (bits & 0x1F) << shift
            shift += 5
            if not bits & 0x20:
                if bits & 0x10:
                    value -= 1 << shift
                break
        counts.append(value + counts[-2] if len(counts) > 2 else value)
    return counts
