"""A training command as trials see it: its settings, what a budget means to it, the run file of one trial.

A run file holds the flags of a table, under headings or not (`training.batch_size`). One flag of a family may hold a
mapping of settings of their own, the inner ones: `hyp` of train.py the entries of the hyper-parameter file (`lr0` or
`hyp.lr0`), `network` of tools/train_detr.py the keys of the network's configuration.
"""

import contextlib
import hashlib
import importlib.util
import json
import math
import os
import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from yolov7fast.checkpoint.family import FAMILIES, WEIGHTS_FOLDER
from yolov7fast.cli import run_file
from yolov7fast.cli.checks import check_train
from yolov7fast.cli.flags import flags_of
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.programs import program_of
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.paths import check_file
from yolov7fast.core.files.yaml_file import read_yaml
from yolov7fast.core.text import nearest
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.metrics.run_curves import number
from yolov7fast.training.hyperparameters import KEYS, check_hyp, load_hyp

FULL_RUN = 20  # epochs of a full run, in those of a trial, where the base configuration has no more than the trial
BACKBONE = "backbone_config"  # the only key of a DETR network that holds keys of its own
NOT_SETTINGS = ("id2label", "label2id", "model_type", "architectures", "transformers_version", BACKBONE)


class Budget(NamedTuple):
    """What each trial may use; None: as the base configuration says.

    validations: as many at least, since what is pruned is judged by them; 0: as the base configuration says.
    """

    epochs: int | None = None
    subset: int | None = None
    size: int | None = None
    validations: int = 0


