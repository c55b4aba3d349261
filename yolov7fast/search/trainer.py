"""A training command as trials see it: its settings, what a budget means to it, the run file of one trial.

`Trainer` is all of it for a command whose run file holds the flags of a table; what a family of detectors adds to it
stands in `families`.
"""

import contextlib
import hashlib
import math
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from yolov7fast.checkpoint.family import WEIGHTS_FOLDER
from yolov7fast.cli.checks import check_train
from yolov7fast.cli.flags import Flag, flags_of
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.programs import program_of
from yolov7fast.cli.run_file import (
    SECTIONS,
    check_flag_name,
    check_flag_value,
    find_run_file,
    read_run_file,
)
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.text import nearest
from yolov7fast.data.data_yaml import load_data_yaml

FULL_RUN = 20  # epochs of a full run, in those of a trial, where the base configuration has no more than the trial


class Budget(NamedTuple):
    """What each trial may use; None: as the base configuration says.

    validations: as many at least, since what is pruned is judged by them; 0: as the base configuration says.
    """

    epochs: int | None = None
    subset: int | None = None
    size: int | None = None
    validations: int = 0


class UnknownSetting(UserError):
    """key: as the user wrote it."""

    def __init__(self, message: str, key: str):
        super().__init__(message)
        self.key = key


