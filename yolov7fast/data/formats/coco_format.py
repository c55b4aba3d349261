"""COCO JSON: `annotations/instances_*.json`, Roboflow's `train/_annotations.coco.json`, or one file with its images.

Categories become classes 0, 1, ... in the order of their ids. Polygons are kept as outlines, run-length masks are read
as their boxes; crowd regions are marked, and training leaves them out, as COCO's own tools do.
"""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.paths import is_file
from yolov7fast.core.files.settings_files import is_number, is_whole
from yolov7fast.core.text import printable
from yolov7fast.data.formats.annotated_set import AnnotatedSet, Fault, Layout, Sample, files_by_split, split_of
from yolov7fast.data.formats.dataset_files import ImageFinder
from yolov7fast.data.image_io import image_size

KIND = "COCO JSON"
FOLDERS = ("annotations", "Annotations")
PEEK = 1 << 16  # bytes in which a COCO file shows one of its lists
FARTHEST = 1e9  # pixels from the corner of an image
LARGEST_SIDE = 1e6  # pixels
MOST_SHOWN = 20  # categories in a message


def find(root: Path) -> Layout | None:
    """The layout below `root`, or None. Two files for one split are an error that names them."""
    for name in FOLDERS:
        files = sorted(path for path in (root / name).glob("*.json") if looks_like_coco(path))
        instances = [path for path in files if path.stem.startswith("instances")]
        if files:
            evidence = f"{name}/{'instances_' if instances else ''}*.json"
            return Layout(root, files_by_split(root, instances or files), evidence, root / name)
    files = sorted(p for p in root.glob("*/*.json") if split_of(p.parent.name) and looks_like_coco(p))
    files = files or sorted(p for p in root.glob("*.json") if looks_like_coco(p))
    evidence = ", ".join(str(p.relative_to(root)) for p in files)
    return Layout(root, files_by_split(root, files), evidence, files[0]) if files else None


def of_file(path: Path) -> Layout:
    """The layout of one annotation file: `annotations/x.json` belongs to the folder above."""
    root = path.parent.parent if path.parent.name in FOLDERS else path.parent
    return Layout(root, {split_of(path.stem) or "train": [path]}, path.name, path)


def looks_like_coco(path: Path) -> bool:
    """Whether the beginning of a JSON file shows a list that COCO files have."""
    if not is_file(path):
        return False
    try:
        with open(path, "rb") as file:
            head = file.read(PEEK)
    except OSError:
        return False
    return bool(re.search(rb'"(images|annotations|categories|licenses)"\s*:\s*\[|"info"\s*:\s*\{', head))


def read(layout: Layout) -> AnnotatedSet:
    """All samples of all splits; the splits' categories must agree."""
    contents = {split: load_annotations(path) for split, (path,) in layout.splits.items()}
    named: dict[int, str] = {}
    for split, content in contents.items():
        for category in content["categories"]:
            before = named.setdefault(category["id"], category["name"])
            if before != category["name"]:
                raise UserError(
                    f"{layout.splits[split][0]}: category {category['id']} is {category['name']!r}, "
                    f"but {before!r} in another annotation file; make the files agree"
                )
    ids = sorted(named)
    classes = {category: i for i, category in enumerate(ids)}
    finder = ImageFinder(layout.root)
    splits = {}
    for split, content in contents.items():
        splits[split] = _read_split(content, layout.splits[split][0], classes, finder)
    notes = []
    if ids != list(range(len(ids))):
        shown_ids = [f"{own} ({printable(named[own], 30)}) -> {i}" for i, own in enumerate(ids[:MOST_SHOWN])]
        notes.append(f"category ids -> classes: {', '.join(shown_ids)}{', and so on' * (len(ids) > MOST_SHOWN)}")
    crowds = sum(int(s.crowd.sum()) for samples in splits.values() for s in samples)
    if crowds:
        notes.append(f"{crowds} crowd regions are left out of the training labels")
    return AnnotatedSet(KIND, layout.root, [named[i] for i in ids], splits, notes, line_word="annotation")


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


