"""Recognition of the format of a data set at a path, or an error that names the choices."""

import os
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import is_file
from yolov7fast.core.text import printable
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.formats import coco_format, csv_format, voc_format, yolo_format
from yolov7fast.data.formats.annotated_set import AnnotatedSet
from yolov7fast.data.formats.zip_archive import unpack
from yolov7fast.data.image_io import IGNORED_FOLDERS

DEEPEST = 3  # folders with only one folder in them that are passed through


class Found(NamedTuple):
    """A data set of a known format."""

    kind: str
    root: Path
    evidence: str  # the files that identified it
    read: Callable[[], AnnotatedSet]
    yolo: DataYaml | None = None  # for labels that training reads directly


def is_other_format(path: str | Path) -> bool:
    """Whether a `--data` value is a folder or a file of another kind than a data YAML."""
    path = Path(path)
    return path.is_dir() or (is_file(path) and path.suffix.lower() in (".zip", ".json", ".csv"))


def recognise(path: str | Path) -> Found:
    """The data set at a path: a folder, a zip, a COCO JSON, a CSV, or a data YAML."""
    path = Path(os.path.abspath(path))
    suffix = path.suffix.lower()
    if path.is_dir():
        return _of_folder(path, path)
    if not is_file(path):
        raise UserError(f"{path} does not exist; give a data YAML, a folder, a .zip, a COCO .json or a .csv")
    if suffix == ".zip":
        return _of_folder(unpack(path), path)
    if suffix == ".json":
        return _found(coco_format, coco_format.of_file(path))
    if suffix == ".csv":
        return _found(csv_format, csv_format.of_file(path))
    if suffix in (".yaml", ".yml"):
        return _found_yolo(yolo_format.of_yaml(path, own_first=False), path.name, path.parent)
    raise UserError(f"{path} is not a data set: give a data YAML, a folder, a .zip, a COCO .json or a .csv")


def _found(module, layout) -> Found:
    return Found(module.KIND, layout.root, layout.evidence, lambda: module.read(layout).mark_unusable())


def _found_yolo(data: DataYaml, evidence: str, root: Path) -> Found:
    return Found(yolo_format.KIND, root, evidence, lambda: yolo_format.read(data), data)


def _of_folder(folder: Path, given: Path) -> Found:
    """given: the path that the user named, in messages."""
    inner, choices = folder, _choices(folder)
    for _ in range(DEEPEST):  # VOCdevkit/VOC2007, the only folder of a zip
        below = [p for p in inner.iterdir() if p.is_dir() and p.name not in IGNORED_FOLDERS and p.name[0] != "."]
        if choices or len(below) != 1:
            break
        inner = below[0]
        choices = _choices(inner)
    if not choices:
        inside = ", ".join(printable(p.name, 40) for p in sorted(folder.iterdir())[:8]) or "nothing"
        raise UserError(
            f"{given} holds no data set that is known: a data.yaml, images with labels/*.txt, "
            f"annotations/*.json (COCO), Annotations/*.xml (VOC) or a CSV of boxes; it holds: {inside}"
        )
    if len(choices) > 1:
        listed = "; ".join(f"{found.kind} ({found.evidence}): --data {quote(str(path))}" for found, path in choices)
        raise UserError(f"{given} holds {len(choices)} kinds of labels. Choose one: {listed}")
    return choices[0][0]


def _choices(folder: Path) -> list[tuple[Found, Path]]:
    """Every format that fits a folder, with the path that selects it."""
    if part := _of_part(folder):
        return [(part, folder)]
    choices = []
    if found := yolo_format.find(folder):
        data, evidence = found
        direct = Path(data.path) if Path(data.path).is_file() else folder / "labels"
        choices.append((_found_yolo(data, evidence, folder), direct))
    for module in (coco_format, voc_format, csv_format):
        if layout := module.find(folder):
            choices.append((_found(module, layout), layout.direct))
    return choices


def _of_part(folder: Path) -> Found | None:
    """The data set of which `folder` is the folder of labels or annotations, which identifies its format."""
    root = folder.parent
    if folder.name == "labels" and (found := yolo_format.find(root)):
        return _found_yolo(*found, root)
    for module, pattern in ((coco_format, "*.json"), (voc_format, "*.xml")):
        if folder.name in module.FOLDERS and any(folder.glob(pattern)) and (layout := module.find(root)):
            return _found(module, layout)
    return None
