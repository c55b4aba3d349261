"""A checkout of WongKinYiu/yolov7 or of a fork: its files, its modules, and how its code differs from upstream's."""

import ast
import hashlib
import importlib
import sys
import textwrap
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from yolov7fast.core.errors import UserError

FILES = ("models/yolo.py", "models/experimental.py", "utils/loss.py", "utils/datasets.py", "utils/general.py")
FILES += ("utils/metrics.py", "utils/torch_utils.py")
NAMES = ("utils/loss.py:ComputeLoss", "utils/loss.py:ComputeLossOTA", "utils/datasets.py:create_dataloader")
PACKAGES = ("models", "utils")
FIRST = "models.experimental"  # imported first, as in the scripts, because the modules import each other


ABSENT = object()


class Patches(ExitStack):
    """Names replaced in modules of a checkout, in memory; `close` restores the original values."""

    def set(self, owner: Any, name: str, value: Any) -> None:
        """`owner.name = value`, of a module or class."""
        before = vars(owner).get(name, ABSENT)
        setattr(owner, name, value)
        self.callback(delattr, owner, name) if before is ABSENT else self.callback(setattr, owner, name, before)

    def set_module(self, module: ModuleType) -> None:
        """Make imports of its name return this module."""
        name = module.__name__
        before: Any = sys.modules.get(name, ABSENT)
        sys.modules[name] = module
        if before is ABSENT:
            self.callback(sys.modules.pop, name, None)
        else:
            self.callback(sys.modules.__setitem__, name, before)


class Checkout:
    """The folder of a checkout. Places in its code have the form `utils/loss.py:ComputeLoss`."""

    def __init__(self, root: str | Path):
        self.root = Path(root).resolve()
        self._read = cache(_parsed)
        if not self.root.is_dir():
            raise UserError(f"--repo {root}: there is no such folder; give the folder of a YOLOv7 checkout")
        absent = [name for name in FILES if not (self.root / name).is_file()]
        absent = absent or [place for place in NAMES if self.digest(place) is None]
        if absent:
            text = f"--repo {root} is not a checkout that the overlay supports: {absent[0]} was not found"
            raise UserError(f"{text}; give the folder of WongKinYiu/yolov7 or of a fork of its main branch")

    def script(self, name: str) -> Path:
        """The script of that name in the checkout."""
        path = self.root / name
        if path.is_file():
            return path
        found = ", ".join(sorted(p.name for p in self.root.glob("*.py"))) or "none"
        raise UserError(f"{name} was not found in {self.root}; its scripts: {found}")

    # --- its code -----------------------------------------------------------------------------------------------------

    def differences(self, known: Mapping[str, str]) -> list[str]:
        """The places in `known` (place -> hash) whose code differs, without those that the checkout lacks."""
        found = {place: self.digest(place) for place in known}
        return [place for place, digest in found.items() if digest not in (None, known[place])]

    def digest(self, place: str) -> str | None:
        """Hash of the source of a function or class, without importing it; None if it does not exist."""
        file, _, name = place.partition(":")
        lines, nodes = self._read(self.root / file)
        for node in reversed(nodes):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                source = normalised("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                return hashlib.sha256(source.encode()).hexdigest()
        return None

    # --- its modules --------------------------------------------------------------------------------------------------

    def put_first(self) -> None:
        """Make `models`, `utils` and `test` importable from the checkout, as in its scripts."""
        for name in PACKAGES:
            if name in sys.modules and not self.owns(sys.modules[name]):
                where = vars(sys.modules[name]).get("__file__") or list(sys.modules[name].__path__)
                raise UserError(f"`{name}` was imported from {where} already: install the overlay before other imports")
        here = Path(__file__).resolve().parents[2]
        last = [str(here)] if (here / "models").is_dir() else []  # a source checkout of this project has the same names
        rest = [entry for entry in sys.path if entry not in (str(self.root), "", *last)]
        sys.path[:] = [str(self.root), *rest, *last]
        importlib.invalidate_caches()
        self.module(FIRST)

    def module(self, name: str) -> ModuleType:
        """One of its modules, imported; `put_first` must be called before."""
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise self.without(error) from error
        if not self.owns(module):
            raise UserError(f"`{name}` came from {module.__file__}, not from {self.root}")
        return module

    def modules(self) -> list[ModuleType]:
        """The checkout's modules that have been imported."""
        named = [module for name, module in sys.modules.items() if name.partition(".")[0] in PACKAGES]
        return [module for module in named if self.owns(module)]

    def owns(self, module: ModuleType) -> bool:
        """Whether a module of one of the names in PACKAGES, or below them, is the checkout's."""
        file = vars(module).get("__file__")
        places = [file] if file else list(vars(module).get("__path__", []))  # a folder without __init__.py has no file
        return any(Path(place).resolve().is_relative_to(self.root) for place in places)

    def without(self, error: ModuleNotFoundError) -> UserError:
        """The error for a failed import in the checkout."""
        name = (error.name or "a module").partition(".")[0]
        return UserError(
            f"{self.root} needs {name}, which is not installed here: install it (upstream imports more packages than "
            "this project: pip install pandas seaborn requests)"
        )


def _parsed(path: Path) -> tuple[list[str], list[ast.stmt]]:
    """Lines and top-level statements of a file, none if it does not exist."""
    if not path.is_file():
        return [], []
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return text.splitlines(), ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path} is not Python that this version can read: {error}") from None


def normalised(source: str) -> str:
    """Source without common indentation, trailing blanks, empty lines and comment lines."""
    lines = [line.rstrip() for line in textwrap.dedent(source).splitlines()]
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
