"""Recommendations by use case, as sentences with the numbers behind them."""

import math
from collections.abc import Callable

from yolov7fast.reports import run_statistics as stats
from yolov7fast.reports.run_results import Run, checkpoints

LEARNT = 0.01  # mAP@.5:.95 below which a run has not learned anything yet
TIME_NOISE = 0.05  # fraction by which the times of two equal runs may differ


def advice(runs: list[Run], rate: float | None) -> list[str]:
    """One sentence for each use case with a clear result."""
    if all(not stats.best(run, "map").value >= LEARNT for run in runs):
        return [f"No run has reached a mAP@.5:.95 of {LEARNT}: too early to choose by accuracy."]
    if len(runs) == 1:
        return _still_rising(runs) or ["There is only one run: give another to compare it with."]
    if not _accuracy_differs(runs):
        equal = _by_need(
            "Equally accurate", runs, [run.total_hours for run in runs], "least time", stats.duration, False, TIME_NOISE
        )
        return equal or ["The runs do not differ in accuracy or time: there is nothing to recommend."]
    per_hour = [stats.ratio(stats.last(run.metrics["map"]), run.total_hours) for run in runs]
    sentences = [*_most_accurate(runs), *cost_of_the_gain(runs, rate)]
    sentences += _by_need(
        "Many experiments, or a small budget", runs, per_hour, "mAP@.5:.95 per hour", noise=TIME_NOISE
    )
    sentences += _fixed_time(runs)
    for need, name in (("Missing an object is worst", "recall"), ("A false alarm is worst", "precision")):
        sentences += _by_need(need, runs, [stats.last(run.metrics[name]) for run in runs], name)
    scatter = [stats.late(run, run.metrics["map"]).scatter for run in runs]
    sentences += _by_need(
        "Repeatable results", runs, scatter, "scatter of mAP@.5:.95 around its trend", lambda v: f"{v:.4f}", False
    )
    sentences += _still_rising(runs)
    return sentences or ["The runs do not differ clearly: there is nothing to recommend."]


def _by_need(
    need: str,
    runs: list[Run],
    values: list[float],
    label: str,
    show: Callable[[float], str] = stats.DECIMALS,
    higher: bool = True,
    noise: float = 0.0,
) -> list[str]:
    """The best run by a value, unless another one prints the same value or is within the noise.

    noise: fraction by which values of two equal runs may differ.
    """
    won = stats.winner(values, higher)
    if won is None:
        return []
    others = [value for i, value in enumerate(values) if i != won and math.isfinite(value)]
    second = max(others) if higher else min(others)
    if show(second) == show(values[won]) or abs(values[won] - second) <= noise * abs(second):
        return []
    return [f"**{need}**: {runs[won].name}, {label} {show(values[won])} (against {', '.join(map(show, others))})."]


def _accuracy_differs(runs: list[Run]) -> bool:
    """Whether any metric of accuracy differs in the printed decimals."""
    curves = [[stats.last(run.metrics[name]) for run in runs] for name in runs[0].metrics]
    curves.append([stats.best(run, "map").value for run in runs])
    return any(len({round(value, 3) for value in values if math.isfinite(value)}) > 1 for values in curves)


def _most_accurate(runs: list[Run]) -> list[str]:
    tops = [stats.best(run, "map") for run in runs]
    won = stats.winner([round(top.value, 3) for top in tops], True)
    if won is None:
        return []
    run, top = runs[won], tops[won]
    place = next((path for path in checkpoints(run.folder) if path.name == stats.deployed(run)), None)
    file = f" (`{place}`)" if place and place.name.startswith("best") else ""
    return [f"**Final model, accuracy first**: {run.name}{file}, best mAP@.5:.95 {top.value:.3f} at epoch {top.epoch}."]


def cost_of_the_gain(runs: list[Run], rate: float | None) -> list[str]:
    """The extra cost of the most accurate run compared with the quickest."""
    final, hours = [stats.last(run.metrics["map"]) for run in runs], [run.total_hours for run in runs]
    top, quick = stats.winner([round(value, 3) for value in final], True), stats.winner(hours, False)
    if top is None or quick is None or top == quick or not math.isfinite(hours[top]) or not final[quick] > 0:
        return []
    gain = final[top] - final[quick]
    above = f"{gain:.3f} mAP@.5:.95 ({gain / final[quick] * 100:+.1f}%) above {runs[quick].name}"
    longer, shorter = stats.duration(hours[top]), stats.duration(hours[quick])
    times = f"{hours[top] / hours[quick]:.1f} times its time ({longer} against {shorter})"
    text = f"**Is it worth it**: {runs[top].name} ends {above} for {times}"
    if rate is not None:
        more = stats.cost(runs[top], rate) - stats.cost(runs[quick], rate)
        text += f", ${more:.2f} more a run, ${more / (gain * 100):.2f} for each 0.01"
    return [text + "."]


def _fixed_time(runs: list[Run]) -> list[str]:
    timed = [run for run in runs if run.hours is not None]
    if len(timed) < 2:
        return []
    budget = min(run.total_hours for run in timed)
    values = [stats.at_hours(run, "map", budget).value for run in timed]
    return _by_need(f"Only {stats.duration(budget)}", timed, values, "mAP@.5:.95 by then")


def _still_rising(runs: list[Run]) -> list[str]:
    """Runs whose mAP was still rising at the end: by more in ten epochs than its scatter."""
    sentences = []
    for run in runs:
        window = stats.late(run, run.metrics["map"])
        rise = window.slope * 10
        if window.count >= 5 and rise > max(3 * window.scatter, 0.002):
            text = f"{run.name} still rose at the end, by {rise:.3f} mAP@.5:.95 in ten epochs."
            sentences.append(f"**More epochs**: {text}")
    return sentences
