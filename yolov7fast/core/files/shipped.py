"""The YAML that comes with the program: where it lies, and how a user names it.

In a checkout it lies at the root (`cfg/`, `data/`, `configs/`, `experiments/`); installed, in the package's folder
`shipped`. Files of the working folder come first: see `core.files.check_file`.
"""

import difflib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
CHECKOUT = PACKAGE.parent if (PACKAGE.parent / "pyproject.toml").is_file() else None
ROOT = CHECKOUT or PACKAGE / "shipped"

# kind of file -> the shipped ones, {} being the short name; the first fit is meant
KINDS: dict[str, tuple[str, ...]] = {
    "cfg": ("cfg/training/{}.yaml", "cfg/deploy/{}.yaml"),
    "hyp": ("data/hyp.scratch.{}.yaml", "data/hyp.{}.yaml"),
    "data": ("data/{}.yaml",),
    "run file": ("configs/{}.yaml",),
    "experiment": ("experiments/{}.yaml", "experiments/{}.json"),
}
RENAMED = {"data/hyp.shapes.yaml": "data/hyp.small.yaml"}  # names of older versions, in users' scripts and run files
FOLDERS = {pattern.split("/")[0] for patterns in KINDS.values() for pattern in patterns}


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
    taken: set[Path] = set()
    for pattern in KINDS.get(kind, ()):
        before, after = (ROOT / pattern).name.split("{}")
        for path in sorted((ROOT / pattern).parent.glob(f"{before}*{after}")):
            if path not in taken and (before or not path.name.startswith("hyp.")):  # data/ holds two kinds
                taken.add(path)
                found.setdefault(path.name.removeprefix(before).removesuffix(after), path)
    return found


def nearest_shipped(name: str, kind: str, limit: int = 3) -> str:
    """'; shipped: yolov7-tiny, yolov7x': the short names nearest to a name that fits nothing, or the first few."""
    known = list(shipped_by_name(kind))
    stem = Path(name).name
    for ending in (".yaml", ".yml", ".json"):
        stem = stem.removesuffix(ending)
    close = difflib.get_close_matches(stem, known, n=limit, cutoff=0.5) or known[: 2 * limit]
    return f"; shipped: {', '.join(close)}" if close else ""