class Trainer:
    """One training command with its base configuration, whose run file holds flags of one table, under headings or not
    (`training.batch_size`). Settings are flat: name -> value.

    One of its flags may hold a mapping of settings of their own, the inner ones; what these are, a subclass says.
    """

    weights = WEIGHTS_FOLDER  # where a run's checkpoints lie, below its folder; empty: there itself
    family: str
    suffix: str  # of its checkpoints
    command: list[str]  # what starts a training, before its flags
    spelt: dict[str, str]  # settings that the user's file names: the one name -> as written there first, in its order
    checkpoints: tuple[str, ...]  # with any of these in a run folder it can be resumed

    def __init__(self, base_config: str | Path, budget: Budget, command: list[str] | None = None):
        """command: another one than the family's own to start trainings with."""
        self.program = program_of("train", self.family)
        self.command = command or self.program.child()
        self.base_config, self.budget = find_run_file(base_config), budget
        self.spelt = {}
        self.checkpoints = tuple(str(Path(self.weights, f"{name}{self.suffix}")) for name in ("last", "previous"))
        self.flags = flags_of("train", self.family)
        self.base = vars(parser_for("train", self.family).parse_args([])) | read_run_file(
            base_config, self.flags, self.family
        )
        self.budgeted = self._budgeted()
        for name, flag in self.flags.items():
            if self.base[name] and not flag.trials.in_base:
                raise UserError(f"{base_config}: '{name}' cannot be in what trials build on; leave it out")
        self.check({}, f"{base_config} with this budget")

    def _budgeted(self) -> dict[str, Any]:
        """The flags that the budget sets for all trials."""
        values: dict[str, Any] = {}
        for name, flag in self.flags.items():
            amount = getattr(self.budget, flag.trials.budget) if flag.trials.budget else None
            if amount is not None:
                values[name] = flag.default if flag.trials.reset else check_flag_value(flag, amount, "the budget")
        return values

    @classmethod
    def knows(cls, key: str) -> bool:
        """Whether this family has a setting of that name, whatever the base configuration."""
        heading, rest = _parts(key)
        return _flag(heading, rest, flags_of("train", cls.family)) is not None

    # --- what a family adds -------------------------------------------------------------------------------------------

    def check_options(self, options: Namespace) -> None:
        """Refuse flags that cannot be, as the command itself does."""
        check_train(options, self.family)

    def inner_name(self, heading: str, rest: str) -> str | None:
        """The one name of an inner setting, None if it is none."""
        return None

    def inner_names(self) -> list[str]:
        """All that can be named, for hints."""
        return []

    def inner_value(self, name: str, value: Any, where: str) -> Any:
        return value

    def inner_base(self, name: str) -> Any:
        return None

    def inner_content(self, inner: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
        """What a run file says to set these inner settings, such as {'hyp': {...}}; {} for none."""
        return {}

    # --- what follows from the table ----------------------------------------------------------------------------------

    def name(self, key: str, where: str) -> str:
        """The one name of a setting that may be spelt in several ways; every complaint begins with `where`."""
        heading, rest = _parts(key)
        flag = _flag(heading, rest, self.flags)
        name = flag or self.inner_name(heading, rest)
        if name is None:
            known = [*self.flags, *self.inner_names()]
            hint = nearest(key, known) or nearest(rest, known)
            raise UnknownSetting(f"{where}: unknown setting '{key}'{hint}", key)
        if flag and (instead := self.flags[flag].trials.instead):
            raise UserError(f"{where}: '{key}' is not for trials to set: use {instead}")
        if name in self.budgeted:
            raise UserError(f"{where}: '{key}' is set for all trials by the budget; leave out one of the two")
        self.spelt.setdefault(name, key)
        return name

    def value(self, name: str, value: Any, where: str) -> Any:
        """The value as the command takes it."""
        if name not in self.flags:
            checked = self.inner_value(name, value, where)
        elif value == [] and self.flags[name].nargs == "+":
            raise UserError(f"{where}: {name} is an empty list; give at least one value")
        else:
            checked = check_flag_value(self.flags[name], value, where)
        if not _is_finite(checked):
            raise UserError(f"{where}: {name} must be finite, not {value!r}")
        return checked

    def check(self, settings: Mapping[str, Any], where: str) -> None:
        """Refuse settings that cannot go together."""
        options = self._options(settings)
        try:
            self.check_options(Namespace(**options))
            check_file(options["weights"])
            load_data_yaml(options["data"], fetch=False, val_fraction=options["val_fraction"])
        except UserError as error:
            raise UserError(f"{where}: {error}") from None

    def base_value(self, name: str) -> Any:
        """What a trial uses that does not set it."""
        return self._options({})[name] if name in self.flags else self.inner_base(name)

    def epochs(self, settings: Mapping[str, Any]) -> int:
        return self._options(settings)["epochs"]

    @property
    def seed(self) -> int:
        return self.base["seed"] or 0

    def notes(self) -> list[str]:
        """What of the base configuration is different in trials, in sentences for the user."""
        wanted, used = self.base["eval_interval"], self.base_value("eval_interval")
        if not self.budget.validations or self.epochs({}) == 1:
            return []
        if self.base_value("notest"):
            return ["with notest trials are validated only at their end, so none is pruned; leave it out to prune"]
        if used == wanted:
            return []
        return [
            f"with eval_interval {wanted} a trial of {self.epochs({})} epochs has too few validations to be pruned by: "
            f"trials are validated every {f'{used} epochs' if used > 1 else 'epoch'}"
        ]

    def ended_itself(self, folder: Path, settings: Mapping[str, Any]) -> bool:
        """Whether max_iter or patience ended the training in `folder` before its last epoch.

        Its checkpoint says so, or is stripped, which is the last thing a training does.
        """
        options = self._options(settings)
        path = folder / self.checkpoints[0]
        if not (options["max_iter"] or options["patience"]) or not path.is_file():
            return False
        from yolov7fast.checkpoint.api import CheckpointError, load_checkpoint  # torch takes seconds to load

        try:
            content = load_checkpoint(path)
        except CheckpointError:  # the training itself resumes from the one before
            return False
        state = content.get("resume") if isinstance(content, dict) else None
        return bool(state["progress"]["finished"]) if state else True

    def tidy(self, folder: Path, is_complete: bool) -> None:
        """Leave an ended trial's best weights alone of its checkpoints: the others would fill the disk.

        A complete training has stripped them; those of one that was stopped still hold its state.
        """
        best, weights = folder / self.weights / f"best{self.suffix}", folder / self.weights
        for path in weights.glob(f"*{self.suffix}*" if weights == folder else "*"):
            if path.is_file() and path != best:
                path.unlink(missing_ok=True)
        if is_complete or not best.is_file():
            return
        from yolov7fast.checkpoint.api import CheckpointError, strip_checkpoint  # torch takes seconds to load

        with contextlib.suppress(CheckpointError):  # a damaged file is nothing to strip
            strip_checkpoint(best)

    def files(self, settings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Files that trials read besides the base configuration, each with a digest: what resuming compares.

        By their names as configurations spell them; a data set that is a folder counts by its name alone.
        """
        names = {file for trial in [{}, *settings] for file in self.files_of(self._options(trial)).items() if file[0]}
        paths = {name: Path(name) if Path(name).is_dir() else Path(check_file(name, kind)) for name, kind in names}
        return {
            name: hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()
            for name, path in sorted(paths.items())
        }

    def files_of(self, options: Mapping[str, Any]) -> dict[str, str]:
        """The files that a training with these options reads its settings from, each with its kind."""
        return {options["data"]: "data"}

    def prepare(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Fetch what must be there before several trainings start at once: the data sets."""
        options = [self._options(trial) for trial in [{}, *settings]]
        for data, val_fraction in {(option["data"], option["val_fraction"]) for option in options}:
            load_data_yaml(data, val_fraction=val_fraction)

    def run_file(self, settings: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        """The content of one trial's run file; it trains in `folder`."""
        place = {"seed": seed, "project": str(folder.parent), "name": folder.name, "exist_ok": True}
        often = {"eval_interval": self._options(settings)["eval_interval"]}
        return self._over_base(settings, folder) | self.budgeted | often | place

    def full_run(self, settings: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
        """The content of `path`, the run file of a full run without the budget, and the words that start it."""
        content = self._over_base(settings, path.parent) | {"name": "best"}
        if self.base["subset_size"] and "subset_size" not in settings:
            content["subset_size"] = 0
        if self.budget.size and self.budget.size > _largest(self.base["img_size"]):
            content["img_size"] = self.budget.size
        trial, full = self.epochs(settings), self.base["epochs"]
        content["epochs"] = full if full > trial else FULL_RUN * trial
        return content, [self.program.invocation, "--config", str(path)]

    def training(self, flag: str, path: Path, device: str | None) -> list[str]:
        """The words that start (`--config` run file) or resume (`--resume` folder) a training."""
        return [*self.command, flag, str(path), *([] if device is None else ["--device", device])]

    def _options(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Every flag's value in a trial with these settings."""
        flags = {name: value for name, value in settings.items() if name in self.flags}
        options = self.base | flags | self._inner_content(settings) | self.budgeted
        if "eval_interval" not in flags:
            options["eval_interval"] = self._interval(options["eval_interval"], options["epochs"])
        return options

    def _interval(self, interval: int, epochs: int) -> int:
        """Epochs between validations: less than the base has it, where a trial would have too few to be pruned by."""
        if interval < 1 or epochs // interval >= self.budget.validations:  # the checks report what is impossible
            return interval
        return min(interval, max(1, epochs // 5))

    def _inner_content(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        inner = {name: value for name, value in settings.items() if name not in self.flags}
        return self.inner_content(inner, settings) if inner else {}

    def _over_base(self, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """A run file in `folder` with these settings on top of the base configuration."""
        flags = {name: value for name, value in settings.items() if name in self.flags}
        base = os.path.relpath(self.base_config.resolve(), folder.resolve())
        return {"base": base, **flags, **self._inner_content(settings)}


def _parts(key: str) -> tuple[str, str]:
    """'training.optimizer.lr' -> ('training.optimizer', 'lr')."""
    heading, _, rest = key.lstrip("-").replace("-", "_").rpartition(".")
    return heading, rest


def _flag(heading: str, rest: str, flags: Mapping[str, Flag]) -> str | None:
    """The flag of this name or alias, below any of a run file's headings."""
    if heading and not set(heading.split(".")) <= set(SECTIONS):
        return None
    try:
        return "config" if rest == "config" else check_flag_name(rest, flags, "")
    except UserError:
        return None


def _largest(size: int | list[int]) -> int:
    return max(size) if isinstance(size, list) else size


def _is_finite(value: Any) -> bool:
    """Whether all numbers in it are: comparisons with NaN are false, so that limits let it through."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
