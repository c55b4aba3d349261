"""Files of settings: a list of trials, or ranges to draw from. Names and values are checked before anything runs."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from yolov7fast.core.bounded import LARGEST_INTEGER, is_whole
from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.json_file import read_json
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.files.yaml_file import read_yaml
from yolov7fast.core.text import printable
from yolov7fast.metrics.run_curves import number
from yolov7fast.search.trainer import Trainer

KINDS = ("log_uniform", "uniform", "int", "choice")
GOLDEN = (5**0.5 - 1) / 2
EXAMPLE = "lr0: {log_uniform: [0.001, 0.1]}"


def read_trials(path: str | Path, trainer: Trainer) -> list[dict[str, Any]]:
    """The settings of each trial in a list, by their one name."""
    content = read_file(path)
    if not isinstance(content, list) or not content:
        raise UserError(f'{path} must hold a list of trials, such as [{{"lr0": 0.01}}, {{"lr0": 0.02}}]')
    trials = []
    for k, entry in enumerate(content, 1):
        where = f"{path}: trial {k}"
        if not isinstance(entry, dict):
            raise UserError(f'{where} must be an object of settings, such as {{"lr0": 0.01}}, not {shown(entry)}')
        named = by_name(entry, trainer, where, is_heading=lambda value: True)
        settings = {name: trainer.value(name, value, where) for name, (_, value) in named.items()}
        trainer.check(settings, where)
        trials.append(settings)
    return trials


def read_space(path: str | Path, trainer: Trainer) -> dict[str, BaseDistribution]:
    """The range of each setting, by its one name.

    All choices, or both ends of a range and a value between them, must be possible values.
    """
    content = read_file(path)
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path} must hold the settings to search with their ranges, such as {EXAMPLE}")
    space: dict[str, BaseDistribution] = {}
    for name, (key, entry) in by_name(content, trainer, str(path), _holds_mappings).items():
        where = f"{path}: {printable(key, 60)}"
        space[name] = distribution = _distribution(entry, where)
        for value in values_of(distribution):
            trainer.check({name: trainer.value(name, value, where)}, where)
        if isinstance(distribution, FloatDistribution):
            low, high = distribution.low, distribution.high
            try:
                trainer.value(name, low + GOLDEN * (high - low), where)  # not whole, whatever the ends are
            except UserError as error:
                raise UserError(f"{error}; for whole numbers write {{int: [{int(low)}, {int(high)}]}}") from None
    return space


def values_of(distribution: BaseDistribution) -> tuple:
    """All choices, or the ends of a range, whole ones as such."""
    if isinstance(distribution, CategoricalDistribution):
        return tuple(distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return tuple(int(end) if float(end).is_integer() else end for end in (distribution.low, distribution.high))


def read_file(path: str | Path) -> Any:
    """JSON or YAML, by the file's ending."""
    found = check_file(path, "experiment")
    return read_json(found) if found.endswith(".json") else read_yaml(found)


def by_name(
    entry: Mapping[str, Any], trainer: Trainer, where: str, is_heading: Callable[[Mapping], bool]
) -> dict[str, tuple[str, Any]]:
    """Each setting once: its one name -> as it is spelt here, its value."""
    found: dict[str, tuple[str, Any]] = {}
    for key, value in flatten(entry, is_heading):
        name = trainer.name(key, where)
        if name in found:
            raise UserError(f"{where}: '{printable(name, 60)}' is given twice")
        found[name] = key, value
    return found


def flatten(entry: Mapping[str, Any], is_heading: Callable[[Mapping], bool], above: str = "") -> Iterator:
    """{'training': {'batch_size': 8}} is another way to write {'training.batch_size': 8}."""
    for key, value in entry.items():
        if isinstance(value, Mapping) and is_heading(value):
            yield from flatten(value, is_heading, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _holds_mappings(value: Mapping) -> bool:
    return bool(value) and all(isinstance(inner, Mapping) for inner in value.values())


def _distribution(entry: Any, where: str) -> BaseDistribution:
    kinds = [kind for kind in KINDS if isinstance(entry, Mapping) and kind in entry]
    if len(kinds) != 1 or set(entry) - {kinds[0], *(["step"] if kinds == ["int"] else [])}:
        raise UserError(f"{where} must be one of {', '.join(KINDS)} (int may have a step), such as {EXAMPLE}")
    kind, values, step = kinds[0], entry[kinds[0]], entry.get("step", 1)
    if kind == "choice":
        if not isinstance(values, list) or not values or not all(isinstance(v, str | int | float) for v in values):
            raise UserError(f"{where}: choice takes a list of values, such as {{choice: [16, 32]}}")
        return CategoricalDistribution(values)
    ends = [math.nan if isinstance(v, bool) else number(v) for v in (values if isinstance(values, list) else ())]
    if len(ends) != 2 or not all(map(math.isfinite, ends)):
        raise UserError(f"{where}: {kind} takes [low, high], not {shown(values)}")
    low, high = ends
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise UserError(f"{where}: int takes whole numbers, not {shown(values)}")
    if not is_whole(step, 1, LARGEST_INTEGER):
        raise UserError(f"{where}: step must be a whole number of at least 1, not {shown(step)}")
    is_log = kind == "log_uniform"
    if not low < high or (is_log and low <= 0):
        raise UserError(f"{where}: {kind} needs low < high{', both above 0' * is_log}, not {shown(values)}")
    return IntDistribution(int(low), int(high), step=step) if kind == "int" else FloatDistribution(low, high, is_log)
