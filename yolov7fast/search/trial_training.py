"""The training command of trials: its settings, the effect of a budget, the run file of one trial.

Settings are flags of the command (`batch_size`, `training.batch_size`). One flag of a family may hold inner settings:
`hyp` the entries of the hyper-parameter file (`lr0`, `hyp.lr0`), `network` the keys of a DETR network's configuration.
"""

import hashlib
import math
import os
import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from yolov7fast.cli import run_file
from yolov7fast.cli.checks import check_train
from yolov7fast.cli.flags import flags_of
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.files.settings_files import LARGEST_INTEGER, is_whole, read_json, read_yaml
from yolov7fast.core.programs import program_of
from yolov7fast.core.text import nearest, printable
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.nn.detr_model import network_settings
from yolov7fast.reports.run_results import number
from yolov7fast.training.family import family_class
from yolov7fast.training.hyperparameters import KEYS, check_hyp, load_hyp

FULL_RUN_FACTOR = 20  # epochs of a full run as a multiple of a trial's, if the base has no more than the trial


class Budget(NamedTuple):
    """Limits of each trial; None: the base configuration's value. validations: the minimum number in each trial."""

    epochs: int | None = None
    subset: int | None = None
    size: int | None = None
    validations: int = 0


class TrialTraining:
    """One training command with its base configuration. Settings are flat: name -> value."""

    family: str
    inner, prefix = "", ""  # the flag that holds inner settings; what their names may begin with

    def __init__(self, base_config: str | Path, budget: Budget):
        kind, self.program = family_class(self.family), program_of("train", self.family)
        self.suffix, self.weights = kind.checkpoint_suffix, kind.weights_folder  # of checkpoints below a run's folder
        self.command = self.program.child()
        self.base_config, self.budget = run_file.find_run_file(base_config), budget
        self.user_names: dict[str, str] = {}  # setting -> its name in the user's file, in its order
        self.flags = flags_of("train", self.family)
        defaults = vars(parser_for("train", self.family).parse_args([]))
        self.base = defaults | run_file.read_run_file(base_config, self.flags, self.family)
        self.known = self.inner_settings()
        self.budgeted: dict[str, Any] = {}  # flags that the budget sets for all trials
        for name, flag in self.flags.items():
            amount = getattr(budget, flag.trials.budget) if flag.trials.budget else None
            if amount is not None:
                value = flag.default if flag.trials.reset else amount
                self.budgeted[name] = flag.value_of(value, "the budget")
            if self.base[name] and not flag.trials.in_base:
                raise UserError(f"{base_config}: '{name}' cannot be in the base configuration of trials; leave it out")
        self.checked({}, f"{base_config} with this budget")

    def inner_settings(self) -> dict[str, Any]:
        """Each with its value in the base configuration."""
        return {}

    def inner_value(self, name: str, value: Any, where: str) -> Any:
        return value

    def name(self, key: str, where: str) -> str:
        """The one name of a setting that may be written in several ways; every complaint begins with `where`."""
        plain = key.lstrip("-").replace("-", "_")
        plain = re.sub(rf"^(({'|'.join(run_file.SECTIONS)})\.)+", "", plain)  # without the headings of run files
        flag, inner = run_file.find_flag(plain, self.flags), plain.removeprefix(self.prefix)
        if flag is None and inner not in self.known:
            known = [*self.flags, *self.known, *(self.prefix + name for name in self.known)]
            raise UserError(f"{where}: unknown setting '{key}'{nearest(plain, known)}")
        name = flag or inner
        if flag and (instead := self.flags[flag].trials.instead):
            raise UserError(f"{where}: '{key}' cannot be set by trials: use {instead}")
        if name in self.budgeted:
            raise UserError(f"{where}: '{key}' is set for all trials by the budget; leave out one of the two")
        self.user_names.setdefault(name, key)
        return name

    def value(self, name: str, value: Any, where: str) -> Any:
        """The value as the command takes it."""
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{where}: {name} must be finite, not {value!r}")
        return self.flags[name].value_of(value, where) if name in self.flags else self.inner_value(name, value, where)

    def checked(self, settings: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The settings as the command takes them; impossible values and combinations are refused."""
        values = {name: self.value(name, value, where) for name, value in settings.items()}
        options = self.options(values)
        try:
            check_train(Namespace(**options), self.family)
            self.check_files(options)
            load_data_yaml(options["data"], fetch=False, val_fraction=options["val_fraction"])
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        return values

    def check_files(self, options: Mapping[str, Any]) -> None:
        """Refuse files that do not exist."""
        check_file(options["weights"])

    def epochs(self, settings: Mapping[str, Any]) -> int:
        return self.options(settings)["epochs"]

    def base_value(self, name: str) -> Any:
        """The value in a trial that does not set it."""
        return self.options({})[name] if name in self.flags else self.known.get(name)

    def options(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Every flag's value in a trial, which is validated often enough to be pruned."""
        options = self.base | self._flags(settings) | self.budgeted
        interval, epochs = options["eval_interval"], options["epochs"]
        if "eval_interval" not in settings and interval > 0 and epochs // interval < self.budget.validations:
            options["eval_interval"] = min(interval, max(1, epochs // 5))
        return options

    def _flags(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings in the form of a run file: inner ones are merged over those of the base, inside their flag."""
        flags = {name: value for name, value in settings.items() if name in self.flags}
        for name, value in settings.items():
            if name not in self.flags:
                below = flags.get(self.inner, self.base[self.inner])
                for part in reversed(name.removeprefix(f"{self.inner}.").split(".")):
                    value = {part: value}
                flags[self.inner] = run_file.merge(below if isinstance(below, Mapping) else {"base": below}, value)
        return flags

    def note(self) -> str:
        """Messages about changes to the base configuration."""
        wanted, used = self.base["eval_interval"], self.base_value("eval_interval")
        few = f"eval_interval {wanted} gives a trial too few validations for pruning"
        return f"{few}: trials are validated every {used} epochs" if used != wanted and self.epochs({}) > 1 else ""

    def delete_checkpoints(self, folder: Path) -> None:
        """Keep only the best weights of a trial that has ended: all checkpoints would fill the disk."""
        for path in folder.rglob(f"*{self.suffix}*"):
            if path != folder / self.weights / f"best{self.suffix}":
                path.unlink(missing_ok=True)

    def digests(self) -> dict[str, str]:
        """SHA-256 by name of the files that the base configuration names."""
        found = {}
        for kind in ("data", "cfg", "hyp"):
            value = self.base.get(kind)
            name = value.get("base") if isinstance(value, Mapping) else value
            if name and not Path(name).is_dir():
                found[name] = hashlib.sha256(Path(check_file(name, kind)).read_bytes()).hexdigest()
        return found

    def prepare(self) -> None:
        """Fetch the data set before several trainings start at once."""
        load_data_yaml(self.base["data"], val_fraction=self.base["val_fraction"])

    def run_file(self, settings: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        """The content of one trial's run file; it trains in `folder`."""
        place = {"seed": seed, "project": str(folder.parent), "name": folder.name, "exist_ok": True}
        place["eval_interval"] = self.options(settings)["eval_interval"]
        return self._over_base(settings, folder) | self.budgeted | place

    def full_run(self, settings: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
        """The content of `path`, the run file of a full run without the budget, and its command line."""
        content, size = self._over_base(settings, path.parent) | {"name": "best"}, self.base["img_size"]
        if self.base["subset_size"] and "subset_size" not in settings:
            content["subset_size"] = 0
        if self.budget.size and self.budget.size > (max(size) if isinstance(size, list) else size):
            content["img_size"] = self.budget.size
        trial, full = self.epochs(settings), self.base["epochs"]
        content["epochs"] = full if full > trial else FULL_RUN_FACTOR * trial
        return content, [self.program.invocation, "--config", str(path)]

    def _over_base(self, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """A run file in `folder` with these settings on top of the base configuration."""
        return {"base": os.path.relpath(self.base_config.resolve(), folder.resolve()), **self._flags(settings)}


class YoloTrialTraining(TrialTraining):
    family, inner, prefix = "yolo", "hyp", "hyp."

    def inner_settings(self) -> dict[str, Any]:
        hyp = load_hyp(self.base["hyp"])
        return {name: hyp.get(name, key.default) for name, key in KEYS.items()}

    def check_files(self, options: Mapping[str, Any]) -> None:
        super().check_files(options)
        load_hyp(options["hyp"])
        check_file(options["cfg"], "cfg")

    def inner_value(self, name: str, value: Any, where: str) -> Any:
        return check_hyp(load_hyp(self.base["hyp"]) | {name: value}, where)[name]


class DetrTrialTraining(TrialTraining):
    family, inner = "detr", "network"

    def inner_settings(self) -> dict[str, Any]:
        config = network_settings(self.base["architecture"], self.base["network"])
        backbone = {f"backbone_config.{key}": value for key, value in config.pop("backbone_config").items()}
        return {f"network.{key}": value for key, value in (config | backbone).items()}

    def check_files(self, options: Mapping[str, Any]) -> None:
        super().check_files(options)
        if not options["pretrained"]:  # whose configuration is not known here
            network_settings(options["architecture"], options["network"])

    def inner_value(self, name: str, value: Any, where: str) -> Any:
        """Numbers also as files may write them: '1e-3' is text in YAML 1.1, and 20.0 means 20."""
        if isinstance(self.known[name], float) and isinstance(value, str) and math.isfinite(number(value)):
            return number(value)
        is_integer = type(self.known[name]) is int and isinstance(value, float) and value.is_integer()
        return int(value) if is_integer else value


# --- files of settings ------------------------------------------------------------------------------------------------

RANGES = {  # kind -> what it takes
    "log_uniform": "[low, high] with low < high, both above 0",
    "uniform": "[low, high] with low < high",
    "int": "[low, high], whole numbers with low < high; its step must be one of at least 1",
    "choice": "a list of values, such as {choice: [16, 32]}",
}
MOST_TRIALS = 1000  # of a list
Space = dict[str, BaseDistribution]  # the range of each setting
EXAMPLE = "lr0: {log_uniform: [0.001, 0.1]}"


def training_for(base_config: str) -> type[TrialTraining]:
    """The class of the family that a base configuration is for."""
    family = run_file.family_of_run_file(base_config)
    known = {kind.family: kind for kind in (YoloTrialTraining, DetrTrialTraining)}
    return known.get(family) or type("FamilyTrialTraining", (TrialTraining,), {"family": family})


def read_trials(path: str | Path, training: TrialTraining) -> list[dict[str, Any]]:
    """The settings of each trial in a list, by their one name."""
    content = read_file(path)
    if not isinstance(content, list) or not content:
        raise UserError(f'{path} must hold a list of trials, such as [{{"lr0": 0.01}}, {{"lr0": 0.02}}]')
    if len(content) > MOST_TRIALS:
        raise UserError(f"{path} lists {len(content):,} trials; at most {MOST_TRIALS:,}: split the list")
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
        if isinstance(space[name], FloatDistribution):
            values = [*values, values[0] + 0.618034 * (values[1] - values[0])]  # not whole, whatever the ends are
        for value in values:
            training.checked({name: value}, where)
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
    """The distribution of a range, and its choices or both ends (whole numbers as int)."""
    kinds = [kind for kind in RANGES if isinstance(entry, Mapping) and kind in entry]
    if len(kinds) != 1 or set(entry) - {kinds[0], *(["step"] if kinds == ["int"] else [])}:
        raise UserError(f"{where} must be one of {', '.join(RANGES)} (int may have a step), such as {EXAMPLE}")
    kind, values, step = kinds[0], entry[kinds[0]], entry.get("step", 1)
    ends = values if isinstance(values, list) and all(isinstance(v, int | float | str) for v in values) else []
    try:  # what is possible otherwise is for Optuna to judge
        if kind == "choice":
            return CategoricalDistribution(ends), ends
        low, high = (number(math.nan if isinstance(end, bool) else end) for end in ends)
        whole = low.is_integer() and high.is_integer() and is_whole(step, 1, LARGEST_INTEGER)
        if not low < high or not math.isfinite(high - low) or (kind == "int" and not whole):
            raise ValueError
        ends = [int(end) if end.is_integer() else end for end in (low, high)]
        if kind == "int":
            return IntDistribution(int(low), int(high), step=step), ends
        return FloatDistribution(low, high, log=kind == "log_uniform"), ends
    except ValueError:
        raise UserError(f"{where}: {kind} takes {RANGES[kind]}, not {shown(entry)}") from None
