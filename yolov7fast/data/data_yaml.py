"""The data YAML: images and classes of a data set, checked, with resolved paths.

A path is relative to the working directory or, if it does not exist there, to the folder of the YAML. With `path:`, the
root of the data set, it is relative to that root first.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.paths import check_file, check_path
from yolov7fast.core.files.settings_files import is_whole, read_yaml
from yolov7fast.core.text import printable
from yolov7fast.data.download import Fetch, ensure_present, surroundings

Source = str | list[str]  # a folder, a text file of image paths, or several of these
SPLITS = ("train", "val", "test")
LARGEST_NC = 1 << 31
TEXT_KEYS = ("download", "generate", "annotations", "path")


@dataclass(frozen=True)
class DataYaml:
    """A checked data YAML. Paths are absolute or relative to the working directory."""

    path: str  # of the YAML
    nc: int
    names: list[str]
    train: Source | None = None
    val: Source | None = None
    test: Source | None = None
    download: str | None = None  # address of a .zip, or a shell command
    annotations: str | None = None  # COCO annotation file of the val split
    root: str | None = None  # `path:`, the folder of the data set
    generate: str | None = None  # a data set that this package draws: "shapes"

    def split(self, name: str) -> Source:
        """Return the images of `train`, `val` or `test`; a UserError names the splits that exist."""
        if name not in SPLITS:
            raise UserError(f"there is no split '{name}': it is one of {', '.join(SPLITS)}")
        source = getattr(self, name)
        if not source:
            given = ", ".join(s for s in SPLITS if getattr(self, s)) or "none"
            raise UserError(f"{self.path} has no key '{name}:' with images (it has: {given})")
        return source


def load_data_yaml(
    data: "str | Path | Mapping[str, Any] | DataYaml",
    fetch: bool = True,
    val_fraction: float = 0.0,
    allow_download: bool = False,
) -> DataYaml:
    """Read and check a data YAML (or a mapping with its keys); fetch the data set if its val images are missing.

    Args:
        data: also a folder, a .zip, a COCO .json or a .csv, which is converted in the user's cache folder.
        val_fraction: of the training images, for the validation split of a data set without one.
        allow_download: whether the YAML's `download:` may run (--allow-download).
    """
    if isinstance(data, DataYaml):
        return data
    if isinstance(data, Mapping):
        checked = _checked(dict(data), "the data description")
    else:
        from yolov7fast.data.formats.prepare import prepare
        from yolov7fast.data.formats.recognise import is_other_format

        path = find_data(data)
        if not path:
            raise UserError("--data is empty: give a data yaml, such as data/coco.yaml")
        path = prepare(path, val_fraction) if val_fraction or is_other_format(path) else path
        values = read_yaml(path)
        if not isinstance(values, dict):
            raise UserError(f"{path} must hold keys such as 'train:', 'val:', 'nc:' and 'names:'")
        checked = _checked(values, path)
    if fetch:
        fetch_way = Fetch(checked.path, dataset_root(checked), checked.download, checked.generate)
        ensure_present(lambda: missing_sources(checked.val), fetch_way, allow_download)
    return checked


def find_data(data: str | Path) -> str:
    """Return the existing path for `--data`; a file is also searched below the working directory."""
    check_path(data)
    return str(data) if Path(data).is_dir() else check_file(data, "data")


def _checked(values: dict[str, Any], path: str) -> DataYaml:
    missing = [key for key in ("val", "names") if values.get(key) is None]
    if missing:
        remedy = "; --val-fraction 0.1 would take a tenth of the training images for validation"
        raise UserError(
            f"{path} has no key{'s' * (len(missing) > 1)} {', '.join(f'{k}:' for k in missing)}"
            f"{remedy if 'val' in missing else ''}"
        )
    names = class_names(values, path)
    for key in TEXT_KEYS:
        if values.get(key) is not None and not isinstance(values[key], str):
            raise UserError(f"{path}: {key} must be text, not {shown(values[key])}")
    root, annotations = values.get("path") or None, values.get("annotations")

    def resolved(entry: str) -> str:
        return next(filter(os.path.lexists, candidates(entry, path, root)), next(candidates(entry, path, root)))

    sources = {}
    for key in SPLITS:
        source = source_of(values, key, path)
        sources[key] = [resolved(item) for item in source] if isinstance(source, list) else source and resolved(source)
    others = {"root": root, "download": values.get("download"), "generate": values.get("generate")}
    return DataYaml(path, len(names), names, **sources, **others, annotations=annotations and resolved(annotations))


def candidates(entry: str, path: str, root: str | None) -> Iterator[str]:
    """Yield the possible paths of an entry of the YAML at `path`, the usual one first."""
    folder = os.path.dirname(path)
    if root:
        yield os.path.join(root, entry)
        yield os.path.join(folder, root, entry)
    yield entry
    yield os.path.join(folder, entry)
    bare = entry
    while bare.startswith(("../", "./")):  # some exporters write ../train/images for a folder next to the YAML
        bare = bare.removeprefix("./").removeprefix("../")
    if bare:
        yield os.path.join(folder, bare)


def class_names(values: Mapping[str, Any], path: str) -> list[str]:
    """Return the list of `names`, which may be given as a mapping from class id; `nc`, if given, must be its length."""
    names, nc = values["names"], values.get("nc")
    if isinstance(names, dict):
        if sorted(names, key=str) != sorted(range(len(names)), key=str):
            raise UserError(f"{path}: names must be a list, or number the classes from 0 to {len(names) - 1}")
        names = [names[i] for i in range(len(names))]
    if not isinstance(names, list) or not names or not all(isinstance(name, str | int | float) for name in names):
        raise UserError(f"{path}: names must be a list of class names, not {shown(names)}")
    if nc is not None and not is_whole(nc, 1, LARGEST_NC):
        raise UserError(f"{path}: nc must be a whole number of classes, at least 1, not {shown(nc)}")
    if len(names) != (nc or len(names)):
        raise UserError(f"{path}: nc is {nc}, but there are {len(names)} names; make them agree")
    return [str(name) for name in names]


def source_of(values: Mapping[str, Any], key: str, path: str) -> Source | None:
    """Return the checked value of a split."""
    value = values.get(key)
    items = value if isinstance(value, list) and value else [value]
    if value is None or all(isinstance(item, str) for item in items):
        return value
    raise UserError(
        f"{path}: {key} must be a folder, a text file of image paths, or a list of these, not {shown(value)}"
    )


# --- existing files ---------------------------------------------------------------------------------------------------


def missing_sources(source: Source | None) -> list[str]:
    """Return the folders and files of a split that do not exist."""
    sources = source if isinstance(source, list) else [source] if source else []
    return [str(item) for item in sources if not os.path.exists(item)]


def check_train_source(data: DataYaml) -> None:
    """Refuse a data set without training images before a network is built."""
    if absent := missing_sources(data.split("train")):
        names = printable(", ".join(absent), 200)
        raise UserError(f"{data.path}: train: {names} does not exist{surroundings(absent[0])}")


def dataset_root(data: DataYaml) -> Path | None:
    """Return the folder of the data set: `path:`, or the common parent of all splits, up to `images`.

    None if that is the working directory or a parent of it, which hold more than the data set.
    """
    if data.root:
        folder = Path(data.root)
    else:
        sources = [source for split in SPLITS if (source := getattr(data, split))]
        entries = [entry for source in sources for entry in (source if isinstance(source, list) else [source])]
        folder = Path(os.path.commonpath([os.path.abspath(entry) for entry in entries]))
        if folder.suffix == ".txt":  # a list of images
            folder = folder.parent
        if "images" in folder.parts[-2:]:
            folder = folder.parent if folder.name == "images" else folder.parent.parent
    real = folder.resolve()
    return None if real == Path.cwd() or real in Path.cwd().parents else folder
