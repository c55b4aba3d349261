"""One kind of file: how a sound one is made, how it is damaged, how it is used."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.fuzz.mutations import Mutation

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Target:
    """make: puts valid files into a separate folder; file: the one that is damaged; use: as the project uses it."""

    name: str
    file: str
    mutations: tuple[Mutation, ...]
    make: Callable[[Path], Any]
    use: Callable[[Path], Any]
    weight: int = 4

    def path(self, folder: Path) -> Path:
        """A star in the name of the file stands for what is known only once it is made."""
        return next((folder / self.name).glob(self.file)) if "*" in self.file else folder / self.name / self.file


def must(condition: Any, what: str) -> None:
    """Not an `assert`: cases run outside of what pytest rewrites."""
    if not condition:
        raise AssertionError(what)


def fresh(folder: Path) -> Path:
    """An empty folder for what a use writes."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    return out


def text(name: str, content: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        dump = json.dumps if name.endswith(".json") else lambda value: yaml.safe_dump(value, sort_keys=False)
        (folder / name).write_text(content if isinstance(content, str) else dump(content))

    return make
