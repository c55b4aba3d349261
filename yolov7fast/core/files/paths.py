"""Finding files, naming run folders, rounding image sizes: what every command does before it begins."""

import difflib
import logging
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.shipped import nearest_shipped, shipped_file

log = logging.getLogger(__name__)
MOST_NAME_BYTES, MOST_PATH_BYTES = 255, 4095  # of a name in a path, and of a path, on Linux
SIGNS = {"data": b"names:", "cfg": b"backbone:", "hyp": b"lr0:"}  # a line of each file of a kind begins with it
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}  # and all whose name begins with a dot


def increment_path(path: str | Path, exist_ok: bool = True, sep: str = "") -> Path:
    """`path` if free (or `exist_ok`), else with the next number behind it: exp, exp2, exp3.

    The next number is one above the largest among the siblings named exactly `path` + `sep` + digits.
    """
    path = Path(path)
    if exist_ok or not path.exists():
        return path
    numbered = re.compile(re.escape(path.name + sep) + r"(\d+)")
    found = (numbered.fullmatch(sibling.name) for sibling in path.parent.iterdir())
    largest = max((int(match[1]) for match in found if match), default=1)
    return path.with_name(f"{path.name}{sep}{max(largest, 1) + 1}")


def check_file(file: str | Path, kind: str = "") -> str:
    """A file as given (or an empty name), else the one of that name below the working directory, else a shipped one.

    kind: one of `core.files.shipped.KINDS`, whose shipped files also have short names (`yolov7-tiny` of the kind cfg).
    """
    file = str(file)
    check_path(file)
    if not file or Path(file).is_file():
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
    hint = nearby(file, kind) + nearest_shipped(file, kind)
    raise UserError(f"{file} does not exist, here or in any folder below {Path.cwd()}{hint}")


def check_path(path: str | Path) -> None:
    """Refuse a path that no file can have, before the file system is asked for it."""
    longest = max((len(os.fsencode(part)) for part in Path(path).parts), default=0)
    if longest > MOST_NAME_BYTES or len(os.fsencode(path)) > MOST_PATH_BYTES or "\0" in str(path):
        raise UserError(f"{shown(str(path))} cannot be a path: a name has at most {MOST_NAME_BYTES} bytes")


def nearby(file: str | Path, kind: str = "", limit: int = 5) -> str:
    """'; there is: a, b, c': files of the same kind and the nearest names, in the folder asked for, or else below the
    working directory."""
    suffix = Path(file).suffix
    if not suffix:
        return ""
    beside = sorted(Path(file).parent.glob(f"*{suffix}")) if Path(file).parent.is_dir() else []
    found = [path for path in beside if is_of_kind(path, kind)]
    found = found or sorted(path for path in walk_files(".") if path.suffix == suffix and is_of_kind(path, kind))
    found.sort(key=lambda path: -difflib.SequenceMatcher(None, path.name, Path(file).name).ratio())
    if not found:
        return f"; there is no {' '.join(filter(None, (kind, suffix)))} file below {Path.cwd()}"
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return f"; there is: {', '.join(map(str, found[:limit]))}{more}"


def is_of_kind(path: Path, kind: str) -> bool:
    """Whether a YAML file has the key that files of a kind have; True for other files and kinds."""
    if kind not in SIGNS or path.suffix not in (".yaml", ".yml"):
        return True
    try:
        with path.open("rb") as file:
            return any(line.startswith(SIGNS[kind]) for line in file.read(1 << 20).splitlines())
    except OSError:
        return False


def walk_files(root: str | Path) -> Iterator[Path]:
    """Every file below a folder, leaving out hidden folders and those of installed packages."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS]
        yield from (Path(folder) / name for name in files)


def latest_run(search_dir: str | Path = ".") -> str:
    """The newest last*.pt below a folder (what a bare --resume resumes), or '' if there is none."""
    found = [path for path in walk_files(search_dir) if path.suffix == ".pt" and path.name.startswith("last")]
    return str(max(found, key=os.path.getctime)) if found else ""


def check_img_size(img_size: int, s: int = 32) -> int:
    """The size rounded up to a multiple of the largest stride; says so when that changes it."""
    if img_size < 1:
        raise UserError(f"--img-size {img_size} is out of range: it must be at least 1, and is rounded up to {s}")
    rounded = math.ceil(img_size / int(s)) * int(s)
    if rounded != img_size:
        log.warning("--img-size %d is not a multiple of the largest stride %d: using %d", img_size, s, rounded)
    return rounded
