"""The files of a data set: finding an image by the name that an annotation gives it, its size, folders of ours."""

import contextlib
import os
import re
import shutil
from collections import defaultdict
from functools import cached_property
from pathlib import Path, PurePosixPath

from yolov7fast.core.errors import UserError
from yolov7fast.data.image_io import is_image_name, walk

CACHE_VARIABLE = "YOLOV7FAST_CACHE"


def cache_root() -> Path:
    """Where everything lies that is made from users' data sets: $YOLOV7FAST_CACHE, or the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "yolov7-fast"


def cache_folder(name: str) -> Path:
    """A folder of the cache, made if it is not there."""
    folder = cache_root() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write the cache folder {folder} ({error.strerror or error}); "
            f"set {CACHE_VARIABLE}=FOLDER to one that can be written"
        ) from None
    return folder


def plain_name(text: str, limit: int = 60) -> str:
    """A file name made of ordinary characters, for folders of the cache."""
    return re.sub(r"[^\w.-]+", "_", text).strip("._")[:limit] or "data"


def has_images(folder: Path) -> bool:
    """Whether an image lies in this very folder."""
    try:
        with os.scandir(folder) as entries:
            return any(is_image_name(entry.name) for entry in entries)
    except OSError:
        return False


def link(file: str, target: Path) -> None:
    """A link to a file; a second name of it, or a copy, where links are not allowed."""
    source = os.path.abspath(file)
    for way in (os.symlink, os.link, shutil.copyfile):
        with contextlib.suppress(OSError, NotImplementedError):
            way(source, target)
            return
    raise UserError(f"cannot link or copy {source} to {target}")


class ImageFinder:
    """Finds images below a root by the names that annotation files give them.

    Names may carry folders of another machine (`C:\\data\\a.jpg`, `../images/a.jpg`): the longest end of the name
    that fits an image below the root counts. Absolute names are followed as they are, unless `confined`.
    """

    def __init__(self, root: Path, folders: tuple[str, ...] = (".",), confined: bool | None = None):
        self.root, self.folders = root, folders
        unpacked = cache_root() / "unpacked"
        self.confined = unpacked.resolve() in root.resolve().parents if confined is None else confined
        self.used: set[str] = set()

    @cached_property
    def _index(self) -> tuple[set[str], dict[str, list[str]], dict[str, list[str]]]:
        """Paths relative to the root: all, by file name, by file name without suffix."""
        every, by_name, by_stem = set(), defaultdict(list), defaultdict(list)
        skip = len(str(self.root)) + 1
        for entry in walk(self.root):
            if is_image_name(entry.name) and os.path.isfile(entry.path):
                relative = entry.path[skip:].replace(os.sep, "/")
                every.add(relative)
                by_name[entry.name].append(relative)
                by_stem[entry.name.rpartition(".")[0]].append(relative)
        return every, by_name, by_stem

    def find(self, filename: str, stem: str = "", beside: Path | None = None) -> Path:
        """The image called `filename` (or `stem` with any image suffix); where it is missing, the path it should have.

        beside: folder of the annotation, preferred among images of one name.
        """
        if filename and not self.confined and os.path.isabs(filename) and os.path.isfile(filename):
            return Path(filename)
        every, by_name, by_stem = self._index
        bases = [self._relative(beside)] if beside else []
        parts: list[str] = []
        for name in dict.fromkeys((filename, filename.replace("\\", "/"))):  # as it is, then as Windows means it
            parts = [part for part in PurePosixPath(name).parts if part not in ("/", ".", "..")]
            for base in [*bases, *self.folders]:
                candidate = str(PurePosixPath(base, *parts)) if parts and base is not None else ""
                if candidate in every:
                    return self._take(candidate)
        for end in (parts[i:] for i in range(len(parts))):
            found = [path for path in by_name.get(end[-1], ()) if f"/{path}".endswith("/" + "/".join(end))]
            if found:
                return self._take(self._nearest(found, bases))
        if stem and (found := by_stem.get(stem)):
            return self._take(self._nearest(found, bases))
        return self.root.joinpath(self.folders[0], *parts) if parts else self.root / self.folders[0] / f"{stem}.jpg"

    def _relative(self, folder: Path) -> str | None:
        try:
            return folder.relative_to(self.root).as_posix()
        except ValueError:
            return None

    def _nearest(self, found: list[str], bases: list[str | None]) -> str:
        """Of images with one name, the one that shares the most folders with the annotation."""
        wanted = PurePosixPath(bases[0] or ".").parts if bases else ()

        def shared(path: str) -> int:
            return sum(a == b for a, b in zip(PurePosixPath(path).parts, wanted))

        return max(sorted(found), key=shared)

    def _take(self, relative: str) -> Path:
        self.used.add(relative)
        return self.root / relative

    def unused(self) -> int:
        """How many images below the root no annotation has asked for."""
        return len(self._index[0] - self.used)

    def name_of(self, image: Path) -> str:
        """The image's path relative to the root; its file name where it lies elsewhere."""
        return self._relative(image) or image.name