class TrialTraining:
    """One training command with its base configuration. Settings are flat: name -> value."""

    family: str
    suffix: str  # of its checkpoints
    weights = WEIGHTS_FOLDER  # where they lie, below a run's folder; empty: there itself
    inner, prefix = "", ""  # the flag that holds inner settings; what their names may begin with
    is_inner: Callable[[str], bool] = staticmethod(lambda name: False)  # whatever the base configuration

    @cached_property
    def known(self) -> dict[str, Any]:
        """Inner settings, each with its value in the base configuration."""
        return {}

    def __init__(self, base_config: str | Path, budget: Budget, command: list[str] | None = None):
        """command: another one than the family's own to start trainings with."""
        self.program = program_of("train", self.family)
        self.command = command or self.program.child()
        self.base_config, self.budget = run_file.find_run_file(base_config), budget
        self.spelt: dict[str, str] = {}  # settings of the user's file: the one name -> as written there, in its order
        self.files: set[tuple[str, str]] = set()  # what checked settings read, each with its kind
        self.data_sets: set[tuple[str, float]] = set()  # of checked settings, each with val_fraction
        self.flags = flags_of("train", self.family)
        defaults = vars(parser_for("train", self.family).parse_args([]))
        self.base = defaults | run_file.read_run_file(base_config, self.flags, self.family)
        self.budgeted: dict[str, Any] = {}  # flags that the budget sets for all trials
        for name, flag in self.flags.items():
            amount = getattr(budget, flag.trials.budget) if flag.trials.budget else None
            if amount is not None:
                reset = flag.trials.reset
                self.budgeted[name] = flag.default if reset else run_file.check_flag_value(flag, amount, "the budget")
            if self.base[name] and not flag.trials.in_base:
                raise UserError(f"{base_config}: '{name}' cannot be in what trials build on; leave it out")
        self.checked({}, f"{base_config} with this budget")

    # --- what a family with inner settings says of them ---------------------------------------------------------------

    def inner_value(self, name: str, value: Any, where: str) -> Any:
        """The value as the command takes it."""
        return value

    def files_of(self, options: Mapping[str, Any]) -> dict[str, str]:
        """The files that a training with these options reads its settings from, each with its kind."""
        return {options["data"]: "data"}

    # --- settings -----------------------------------------------------------------------------------------------------

    def name(self, key: str, where: str) -> str:
        """The one name of a setting that may be spelt in several ways; every complaint begins with `where`."""
        plain = _plain(key)
        flag, inner = run_file.find_flag(plain, self.flags), plain.removeprefix(self.prefix)
        if flag is None and inner not in self.known:
            known = [*self.flags, *self.known, *(self.prefix + name for name in self.known)]
            raise UserError(f"{where}: unknown setting '{key}'{nearest(plain, known)}{self._elsewhere(key, where)}")
        name = flag or inner
        if flag and (instead := self.flags[flag].trials.instead):
            raise UserError(f"{where}: '{key}' is not for trials to set: use {instead}")
        if name in self.budgeted:
            raise UserError(f"{where}: '{key}' is set for all trials by the budget; leave out one of the two")
        self.spelt.setdefault(name, key)
        return name

    def _elsewhere(self, key: str, where: str) -> str:
        """Which other family has a setting of that name, as the rest of a complaint."""
        for other in map(training_class, (family for family in FAMILIES if family != self.family)):
            if run_file.find_flag(_plain(key), flags_of("train", other.family)) or other.is_inner(_plain(key)):
                return (
                    f"; '{key}' is a setting of the {other.family} family, so {where.partition(': trial ')[0]} seems "
                    f"to be for that one, but {self.base_config} is a run file of the {self.family} family"
                )
        return ""

    def value(self, name: str, value: Any, where: str) -> Any:
        """The value as the command takes it."""
        if name not in self.flags:
            checked = self.inner_value(name, value, where)
        elif value == [] and self.flags[name].nargs == "+":
            raise UserError(f"{where}: {name} is an empty list; give at least one value")
        else:
            checked = run_file.check_flag_value(self.flags[name], value, where)
        try:  # comparisons with NaN are false, so that limits let it through
            json.dumps(checked, allow_nan=False, default=str)
        except ValueError:
            raise UserError(f"{where}: {name} must be finite, not {value!r}") from None
        return checked

    def checked(self, settings: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The settings as the command takes them; those that cannot be, or not together, are refused."""
        values = {name: self.value(name, value, where) for name, value in settings.items()}
        options = self.options(values)
        try:
            self.check_options(Namespace(**options))
            check_file(options["weights"])
            load_data_yaml(options["data"], fetch=False, val_fraction=options["val_fraction"])
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        self.files |= {file for file in self.files_of(options).items() if file[0]}
        self.data_sets.add((options["data"], options["val_fraction"]))
        return values

    def check_options(self, options: Namespace) -> None:
        """Refuse flags that cannot be, as the command itself does."""
        check_train(options, self.family)

    def base_value(self, name: str) -> Any:
        """What a trial uses that does not set it."""
        return self.options({})[name] if name in self.flags else self.known.get(name)

    def options(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Every flag's value in a trial with these settings.

        It is validated more often than the base has it, where it would have too few validations to be pruned by.
        """
        options = self.base | self._flags(settings) | self.budgeted
        interval, epochs = options["eval_interval"], options["epochs"]
        if "eval_interval" not in settings and interval > 0 and epochs // interval < self.budget.validations:
            options["eval_interval"] = min(interval, max(1, epochs // 5))
        return options

    def _flags(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as a run file has them: inner ones laid over those of the base, inside their flag."""
        flags = {name: value for name, value in settings.items() if name in self.flags}
        for name, value in settings.items():
            if name not in self.flags:
                below = flags.get(self.inner, self.base[self.inner])
                for part in reversed(name.removeprefix(f"{self.inner}.").split(".")):
                    value = {part: value}
                flags[self.inner] = run_file.merge(below if isinstance(below, Mapping) else {"base": below}, value)
        return flags

    def epochs(self, settings: Mapping[str, Any]) -> int:
        return self.options(settings)["epochs"]

    def note(self) -> str:
        """What of the base configuration is different in trials, for the user."""
        wanted, used, epochs = self.base["eval_interval"], self.base_value("eval_interval"), self.epochs({})
        if used == wanted or epochs == 1:
            return ""
        few = f"with eval_interval {wanted} a trial of {epochs} epochs has too few validations to be pruned by"
        return f"{few}: trials are validated every {f'{used} epochs' if used > 1 else 'epoch'}"

    # --- files --------------------------------------------------------------------------------------------------------

    def tidy(self, folder: Path, is_complete: bool) -> None:
        """Leave an ended trial's best weights alone of its checkpoints: the others would fill the disk.

        A complete training has stripped them; those of one that was stopped still hold its state.
        """
        best = folder / self.weights / f"best{self.suffix}"
        others = [path for path in folder.rglob(f"*{self.suffix}*") if path != best]
        if others and not is_complete and best.is_file():
            from yolov7fast.checkpoint.api import CheckpointError, strip_checkpoint  # torch takes seconds to load

            with contextlib.suppress(CheckpointError):  # a damaged file is nothing to strip
                strip_checkpoint(best)
        for path in others:
            path.unlink(missing_ok=True)

    def digests(self) -> dict[str, str]:
        """Of the files that trials read besides the base configuration: what resuming compares.

        By their names as configurations spell them; a data set that is a folder counts by its name alone.
        """
        paths = {name: Path(name) if Path(name).is_dir() else Path(check_file(name, kind)) for name, kind in self.files}
        contents = {name: path.read_bytes() if path.is_file() else b"" for name, path in sorted(paths.items())}
        return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}

    def prepare(self) -> None:
        """Fetch what must be there before several trainings start at once: the data sets."""
        for data, val_fraction in self.data_sets:
            load_data_yaml(data, val_fraction=val_fraction)

    def run_file(self, settings: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        """The content of one trial's run file; it trains in `folder`."""
        place = {"seed": seed, "project": str(folder.parent), "name": folder.name, "exist_ok": True}
        often = {"eval_interval": self.options(settings)["eval_interval"]}
        return self._over_base(settings, folder) | self.budgeted | often | place

    def full_run(self, settings: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
        """The content of `path`, the run file of a full run without the budget, and the words that start it."""
        content, size = self._over_base(settings, path.parent) | {"name": "best"}, self.base["img_size"]
        if self.base["subset_size"] and "subset_size" not in settings:
            content["subset_size"] = 0
        if self.budget.size and self.budget.size > (max(size) if isinstance(size, list) else size):
            content["img_size"] = self.budget.size
        trial, full = self.epochs(settings), self.base["epochs"]
        content["epochs"] = full if full > trial else FULL_RUN * trial
        return content, [self.program.invocation, "--config", str(path)]

    def _over_base(self, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """A run file in `folder` with these settings on top of the base configuration."""
        return {"base": os.path.relpath(self.base_config.resolve(), folder.resolve()), **self._flags(settings)}


def _plain(key: str) -> str:
    """'training.optimizer.batch-size' -> 'batch_size': without the headings of run files."""
    return re.sub(rf"^(({'|'.join(run_file.SECTIONS)})\.)+", "", key.lstrip("-").replace("-", "_"))


class YoloTrialTraining(TrialTraining):
    family, suffix, inner, prefix = "yolo", ".pt", "hyp", "hyp."
    is_inner = staticmethod(lambda name: name.removeprefix("hyp.") in KEYS)

    @cached_property
    def base_hyp(self) -> dict[str, Any]:
        return load_hyp(self.base["hyp"])

    @cached_property
    def known(self) -> dict[str, Any]:
        return {name: self.base_hyp.get(name, key.default) for name, key in KEYS.items()}

    def check_options(self, options: Namespace) -> None:
        super().check_options(options)
        load_hyp(options.hyp)
        if options.cfg:  # its rows are read by the training itself, whose modules load slowly
            content = read_yaml(path := check_file(options.cfg, "cfg"), "cfg")
            if not isinstance(content, dict) or not ("base" in content or {"backbone", "head"} <= content.keys()):
                raise UserError(f"cfg {path} describes no network; it must hold backbone and head, as those in cfg/ do")

    def files_of(self, options: Mapping[str, Any]) -> dict[str, str]:
        hyp = options["hyp"]
        hyp_file = hyp.get("base", "") if isinstance(hyp, Mapping) else hyp
        return super().files_of(options) | {options["cfg"]: "cfg", hyp_file: "hyp"}

    def inner_value(self, name: str, value: Any, where: str) -> Any:
        return check_hyp(self.base_hyp | {name: value}, where)[name]


class DetrTrialTraining(TrialTraining):
    """Inner settings are the keys that the base names and, where transformers is installed, all of its configuration's:
    `model.network.num_queries`, `network.backbone_config.depths`."""

    family, suffix, weights, inner = "detr", ".pth", "", "network"
    is_inner = staticmethod(lambda name: name.startswith("network."))

    @cached_property
    def known(self) -> dict[str, Any]:
        found = {}
        for section in ("", BACKBONE):
            kind, network = config_class(self.base["architecture"], section), self.base["network"]
            defaults = kind().to_dict() if kind else {}
            values = {k: v for k, v in defaults.items() if k not in NOT_SETTINGS and not k.startswith("_")}
            values |= network.get(section, {}) if section else network
            found |= {".".join(filter(None, ("network", section, key))): value for key, value in values.items()}
        return found

    def inner_value(self, name: str, value: Any, where: str) -> Any:
        """As transformers takes it or, without it, of the kind that the base configuration has there."""
        known, (*section, key) = self.known[name], name.split(".")[1:]
        if type(known) is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        elif isinstance(known, float) and isinstance(value, str) and not math.isnan(number(value)):
            value = number(value)  # YAML 1.1 reads '1e-3' as text
        kind = config_class(self.base["architecture"], "".join(section))
        try:
            if kind is not None:
                kind(**{key: value})
            elif type(value) is not type(known) and not (isinstance(known, float) and type(value) is int):
                raise TypeError
        except Exception:  # the classes of a validator of its own, which changes between versions
            raise UserError(f"{where}: {name} must be like {known!r}, not {value!r}") from None
        return value


@cache
def config_class(architecture: str, section: str) -> type | None:
    """The class of transformers that checks the keys of `network` (section '') or of its backbone, if installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from yolov7fast.nn import detr  # torch takes seconds to load

    library, kind = detr.transformers(), detr.architecture_of(architecture)
    return type(library.AutoConfig.for_model(kind.backbone)) if section else getattr(library, kind.config)


def training_for(base_config: str) -> type[TrialTraining]:
    """The trainer of the family that a base configuration is for."""
    return training_class(run_file.family_of_run_file(base_config))


def training_class(family: str) -> type[TrialTraining]:
    if family in (known := {kind.family: kind for kind in (YoloTrialTraining, DetrTrialTraining)}):
        return known[family]
    from yolov7fast.families.registry import family_class

    registered = family_class(family)
    parts = {"family": family, "suffix": registered.checkpoint_suffix, "weights": registered.weights_folder}
    return type("FamilyTrialTraining", (TrialTraining,), parts)
