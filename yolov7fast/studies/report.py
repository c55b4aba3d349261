"""The report of a study: accuracy at equal epochs and minutes, price, curves, spread of seeds, recommendation."""

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from yolov7fast.pages.chart import Chart, Line
from yolov7fast.reports.plots import LABELS
from yolov7fast.reports.render import Bullets, Cell, Report, Section, Table, Text
from yolov7fast.search.seeds import interval, pooled_deviation
from yolov7fast.studies.figures import METRICS, Price, Result, Trained, at_minutes, results
from yolov7fast.studies.plan import Arm, Plan
from yolov7fast.studies.recorded import RECORDED, WHERE

TIME_STEPS = (0.25, 0.5, 0.75, 1.0)  # of the time that the cheapest arm takes


def build_report(plan: Plan, trained: Sequence[Trained], price: Price) -> Report:
    return Report(
        f"Study of {', '.join(plan.axes)}",
        [
            Section("Recommendation", [Bullets(recommendation(trained, price))]),
            equal_epochs(plan, trained),
            equal_minutes(plan, trained, price),
            price_section(plan, price),
            curves(trained, price),
            spread(trained),
            recorded(),
            settings(plan, trained),
        ],
    )


# --- accuracy ---------------------------------------------------------------------------------------------------------


def _accuracy_rows(trained: Sequence[Trained], equal: str) -> list[list[Cell | str]]:
    columns = [results(trained, equal, metric) for metric in METRICS]
    rows: list[list[Cell | str]] = []
    for of_arm in zip(*columns):
        cells = [Cell(_with_spread(r), r.mean == max(o.mean for o in column)) for r, column in zip(of_arm, columns)]
        seeds = ", ".join(f"{value:.3f}" for value in of_arm[0].values)
        rows.append([of_arm[0].arm.text, str(of_arm[0].epochs), *cells, seeds])
    return rows


def _with_spread(result: Result) -> str:
    spread = f" ± {result.deviation:.3f}" if math.isfinite(result.deviation) else ""
    return f"{result.mean:.3f}{spread}"


def equal_epochs(plan: Plan, trained: Sequence[Trained]) -> Section:
    header = ["arm", "epochs", *(LABELS[metric] for metric in METRICS), "mAP@.5 by seed"]
    text = f"Every arm has {plan.epochs} epochs; figures of the last epoch, mean ± standard deviation of the seeds."
    return Section("Accuracy at equal epochs", [Text(text), Table(header, _accuracy_rows(trained, "epochs"))])


def equal_minutes(plan: Plan, trained: Sequence[Trained], price: Price) -> Section:
    """Runs of their own where the study has them; and in any case what the curves had reached."""
    blocks: list = [Text(f"Price of an epoch: {price.source}.")]
    rows = _accuracy_rows(trained, "minutes")
    if rows:
        header = ["arm", "epochs", *(LABELS[metric] for metric in METRICS), "mAP@.5 by seed"]
        text = f"Trainings of as many epochs as {plan.minutes:g} minutes hold, learning rates falling over these."
        blocks += [Text(text), Table(header, rows)]
    mine = [t for t in trained if t.planned.equal == "epochs" and t.planned.arm.name in price.seconds]
    if mine:
        least = min(price.seconds[t.planned.arm.name] for t in mine) * plan.epochs / 60
        minutes = [least * step for step in TIME_STEPS]
        table = []
        for arm in dict.fromkeys(t.planned.arm for t in mine):
            of_arm = [t for t in mine if t.planned.arm == arm]
            reached = [np.array([at_minutes(t, m, price, "map50") for t in of_arm]) for m in minutes]
            table.append([arm.text, *("" if np.isnan(r).all() else f"{np.nanmean(r):.3f}" for r in reached)])
        text = "mAP@.5 that the runs at equal epochs had reached by then (their learning rates were still high):"
        blocks += [Text(text), Table(["arm", *(f"{m:.3g} minutes" for m in minutes)], table)]
    return Section("Accuracy at equal minutes", blocks)


# --- price ------------------------------------------------------------------------------------------------------------


def price_section(plan: Plan, price: Price) -> Section:
    """Seconds of an epoch, and what each costs relative to the cheapest of the same other settings."""
    rows = []
    first = next(iter(plan.axes))
    for arm in plan.arms:
        if arm.name not in price.seconds:
            continue
        others = [a for a in plan.arms if _apart(a, first) == _apart(arm, first) and a.name in price.seconds]
        base = min(price.seconds[a.name] for a in others)
        seconds = price.seconds[arm.name]
        ratio = seconds / base
        rows.append(
            [arm.text, f"{seconds:.3g}", Cell(f"{ratio:.2f}", ratio == 1.0), f"{seconds * plan.epochs / 60:.3g}"]
        )
    text = f"{price.source[0].upper()}{price.source[1:]}. Ratios: to the cheapest {first} at the same other settings."
    header = ["arm", "seconds an epoch", "ratio", f"minutes of {plan.epochs} epochs"]
    return Section("Price", [Text(text), Table(header, rows)])


def _apart(arm: Arm, axis: str) -> tuple:
    return tuple(pair for pair in arm.settings if pair[0] != axis)


# --- curves and seeds -------------------------------------------------------------------------------------------------


