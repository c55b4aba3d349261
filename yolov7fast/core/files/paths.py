"""Finding files, shipped YAML files and run folders, and rounding image sizes.

Shipped files lie at the root of a checkout (`cfg/`, `data/`, `configs/`, `experiments/`); installed, in the package's
folder `shipped`. Files below the working directory take precedence: see `check_file`.
"""

import difflib
import logging
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from yolov7fast.core.errors import UserError, shown

log = logging.getLogger(__name__)
PACKAGE = Path(__file__).resolve().parents[2]
CHECKOUT = PACKAGE.parent if (PACKAGE.parent / "pyproject.toml").is_file() else None
ROOT = CHECKOUT or PACKAGE / "shipped"

# kind of file -> patterns of the shipped ones, {} being the short name; the first match is used
KINDS: dict[str, tuple[str, ...]] = {
    "cfg": ("cfg/training/{}.yaml", "cfg/deploy/{}.yaml"),
    "hyp": ("data/hyp.scratch.{}.yaml", "data/hyp.{}.yaml"),
    "data": ("data/{}.yaml",),
    "run file": ("configs/{}.yaml",),
    "experiment": ("experiments/{}.yaml", "experiments/{}.json"),
}
RENAMED = {"data/hyp.shapes.yaml": "data/hyp.small.yaml"}  # names of older versions, in users' scripts and run files
FOLDERS = {pattern.split("/")[0] for patterns in KINDS.values() for pattern in patterns}
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}  # and all whose name begins with a dot
KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
SHARED_MEMORY = "/dev/shm"  # the only folder below /dev that holds ordinary files
MOST_NAME_BYTES, MOST_PATH_BYTES = 255, 4095  # of a name in a path, and of a path, on Linux


def is_kernel_path(real: str) -> bool:
    """Whether a resolved path belongs to the kernel's file systems, whose files are endless or block."""

    def below(folder: str) -> bool:
        return real == folder or real.startswith(folder + os.sep)

    return any(map(below, KERNEL_FOLDERS)) and not below(SHARED_MEMORY)


def is_file(path: str | os.PathLike) -> bool:
    """Whether a path leads to a regular file that has an end: no FIFO, device or socket, and none of the kernel's.

    The kernel's files that block, such as /proc/kmsg, are regular ones of size 0.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and (status.st_size > 0 or not is_kernel_path(os.path.realpath(path)))


def increment_path(path: str | Path, exist_ok: bool = True, sep: str = "") -> Path:
    """`path` if it does not exist (or `exist_ok`), else with the next number appended: exp, exp2, exp3.

    The next number is one above the largest among the siblings named exactly `path` + `sep` + digits.
    """
    path = Path(path)
    if exist_ok or not path.exists():
        return path
    numbered = re.compile(re.escape(path.name + sep) + r"(\d+)")
    found = (numbered.fullmatch(sibling.name) for sibling in path.parent.iterdir())
    return path.with_name(f"{path.name}{sep}{max((int(match[1]) for match in found if match), default=1) + 1}")


def check_file(file: str | Path, kind: str = "") -> str:
    """The file as given (or an empty name), else the one of that name below the working directory, else a shipped one.

    kind: a key of KINDS, whose shipped files also have short names (`yolov7-tiny` of the kind cfg).
    """
    file = str(file)
    check_path(file)
    if not file or is_file(file):
        return file
    wanted = Path(file).parts
    found = [path for path in walk_files(".") if path.name == wanted[-1] and path.parts[-len(wanted) :] == wanted]
    if len(found) == 1:
        return str(found[0])
    if found:
        listed = ", ".join(map(str, sorted(found)[:5]))
        raise UserError(f"{file} fits several files below {Path.cwd()}: {listed}; give the path of the one you mean")
    shipped = shipped_file(file, kind)
    if shipped:
        return str(shipped.relative_to(Path.cwd()) if shipped.is_relative_to(Path.cwd()) else shipped)
    raise UserError(f"{file} does not exist, here or in any folder below {Path.cwd()}{nearest_shipped(file, kind)}")


def check_path(path: str | Path) -> None:
    """Raise UserError for a path that no file can have, before it is passed to the file system."""
    longest = max((len(os.fsencode(part)) for part in Path(path).parts), default=0)
    if longest > MOST_NAME_BYTES or len(os.fsencode(path)) > MOST_PATH_BYTES or "\0" in str(path):
        raise UserError(f"{shown(str(path))} cannot be a path: a name has at most {MOST_NAME_BYTES} bytes")


def walk_files(root: str | Path) -> Iterator[Path]:
    """Every file below a folder, except in hidden folders and those of installed packages."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS]
        yield from (Path(folder) / name for name in files)


def latest_run(search_dir: str | Path = ".") -> str:
    """The newest last*.pt below a folder; '' if there is none."""
    found = [path for path in walk_files(search_dir) if path.suffix == ".pt" and path.name.startswith("last")]
    return str(max(found, key=os.path.getctime)) if found else ""


def shipped_file(name: str, kind: str = "") -> Path | None:
    """The shipped file of this path (`cfg/training/yolov7.yaml`) or, of a kind, of this short name (`yolov7`)."""
    path = Path(RENAMED.get(name, name))
    if path.is_absolute() or ".." in path.parts:
        return None
    if path.parts[0] in FOLDERS and (ROOT / path).is_file():
        return ROOT / path
    return shipped_by_name(kind).get(name)


def shipped_by_name(kind: str) -> dict[str, Path]:
    """The shipped files of a kind by their short names, sorted."""
    found: dict[str, Path] = {}
    for pattern in KINDS.get(kind, ()):
        before, after = (ROOT / pattern).name.split("{}")
        for path in sorted((ROOT / pattern).parent.glob(f"{before}*{after}")):
            if path not in found.values() and (before or not path.name.startswith("hyp.")):  # data/ holds two kinds
                found.setdefault(path.name.removeprefix(before).removesuffix(after), path)
    return found


def nearest_shipped(name: str, kind: str, limit: int = 3) -> str:
    """'; shipped: yolov7-tiny, yolov7x': the short names nearest to an unknown name, or the first few."""
    known = list(shipped_by_name(kind))
    stem = re.sub(r"\.(yaml|yml|json)$", "", Path(name).name)
    close = difflib.get_close_matches(stem, known, n=limit, cutoff=0.5) or known[: 2 * limit]
    return f"; shipped: {', '.join(close)}" if close else ""


def check_img_size(img_size: int, s: int = 32) -> int:
    """The size rounded up to a multiple of the largest stride; a warning is logged if that changes it."""
    if img_size < 1:
        raise UserError(f"--img-size {img_size} is out of range: it must be at least 1, and is rounded up to {s}")
    rounded = math.ceil(img_size / int(s)) * int(s)
    if rounded != img_size:
        log.warning("--img-size %d is not a multiple of the largest stride %d: using %d", img_size, s, rounded)
    return rounded
