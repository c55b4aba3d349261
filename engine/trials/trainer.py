"""A training command as trials see it: its settings, what a budget means to it, the run file of one trial.

The runner, the search and the table know a trainer only through what `Trainer` declares, so a second family of
detectors joins by describing itself in the same way.
"""

import os
import sys
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from engine.cli import nearest, train_parser
from engine.config import SECTIONS, check_flag_value, check_options, read_run_file, read_yaml_chain
from engine.hyp import KEYS as HYP_KEYS
from engine.hyp import check_hyp, load_hyp
from utils.data_yaml import load_data_yaml
from utils.errors import UserError
from utils.files import check_file

ROOT = Path(__file__).resolve().parents[2]
FULL_RUN = 20  # a full run is so many times a trial's epochs, where the base configuration says no more than the trial


class Budget(NamedTuple):
    """What each trial may use; None: as the base configuration says."""

    epochs: int | None = None
    subset: int | None = None
    size: int | None = None


class Trainer(ABC):
    """One training command with its base configuration. Settings are flat: name -> value."""

    script: Path
    base_config: Path
    budget: Budget
    checkpoints: tuple[str, ...]  # any of these in a run folder: `--resume FOLDER` goes on
    weights: str  # where a run's checkpoints lie, below its folder
    kept_weights: tuple[str, ...]  # what an ended trial keeps of them

    @abstractmethod
    def name(self, key: str, where: str) -> str: ...

    @abstractmethod
    def value(self, name: str, value: Any, where: str) -> Any: ...

    @abstractmethod
    def check(self, settings: Mapping[str, Any], where: str) -> None: ...

    @abstractmethod
    def base_value(self, name: str) -> Any:
        """What a trial uses that does not set it."""

    @abstractmethod
    def epochs(self, settings: Mapping[str, Any]) -> int:
        """How many epochs a trial with these settings has."""

    @property
    @abstractmethod
    def seed(self) -> int:
        """The seed of the base configuration."""

    @abstractmethod
    def prepare(self, settings: list[Mapping[str, Any]]) -> None:
        """What must be there before several trainings start at once, such as the data set."""

    @abstractmethod
    def run_file(self, settings: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        """The content of one trial's run file; it trains in `folder`."""

    @abstractmethod
    def full_run(self, settings: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
        """The content of `path`, the run file of a full run without the budget, and the arguments that start it."""

    def start(self, run_file: Path, device: str | None) -> list[str]:
        return [sys.executable, str(self.script), "--config", str(run_file), *_device(device)]

    def go_on(self, folder: Path, device: str | None) -> list[str]:
        return [sys.executable, str(self.script), "--resume", str(folder), *_device(device)]

    def base_content(self) -> dict[str, Any]:
        """The base configuration with all it inherits: what a going-on compares."""
        return read_yaml_chain(self.base_config)


def _device(device: str | None) -> list[str]:
    return [] if device is None else ["--device", device]


# settings of train.py that the runner itself chooses, and how to say it instead
CHOSEN_BY_RUNNER = {
    "config": "--base-config", "project": "--output-dir", "name": "--output-dir", "exist_ok": "--output-dir",
    "device": "--devices", "local_rank": "--devices", "resume": "--resume", "seed": "--seed and --repeat",
    "evolve": "--search", "bucket": "--search",
}  # fmt: skip


class YoloTrainer(Trainer):
    """train.py: names are its flags and the entries of its hyp file (`lr0`, `hyp.lr0`, `training.batch_size`)."""

    checkpoints = ("weights/last.pt", "weights/previous.pt")
    weights = "weights"
    kept_weights = ("best.pt",)

    def __init__(self, base_config: str | Path, budget: Budget, script: Path = ROOT / "train.py"):
        self.script, self.base_config, self.budget = script, Path(base_config), budget
        parser = train_parser()
        self.flags = parser.flags
        self.base = vars(parser.parse_args([])) | read_run_file(base_config, self.flags)
        self.base_hyp = load_hyp(self.base["hyp"])
        self.budgeted = {
            name: value
            for name, value in (("epochs", budget.epochs), ("subset_size", budget.subset), ("img_size", budget.size))
            if value is not None
        }
        self.check({}, f"{base_config} with this budget")

    def name(self, key: str, where: str) -> str:
        heading, _, rest = key.lstrip("-").replace("-", "_").rpartition(".")
        is_flag = rest in self.flags and heading in ("", *SECTIONS)
        is_hyp = rest in HYP_KEYS and heading in ("", "hyp")
        if not is_flag and not is_hyp:
            known = [*self.flags, *HYP_KEYS, *(f"hyp.{name}" for name in HYP_KEYS)]
            raise UserError(f"{where}: unknown setting '{key}'{nearest(key, known) or nearest(rest, known)}")
        if is_flag and rest in CHOSEN_BY_RUNNER:
            raise UserError(f"{where}: '{key}' is not for trials to set; {CHOSEN_BY_RUNNER[rest]} does")
        if rest in self.budgeted:
            raise UserError(f"{where}: '{key}' is set for all trials by the budget; leave out one of the two")
        return rest

    def value(self, name: str, value: Any, where: str) -> Any:
        if name in self.flags:
            return check_flag_value(self.flags[name], value, where)
        return check_hyp(self.base_hyp | {name: value}, where)[name]

    def check(self, settings: Mapping[str, Any], where: str) -> None:
        options = self._options(settings)
        try:
            check_options(Namespace(**options))
            if not options["cfg"] and not options["weights"]:
                raise UserError("neither cfg nor weights are given: there is no network to train")
            for name in ("cfg", "weights"):
                check_file(options[name])
            load_data_yaml(options["data"], fetch=False)
            load_hyp(self._hyp(settings))
        except UserError as error:
            raise UserError(f"{where}: {error}") from None

    def base_value(self, name: str) -> Any:
        return self._options({})[name] if name in self.flags else self.base_hyp.get(name, HYP_KEYS[name].default)

    def epochs(self, settings: Mapping[str, Any]) -> int:
        return self._options(settings)["epochs"]

    @property
    def seed(self) -> int:
        return self.base["seed"] or 0

    def prepare(self, settings: list[Mapping[str, Any]]) -> None:
        for data in {self._options(trial)["data"] for trial in [{}, *settings]}:
            load_data_yaml(data)

    def run_file(self, settings: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        place = {"seed": seed, "project": str(folder.parent), "name": folder.name, "exist_ok": True}
        return self._over_base(settings, folder) | self.budgeted | place

    def full_run(self, settings: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
        content = self._over_base(settings, path.parent) | {"name": "best"}
        if self.base["subset_size"] and "subset_size" not in settings:
            content["subset_size"] = 0
        if self.budget.size and self.budget.size > max(self.base["img_size"]):
            content["img_size"] = self.budget.size
        trial, full = self.epochs(settings), self.base["epochs"]
        content["epochs"] = full if full > trial else FULL_RUN * trial
        return content, [self.script.name, "--config", str(path)]

    def _options(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Every flag's value in a trial with these settings."""
        flags = {name: value for name, value in settings.items() if name in self.flags}
        budgeted = {n: check_flag_value(self.flags[n], value, "the budget") for n, value in self.budgeted.items()}
        return self.base | flags | budgeted

    def _hyp(self, settings: Mapping[str, Any]) -> str | dict[str, Any]:
        """The value of `hyp` in a run file: the file, or a mapping over it."""
        own = {name: value for name, value in settings.items() if name not in self.flags}
        source = settings.get("hyp", self.base["hyp"])
        if not own:
            return source
        return {**(source if isinstance(source, Mapping) else {"base": source}), **own}

    def _over_base(self, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """A run file in `folder` with these settings on top of the base configuration."""
        flags = {name: value for name, value in settings.items() if name in self.flags}
        content = {"base": os.path.relpath(self.base_config.resolve(), folder.resolve()), **flags}
        return content if self._hyp(settings) == self.base["hyp"] else content | {"hyp": self._hyp(settings)}