def _read_split(content: dict[str, Any], path: Path, classes: dict[int, int], finder: ImageFinder) -> list[Sample]:
    """The samples of one annotation file. classes: category id -> class."""
    images, times = content["images"], Counter(image["id"] for image in content["images"])
    by_image: dict[Any, list] = defaultdict(list)  # (id or number of the annotation, the annotation)
    unmatched = []
    for number, item in enumerate(content["annotations"], 1):
        values: dict[str, Any] = item if isinstance(item, dict) else {}
        image_id, own = values.get("image_id"), values.get("id")
        place = int(own) if own is not None and is_whole(own, 0, 1 << 62) else number
        if isinstance(image_id, int | str) and image_id in times:
            by_image[image_id].append((place, item))
        else:
            text = f"image_id {shown(image_id)} is not in the file"
            unmatched.append(Fault("label without image", str(path), place, text))
    folder = _image_folder(images, path, finder)
    samples = []
    for image in tqdm(images, f"reading {path.name}", leave=False, disable=len(images) < 5000):
        samples.append(_sample(image, by_image[image["id"]], path, classes, finder, folder))
        if (count := times[image["id"]]) > 1:
            text = f"{count} images have the id {shown(image['id'])}, so their annotations cannot be assigned"
            name = printable(samples[-1].name, 200)
            samples[-1].faults.append(Fault("image id given twice", str(path), 0, f"{name}: {text}"))
    if samples:
        samples[0].faults += unmatched
    return samples


def _image_folder(images: list[dict], path: Path, finder: ImageFinder) -> Path:
    """The folder with this file's images: its own, or one with its name (instances_train2017: train2017)."""
    stem = path.stem.removeprefix("instances_")
    names = [stem, f"images/{stem}"]
    split = split_of(path.stem) or split_of(path.parent.name)
    if split:
        names += [f"{base}{name}" for base in ("", "images/") for name in (split, "valid" if split == "val" else split)]
    firsts = [image["file_name"] for image in images[:20]]

    def present(folder: Path) -> int:
        return sum(is_file(folder / name) for name in firsts if not Path(name).is_absolute())

    return max([path.parent, *(finder.root / name for name in names)], key=present)


def _sample(image: dict, items: list, path: Path, classes: dict, finder: ImageFinder, folder: Path) -> Sample:
    file = finder.find(image["file_name"], near=folder)
    stated: Any = image.get("width"), image.get("height")
    frame = stated if all(is_number(v, 1e-9, LARGEST_SIDE) for v in stated) else image_size(file) or (1.0, 1.0)
    sample = Sample(str(file), finder.name_of(file), frame, str(path))
    own, boxes, lines, crowd, rings = [], [], [], [], []
    for place, item in items:
        box, category = item.get("bbox"), item.get("category_id")
        numbers = isinstance(box, list) and len(box) == 4 and all(type(v) in (int, float) for v in box)
        if not numbers:
            sample.faults.append(Fault("not a number", str(path), place, f"bbox {shown(box)} is not [x, y, w, h]"))
        elif not all(is_number(v, -FARTHEST, FARTHEST) for v in box):
            sample.faults.append(Fault("not finite", str(path), place, f"bbox {shown(box)}"))
        elif not isinstance(category, int) or category not in classes:
            text = f"category_id {shown(category)} is not among the categories"
            sample.faults.append(Fault("bad class", str(path), place, text))
        else:
            own.append(classes[category])
            boxes.append((box[0], box[1], box[0] + box[2], box[1] + box[3]))
            lines.append(place)
            crowd.append(bool(item.get("iscrowd")))
            rings.append(outlines(item.get("segmentation")))
    sample.set_objects(own, boxes, lines, crowd)
    sample.rings = rings if any(rings) else []
    return sample


def outlines(segmentation: Any) -> list[np.ndarray]:
    """Rings (k, 2) in pixels of a list of polygons; none for run-length masks, whose objects are read as boxes."""
    parts = segmentation if isinstance(segmentation, list) else []
    parts = [p for p in parts if isinstance(p, list) and len(p) >= 6 and len(p) % 2 == 0]
    known = [p for p in parts if all(is_number(v, -FARTHEST, FARTHEST) for v in p)]
    return [np.array(p, np.float64).reshape(-1, 2) for p in known]
