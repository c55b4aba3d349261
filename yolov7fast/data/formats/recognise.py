"""Which kind of data set lies at a path? One answer, or an error that names the choices."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import printable
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.formats import coco, table, voc, yolo
from yolov7fast.data.formats.archive import unpack
from yolov7fast.data.formats.samples import AnnotatedSet
from yolov7fast.data.image_io import IGNORED_FOLDERS

YAML_SUFFIXES = (".yaml", ".yml")
DEEPEST = 3  # folders with a single folder in them that are passed through


class Found(NamedTuple):
    """A data set of a known kind."""

    kind: str
    root: Path
    evidence: str  # the files it was known by
    read: Callable[[], AnnotatedSet]
    yolo: DataYaml | None = None  # labels that training reads as they are


def is_other_format(path: str | Path) -> bool:
    """Whether a `--data` value is a folder or a file of another kind than a data YAML."""
    path = Path(path)
    return path.is_dir() or (path.is_file() and path.suffix.lower() in (".zip", ".json", ".csv"))


def recognise(path: str | Path) -> Found:
    """The data set at a path: a folder, a zip, a COCO JSON, a CSV, or a data YAML."""
    path = Path(os.path.abspath(path))
    suffix = path.suffix.lower()
    if path.is_dir():
        return _of_folder(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a data YAML, a folder, a .zip, a COCO .json or a .csv")
    if suffix == ".zip":
        return _of_folder(unpack(path), str(path))
    if suffix == ".json":
        return _found(coco, coco.of_file(path))
    if suffix == ".csv":
        return _found(table, table.of_file(path))
    if suffix in YAML_SUFFIXES:
        return _found_yolo(yolo.of_yaml(path, own_first=False), path.name, path.parent)
    raise UserError(f"{path} is not a data set: give a data YAML, a folder, a .zip, a COCO .json or a .csv")


def _found(module, layout) -> Found:
    return Found(module.KIND, layout.root, layout.evidence, lambda: module.read(layout))


def _found_yolo(data: DataYaml, evidence: str, root: Path) -> Found:
    return Found(yolo.KIND, root, evidence, lambda: yolo.read(data), data)


def _of_folder(folder: Path, said: str = "") -> Found:
    """said: what the user gave, where it is not the folder itself."""
    choices = _choices(folder)
    depth = 0
    inner = folder
    while not choices and depth < DEEPEST and (below := _only_folder(inner)):  # VOCdevkit/VOC2007, a zip's one folder
        inner, depth = below, depth + 1
        choices = _choices(inner)
    if not choices:
        inside = ", ".join(printable(p.name, 40) for p in sorted(folder.iterdir())[:8]) or "nothing"
        raise UserError(
            f"{said or folder} holds no data set that is known: a data.yaml, images with labels/*.txt, "
            f"annotations/*.json (COCO), Annotations/*.xml (VOC) or a CSV of boxes; it holds: {inside}"
        )
    if len(choices) > 1:
        listed = "; ".join(f"{found.kind} ({found.evidence}): --data {direct}" for found, direct in choices)
        raise UserError(f"{said or folder} holds {len(choices)} kinds of labels. Choose one: {listed}")
    return choices[0][0]


def _only_folder(folder: Path) -> Path | None:
    folders = [p for p in folder.iterdir() if p.is_dir() and p.name not in IGNORED_FOLDERS and p.name[0] != "."]
    return folders[0] if len(folders) == 1 else None


def _choices(folder: Path) -> list[tuple[Found, Path]]:
    """Every kind that fits a folder, with the path that names it alone."""
    if folder.name in ("labels", *coco.FOLDERS, *voc.FOLDERS):  # the part of a data set that says its kind
        direct = _of_part(folder)
        if direct:
            return [(direct, folder)]
    choices = []
    if found := yolo.find(folder):
        data, evidence = found
        direct = Path(data.path) if Path(data.path).is_file() else folder / "labels"
        choices.append((_found_yolo(data, evidence, folder), direct))
    if layout := coco.find(folder):
        direct = next(iter(layout.splits.values()))
        direct = direct.parent if direct.parent.name in coco.FOLDERS else direct
        choices.append((_found(coco, layout), direct))
    if layout := voc.find(folder):
        choices.append((_found(voc, layout), next(files[0].parent for files in layout.splits.values())))
    if layout := table.find(folder):
        choices.append((_found(table, layout), next(iter(layout.files.values()))))
    return choices


def _of_part(folder: Path) -> Found | None:
    root = folder.parent
    if folder.name == "labels":
        found = yolo.find(root)
        return _found_yolo(*found, root) if found else None
    if any(folder.glob("*.json")) and (layout := coco.find(root)):
        return _found(coco, layout)
    if any(folder.glob("*.xml")) and (layout := voc.find(root)):
        return _found(voc, layout)
    return None
