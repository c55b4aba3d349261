"""Files of settings: a list of trials, or ranges to draw from. Names and values are checked before anything runs."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from yolov7fast.cli import run_file
from yolov7fast.cli.trial_training import DetrTrialTraining, TrialTraining, YoloTrialTraining
from yolov7fast.core.bounded import LARGEST_INTEGER, is_whole
from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.json_file import read_json
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.files.yaml_file import read_yaml
from yolov7fast.core.text import printable
from yolov7fast.evaluation.run_curves import number

TAKES = {
    "log_uniform": "[low, high] with low < high, both above 0",
    "uniform": "[low, high] with low < high",
    "int": "[low, high], whole numbers with low < high; its step must be one of at least 1",
    "choice": "a list of values, such as {choice: [16, 32]}",
}
MOST_TRIALS = 1_000  # of a list: each is a training, and is checked as one, which takes some 10 ms
GOLDEN = (5**0.5 - 1) / 2
Space = dict[str, BaseDistribution]  # the range of each setting
EXAMPLE = "lr0: {log_uniform: [0.001, 0.1]}"


def training_for(base_config: str) -> type[TrialTraining]:
    """The class of the family that a base configuration is for."""
    family = run_file.family_of_run_file(base_config)
    if family in (known := {kind.family: kind for kind in (YoloTrialTraining, DetrTrialTraining)}):
        return known[family]
    from yolov7fast.training.family import family_class

    registered = family_class(family)
    parts = {"family": family, "suffix": registered.checkpoint_suffix, "weights": registered.weights_folder}
    return type("FamilyTrialTraining", (TrialTraining,), parts)


def read_trials(path: str | Path, training: TrialTraining) -> list[dict[str, Any]]:
    """The settings of each trial in a list, by their one name."""
    content = read_file(path)
    if not isinstance(content, list) or not content:
        raise UserError(f'{path} must hold a list of trials, such as [{{"lr0": 0.01}}, {{"lr0": 0.02}}]')
    if len(content) > MOST_TRIALS:
        raise UserError(
            f"{path} lists {len(content):,} trials, and at most {MOST_TRIALS:,} are possible: split the file, or give "
            "ranges with --search"
        )
    trials = []
    for k, entry in enumerate(content, 1):
        where = f"{path}: trial {k}"
        if not isinstance(entry, dict):
            raise UserError(f'{where} must be an object of settings, such as {{"lr0": 0.01}}, not {shown(entry)}')
        named = by_name(entry, training, where)
        trials.append(training.checked({name: value for name, (_, value) in named.items()}, where))
    return trials


def read_space(path: str | Path, training: TrialTraining) -> Space:
    """The range of each setting; its choices, or both ends and a value between them, must be possible values."""
    content = read_file(path)
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path} must hold the settings to search with their ranges, such as {EXAMPLE}")
    space: Space = {}
    for name, (key, entry) in by_name(content, training, str(path)).items():
        where = f"{path}: {printable(key, 60)}"
        space[name], values = _distribution(entry, where)
        for value in values:
            training.checked({name: value}, where)
        if isinstance(space[name], FloatDistribution):
            low, high = values
            try:
                training.value(name, low + GOLDEN * (high - low), where)  # not whole, whatever the ends are
            except UserError as error:
                raise UserError(f"{error}; for whole numbers write {{int: [{int(low)}, {int(high)}]}}") from None
    return space


def read_file(path: str | Path) -> Any:
    """JSON or YAML, by the file's ending."""
    found = check_file(path, "experiment")
    return read_json(found) if found.endswith(".json") else read_yaml(found)


def by_name(entry: Mapping[str, Any], training: TrialTraining, where: str) -> dict[str, tuple[str, Any]]:
    """Each setting once: its one name -> as it is written here, its value."""
    found: dict[str, tuple[str, Any]] = {}
    for key, value in entry.items():
        name = training.name(str(key), where)
        if name in found:
            raise UserError(f"{where}: '{printable(name, 60)}' is given twice")
        found[name] = (str(key), value)
    return found


def _distribution(entry: Any, where: str) -> tuple[BaseDistribution, list]:
    """What a range draws from, and all of its choices or both ends, whole ones as such."""
    kinds = [kind for kind in TAKES if isinstance(entry, Mapping) and kind in entry]
    if len(kinds) != 1 or set(entry) - {kinds[0], *(["step"] if kinds == ["int"] else [])}:
        raise UserError(f"{where} must be one of {', '.join(TAKES)} (int may have a step), such as {EXAMPLE}")
    kind, values, step = kinds[0], entry[kinds[0]], entry.get("step", 1)
    listed = values if isinstance(values, list) else []
    ends = [math.nan if isinstance(value, bool) else number(value) for value in listed]
    is_range = len(ends) == 2 and all(map(math.isfinite, ends)) and ends[0] < ends[1]
    is_whole_range = is_range and ends[0].is_integer() and ends[1].is_integer() and is_whole(step, 1, LARGEST_INTEGER)
    is_choice = bool(listed) and all(isinstance(value, str | int | float) for value in listed)
    possible = {"choice": is_choice, "int": is_whole_range, "uniform": is_range}
    if not possible.get(kind, is_range and ends[0] > 0):
        raise UserError(f"{where}: {kind} takes {TAKES[kind]}, not {shown(entry)}")
    if kind == "choice":
        return CategoricalDistribution(listed), listed
    low, high = ends
    values = [int(end) if end.is_integer() else end for end in ends]
    if kind == "int":
        return IntDistribution(int(low), int(high), step=step), values
    return FloatDistribution(low, high, log=kind == "log_uniform"), values
