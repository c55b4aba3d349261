"""Head configuration of a multi-head network: the classes of each detection head.

A configuration is a YAML file (or the plain dictionary a checkpoint stores, which has the same keys):

    nc: 80                     # classes in all
    heads: 4                   # heads
    grouping: standard         # any label
    full_head: false           # true: every head has columns for all classes, only its own are used
    head_assignments:
      head_0: {name: people, classes: [0, 24, 25], weight: 1.0}   # global ids; their order gives the local ids
      head_1: ...
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.paths import ROOT
from yolov7fast.core.files.settings_files import MOST_CLASSES, is_whole, read_yaml
from yolov7fast.core.text import printable

SHIPPED = {  # for COCO's 80 classes and four heads
    "standard": ROOT / "data" / "coco_320_1b4h_standard.yaml",
    "geometry": ROOT / "data" / "coco_320_1b4h_geometry.yaml",
}
DEFAULT_NC, DEFAULT_HEADS = 80, 4
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6  # of a head; the loss overflows in single precision beyond


@dataclass(frozen=True, repr=False)
class HeadConfig:
    """A checked configuration: every class 0..nc-1 belongs to exactly one head, every weight is positive."""

    nc: int
    classes: tuple[tuple[int, ...], ...]  # global ids of each head; the position is the local id
    weights: tuple[float, ...]  # loss weight of each head
    names: tuple[str, ...]  # of the heads
    grouping: str = "standard"
    full_head: bool = False

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.classes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of classes of each head."""
        return tuple(len(ids) for ids in self.classes)

    @cached_property
    def head_of(self) -> tuple[int, ...]:
        """Head of each global class."""
        owner = {c: h for h, ids in enumerate(self.classes) for c in ids}
        return tuple(owner[c] for c in range(self.nc))

    @cached_property
    def local_of(self) -> tuple[int, ...]:
        """Local id, within its head, of each global class."""
        local = {c: i for ids in self.classes for i, c in enumerate(ids)}
        return tuple(local[c] for c in range(self.nc))

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Number of class columns in each head's raw outputs."""
        return (self.nc,) * self.heads if self.full_head else self.sizes

    @cached_property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """Columns of each head's own classes among the class columns of its raw outputs, by local id."""
        return self.classes if self.full_head else tuple(tuple(range(size)) for size in self.sizes)

    def __repr__(self) -> str:
        return f"{self.heads} heads ({self.grouping}) of {', '.join(map(str, self.sizes))} classes"

    def to_dict(self) -> dict[str, Any]:
        """Plain values with the keys of the YAML file, as stored in checkpoints and read by `from_dict`."""
        sections = {
            f"head_{h}": {"name": self.names[h], "classes": list(ids), "weight": self.weights[h]}
            for h, ids in enumerate(self.classes)
        }
        return {
            "nc": self.nc,
            "heads": self.heads,
            "grouping": self.grouping,
            "full_head": self.full_head,
            "head_assignments": sections,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], where: str = "head configuration") -> "HeadConfig":
        """Check the keys of a configuration; `where` names its source in errors."""
        if not isinstance(content, Mapping) or not isinstance(content.get("head_assignments"), Mapping):
            raise UserError(f"{where} has no section head_assignments with head_0, head_1, ...")
        sections = content["head_assignments"]
        nc = _count(content.get("nc", DEFAULT_NC), "nc", where)
        heads = _count(content.get("heads", len(sections) or DEFAULT_HEADS), "heads", where)
        expected = [f"head_{h}" for h in range(heads)]
        if missing := [key for key in expected if key not in sections]:
            raise UserError(f"{where}: heads is {heads}, but head_assignments lacks {_some(missing)}")
        if extra := [str(key) for key in sections if key not in expected]:
            raise UserError(f"{where}: heads is {heads}, but head_assignments also has {_some(extra)}")
        full_head = content.get("full_head", False)
        if not isinstance(full_head, bool):
            raise UserError(f"{where}: full_head must be true or false, not {shown(full_head)}")
        parsed = [_section(sections[key], key, nc, where) for key in expected]
        classes = tuple(ids for ids, _, _ in parsed)
        _check_partition(classes, nc, where if "nc" in content else f"{where}, which gives no nc")
        return cls(
            nc,
            classes,
            tuple(weight for _, weight, _ in parsed),
            tuple(name or f"Head {h}" for h, (_, _, name) in enumerate(parsed)),
            _text(content.get("grouping", "standard")),
            full_head,
        )

    @classmethod
    def load(cls, path: str | Path) -> "HeadConfig":
        """Read and check a configuration file."""
        return cls.from_dict(read_yaml(path, "head configuration"), str(path))

    @classmethod
    def consecutive(cls, nc: int, heads: int = DEFAULT_HEADS) -> "HeadConfig":
        """Classes in order, divided evenly; the first heads take one more if nc is not a multiple of `heads`."""
        if not 1 <= heads <= nc:
            raise UserError(f"{nc} classes cannot be divided among {heads} heads: ask for 1 to {nc} heads")
        ends = [0]
        for h in range(heads):
            ends.append(ends[-1] + nc // heads + (h < nc % heads))
        classes = tuple(tuple(range(a, b)) for a, b in itertools.pairwise(ends))
        return cls(nc, classes, (1.0,) * heads, tuple(f"Head {h}" for h in range(heads)), "consecutive")

    def check_agrees(
        self, nc: int, heads: int = 0, where: str = "head configuration", instead: str = "give --heads N alone"
    ) -> "HeadConfig":
        """Itself; UserError unless it fits a data set of `nc` classes and the requested number of heads (0: any)."""
        if nc != self.nc:
            raise UserError(
                f"{where} is for {self.nc} classes, the data set has {nc}: make one for it with"
                f" yolov7fast data heads DATA.yaml --heads N, or {instead}"
            )
        if heads and heads != self.heads:
            raise UserError(
                f"--heads {heads}, but {where} has {self.heads} heads: make them agree, or leave out --heads"
            )
        return self


def _count(value: Any, key: str, where: str) -> int:
    """A whole number of classes or heads."""
    if not is_whole(value, 1, MOST_CLASSES):
        raise UserError(f"{where}: {key} must be a whole number, 1 to {MOST_CLASSES:,}, not {shown(value)}")
    return value


def _text(value: Any) -> str:
    """A label, escaped and shortened."""
    return printable(value if isinstance(value, str) else shown(value), 100)


def _some(words: Sequence[str]) -> str:
    return ", ".join(printable(word, 40) for word in words[:5]) + (", ..." if len(words) > 5 else "")


def _section(section: Any, key: str, nc: int, where: str) -> tuple[tuple[int, ...], float, str]:
    """Class ids, weight and name of one head."""
    ids = section.get("classes") if isinstance(section, Mapping) else None
    if not isinstance(ids, list) or not ids:
        raise UserError(f"{where}: {key} needs a list `classes` that is not empty")
    seen = set()
    for c in ids:
        if isinstance(c, bool) or not isinstance(c, int):
            raise UserError(f"{where}: {key} lists {shown(c)}, which is not a class number")
        if not 0 <= c < nc:
            raise UserError(f"{where}: {key} lists class {c}, but nc is {nc}: classes are 0 to {nc - 1}")
        if c in seen:
            raise UserError(f"{where}: {key} lists class {c} twice")
        seen.add(c)
    weight = section.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        limits = f"from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
        raise UserError(f"{where}: weight of {key} must be a positive number, {limits}, not {shown(weight)}")
    return tuple(ids), float(weight), _text(section.get("name") or "")


def _check_partition(classes: Sequence[Sequence[int]], nc: int, where: str) -> None:
    """UserError unless every class is in exactly one head."""
    owner: dict[int, int] = {}
    for h, ids in enumerate(classes):
        for c in ids:
            if c in owner:
                raise UserError(f"{where}: class {c} is in head_{owner[c]} and in head_{h}; keep one of them")
            owner[c] = h
    if absent := [c for c in range(nc) if c not in owner]:
        raise UserError(f"{where}: {len(absent)} of {nc} classes in no head: {_some([f'class {c}' for c in absent])}")


def choose_head_config(
    nc: int,
    heads: int = 0,
    path: str = "",
    standard: bool = False,
    geometry: bool = False,
    from_boxes: Callable[[int], HeadConfig] | None = None,
    names: Sequence[str] = (),
) -> HeadConfig | None:
    """The configuration for --heads, --head-config, --standard-grouping and --geometry-grouping; None without them.

    For COCO's 80 classes (recognised by `names`) on 4 heads the groupings are the shipped files. Otherwise standard
    divides the classes in order, as --heads alone does, and geometry calls `from_boxes(heads)`, which groups by the
    boxes of the training set.
    """
    if bool(path) + standard + geometry > 1:
        raise UserError("give one of --head-config, --standard-grouping and --geometry-grouping, not several")
    if path:
        return HeadConfig.load(path).check_agrees(nc, heads, path)
    if (standard or geometry) and heads in (0, DEFAULT_HEADS) and are_cocos(names):
        return HeadConfig.load(SHIPPED["standard" if standard else "geometry"])
    if geometry:
        if from_boxes is None:
            raise UserError(
                "--geometry-grouping needs the training set: make a file with `yolov7fast data heads` instead"
            )
        return from_boxes(heads or min(DEFAULT_HEADS, nc))
    return HeadConfig.consecutive(nc, heads or min(DEFAULT_HEADS, nc)) if standard or heads else None


def are_cocos(names: Sequence[str]) -> bool:
    """Whether these are COCO's 80 classes in their order."""
    return list(names) == read_yaml(SHIPPED["standard"])["names"]
