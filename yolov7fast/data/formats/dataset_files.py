"""Files of a data set: the cache folder, images found by the names in annotations, and unique file names."""

import contextlib
import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import is_file
from yolov7fast.core.text import printable
from yolov7fast.data.image_io import is_image_name, walk

CACHE_VARIABLE = "YOLOV7FAST_CACHE"


def cache_root() -> Path:
    """The folder for files made from users' data sets: $YOLOV7FAST_CACHE, or the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "yolov7-fast"


def cache_folder(name: str) -> Path:
    """A folder of the cache, created if it does not exist."""
    folder = cache_root() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write the cache folder {folder} ({error.strerror or error}); "
            f"set {CACHE_VARIABLE}=FOLDER to one that can be written"
        ) from None
    return folder


def unpacked_folder(path: Path) -> Path | None:
    """The folder of the cache that an archive was unpacked into, if `path` lies in one."""
    unpacked, real = (cache_root() / "unpacked").resolve(), path.resolve()
    return unpacked / real.relative_to(unpacked).parts[0] if unpacked in real.parents else None


def plain_name(text: str, limit: int = 60) -> str:
    """A file name of letters, digits, dots and dashes, for folders of the cache."""
    return re.sub(r"[^\w.-]+", "_", text).strip("._")[:limit] or "data"


def has_images(folder: Path) -> bool:
    """Whether the folder itself, not a sub-folder, holds an image."""
    try:
        with os.scandir(folder) as entries:
            return any(is_image_name(entry.name) for entry in entries)
    except OSError:
        return False


def text_lines(path: Path, holds: str) -> list[str]:
    """The lines of a text file in UTF-8. holds: what the file should hold, for the message if it cannot be read."""
    try:
        if not is_file(path):  # opening a FIFO may never end
            raise OSError("not a regular file")
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({printable(error, 200)}); it has {holds}") from None


def link(file: str, target: Path) -> None:
    """Create a symbolic link to a file; a hard link or a copy where links are not allowed."""
    source = os.path.abspath(file)
    for way in (os.symlink, os.link, shutil.copyfile):
        with contextlib.suppress(OSError, NotImplementedError):
            way(source, target)
            return
    raise UserError(f"cannot link or copy {source} to {target}")


def unique_names(names: Sequence[str]) -> list[str]:
    """Safe file names with different stems, compared without case: each label file belongs to one image.

    The first of equal names keeps it; a later one gets a number after its stem.
    """
    safe = []
    for name in names:  # without separators and control characters; other letters stay
        plain = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "_" for c in os.path.basename(name))
        plain = plain.encode(errors="replace").decode().strip()
        safe.append(plain if plain.strip(".") else "unnamed")
    taken = Counter(_stem(name) for name in safe)
    used: set[str] = set()
    result = []
    for name in safe:
        stem, suffix = os.path.splitext(name)
        candidate, number = name, 1
        while _stem(candidate) in used or (number > 1 and _stem(candidate) in taken):
            number += 1
            candidate = f"{stem}_{number}{suffix}"
        used.add(_stem(candidate))
        result.append(candidate)
    return result


def _stem(name: str) -> str:
    return os.path.splitext(name)[0].casefold()


class ImageFinder:
    """Finds images below a root by the names in annotation files.

    Names may contain folders of another machine (`C:\\data\\a.jpg`, `../images/a.jpg`): the longest suffix of the path
    that matches an image below the root is used. Absolute paths are followed, except in unpacked archives.
    """

    def __init__(self, root: Path, folders: tuple[str, ...] = (".", "images")):
        self.root, self.folders = root, folders
        self.confined = unpacked_folder(root) is not None
        self.used: set[str] = set()

    @cached_property
    def _index(self) -> tuple[set[str], dict[str, list[str]], dict[str, list[str]]]:
        """Image paths relative to the root: all, by file name, by file name without suffix."""
        every, by_name, by_stem = set(), defaultdict(list), defaultdict(list)
        skip = len(str(self.root)) + 1
        for entry in walk(self.root):
            if is_image_name(entry.name) and is_file(entry.path):
                relative = entry.path[skip:].replace(os.sep, "/")
                every.add(relative)
                by_name[entry.name].append(relative)
                by_stem[entry.name.rpartition(".")[0]].append(relative)
        return every, by_name, by_stem

    def find(self, filename: str, stem: str = "", near: Path | None = None) -> Path:
        """The image called `filename`, or `stem` with any image suffix; if missing, the path it should have.

        near: folder of the annotation, preferred among images of one name.
        """
        if filename and not self.confined and os.path.isabs(filename) and is_file(filename):
            return Path(filename)
        every, by_name, by_stem = self._index
        base = self._relative(near) if near else None
        parts: list[str] = []
        for name in dict.fromkeys((filename, filename.replace("\\", "/"))):  # as written, then with Windows separators
            parts = [part for part in PurePosixPath(name).parts if part not in ("/", ".", "..")]
            for folder in (base, *self.folders):
                candidate = str(PurePosixPath(folder, *parts)) if parts and folder is not None else ""
                if candidate in every:
                    return self._take(candidate)
        for end in (parts[i:] for i in range(len(parts))):
            found = [path for path in by_name.get(end[-1], ()) if f"/{path}".endswith("/" + "/".join(end))]
            if found:
                return self._take(_nearest(found, base))
        if stem and (found := by_stem.get(stem)):
            return self._take(_nearest(found, base))
        return self.root.joinpath(self.folders[0], *parts) if parts else self.root / self.folders[0] / f"{stem}.jpg"

    def _relative(self, path: Path) -> str | None:
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else None

    def _take(self, relative: str) -> Path:
        self.used.add(relative)
        return self.root / relative

    def unused(self) -> int:
        """The number of images below the root that no annotation has named."""
        return len(self._index[0] - self.used)

    def name_of(self, image: Path) -> str:
        """The image's path relative to the root, or its file name if it lies outside."""
        return self._relative(image) or image.name


def _nearest(found: list[str], base: str | None) -> str:
    """Of images with one name, the one that shares the most folders with the annotation's folder `base`."""
    wanted = PurePosixPath(base or ".").parts
    return max(sorted(found), key=lambda path: sum(a == b for a, b in zip(PurePosixPath(path).parts, wanted)))
