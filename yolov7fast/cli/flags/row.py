"""One row of the table of flags: the complete definition of a flag."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from yolov7fast.core.errors import UserError, one_line, shown
from yolov7fast.core.files.settings_files import parse_yaml

# --- types of values --------------------------------------------------------------------------------------------------
# Types of flags whose values are more than a number or a word: each takes the text of a command line or the value in a
# run file.


class BadValue(argparse.ArgumentTypeError, ValueError):
    """Why a value does not fit. argparse shows the reason as it is; run files put their name before it."""


AUTO = "auto"


def count_or_auto(value: str | float) -> int | str:
    """A whole number, or `auto`: it is chosen for this machine."""
    if value == AUTO:
        return AUTO
    try:
        number = float(value)
        if isinstance(value, bool) or not number.is_integer():
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise BadValue(f"must be int, not {shown(value)}") from None
    return int(number)


count_or_auto.__name__ = "int"  # as messages call it


def mapping(value: str | Mapping[str, Any]) -> dict[str, Any]:
    """A mapping of a run file as it is, or YAML in one line from the command line: '{num_queries: 50}'."""
    try:
        found = parse_yaml(value, "it") if isinstance(value, str) else value
    except UserError as error:
        raise BadValue(f"not YAML: {one_line(error, 200)}") from None
    if not isinstance(found, Mapping | None):
        raise BadValue(f"{shown(value)} is not a mapping such as '{{num_queries: 50}}'")
    return dict(found or {})


def file_or_mapping(value: str | Mapping[str, Any]) -> str | dict[str, Any]:
    """The name of a file, or in a run file its content."""
    if isinstance(value, list):
        raise BadValue(f"must name a file or be a mapping, not {shown(value)}")
    return dict(value) if isinstance(value, Mapping) else str(value)


def schedule_text(value: str | list[list[int]]) -> str:
    """'1:320,20:480' as it is; [[1, 320], [20, 480]] of a run file as such a text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(step, list) for step in value):
        raise BadValue("must be a list of [epoch, size] or [epoch, size, batch]")
    return ",".join(":".join(str(part) for part in step) for step in value)


# --- rows -------------------------------------------------------------------------------------------------------------


# headings of --help, in this order
DATA, NETWORK, HEADS = "data", "network", "several heads"
OPTIMISATION, AUGMENTATION, SHORTER = "optimisation", "augmentation", "shorter training"
SPEED, DEVICES, DETECTION = "speed", "devices", "detections"
VALIDATION, RESUME, RANDOMNESS = "validation", "checkpoints and resume", "randomness"
RESULTS, LOGGING, SEARCH = "results", "logging", "search"
GROUPS = (
    *(DATA, NETWORK, HEADS, OPTIMISATION, AUGMENTATION, SHORTER, SPEED, DEVICES, DETECTION, VALIDATION),
    *(RESUME, RANDOMNESS, RESULTS, LOGGING, SEARCH),
)

# where a flag exists: a command of all families ("train"), or of one family ("train yolo")
Place = str
TRAIN, TEST, DETECT = ("train",), ("test",), ("detect",)
YOLO, DETR = ("train yolo",), ("train detr",)


class Trials(NamedTuple):
    """What trials (`run_trials.py`) may do with a flag of training. By default each trial may set it."""

    instead: str = ""  # the runner chooses the value; this is what the user sets instead
    in_base: bool = True  # False: a run file that sets it describes no new training, so trials cannot build on it
    budget: str = ""  # the field of `Budget` that sets it for all trials
    reset: bool = False  # with `budget`: back to its default, instead of the budget's value


MAY_SET = Trials()


def chosen(instead: str) -> Trials:
    return Trials(instead=instead)


def refused(instead: str) -> Trials:
    return Trials(instead=instead, in_base=False)


@dataclass(frozen=True)
class Flag:
    """One flag: how it is parsed, shown, limited, and what resuming and trials do with it.

    type: makes the value of its text; bool is a switch. The value in a run file goes through it, too.
    """

    name: str
    type: Callable[[Any], Any]
    default: Any
    help: str
    group: str = ""  # heading in --help
    where: tuple[Place, ...] = ()
    upstream: tuple[str, ...] = ()  # commands of upstream that have it: its abbreviations keep working there
    low: float | None = None  # limits, themselves allowed; of a list: of each value
    high: float | None = None
    aliases: tuple[str, ...] = ()  # further names, on the command line and in run files
    nargs: str | None = None
    const: Any = None  # the value of the bare flag
    choices: Sequence[Any] | None = None
    fixed: bool = False  # makes a run that run: it cannot change when resuming
    rare: bool = False  # shown by --help-all only
    typed: bool = False  # runs commands: from the command line alone, never from a file that may be another's
    trials: Trials = MAY_SET
    changed: Mapping[Place, Mapping[str, Any]] = field(default_factory=dict)  # fields of this row that differ there

    @property
    def dest(self) -> str:
        return self.name.lstrip("-").replace("-", "_")

    @property
    def is_switch(self) -> bool:
        return self.type is bool

    def exists_in(self, command: str, family: str) -> bool:
        return command in self.where or f"{command} {family}" in self.where

    def at(self, command: str, family: str) -> "Flag":
        """The row for one command of one family; values of a narrower place override the others."""
        fields: dict[str, Any] = {}
        for place in (command, family, f"{command} {family}"):
            fields |= self.changed.get(place, {})
        of_upstream = (command,) if family == "yolo" and command in self.upstream else ()
        return replace(self, **{"upstream": of_upstream, "changed": {}, **fields})

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments for argparse."""
        if self.is_switch:
            return {"action": "store_true", "default": self.default}
        metavar = None if self.choices else {int: "N", float: "X", count_or_auto: "N"}.get(self.type)
        optional = {"nargs": self.nargs, "const": self.const, "choices": self.choices, "metavar": metavar}
        given = {name: value for name, value in optional.items() if value is not None}
        return {"type": self.type, "default": self.default, **given}

    def value_of(self, value: Any, where: object) -> Any:
        """The value of a run file or `opt.yaml` as argparse would have made it; None is the default.

        where: the file, for the error.
        """
        if value is None:
            return self.default
        if self.is_switch:
            if not isinstance(value, bool):
                raise UserError(f"{where}: {self.dest} is a switch: true or false, not {shown(value)}")
            return value
        choices = self.choices or ()
        if value is False and "off" in choices:
            return "off"  # YAML reads a bare `off` as false
        if isinstance(value, bool) and self.const is not None:  # the bare flag, or its absence
            return self.const if value else self.default
        if self.nargs == "+":
            return [self._convert(item, where) for item in (value if isinstance(value, list) else [value])]
        if value == self.default and type(value) is type(self.default):
            return value
        if choices and not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in choices):
            raise UserError(f"{where}: {self.dest} must be one of {list(choices)}, not {shown(value)}")
        return self._convert(value, where)

    def _convert(self, value: Any, where: object) -> Any:
        cut = self.type is int and isinstance(value, float) and not value.is_integer()
        no_text = self.type is str and isinstance(value, list | Mapping)
        try:
            if isinstance(value, bool) or cut or no_text:
                raise TypeError
            return self.type(value)
        except BadValue as error:
            raise UserError(f"{where}: {self.dest} {error}") from None
        except (TypeError, ValueError, OverflowError):
            kind = getattr(self.type, "__name__", "another kind")
            raise UserError(f"{where}: {self.dest} must be {kind}, not {shown(value)}") from None
