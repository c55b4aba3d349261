"""What a study found: accuracy and price of each arm, with the spread of its seeds."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from yolov7fast.core.errors import UserError, shown
from yolov7fast.reports.runs import Run
from yolov7fast.studies.plan import Arm, Plan, StudyRun

METRICS = ("map50", "map")


@dataclass(frozen=True)
class Trained:
    """A run of the study and what it left."""

    planned: StudyRun
    run: Run

    def last(self, metric: str) -> float:
        """Of the last epoch that was validated: nothing is chosen by the images that measure it."""
        known = self.run.metrics[metric][np.isfinite(self.run.metrics[metric])]
        return float(known[-1]) if len(known) else math.nan

    @property
    def seconds_an_epoch(self) -> float:
        """The median, as the run recorded them, validation included."""
        return math.nan if self.run.seconds is None else float(np.median(self.run.seconds))


class Result(NamedTuple):
    """An arm's figure over its seeds."""

    arm: Arm
    values: tuple[float, ...]  # by seed
    epochs: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float:
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else math.nan


class Price(NamedTuple):
    """Seconds of an epoch by name of the arm, and where they come from."""

    seconds: dict[str, float]
    source: str


def results(trained: Sequence[Trained], equal: str, metric: str) -> list[Result]:
    """By arm, of the runs at equal epochs or equal minutes; arms without a measured run are left out."""
    found = []
    for arm in dict.fromkeys(t.planned.arm for t in trained):
        mine = [t for t in trained if t.planned.arm == arm and t.planned.equal == equal]
        values = tuple(v for v in (t.last(metric) for t in mine) if math.isfinite(v))
        if values:
            found.append(Result(arm, values, mine[0].planned.epochs))
    return found


def recorded_price(plan: Plan, trained: Sequence[Trained]) -> Price:
    """As the runs at equal epochs recorded it: the median over their seeds."""
    seconds = {}
    for arm in plan.arms:
        mine = [t.seconds_an_epoch for t in trained if t.planned.arm == arm and t.planned.equal == "epochs"]
        known = [value for value in mine if math.isfinite(value)]
        if known:
            seconds[arm.name] = float(np.median(known))
    return Price(seconds, "recorded by the runs themselves: other work on the machine at the time counts")


def read_price(path: Path, plan: Plan) -> Price:
    """A price that was measured apart (`--measure-price`), of every arm."""
    try:
        seconds = {str(name): float(value) for name, value in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({error}): measure again with --measure-price") from None
    for arm in plan.arms:
        if not 0 < seconds.get(arm.name, 0) < math.inf:
            value = shown(seconds.get(arm.name))
            raise UserError(f"{path}: {arm.name} has no price in seconds but {value}: measure again")
    return Price(seconds, "measured apart: all arms in turn in one process after another (price.json)")


def at_minutes(trained: Trained, minutes: float, price: Price, metric: str) -> float:
    """What a run's curve had reached after so many minutes at this price; NaN before its first epoch's end."""
    epochs = math.floor(minutes * 60 / price.seconds[trained.planned.arm.name])
    values = trained.run.metrics[metric][: max(epochs, 0)]
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else math.nan
