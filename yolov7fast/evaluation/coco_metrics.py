"""COCO's file formats and metrics: detections as JSON rows, annotations found or built, pycocotools' twelve numbers.

Any data set can be measured: without an annotation file the ground truth is built from its labels.
"""

import contextlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.core.text import counted
from yolov7fast.data.data_yaml import DataYaml, Source

log = logging.getLogger(__name__)
STAT_NAMES = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")
STAT_NAMES += ("AR_1", "AR_10", "AR_100", "AR_small", "AR_medium", "AR_large")
_UNUSED_IDS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
SHAPE_TOLERANCE = 0.02  # relative difference of aspect ratio above which two images are not the same one


def coco80_to_coco91_class() -> list[int]:
    """COCO's category id (1 to 90, with gaps) of each of its 80 classes."""
    return [i for i in range(1, 91) if i not in _UNUSED_IDS]


def image_id(path: str | Path) -> int | str:
    """An image's id: its file stem, as a number if it is one."""
    stem = Path(path).stem
    return int(stem) if stem.isdigit() and stem.isascii() else stem


# --- annotation files -------------------------------------------------------------------------------------------------


def find_annotations(data: DataYaml, split: str, given: str | None = None) -> str | None:
    """The annotation file of a split: the one given, the yaml's `annotations`, or the one that lies where COCO puts it.

    ROOT/images/SPLIT and ROOT/SPLIT.txt lead to ROOT/annotations/instances_SPLIT.json.
    """
    for source, path in (("--annotations", given), (f"{data.path}: annotations", data.annotations)):
        if path and (source == "--annotations" or split == "val"):
            if not Path(path).is_file():
                raise UserError(f"{source}: {path} does not exist")
            return path
    images: Source = data.split(split)
    for entry in images if isinstance(images, list) else [images]:
        path = Path(entry)
        root = path.parent if path.suffix == ".txt" else path.parent.parent
        candidate = root / "annotations" / f"instances_{path.stem}.json"
        if candidate.is_file():
            return str(candidate)
    return None


@dataclass
class GroundTruth:
    """Ground truth of an evaluation, and the ids and scale with which detections are written.

    ids: image id of each file stem; scale: (x, y) factor from the evaluated image to the recorded one, where they
    differ; categories: category id of each class.
    """

    dataset: dict[str, Any] | None
    source: str
    categories: list[int]
    ids: dict[str, int | str] = field(default_factory=dict)
    scale: dict[str, tuple[float, float]] = field(default_factory=dict)


def ground_truth(annotations: str | None, images: Any, names: Sequence[str], is_coco: bool) -> GroundTruth:
    """From the annotation file if there is one that fits, else from the labels.

    images: a data set with `img_files`, `shapes` (n, 2) w, h in native pixels and `labels` (m, 5) class, xywh.
    """
    if annotations:
        try:
            return _from_file(annotations, images, names)
        except Exception as error:  # any malformed file
            log.warning(
                "%s is not used: %s. The ground truth is built from the labels instead",
                annotations,
                one_line(error, 200),
            )
    # COCO's 80 classes are recognised by some of their names
    coco = is_coco or (len(names) == 80 and (names[0], names[11], names[79]) == ("person", "stop sign", "toothbrush"))
    return _from_labels(images, names, coco80_to_coco91_class() if coco else list(range(len(names))))


def _from_file(path: str, images: Any, names: Sequence[str]) -> GroundTruth:
    """Read an annotation file and fit it to the images by file stem; ValueError says why it does not fit."""
    with open(path) as f:
        dataset = json.load(f)
    categories = _category_ids(dataset["categories"], names)
    recorded = {Path(image["file_name"]).stem: image for image in dataset["images"]}
    if not all(isinstance(image["id"], int | str) for image in recorded.values()):
        raise ValueError("images need a number or text as id")
    truth = GroundTruth(dataset, path, categories)
    for file, (w, h) in zip(images.img_files, images.shapes):
        image = recorded.get(Path(file).stem)
        if image is None:
            continue
        truth.ids[Path(file).stem] = image["id"]
        sx, sy = image["width"] / w, image["height"] / h
        if abs(sx / sy - 1) > SHAPE_TOLERANCE:
            raise ValueError(f"{file} is {w:g} x {h:g}, recorded as {image['width']} x {image['height']}")
        if (sx, sy) != (1, 1):
            truth.scale[Path(file).stem] = (sx, sy)
    if not truth.ids:
        raise ValueError("it names none of the evaluated images")
    absent = len({Path(file).stem for file in images.img_files} - truth.ids.keys())
    if absent:
        log.warning("%d of %d images are not in %s: pycocotools leaves them out", absent, len(images.img_files), path)
    if truth.scale:
        log.info("%d images differ in size from those in %s: boxes are scaled to its sizes", len(truth.scale), path)
    return truth


