"""Numbers derived from runs: final and best values, stability, cost, equal-time values, differing settings."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from yolov7fast.reports.run_results import Run

LATE_EPOCHS = 10  # the last measured epochs, over which stability is judged
# settings that always differ and are not compared
IGNORED_SETTINGS = {
    "name", "save_dir", "project", "exist_ok", "resume", "hyp", "config", "given", "global_rank", "bucket",
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A value of a curve and its epoch."""

    value: float
    epoch: int


def last(values: np.ndarray) -> float:
    """The last measured value of a curve; NaN where nothing was measured."""
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else math.nan


def first(values: np.ndarray) -> float:
    """The first measured value of a curve."""
    known = values[np.isfinite(values)]
    return float(known[0]) if len(known) else math.nan


def best(run: Run, metric: str) -> Point:
    values = run.metrics[metric]
    if not np.isfinite(values).any():
        return Point(math.nan, -1)
    index = int(np.nanargmax(values))
    return Point(float(values[index]), int(run.epoch[index]))


def at_epoch(run: Run, metric: str, epoch: int) -> float:
    """The value at an epoch, or NaN where that epoch was not measured."""
    found = np.flatnonzero(run.epoch == epoch)
    return float(run.metrics[metric][found[0]]) if len(found) else math.nan


def at_hours(run: Run, metric: str, hours: float) -> Point:
    """The value of a run after a number of hours: that of the last epoch finished by then."""
    if run.hours is None:
        return Point(math.nan, -1)
    done = np.flatnonzero((run.hours <= hours * (1 + 1e-9)) & np.isfinite(run.metrics[metric]))
    return Point(float(run.metrics[metric][done[-1]]), int(run.epoch[done[-1]])) if len(done) else Point(math.nan, -1)


def hours_to(run: Run, metric: str, target: float) -> float:
    """Hours until a run first reached a value; NaN if it never did, or if its time is unknown."""
    if run.hours is None:
        return math.nan
    reached = np.flatnonzero(np.nan_to_num(run.metrics[metric], nan=-1) >= target)
    return float(run.hours[reached[0]]) if len(reached) else math.nan


@dataclass(frozen=True)
class Late:
    """A curve over the last epochs."""

    count: int
    mean: float
    std: float
    low: float
    high: float
    slope: float  # change per epoch, least squares
    scatter: float  # std around that trend


def late(run: Run, values: np.ndarray, count: int = LATE_EPOCHS) -> Late:
    """Trend and scatter of a curve over its last `count` measured epochs."""
    known = np.isfinite(values)
    epoch, values = run.epoch[known][-count:], values[known][-count:]
    if not len(values):
        return Late(0, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan)
    slope, scatter = math.nan, math.nan
    if len(values) > 2:
        line = np.polyfit(epoch, values, 1)
        slope, scatter = float(line[0]), float((values - np.polyval(line, epoch)).std())
    mean, std, low, high = (float(v) for v in (values.mean(), values.std(), values.min(), values.max()))
    return Late(len(values), mean, std, low, high, slope, scatter)


def iterations_per_second(run: Run) -> float:
    """Training iterations per second of training time, without validation."""
    iterations, seconds = run.figures.get("iterations"), run.figures.get("train_seconds")
    if iterations is None or seconds is None:
        return math.nan
    both = np.isfinite(iterations) & np.isfinite(seconds)
    return float(iterations[both].sum() / seconds[both].sum()) if seconds[both].sum() > 0 else math.nan


def hours_per_epoch(run: Run) -> float:
    return math.nan if run.seconds is None else float(run.seconds.mean() / 3600)


def cost(run: Run, rate: float | None) -> float:
    return math.nan if rate is None else run.total_hours * rate


def weights_megabytes(run: Run) -> float:
    """Size in megabytes of the weights for deployment: the best, else the last."""
    name = deployed(run)
    return run.weights[name] / 1e6 if name else math.nan


def deployed(run: Run) -> str | None:
    """Name of the weights for deployment: best.pt or best.pth, else the last ones."""
    return next((name for name in ("best.pt", "best.pth", "last.pt", "last.pth") if name in run.weights), None)


def ratio(a: float, b: float) -> float:
    return a / b if b and math.isfinite(a) and math.isfinite(b) else math.nan


def settings(run: Run) -> dict[str, Any]:
    """Options and hyper-parameters in one mapping; an option that is set overrides the hyper-parameter of its name."""
    opt = {key: value for key, value in run.opt.items() if key not in IGNORED_SETTINGS}
    return opt | {key: value for key, value in run.hyp.items() if opt.get(key) is None}


def differing_settings(runs: list[Run]) -> dict[str, list[Any]]:
    """Settings that differ between runs whose settings are known: key -> value per run (None: not set)."""
    all_settings = [settings(run) for run in runs]
    keys = dict.fromkeys(key for values in all_settings for key in values)
    known = [values for values in all_settings if values]
    return {
        key: [values.get(key) for values in all_settings]
        for key in keys
        if len({repr(values.get(key)) for values in known}) > 1
    }


def winner(values: list[float], higher_is_better: bool) -> int | None:
    """Index of the best value; None if fewer than two are known or several are best."""
    known = [(v if higher_is_better else -v, i) for i, v in enumerate(values) if math.isfinite(v)]
    if len(known) < 2:
        return None
    known.sort(reverse=True)
    return None if known[0][0] == known[1][0] else known[0][1]


def duration(hours: float) -> str:
    """Hours as text: in minutes or seconds if short."""
    if not math.isfinite(hours):
        return "unknown"
    return f"{hours:.2f} h" if hours >= 1 else f"{hours * 60:.1f} min" if hours * 60 >= 1 else f"{hours * 3600:.1f} s"


def formatted(form: str, unit: str = "", before: str = "") -> Callable[[float], str]:
    """A function that shows a number in this form, or "unknown"."""
    return lambda value: f"{before}{value:{form}}{unit}" if math.isfinite(value) else "unknown"


DECIMALS = formatted(".3f")  # decimals of accuracy, as printed by training
