"""Which run for which need: sentences with their figures."""

import math

from yolov7fast.reports.run_results import Run, checkpoints
from yolov7fast.reports.run_statistics import at_hours, best, cost, deployed, duration, last, late, ratio, winner

LEARNT = 0.01  # mAP@.5:.95 below which a run has not learnt anything yet
TIME_NOISE = 0.05  # by this fraction the times of two equal runs may differ


def _clear_winner(values: list[float], higher_is_better: bool) -> int | None:
    """Index of the best value, if it still is the best with the three decimals that are printed."""
    return winner([round(v, 3) for v in values], higher_is_better)


def advice(runs: list[Run], rate: float | None) -> list[str]:
    """One sentence per use case that the figures can answer."""
    if all(not best(run, "map").value >= LEARNT for run in runs):
        return [f"No run has reached a mAP@.5:.95 of {LEARNT}: too early to choose by accuracy."]
    if len(runs) == 1:
        return _still_rising(runs) or ["One run alone: give another to compare it with."]
    if not _accuracy_differs(runs):
        return _quicker(runs) or ["The runs do not differ in accuracy or time: there is nothing to recommend."]
    sentences = [*_most_accurate(runs), *cost_of_the_gain(runs, rate), *_quick_experiments(runs, rate)]
    sentences += [*_fixed_time(runs), *_recall_and_precision(runs), *_least_scatter(runs), *_still_rising(runs)]
    return sentences or ["The figures do not separate the runs: there is nothing to recommend."]


def _accuracy_differs(runs: list[Run]) -> bool:
    """Whether any measure of accuracy differs in the decimals that are printed."""
    curves = [[last(run.metrics[name]) for run in runs] for name in runs[0].metrics]
    curves.append([best(run, "map").value for run in runs])
    return any(len({round(value, 3) for value in values if math.isfinite(value)}) > 1 for values in curves)


def _beyond_noise(values: list[float], higher_is_better: bool) -> int | None:
    """Index of the best of values that depend on time, if it is better than the next by more than times vary."""
    won = winner(values, higher_is_better)
    if won is None:
        return None
    others = [value for i, value in enumerate(values) if i != won and math.isfinite(value)]
    next_best = max(others) if higher_is_better else min(others)
    return won if abs(values[won] - next_best) > TIME_NOISE * abs(next_best) else None


def _quicker(runs: list[Run]) -> list[str]:
    hours = [run.total_hours for run in runs]
    won = _beyond_noise(hours, False)
    if won is None:
        return []
    rest = ", ".join(duration(h) for i, h in enumerate(hours) if i != won)
    return [f"**Equally accurate**: {runs[won].name} took the least time, {duration(hours[won])} (against {rest})."]


def _most_accurate(runs: list[Run]) -> list[str]:
    tops = [best(run, "map") for run in runs]
    won = _clear_winner([top.value for top in tops], True)
    if won is None:
        return []
    run, top = runs[won], tops[won]
    name = deployed(run) or ""
    place = next((path for path in checkpoints(run.folder) if path.name == name), None)
    file = f" (`{place}`)" if place and name.startswith("best") else ""
    return [f"**Final model, accuracy first**: {run.name}{file}, best mAP@.5:.95 {top.value:.3f} at epoch {top.epoch}."]


def cost_of_the_gain(runs: list[Run], rate: float | None) -> list[str]:
    """The extra cost of the most accurate run compared with the quickest."""
    final, hours = [last(run.metrics["map"]) for run in runs], [run.total_hours for run in runs]
    top, quick = _clear_winner(final, True), winner(hours, False)
    if top is None or quick is None or top == quick or not math.isfinite(hours[top]) or not final[quick] > 0:
        return []
    gain = final[top] - final[quick]
    above = f"{gain:.3f} mAP@.5:.95 ({gain / final[quick] * 100:+.1f}%) above {runs[quick].name}"
    times = f"{hours[top] / hours[quick]:.1f} times its time ({duration(hours[top])} against {duration(hours[quick])})"
    text = f"**Is it worth it**: {runs[top].name} ends {above} for {times}"
    if rate is not None:
        more = (hours[top] - hours[quick]) * rate
        text += f", ${more:.2f} more a run, ${more / (gain * 100):.2f} for each 0.01"
    return [text + "."]


def _quick_experiments(runs: list[Run], rate: float | None) -> list[str]:
    per_hour = [ratio(last(run.metrics["map"]), run.total_hours) for run in runs]
    won = _beyond_noise(per_hour, True)
    if won is None:
        return []
    per_run = f", ${cost(runs[won], rate):.2f} a run" if rate is not None else ""
    return [
        f"**Many experiments, or a small budget**: {runs[won].name}, {per_hour[won]:.3f} mAP@.5:.95 per hour "
        f"({duration(runs[won].total_hours)}{per_run})."
    ]


def _fixed_time(runs: list[Run]) -> list[str]:
    timed = [run for run in runs if run.hours is not None]
    if len(timed) < 2:
        return []
    budget = min(run.total_hours for run in timed)
    points = [at_hours(run, "map", budget) for run in timed]
    won = _clear_winner([p.value if math.isfinite(p.value) else 0.0 for p in points], True)
    if won is None:
        return []
    others = ", ".join(
        f"{run.name} {p.value:.3f}" if math.isfinite(p.value) else f"{run.name} has no epoch done"
        for i, (run, p) in enumerate(zip(timed, points))
        if i != won
    )
    return [f"**Only {duration(budget)}**: {timed[won].name}, mAP@.5:.95 {points[won].value:.3f} by then ({others})."]


def _recall_and_precision(runs: list[Run]) -> list[str]:
    sentences = []
    for metric, need in (("recall", "Missing an object is worst"), ("precision", "A false alarm is worst")):
        values = [last(run.metrics[metric]) for run in runs]
        won = _clear_winner(values, True)
        if won is not None:
            rest = ", ".join(f"{v:.3f}" for i, v in enumerate(values) if i != won and math.isfinite(v))
            sentences.append(f"**{need}**: {runs[won].name}, {metric} {values[won]:.3f} (against {rest}).")
    return sentences


def _least_scatter(runs: list[Run]) -> list[str]:
    windows = [late(run, run.metrics["map"]) for run in runs]
    won = winner([round(w.scatter, 4) for w in windows], False)
    if won is None:
        return []
    scatter = f"mAP@.5:.95 scatters by {windows[won].scatter:.4f} around its trend"
    return [f"**Repeatable results**: {runs[won].name} is the calmest at the end ({scatter})."]


def _still_rising(runs: list[Run]) -> list[str]:
    """Runs that were still rising clearly when they ended: by more in ten epochs than they scatter."""
    sentences = []
    for run in runs:
        window = late(run, run.metrics["map"])
        rise = window.slope * 10
        if window.count >= 5 and rise > max(3 * window.scatter, 0.002):
            sentences.append(
                f"**More epochs**: {run.name} still rose at the end, by {rise:.3f} mAP@.5:.95 in ten epochs."
            )
    return sentences
