"""What a study trains: each combination of the axes' values (an arm), with each seed, for a number of epochs."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from yolov7fast.core.errors import UserError, shown

SHORT = {"batch": "batch-size", "size": "img-size"}  # axes by the names one says
MOST_RUNS = 1000
AXIS = re.compile(r"[a-z][a-z0-9_-]*")
VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Arm:
    """One combination: value by axis, as given."""

    settings: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Of its folders."""
        return "_".join(f"{axis}-{value}" for axis, value in self.settings)

    @property
    def text(self) -> str:
        return ", ".join(value if axis == "assigner" else f"{axis} {value}" for axis, value in self.settings)

    def of(self, axis: str) -> str:
        return dict(self.settings).get(axis, "")

    def flags(self) -> list[str]:
        return [text for axis, value in self.settings for text in (flag_of(axis), value)]


@dataclass(frozen=True)
class StudyRun:
    """One training. equal: whether its number of epochs is everybody's, or what fits into the minutes."""

    arm: Arm
    seed: int
    epochs: int
    equal: str  # "epochs" or "minutes"

    @property
    def name(self) -> str:
        return f"{self.arm.name}_{self.epochs}ep_seed{self.seed}"


@dataclass(frozen=True)
class Plan:
    """What makes a study that study: a folder holds one."""

    data: str
    cfg: str
    axes: dict[str, list[str]]
    repeat: int
    epochs: int
    minutes: float  # of each run of the part at equal time; 0: none
    flags: list[str]  # further flags of every training

    @property
    def arms(self) -> list[Arm]:
        """All combinations, the last axis changing fastest."""
        return [Arm(tuple(zip(self.axes, values))) for values in itertools.product(*self.axes.values())]

    def equal_epochs(self) -> list[StudyRun]:
        """Seed by seed, so that a study that is stopped early has compared all arms."""
        return [StudyRun(arm, seed, self.epochs, "epochs") for seed in range(self.repeat) for arm in self.arms]

    def equal_minutes(self, price: Mapping[str, float]) -> list[StudyRun]:
        """price: seconds of an epoch, by name of the arm. Rates fall over the epochs that fit, at least one."""
        if not self.minutes:
            return []
        fits = {arm: max(1, math.floor(self.minutes * 60 / price[arm.name])) for arm in self.arms}
        return [StudyRun(arm, seed, fits[arm], "minutes") for seed in range(self.repeat) for arm in self.arms]

    def to_dict(self) -> dict:
        return asdict(self)


def flag_of(axis: str) -> str:
    return f"--{SHORT.get(axis, axis).replace('_', '-')}"


def parse_axes(texts: Sequence[str]) -> dict[str, list[str]]:
    """`assigner=plain,ota,tal batch=16,64` by axis; each value once."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, values = text.partition("=")
        listed = values.split(",")
        if not equals or not AXIS.fullmatch(axis) or not all(VALUE.fullmatch(value) for value in listed):
            raise UserError(f"--axes {shown(text)}: give NAME=VALUE,VALUE, such as assigner=plain,ota or batch=16,64")
        if axis in axes or len(set(listed)) < len(listed):
            raise UserError(f"--axes {shown(text)}: an axis, and each value of it, stands once")
        axes[axis] = listed
    return axes


def make_plan(
    data: str, cfg: str, axes: Sequence[str], repeat: int, epochs: int, minutes: float, flags: Sequence[str]
) -> Plan:
    for flag, value, low in (("--repeat", repeat, 1), ("--epochs", epochs, 1), ("--minutes", minutes, 0)):
        if not low <= value < 1e6:
            raise UserError(f"{flag} is {value:g}; it must be at least {low}")
    plan = Plan(data, cfg, parse_axes(axes), repeat, epochs, minutes, list(flags))
    runs = math.prod(map(len, plan.axes.values())) * repeat * (2 if minutes else 1)
    if runs > MOST_RUNS:
        raise UserError(f"--axes and --repeat ask for {runs} trainings, more than {MOST_RUNS}: leave values out")
    return plan