def _category_ids(categories: list[dict], names: Sequence[str]) -> list[int]:
    """Category id of each class: by name where all names are known, else in the order of the ids."""
    by_name = {str(c["name"]).lower(): c["id"] for c in categories}
    wanted = [name.lower() for name in names]
    if len(set(wanted)) == len(wanted) and all(name in by_name for name in wanted):
        return [by_name[name] for name in wanted]
    if len(categories) != len(names):
        found, wanted = counted(len(categories), "category", "categories"), counted(len(names), "class", "classes")
        raise ValueError(f"it has {found}, the data yaml {wanted}, with other names")
    return sorted(c["id"] for c in categories)


def _from_labels(images: Any, names: Sequence[str], categories: list[int]) -> GroundTruth:
    """Ground truth from label files; None as dataset if there is no label at all."""
    truth = GroundTruth(None, "the labels", categories)
    entries, annotations = [], []
    for file, (w, h), labels in zip(images.img_files, images.shapes, images.labels):
        id_ = truth.ids[Path(file).stem] = image_id(file)
        entries.append({"id": id_, "file_name": Path(file).name, "width": int(w), "height": int(h)})
        for cls, x, y, bw, bh in np.asarray(labels, np.float64):
            box = [(x - bw / 2) * w, (y - bh / 2) * h, bw * w, bh * h]
            annotations.append(
                {
                    "id": len(annotations) + 1,  # from 1: pycocotools takes 0 for "no match"
                    "image_id": id_,
                    "category_id": categories[int(cls)],
                    "bbox": [float(v) for v in box],
                    "area": float(box[2] * box[3]),
                    "iscrowd": 0,
                }
            )
    if annotations:
        named = [{"id": id_, "name": name} for id_, name in zip(categories, names)]
        truth.dataset = {"images": entries, "annotations": annotations, "categories": named}
    return truth


# --- detections -------------------------------------------------------------------------------------------------------


def detection_rows(path: str, detections: np.ndarray, truth: GroundTruth) -> list[dict[str, Any]]:
    """JSON rows of one image's detections (k, 6), native pixels, best first."""
    sx, sy = truth.scale.get(Path(path).stem, (1.0, 1.0))
    id_ = truth.ids.get(Path(path).stem, image_id(path))
    boxes = detections[:, :4].astype(np.float32)
    if (sx, sy) != (1.0, 1.0):
        boxes = boxes * np.array([sx, sy, sx, sy], np.float32)
    wh = boxes[:, 2:] - boxes[:, :2]
    corner = (boxes[:, :2] + boxes[:, 2:]) / 2 - wh / 2
    rows = zip(np.concatenate((corner, wh), 1).tolist(), detections[:, 4].tolist(), detections[:, 5].tolist())
    return [
        {
            "image_id": id_,
            "category_id": truth.categories[int(cls)],
            "bbox": [round(value, 3) for value in box],
            "score": round(score, 5),
        }
        for box, score, cls in rows
    ]


def coco_stats(truth: GroundTruth, rows: list[dict[str, Any]]) -> dict[str, float] | None:
    """pycocotools' twelve numbers, by name, or None with a warning: errors never end a run."""
    if truth.dataset is None:
        log.warning("there are no labels, so pycocotools has nothing to compare the detections with")
        return None
    known = {image["id"] for image in truth.dataset["images"]}
    images = [id_ for id_ in truth.ids.values() if id_ in known]
    rows = [row for row in rows if row["image_id"] in known]
    if not rows:
        return dict.fromkeys(STAT_NAMES, 0.0)
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
            labelled: Any = COCO()  # its type stubs cover only COCO's own files
            labelled.dataset = {"info": {}, **truth.dataset}
            labelled.createIndex()
            evaluation: Any = COCOeval(labelled, labelled.loadRes(rows), "bbox")
            evaluation.params.imgIds = images
            evaluation.evaluate()
            evaluation.accumulate()
        evaluation.summarize()
    except Exception as error:  # of rows or files that pycocotools cannot read
        log.warning("pycocotools failed (%s: %s); our own metrics are kept", type(error).__name__, error)
        return None
    return dict(zip(STAT_NAMES, map(float, evaluation.stats)))
