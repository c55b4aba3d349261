"""Finding image files: which entries of a folder count, at any depth, whatever links and devices lie in it."""

import fnmatch
import glob
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import counted, printable

LOGGER = logging.getLogger(__name__)
IMG_FORMATS = ("bmp", "jpg", "jpeg", "png", "tif", "tiff", "dng", "webp", "mpo")  # by file name, and by Pillow's name
IGNORED_FOLDERS = frozenset({"__MACOSX", "__pycache__"})  # and all whose name begins with a dot
KERNEL_FOLDERS = ("/proc", "/sys", "/dev")  # their files have no end, or answer only when a device does
SHARED_MEMORY = "/dev/shm"  # the one folder below /dev that holds ordinary files
MOST_ENTRIES = 10_000_000  # files and folders below one folder


def is_image_name(name: str) -> bool:
    return name.rpartition(".")[2].lower() in IMG_FORMATS


def check_place(path: str | os.PathLike, said: str) -> None:
    """Refuse files and folders of the kernel. said: what is said in front of the path in the message."""
    if _is_kernels(os.path.realpath(path)):
        raise UserError(
            f"{said}{path} belongs to the kernel's file systems ({', '.join(KERNEL_FOLDERS)}), which hold no data "
            "sets; correct the path"
        )


def _is_kernels(real: str) -> bool:
    def below(folder: str) -> bool:
        return real == folder or real.startswith(folder + os.sep)

    return any(map(below, KERNEL_FOLDERS)) and not below(SHARED_MEMORY)


def walk(
    root: str | os.PathLike,
    ignored: Collection[str] = IGNORED_FOLDERS,
    deep: bool = True,
    left_out: list[str] | None = None,
) -> Iterator[os.DirEntry]:
    """Every entry below a folder that is not a folder, sorted within each folder; hidden folders are left out.

    Each folder is visited once, under its own name if that lies below `root`, else through the first link to it. Links
    to a folder that contains `root`, and into the kernel's file systems, are not followed.

    Args:
        root: the folder; one of the kernel's file systems raises `UserError`, as do more than MOST_ENTRIES entries.
        ignored: names of folders that are not visited.
        deep: whether sub-folders are visited.
        left_out: takes the paths of links that lead to a folder that is visited anyway, or that may not be visited.
    """
    check_place(root, "")
    top = os.path.join(os.path.realpath(root), "")
    seen: set[str] = set()
    folders, links = [os.fspath(root)], deque[str]()
    entries_seen = 0
    while folders or links:
        folder = folders.pop() if folders else links.popleft()
        real = os.path.realpath(folder)
        if real in seen or (seen and (top.startswith(os.path.join(real, "")) or _is_kernels(real))):
            if left_out is not None:
                left_out.append(folder)
            continue
        seen.add(real)
        try:
            with os.scandir(folder) as listing:
                entries = []
                for entry in listing:
                    entries_seen += 1
                    if entries_seen > MOST_ENTRIES:
                        raise UserError(
                            f"{root} holds more than {MOST_ENTRIES:,} files and folders (reached in {folder}); name "
                            "the folder of the images, or a text file that lists them"
                        )
                    entries.append(entry)
        except OSError:
            continue
        entries.sort(key=lambda entry: entry.name)
        below = []
        for entry in entries:
            if not _is_folder(entry):
                yield entry
            elif deep and entry.name not in ignored and not entry.name.startswith("."):
                below.append(entry)
        folders += [entry.path for entry in reversed(below) if not entry.is_symlink()]
        links.extend(entry.path for entry in below if entry.is_symlink())


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def list_files(
    folder: str | os.PathLike, wanted: Callable[[str], bool], deep: bool = True, prefix: str = ""
) -> tuple[list[str], int]:
    """(regular files of a folder whose names are wanted, number of other files). Hidden files do not count.

    Each file counts once: a link to one that is listed under its own name is left out. So are FIFOs, devices and
    sockets; a warning that starts with `prefix` counts what was left out. Links to files that do not exist are kept, so
    that their names are reported as missing. deep: whether sub-folders are searched.
    """
    left_out: list[str] = []
    files, links, others = [], [], 0
    for entry in walk(Path(folder), ignored=(), deep=deep, left_out=left_out):
        if entry.name.startswith(".") or "." not in entry.name:
            continue
        if not wanted(entry.name):
            others += 1
        elif entry.is_symlink():
            links.append(entry.path)
        elif entry.is_file():
            files.append(entry.path)
        else:
            left_out.append(entry.path)
    real_folders = {path: os.path.realpath(path) for path in {os.path.dirname(file) for file in files if links}}
    known = {os.path.join(real_folders[os.path.dirname(f)], os.path.basename(f)) for f in files if links}
    for path in sorted(links):
        real = os.path.realpath(path)
        if real in known or (os.path.exists(path) and not os.path.isfile(path)):
            left_out.append(path)
        else:
            known.add(real)
            files.append(path)
    if left_out:
        count = counted(len(left_out), "entry", "entries")
        LOGGER.warning(
            f"{prefix}{folder}: {count} left out (first: {printable(left_out[0])}): links to what is counted already, "
            "or no regular files; to use an image more than once, list its names in a text file"
        )
    return files, others


def matching_files(pattern: str) -> list[str]:
    """Regular files that fit a pattern with `*`, `?` and `[...]`, where `**` stands for any number of folders."""
    parts = pattern.split(os.sep)
    if "**" not in parts:
        return [path for path in glob.glob(pattern) if os.path.isfile(path)]
    plain = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    base = os.sep.join(parts[:plain]) or os.sep
    if not os.path.isdir(base):
        return []
    files, _ = list_files(base, lambda name: True)
    return [path for path in files if _fits(os.path.relpath(path, base).split(os.sep), parts[plain:])]


def _fits(names: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return _fits(names, patterns[1:]) or (bool(names) and _fits(names[1:], patterns))
    return bool(names) and fnmatch.fnmatchcase(names[0], patterns[0]) and _fits(names[1:], patterns[1:])
