"""The data yaml: which images, which classes; read, checked, and its data set fetched if it says how."""

import itertools
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from yolov7fast.core.errors import UserError
from yolov7fast.core.files import check_file
from yolov7fast.core.yaml_file import read_yaml

Source = str | list[str]  # a folder, a text file of image paths, or several of these
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class DataYaml:
    """A checked data yaml. Paths are relative to the working directory."""

    path: str  # of the yaml itself
    nc: int
    names: list[str]
    train: Source | None = None
    val: Source | None = None
    test: Source | None = None
    download: str | None = None  # address of a .zip, or a shell command
    annotations: str | None = None  # COCO annotation file of the val split

    def split(self, name: str) -> Source:
        """The images of `train`, `val` or `test`; a UserError names the splits that exist."""
        if name not in SPLITS:
            raise UserError(f"there is no split '{name}': it is one of {', '.join(SPLITS)}")
        source = getattr(self, name)
        if not source:
            given = ", ".join(s for s in SPLITS if getattr(self, s)) or "none"
            raise UserError(f"{self.path} has no key '{name}:' with images (it has: {given})")
        return source


def load_data_yaml(
    data: "str | Path | Mapping[str, Any] | DataYaml", fetch: bool = True, val_fraction: float = 0.0
) -> DataYaml:
    """Read and check a data yaml (or a mapping with its keys); fetch the data set if its val images are missing.

    A folder, a .zip, a COCO .json or a .csv is a data set in another format, made ready in a cache of ours.
    val_fraction: of the training images that become the validation split where there is none.
    """
    if isinstance(data, DataYaml):
        return data
    if not isinstance(data, Mapping):
        data = _made_ready(data, val_fraction)
    if isinstance(data, Mapping):
        checked = _checked(dict(data), "the data description")
    else:
        path = data
        if not path:
            raise UserError("--data is empty: give a data yaml, such as data/coco.yaml")
        checked = _checked(_read(path), path)
    if fetch:
        ensure_images(checked)
    return checked


def find_data(data: str | Path) -> str:
    """What `--data` names, as a path that exists; a folder as it is given, a file also below the working directory."""
    return str(data) if Path(data).is_dir() else check_file(data)


def _made_ready(data: str | Path, val_fraction: float) -> str:
    """The data yaml of a data set in any format."""
    from yolov7fast.data.formats.prepare import prepare
    from yolov7fast.data.formats.recognise import is_other_format

    path = find_data(data)
    return prepare(path, val_fraction) if path and (val_fraction or is_other_format(path)) else path


def _read(path: str) -> dict[str, Any]:
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold keys such as 'train:', 'val:', 'nc:' and 'names:'")
    return values


def _checked(values: dict[str, Any], path: str) -> DataYaml:
    missing = [key for key in ("val", "nc", "names") if values.get(key) is None]
    if missing:
        raise UserError(f"{path} lacks the key{'s' * (len(missing) > 1)} {', '.join(f'{k}:' for k in missing)}")
    nc = values["nc"]
    if isinstance(nc, bool) or not isinstance(nc, int) or nc < 1:
        raise UserError(f"{path}: nc must be a whole number of classes, at least 1, not {nc!r}")
    names = class_names(values["names"], path)
    if len(names) != nc:
        raise UserError(f"{path}: nc is {nc}, but there are {len(names)} names; make them agree")
    sources = {key: _source(values.get(key), key, path) for key in SPLITS}
    for key in ("download", "annotations"):
        if values.get(key) is not None and not isinstance(values[key], str):
            raise UserError(f"{path}: {key} must be text, not {values[key]!r}")
    return DataYaml(path, nc, names, **sources, download=values.get("download"), annotations=values.get("annotations"))


def class_names(names, path: str) -> list[str]:
    """A list of names, also given as a mapping from class id."""
    if isinstance(names, dict):
        if sorted(names, key=str) != sorted(range(len(names)), key=str):
            raise UserError(f"{path}: names must be a list, or number the classes from 0 to {len(names) - 1}")
        names = [names[i] for i in range(len(names))]
    if not isinstance(names, list) or not all(isinstance(name, str | int | float) for name in names):
        raise UserError(f"{path}: names must be a list of class names, not {names!r}")
    return [str(name) for name in names]


def _source(value, key: str, path: str) -> Source | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return value
    raise UserError(f"{path}: {key} must be a folder, a text file of image paths, or a list of these, not {value!r}")


# --- fetching a missing data set --------------------------------------------------------------------------------------


def missing_sources(source: Source | None) -> list[str]:
    """Those folders and files of a split that do not exist."""
    sources = source if isinstance(source, list) else [source] if source else []
    return [str(item) for item in sources if not Path(item).exists()]


def ensure_images(data: DataYaml) -> None:
    """If val images are missing, run the yaml's `download`, then insist that they are there."""
    missing = missing_sources(data.val)
    if not missing:
        return
    if not data.download:
        where = _where_instead(data, missing[0]) + _own_words(data.path)
        raise UserError(f"{data.path}: val: {', '.join(missing)} does not exist{where}")
    print(f"{', '.join(missing)} is missing: fetching it, as {data.path} says: {data.download}", flush=True)
    if data.download.endswith(".zip"):
        _fetch_zip(data.download, data.path)
    else:
        code = subprocess.run(data.download, shell=True, check=False, env=_own_python_first()).returncode
        if code:
            raise UserError(f"{data.path}: the download command ended with code {code}: {data.download}")
    missing = missing_sources(data.val)
    if missing:
        raise UserError(f"{data.path}: val: {', '.join(missing)} is still missing after the download")


def _own_python_first() -> dict[str, str]:
    """The environment with this interpreter's folder first on PATH: `python` in a download command means this one."""
    return {**os.environ, "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))}


def _where_instead(data: DataYaml, missing: str) -> str:
    """A hint: paths are meant from the working directory, and are often given from the yaml's."""
    beside = Path(data.path).parent / missing
    if beside.exists():
        return f" below {Path.cwd()}, but {beside} does: paths count from the working directory"
    folder = Path(missing)
    while folder != folder.parent and not folder.exists():
        folder = folder.parent
    inside = sorted(p.name for p in folder.iterdir())[:8] if folder.is_dir() else []
    return f" (working directory {Path.cwd()}); {folder} holds: {', '.join(inside) or 'nothing'}"


def _own_words(path: str) -> str:
    """What a yaml says of itself in its first lines: where the data set comes from."""
    if not Path(path).is_file():
        return ""
    lines = itertools.takewhile(lambda line: line.startswith("#"), Path(path).read_text(encoding="utf-8").splitlines())
    words = " ".join(line.lstrip("# ").strip() for line in lines)
    return f". The file says: {words}" if words else ""


def _fetch_zip(url: str, where: str) -> None:
    """Download a .zip with a progress bar and unpack it in the working directory."""
    with tempfile.TemporaryFile() as file:
        try:
            with urllib.request.urlopen(url) as answer:
                size = int(answer.headers.get("Content-Length") or 0) or None
                with tqdm(total=size, unit="B", unit_scale=True, desc=url.rsplit("/", 1)[-1]) as bar:
                    while chunk := answer.read(1 << 20):
                        file.write(chunk)
                        bar.update(len(chunk))
            with zipfile.ZipFile(file) as archive:
                archive.extractall(".")
        except (OSError, ValueError, urllib.error.URLError, zipfile.BadZipFile) as error:
            raise UserError(f"{where}: could not fetch {url}: {error}") from None