def curves(trained: Sequence[Trained], price: Price) -> Section:
    """Means over seeds, by epoch and by minutes."""
    by_epoch, by_minutes = [], []
    mine = [t for t in trained if t.planned.equal == "epochs"]
    for arm in dict.fromkeys(t.planned.arm for t in mine):
        values = [t.run.metrics["map50"] for t in mine if t.planned.arm == arm]
        length = min(map(len, values))
        mean = np.mean([v[:length] for v in values], axis=0).tolist()
        epoch = [e + 1 for e in range(length)]
        by_epoch.append(Line(arm.text, epoch, mean))
        if arm.name in price.seconds:
            by_minutes.append(Line(arm.text, [e * price.seconds[arm.name] / 60 for e in epoch], mean))
    charts = [
        Chart("map50_epochs", "mAP@.5 by epoch, mean of the seeds", "epoch", by_epoch, low=0.0),
        Chart("map50_minutes", "mAP@.5 by minutes", "minutes", by_minutes, low=0.0),
    ]
    return Section("Curves", [[chart for chart in charts if chart]])


def spread(trained: Sequence[Trained]) -> Section:
    rows = []
    for metric in METRICS:
        found = results(trained, "epochs", metric)
        deviation, freedom = pooled_deviation(found)
        widest = max((max(r.values) - min(r.values) for r in found), default=math.nan)
        known = [f"{deviation:.4f}", str(freedom)] if freedom else ["unknown", "0"]
        rows.append([LABELS[metric], *known, f"{widest:.3f}"])
    text = "How far runs differ that differ by their seed alone; a difference of arms below this may be chance."
    header = ["figure", "standard deviation of a seed", "degrees of freedom", "widest range of an arm"]
    return Section("Spread of the seeds", [Text(text), Table(header, rows)])


# --- what to do -------------------------------------------------------------------------------------------------------


def recommendation(trained: Sequence[Trained], price: Price) -> list[str]:
    words = []
    for equal, when in (("epochs", "At equal epochs"), ("minutes", "At equal minutes")):
        found = sorted(results(trained, equal, "map"), key=lambda r: -r.mean)
        if found:
            words.append(f"{when}: {_verdict(found)}")
    if len(price.seconds) > 1:
        ranked = sorted(price.seconds, key=price.seconds.__getitem__)
        ratio = price.seconds[ranked[-1]] / price.seconds[ranked[0]]
        words.append(f"Cheapest epoch: {ranked[0]}; the dearest, {ranked[-1]}, takes {ratio:.2f} times as long.")
    words.append(
        "It holds for this data set, network and length of training; a longer one may rank the arms otherwise."
    )
    return words


def _verdict(found: Sequence[Result]) -> str:
    """found: best first."""
    best = found[0]
    if len(found) == 1:
        return f"only {best.arm.text} was measured, mAP@.5:.95 {best.mean:.3f}."
    if not pooled_deviation(found)[1]:
        return (
            f"**{best.arm.text}** had the highest mAP@.5:.95 ({best.mean:.3f}, then {found[1].arm.text} with "
            f"{found[1].mean:.3f}). One seed each: how much is chance is unknown; give --repeat 2 or more."
        )
    equals = [r for r in found[1:] if best.mean - r.mean <= interval(best, r, found)]
    half, gain = interval(best, found[1], found), best.mean - found[1].mean
    figures = f"{gain:+.3f} mAP@.5:.95 to {found[1].arm.text}, 95% interval ± {half:.3f}, {len(best.values)} seeds"
    if not equals:
        return f"**{best.arm.text}** is better than all others ({figures})."
    names = ", ".join(r.arm.text for r in equals)
    return f"**{best.arm.text}** had the highest mean ({figures}); not told apart from it by these seeds: {names}."


def recorded() -> Section:
    """The recorded study, beside what was found here."""
    plain, ota = RECORDED["plain"], RECORDED["ota"]
    names = ("precision", "recall", "mAP@.5", "mAP@.5:.95")
    rows = [[name, f"{a:.3f}", f"{b:.3f}"] for name, a, b in zip(names, plain["final"], ota["final"])]
    rows += [[f"mAP@.5, epoch {e}", f"{plain['map50'][e]:.3f}", f"{ota['map50'][e]:.3f}"] for e in plain["map50"]]
    rows += [
        ["hours", f"{plain['hours']}", f"{ota['hours']}"],
        ["minutes an epoch", f"{plain['minutes_an_epoch']}", f"{ota['minutes_an_epoch']}"],
        ["loss of an iteration, ms", f"{plain['stages'][1]}", f"{ota['stages'][1]}"],
        ["iteration, ms", f"{plain['total_ms']}", f"{ota['total_ms']}"],
    ]
    text = (
        f"Recorded, not measured here: {WHERE}. Its price of OTA is that of upstream's loss, not of the one used here."
    )
    return Section("The recorded study", [Text(text), Table(["figure", "plain", "OTA"], rows)])


def settings(plan: Plan, trained: Sequence[Trained]) -> Section:
    rows = [["data", plan.data], ["network", plan.cfg], ["seeds", str(plan.repeat)], ["epochs", str(plan.epochs)]]
    rows += [[f"axis {axis}", ", ".join(values)] for axis, values in plan.axes.items()]
    rows += [
        ["minutes", f"{plan.minutes:g}" if plan.minutes else "none"],
        ["further flags", " ".join(plan.flags) or "none"],
    ]
    notes = list(dict.fromkeys(f"{t.planned.name}: {note}" for t in trained for note in t.run.notes))
    return Section("Settings", [Table(["setting", "value"], rows), *([Bullets(notes)] if notes else [])])


# --- files ------------------------------------------------------------------------------------------------------------


def run_rows(trained: Sequence[Trained]) -> list[dict[str, Any]]:
    """One row for each run, as they are written to runs.csv and results.json."""
    rows = []
    for t in trained:
        row: dict[str, Any] = {"run": t.planned.name, "equal": t.planned.equal, **dict(t.planned.arm.settings)}
        row |= {"seed": t.planned.seed, "epochs": t.planned.epochs}
        row |= {metric: t.last(metric) for metric in (*METRICS, "precision", "recall")}
        rows.append(row | {"seconds_an_epoch": t.seconds_an_epoch})
    return rows


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
