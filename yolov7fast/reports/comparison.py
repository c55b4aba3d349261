"""The comparison report of runs: one function per section, each computed from the runs only."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from yolov7fast.reports import run_statistics as stats
from yolov7fast.reports.advice import advice, cost_of_the_gain
from yolov7fast.reports.charts import Chart, Line
from yolov7fast.reports.html_page import Cell, ComparisonReport, ReportTable, Section
from yolov7fast.reports.run_results import Run, number

LABELS = {"map50": "mAP@.5", "map": "mAP@.5:.95", "precision": "precision", "recall": "recall"}
# settings that are listed even if all runs agree
MAIN_SETTINGS = (
    "cfg", "data", "weights", "epochs", "batch_size", "total_batch_size", "img_size", "adam", "lr0", "lrf", "momentum",
    "weight_decay", "mosaic", "mixup", "loss_ota", "assigner", "assigner_schedule", "noautoanchor", "workers",
    "amp", "seed",
)  # fmt: skip


def build_report(runs: list[Run], rate: float | None) -> ComparisonReport:
    """The complete comparison; `rate`: price per hour, or None."""
    *others, final = (run.name for run in runs)
    sections = [
        summary(runs, rate),
        settings_section(runs),
        losses(runs),
        accuracy(runs),
        stability(runs),
        stage_times(runs),
        time_and_cost(runs, rate),
        equal_time(runs),
        accuracy_by_hours(runs),
        file_sizes(runs),
        Section("Advice by use case", [advice(runs, rate)]),
    ]
    return ComparisonReport("Comparison of " + " and ".join(filter(None, [", ".join(others), final])), sections)


# --- tables and charts ------------------------------------------------------------------------------------------------


DOLLARS, MEGABYTES = stats.formatted(".2f", before="$"), stats.formatted(".1f", " MB")


class RunTable(ReportTable):
    """Rows with a value for each run and, for two runs, the change from the first to the second."""

    def __init__(self, runs: Sequence[Run], label: str = "", with_change: bool = False):
        self.with_change = with_change and len(runs) == 2
        super().__init__([label, *(run.name for run in runs), *(["change"] if self.with_change else [])], [])

    def add(self, label: str, values: list[float], show: Callable[[float], str], higher: bool | None = None) -> None:
        """A row with its best value marked, unless another prints the same; higher: whether higher is better, None:
        neither."""
        texts = [show(value) for value in values]
        won = None if higher is None else stats.winner(values, higher)
        cells = [Cell(text, i == won and texts.count(text) == 1) for i, text in enumerate(texts)]
        self.add_text(label, cells, _change(values) if self.with_change else "")

    def add_text(self, label: str, cells: Sequence[Cell | str], change: str = "") -> None:
        self.rows.append([label, *cells, *([change] if self.with_change else [])])


def _change(values: list[float]) -> str:
    """The last run relative to the first, in per cent, or as a factor of 2x and more."""
    factor = stats.ratio(values[-1], values[0])
    if not math.isfinite(factor) or factor == 1:
        return "" if factor != 1 else "equal"
    return f"{factor:.2f}x" if factor >= 2 or factor <= 0.5 else f"{(factor - 1) * 100:+.1f}%"


def charts(runs: list[Run], *wanted: tuple[str, Callable[[Run], np.ndarray | None]], x="epoch") -> list[Chart]:
    """A chart with a line for each run; those without any values are left out.

    wanted: (title, values of a run by epoch or None). x: "epoch" or "hours".
    """
    found = []
    for title, pick in wanted:
        lines = []
        for run in runs:
            places, values = run.hours if x == "hours" else run.epoch, pick(run)
            if places is not None and values is not None:
                lines.append(Line(run.name, places.tolist(), values.tolist()))
        found.append(Chart(title, x, lines))
    return [chart for chart in found if chart]


def metric(name: str) -> Callable[[Run], np.ndarray]:
    return lambda run: run.metrics[name]


# --- sections ---------------------------------------------------------------------------------------------------------


def summary(runs: list[Run], rate: float | None) -> Section:
    table = RunTable(runs, with_change=True)
    final, tops = (
        {name: [stats.last(run.metrics[name]) for run in runs] for name in LABELS},
        [stats.best(r, "map") for r in runs],
    )
    for name, label in LABELS.items():
        table.add(f"final {label}", final[name], stats.DECIMALS, True)
    table.add("best mAP@.5:.95", [top.value for top in tops], stats.DECIMALS, True)
    table.add_text("at epoch, from 0", [str(top.epoch) if top.epoch >= 0 else "unknown" for top in tops])
    table.add_text("epochs done", [f"{len(run.epoch)} of {run.planned}" for run in runs])
    add_time_and_cost(table, runs, rate)
    table.add("weights file", [stats.weights_megabytes(run) for run in runs], MEGABYTES, False)
    blocks: list = [*cost_of_the_gain(runs, rate), table]
    if len(runs) > 1:
        blocks.append("Bold: the winner of the row.")
    if notes := [f"**{run.name}**: {note}" for run in runs for note in run.notes]:
        blocks += ["Notes on the numbers:", notes]
    return Section("Summary", blocks)


def add_time_and_cost(table: RunTable, runs: list[Run], rate: float | None) -> None:
    per_hour = [stats.ratio(stats.last(run.metrics["map"]), run.total_hours) for run in runs]
    table.add("total time", [run.total_hours for run in runs], stats.duration, False)
    if rate is not None:
        table.add(f"cost at ${rate:g} an hour", [stats.cost(run, rate) for run in runs], DOLLARS, False)
    table.add("mAP@.5:.95 per hour", per_hour, stats.DECIMALS, True)


def settings_section(runs: list[Run]) -> Section:
    differing, common = stats.differing_settings(runs), stats.settings(runs[0])
    blocks: list = []
    if len(runs) > 1 and not any(stats.settings(run) for run in runs):
        blocks.append("No run has an `opt.yaml` or `hyp.yaml`: settings unknown.")
    elif differing:
        rows = [[f"`{key}`", *map(_setting, values)] for key, values in differing.items()]
        count = f"{len(rows)} settings differ:" if len(rows) > 1 else "One setting differs:"
        blocks += [count, ReportTable(["setting", *(run.name for run in runs)], rows)]
    elif len(runs) > 1:
        blocks.append("No setting differs: differences between the runs are due to chance, code or machine.")
    if same := [[f"`{k}`", _setting(common[k])] for k in MAIN_SETTINGS if k in common and k not in differing]:
        heading = "Common to all:" if len(runs) > 1 else "Main settings:"
        blocks += [heading, ReportTable(["setting", "value"], same)]
    return Section("Settings", blocks)


def _setting(value: Any) -> str:
    return "not set" if value is None else "''" if value == "" else str(value)


def losses(runs: list[Run]) -> Section:
    table, show = RunTable(runs, "training loss"), stats.formatted(".4f")
    blocks: list = [table]
    for key in ("loss_ota", "assigner", "assigner_schedule"):
        if len({repr(stats.settings(run).get(key) or 0) for run in runs}) > 1:
            blocks.insert(0, f"The runs use different losses (`{key}`): compare shapes, not levels.")
            break
    wanted: list = []
    for part in dict.fromkeys(part for run in runs for part in run.losses):
        curves = [run.losses.get(part, np.array([])) for run in runs]
        table.add(f"{part}, first epoch", [stats.first(curve) for curve in curves], show)
        table.add(f"{part}, last epoch", [stats.last(curve) for curve in curves], show)
        title = "Total training loss" if part == "total" else f"Training loss: {part}"
        wanted.append((title, lambda run, p=part: run.losses.get(p)))
    for part in dict.fromkeys(part for run in runs for part in run.val_losses):
        wanted.append((f"Validation loss: {part}", lambda run, p=part: run.val_losses.get(p)))
    return Section("Loss", [*blocks, charts(runs, *wanted)])


def accuracy(runs: list[Run]) -> Section:
    table, shared = RunTable(runs, "at the same epoch", with_change=True), min(int(run.epoch[-1]) for run in runs)
    for name in ("map50", "map", "recall"):
        for epoch in sorted({min(round((shared + 1) * f), shared) for f in (0.1, 0.25, 0.5, 0.75, 1.0)}):
            values = [stats.at_epoch(run, name, epoch) for run in runs]
            if any(map(math.isfinite, values)):
                table.add(f"{LABELS[name]}, epoch {epoch}", values, stats.DECIMALS, True)
    drawn = charts(runs, *((label, metric(name)) for name, label in LABELS.items()))
    return Section("Accuracy and recall", [table if table.rows else "No run was validated.", drawn])


def stability(runs: list[Run]) -> Section:
    table = RunTable(runs)
    curves = {LABELS[name]: [run.metrics[name] for run in runs] for name in ("map50", "map", "recall")}
    curves["total loss"] = [run.losses.get("total", np.array([])) for run in runs]
    for label, values in curves.items():
        windows = [stats.late(run, curve) for run, curve in zip(runs, values, strict=True)]
        if not any(window.count for window in windows):
            continue
        show = stats.formatted(".4f") if label == "total loss" else stats.DECIMALS
        table.add(f"{label}: mean", [window.mean for window in windows], show)
        table.add(f"{label}: std", [window.std for window in windows], stats.formatted(".4f"))
        table.add_text(f"{label}: range", [f"{show(window.low)} to {show(window.high)}" for window in windows])
        table.add(f"{label}: trend per epoch", [window.slope for window in windows], stats.formatted("+.5f"))
        table.add(f"{label}: scatter around it", [window.scatter for window in windows], stats.formatted(".5f"), False)
    text = (
        f"The last {stats.LATE_EPOCHS} measured epochs of each run. A trend means that the run was still changing; "
        "little scatter means that it was stable."
    )
    return Section("Stability over the last ten epochs", [text, table])


def stage_times(runs: list[Run]) -> Section:
    profiled, blocks = [run for run in runs if run.profile], []
    if profiled:
        table = RunTable(profiled, "stage")
        for stage in dict.fromkeys(stage for run in profiled for stage in run.profile["stages"]):
            table.add_text(stage, [_stage(run.profile["stages"].get(stage)) for run in profiled])
        for key, label, show, higher in (
            ("total_ms", "total", stats.formatted(".1f", " ms"), False),
            ("images_per_s", "images per second", stats.formatted(".0f"), True),
            ("gpu_busy", "GPU busy", stats.formatted(".1%"), True),
        ):
            table.add(label, [number(run.profile.get(key)) for run in profiled], show, higher)
        blocks.append(table)
    if missing := [run.name for run in runs if not run.profile]:
        command = "`python tests/profile_training_loop.py --data DATA --cfg CFG --output RUN_FOLDER`"
        text = f"Without a `profile.json`: {', '.join(missing)}. To measure where an iteration's time goes (YOLO): "
        blocks.append(text + command)
    return Section("Stage times and GPU utilisation", blocks)


def _stage(stage: dict[str, float] | None) -> str:
    if stage is None:
        return ""
    text = f"{stage['mean_ms']:.1f} ± {stage['std_ms']:.1f} ms ({stage['fraction'] * 100:.1f}%)"
    return text if all(map(math.isfinite, stage.values())) else "unknown"


def time_and_cost(runs: list[Run], rate: float | None) -> Section:
    table = RunTable(runs, with_change=True)
    table.add("time an epoch", [stats.hours_per_epoch(run) for run in runs], stats.duration, False)
    table.add("iterations per second", [stats.iterations_per_second(run) for run in runs], stats.formatted(".2f"), True)
    add_time_and_cost(table, runs, rate)
    if rate is not None:
        per_point = [stats.ratio(stats.cost(run, rate), stats.last(run.metrics["map"]) * 100) for run in runs]
        table.add("cost per 0.01 mAP@.5:.95", per_point, stats.DECIMALS, False)
    waits = [_over_epochs(run, "data_wait_share", np.nanmean) for run in runs]
    memory = [_over_epochs(run, "memory_gb", np.nanmax) for run in runs]
    if any(map(math.isfinite, waits)):
        table.add("time waiting for data", waits, stats.formatted(".1%"), False)
    if any(value > 0 for value in memory):
        table.add("GPU memory, peak", memory, stats.formatted(".2f", " GB"), False)
    table.add_text("time taken from", [run.time_source for run in runs])
    measured = [run for run in runs if run.time_source == "results.csv"]
    blocks: list = [
        table,
        charts(measured, ("Minutes an epoch", lambda run: None if run.seconds is None else run.seconds / 60)),
    ]
    if rate is None:
        blocks.append("Give `--rate` (money per hour of the machine) to see costs.")
    return Section("Time and cost", blocks)


def _over_epochs(run: Run, name: str, by: Callable) -> float:
    return float(by(run.figures[name])) if name in run.figures else math.nan


def equal_time(runs: list[Run]) -> Section:
    timed = [run for run in runs if run.hours is not None]
    if len(timed) < 2:
        return Section("Equal time", ["Needs at least two runs whose time is known."])
    table, shortest = RunTable(timed), min(run.total_hours for run in timed)
    for part in (0.25, 0.5, 1.0):
        points = [stats.at_hours(run, "map", shortest * part) for run in timed]
        won = stats.winner([point.value for point in points], True)
        texts = [f"{stats.DECIMALS(p.value)} (epoch {p.epoch})" if p.epoch >= 0 else "no epoch yet" for p in points]
        table.add_text(
            f"after {stats.duration(shortest * part)}", [Cell(text, i == won) for i, text in enumerate(texts)]
        )
    target = min(stats.best(run, "map").value for run in timed)
    if math.isfinite(target):
        table.add(
            f"time to reach {target:.3f}", [stats.hours_to(run, "map", target) for run in timed], stats.duration, False
        )
    text = (
        "mAP@.5:.95 that each run had reached after the same time, up to the length of the shortest run; then the time "
    )
    text += "to the accuracy that all of them reached."
    return Section("Equal time", [text, table])


def accuracy_by_hours(runs: list[Run]) -> Section:
    wanted = [(f"{LABELS[n]} against hours", metric(n)) for n in ("map", "map50")]
    drawn = charts(runs, *wanted, x="hours")
    return Section("Accuracy against hours", [drawn] if drawn else ["No run's time is known."])


def file_sizes(runs: list[Run]) -> Section:
    if not any(run.weights for run in runs):
        return Section("File sizes", ["No run folder holds `weights/*.pt` or `*.pth`."])
    table = RunTable(runs, "file")
    for name in ("best.pt", "best.pth", "last.pt", "last.pth", "init.pt"):
        if any(name in run.weights for run in runs):
            table.add(f"`{name}`", [run.weights.get(name, math.nan) / 1e6 for run in runs], MEGABYTES)
    sizes = [f"{sum(run.weights.values()) / 1e6:.1f} MB in {len(run.weights)}" for run in runs]
    table.add_text("all checkpoints", sizes)
    return Section("File sizes", [table])
