"""What a search may draw: a YAML of settings with their ranges, checked like the values of a trials file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.text import printable
from yolov7fast.search.keys import Keys, read_file

KINDS = ("log_uniform", "uniform", "int", "choice")
GOLDEN = (5**0.5 - 1) / 2
EXAMPLE = "lr0: {log_uniform: [0.001, 0.1]}"


@dataclass(frozen=True)
class Dimension:
    """One setting's range: low and high (both included) of a number, or the values of a choice."""

    kind: str
    low: float = 0.0
    high: float = 0.0
    step: int = 1
    choices: tuple = ()


def read_space(path: str | Path, keys: Keys) -> dict[str, Dimension]:
    """The ranges by the settings' one name; all choices, or both ends of a range and a value between them, must be
    possible values.
    """
    content = read_file(path)
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path} must hold the settings to search with their ranges, such as {EXAMPLE}")
    space = {}
    for key, entry in _flat(content):
        where = f"{path}: {printable(key, 60)}"
        name = keys.name(key, str(path))
        if name in space:
            raise UserError(f"{path}: '{name}' is given twice")
        space[name] = dimension = _dimension(entry, where)
        for value in dimension.choices or (dimension.low, dimension.high):
            keys.check({name: keys.value(name, value, where)}, where)
        _check_between(name, dimension, keys, where)
    return space


def _check_between(name: str, dimension: Dimension, keys: Keys, where: str) -> None:
    """Refuse a range of broken numbers for a setting whose ends are whole, and which takes no others."""
    if dimension.kind not in ("uniform", "log_uniform"):
        return
    value = dimension.low + GOLDEN * (dimension.high - dimension.low)  # not whole, whatever the ends are
    try:
        keys.value(name, value, where)
    except UserError as error:
        low, high = (int(end) for end in (dimension.low, dimension.high))
        raise UserError(f"{error}; for whole numbers write {{int: [{low}, {high}]}}") from None


def _flat(content: Mapping[str, Any], heading: str = ""):
    """Nested headings as dotted names."""
    for key, entry in content.items():
        is_heading = isinstance(entry, Mapping) and entry and all(isinstance(v, Mapping) for v in entry.values())
        if is_heading:
            yield from _flat(entry, f"{heading}{key}.")
        else:
            yield f"{heading}{key}", entry


def _dimension(entry: Any, where: str) -> Dimension:
    kinds = [kind for kind in KINDS if isinstance(entry, Mapping) and kind in entry]
    if len(kinds) != 1 or set(entry) - {kinds[0], *(["step"] if kinds == ["int"] else [])}:
        raise UserError(f"{where} must be one of {', '.join(KINDS)} (int may have a step), such as {EXAMPLE}")
    kind, values = kinds[0], entry[kinds[0]]
    if kind == "choice":
        if not isinstance(values, list) or not values or not all(isinstance(v, str | int | float) for v in values):
            raise UserError(f"{where}: choice takes a list of values, such as {{choice: [16, 32]}}")
        return Dimension(kind, choices=tuple(values))
    low, high = _range(values, kind, where)
    step = entry.get("step", 1)
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise UserError(f"{where}: step must be a whole number of at least 1, not {shown(step)}")
    return Dimension(kind, low, high, step)


def _range(values: Any, kind: str, where: str) -> tuple[float, float]:
    low, high = map(_number, values) if isinstance(values, list) and len(values) == 2 else (None, None)
    if low is None or high is None:
        raise UserError(f"{where}: {kind} takes [low, high], not {shown(values)}")
    if kind == "int" and not (float(low).is_integer() and float(high).is_integer()):
        raise UserError(f"{where}: int takes whole numbers, not {shown(values)}")
    if not low < high or (kind == "log_uniform" and low <= 0):
        raise UserError(
            f"{where}: {kind} needs low < high{', both above 0' * (kind == 'log_uniform')}, not {shown(values)}"
        )
    return (int(low), int(high)) if kind == "int" else (low, high)


def _number(value: Any) -> float | None:
    """A finite number; YAML 1.1 reads '1e-3' as text."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value) if isinstance(value, str) else value
        return number if math.isfinite(number) else None
    except (TypeError, ValueError):
        return None
