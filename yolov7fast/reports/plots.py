"""The report's plots: one line a run, and the stages of an iteration as bars."""

from collections.abc import Callable

import numpy as np

from yolov7fast.reports.charts import Bars, Chart, Line
from yolov7fast.reports.runs import Run

LABELS = {"map": "mAP@.5:.95", "map50": "mAP@.5", "precision": "precision", "recall": "recall"}
Pick = Callable[[Run], np.ndarray | None]


def curves(runs: list[Run], name: str, title: str, ylabel: str, pick: Pick, by_hours: bool = False) -> Chart | None:
    """One line per run; `pick(run)` gives its values by epoch, or None. No plot where no run has any."""
    lines = []
    for run in runs:
        x, y = run.hours if by_hours else run.epoch, pick(run)
        if x is not None and y is not None:
            lines.append(Line(run.name, x.tolist(), y.tolist()))
    chart = Chart(name, title, "hours" if by_hours else "epoch", lines, ylabel)
    return chart if chart else None


def stages(runs: list[Run]) -> Bars | None:
    """Stacked bars: milliseconds of an iteration by stage, for runs with a profile."""
    profiled = [run for run in runs if run.profile]
    if not profiled:
        return None
    names = list(dict.fromkeys(stage for run in profiled for stage in run.profile["stages"]))
    parts = [(stage, [_mean_ms(run, stage) for run in profiled]) for stage in names]
    return Bars("stages", "Where an iteration's time goes", "ms", [run.name for run in profiled], parts)


def _mean_ms(run: Run, stage: str) -> float:
    """0 for a stage that the run's profile does not have."""
    return float(np.nan_to_num(run.profile["stages"].get(stage, {}).get("mean_ms", 0.0)))
