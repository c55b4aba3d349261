"""The comparison report of runs: one function per section, each computed from the runs alone."""

import math
import shlex
from collections.abc import Callable
from typing import Any

import numpy as np

from yolov7fast.reports.advice import advice, cost_of_the_gain
from yolov7fast.reports.charts import Bars, Chart, Line
from yolov7fast.reports.html_page import Bullets, Cell, ComparisonReport, ReportTable, Section, Text
from yolov7fast.reports.run_results import Run
from yolov7fast.reports.run_statistics import (
    LATE,
    at_epoch,
    at_hours,
    best,
    cost,
    differing_settings,
    duration,
    first,
    hours_per_epoch,
    hours_to,
    iterations_per_second,
    last,
    late,
    ratio,
    settings,
    weights_bytes,
    winner,
)

LABELS = {"map": "mAP@.5:.95", "map50": "mAP@.5", "precision": "precision", "recall": "recall"}
Pick = Callable[[Run], np.ndarray | None]


def curve_chart(
    runs: list[Run], name: str, title: str, ylabel: str, pick: Pick, by_hours: bool = False
) -> Chart | None:
    """One line per run; `pick(run)` gives its values by epoch, or None. No plot where no run has any."""
    lines = []
    for run in runs:
        x, y = run.hours if by_hours else run.epoch, pick(run)
        if x is not None and y is not None:
            lines.append(Line(run.name, x.tolist(), y.tolist()))
    chart = Chart(name, title, "hours" if by_hours else "epoch", lines, ylabel)
    return chart if chart else None


def stage_bars(runs: list[Run]) -> Bars | None:
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


# the settings worth a line even where all runs agree
MAIN_SETTINGS = (
    "cfg", "data", "weights", "epochs", "batch_size", "total_batch_size", "img_size", "adam", "lr0", "lrf", "momentum",
    "weight_decay", "mosaic", "mixup", "loss_ota", "assigner", "assigner_schedule", "noautoanchor", "workers",
    "amp", "seed",
)  # fmt: skip


def build_report(runs: list[Run], rate: float | None) -> ComparisonReport:
    """The whole comparison; `rate`: money per hour, or None."""
    title = "Comparison of " + " and ".join([", ".join(r.name for r in runs[:-1]), runs[-1].name][len(runs) == 1 :])
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
        Section("Advice by use case", [Bullets(advice(runs, rate))]),
    ]
    return ComparisonReport(title, sections)


# --- numbers as text --------------------------------------------------------------------------------------------------


def number(value: float, form: str = ".3f", unit: str = "") -> str:
    return f"{value:{form}}{unit}" if math.isfinite(value) else "unknown"


def decimals(value: float) -> str:
    """Accuracy and the like: three decimals, as training prints them."""
    return number(value, ".3f")


def _change(values: list[float]) -> str:
    """The last run against the first, in per cent, or as a factor from 2x on."""
    factor = ratio(values[-1], values[0])
    if not math.isfinite(factor) or factor == 1:
        return "" if factor != 1 else "equal"
    return f"{factor:.2f}x" if factor >= 2 or factor <= 0.5 else f"{(factor - 1) * 100:+.1f}%"


def _row(label: str, values: list[float], show: Callable[[float], str], higher: bool | None, change: bool) -> list:
    """A table row with its winner marked, unless another looks the same; `higher`: the better way, None: neither."""
    won = None if higher is None else winner(values, higher)
    texts = [show(value) for value in values]
    cells = [Cell(text, i == won and texts.count(text) == 1) for i, text in enumerate(texts)]
    return [label, *cells, *([_change(values)] if change else [])]


def _header(runs: list[Run], label: str, change: bool) -> list[str]:
    return [label, *(run.name for run in runs), *(["change"] if change else [])]


# --- sections ---------------------------------------------------------------------------------------------------------


def summary(runs: list[Run], rate: float | None) -> Section:
    pair = len(runs) == 2
    final = {name: [last(run.metrics[name]) for run in runs] for name in LABELS}
    tops = [best(run, "map") for run in runs]
    hours = [run.total_hours for run in runs]
    costs = [cost(run, rate) for run in runs]
    rows = [
        _row(f"final {LABELS[name]}", final[name], decimals, True, pair)
        for name in ("map50", "map", "precision", "recall")
    ]
    rows.append(_row("best mAP@.5:.95", [top.value for top in tops], decimals, True, pair))
    rows.append(["at epoch, from 0", *(str(t.epoch) if t.epoch >= 0 else "unknown" for t in tops), *[""] * pair])
    rows.append(["epochs done", *(f"{len(run.epoch)} of {run.planned}" for run in runs), *[""] * pair])
    rows.append(_row("total time", hours, duration, False, pair))
    if rate is not None:
        rows.append(_row(f"cost at ${rate:g} an hour", costs, money, False, pair))
    rows.append(_row("mAP@.5:.95 per hour", [ratio(m, h) for m, h in zip(final["map"], hours)], decimals, True, pair))
    rows.append(_row("weights file", [weights_bytes(r) for r in runs], lambda v: number(v, ".1f", " MB"), False, pair))
    blocks: list = [Text(sentence) for sentence in cost_of_the_gain(runs, rate)]
    blocks.append(ReportTable(_header(runs, "", pair), rows))
    if len(runs) > 1:
        blocks.append(Text("Bold: the winner of the row."))
    notes = [f"**{run.name}**: {note}" for run in runs for note in run.notes]
    if notes:
        blocks += [Text("To know when reading the figures:"), Bullets(notes)]
    return Section("Summary", blocks)


def money(value: float) -> str:
    return f"${value:.2f}" if math.isfinite(value) else "unknown"


def settings_section(runs: list[Run]) -> Section:
    differing = differing_settings(runs)
    blocks: list = []
    if len(runs) > 1 and not any(settings(run) for run in runs):
        blocks.append(Text("No run has an `opt.yaml` or `hyp.yaml`: settings unknown."))
    elif differing:
        count = f"{len(differing)} settings differ:" if len(differing) > 1 else "One setting differs:"
        rows = [[f"`{key}`", *map(_setting, values)] for key, values in differing.items()]
        blocks += [Text(count), ReportTable(["setting", *(run.name for run in runs)], rows)]
    elif len(runs) > 1:
        blocks.append(Text("No setting differs: the runs vary by chance alone, or by code and machine."))
    common = settings(runs[0])
    same = [key for key in MAIN_SETTINGS if key in common and key not in differing]
    if same:
        heading = "Common to all:" if len(runs) > 1 else "Main settings:"
        blocks += [
            Text(heading),
            ReportTable(["setting", "value"], [[f"`{key}`", _setting(common[key])] for key in same]),
        ]
    return Section("Settings", blocks)


def _setting(value: Any) -> str:
    return "not set" if value is None else "''" if value == "" else str(value)


def losses(runs: list[Run]) -> Section:
    parts = list(dict.fromkeys(part for run in runs for part in run.losses))
    rows, drawn = [], []
    for part in parts:
        known = [run.losses.get(part, np.array([])) for run in runs]
        for when, value in (("first", first), ("last", last)):
            rows.append([f"{part}, {when} epoch", *(number(value(v), ".4f") for v in known)])
        title = "Total training loss" if part == "total" else f"Training loss: {part}"
        drawn.append(curve_chart(runs, f"loss_{part}", title, part, lambda run, p=part: run.losses.get(p)))
    for part in dict.fromkeys(part for run in runs for part in run.val_losses):
        title = f"Validation loss: {part}"
        drawn.append(curve_chart(runs, f"val_{part}", title, part, lambda run, p=part: run.val_losses.get(p)))
    blocks: list = [ReportTable(_header(runs, "training loss", False), rows), [p for p in drawn if p]]
    for key in ("loss_ota", "assigner", "assigner_schedule"):
        if len({repr(settings(run).get(key) or 0) for run in runs}) > 1:
            blocks.insert(0, Text(f"The runs use different losses (`{key}`): compare shapes, not levels."))
            break
    return Section("Loss", blocks)


def accuracy(runs: list[Run]) -> Section:
    pair = len(runs) == 2
    shared = min(int(run.epoch[-1]) for run in runs)
    wanted = sorted({min(round((shared + 1) * f), shared) for f in (0.1, 0.25, 0.5, 0.75, 1.0)})
    rows = []
    for name in ("map50", "map", "recall"):
        for epoch in wanted:
            values = [at_epoch(run, name, epoch) for run in runs]
            if any(math.isfinite(v) for v in values):
                rows.append(_row(f"{LABELS[name]}, epoch {epoch}", values, decimals, True, pair))
    drawn = [
        curve_chart(runs, f"metric_{name}", label, label, lambda run, n=name: run.metrics[n])
        for name, label in LABELS.items()
    ]
    blocks: list = (
        [ReportTable(_header(runs, "at the same epoch", pair), rows)] if rows else [Text("No run was validated.")]
    )
    return Section("Accuracy and recall", [*blocks, [p for p in drawn if p]])


def stability(runs: list[Run]) -> Section:
    rows = []
    curves = [(LABELS[n], [run.metrics[n] for run in runs], True) for n in ("map50", "map", "recall")]
    curves.append(("total loss", [run.losses.get("total", np.array([])) for run in runs], False))
    for label, values, higher in curves:
        windows = [late(run, curve) for run, curve in zip(runs, values, strict=True)]
        if not any(w.count for w in windows):
            continue
        digits = ".3f" if higher else ".4f"
        rows.append([f"{label}: mean", *(number(w.mean, digits) for w in windows)])
        rows.append([f"{label}: std", *(number(w.std, ".4f") for w in windows)])
        rows.append([f"{label}: range", *(f"{number(w.low, digits)} to {number(w.high, digits)}" for w in windows)])
        rows.append([f"{label}: trend per epoch", *(number(w.slope, "+.5f") for w in windows)])
        scatter = [w.scatter for w in windows]
        rows.append(_row(f"{label}: scatter around it", scatter, lambda v: number(v, ".5f"), False, False))
    text = Text(
        f"The last {LATE} measured epochs of each run. A trend means that the run was still changing; little scatter "
        "means that it was stable."
    )
    return Section("Stability over the last ten epochs", [text, ReportTable(_header(runs, "", False), rows)])


def stage_times(runs: list[Run]) -> Section:
    profiled = [run for run in runs if run.profile]
    hints = _profile_hints([run for run in runs if not run.profile])
    if not profiled:
        return Section("Stage times and GPU utilisation", hints)
    names = dict.fromkeys(stage for run in profiled for stage in run.profile["stages"])
    rows: list[list] = [[stage, *(_stage(run.profile["stages"].get(stage)) for run in profiled)] for stage in names]
    total = [_figure(run, "total_ms") for run in profiled]
    rows.append(_row("total", total, lambda v: number(v, ".1f", " ms"), False, False))
    rate = [_figure(run, "images_per_s") for run in profiled]
    rows.append(_row("images per second", rate, lambda v: number(v, ".0f"), True, False))
    busy = [_figure(run, "gpu_busy") for run in profiled]
    rows.append(_row("GPU busy", busy, lambda v: number(v * 100, ".1f", "%"), True, False))
    table = ReportTable(_header(profiled, "stage", False), rows)
    drawn = stage_bars(runs)
    return Section("Stage times and GPU utilisation", [table, [drawn] if drawn else [], *hints])


def _profile_hints(runs: list[Run]) -> list:
    """The commands that write the `profile.json` these runs lack."""
    if not runs:
        return []
    text = f"Without a `profile.json`: {', '.join(run.name for run in runs)}."
    # the profiler does not know networks of transformers yet
    commands = [f"`{profile_command(run)}`" for run in runs if "architecture" not in run.opt]
    if not commands:
        return [Text(text)]
    return [Text(f"{text} To measure where an iteration's time goes, and write it there:"), Bullets(commands)]


def profile_command(run: Run) -> str:
    """The profiler's command line with a run's own settings, as far as they are known, and its folder as output."""
    opt = {"data": "DATA.yaml"} | {key: value for key, value in run.opt.items() if value not in (None, "")}
    if run.hyp:
        opt["hyp"] = run.folder / "hyp.yaml"  # includes changes of the command line
    if "cfg" not in opt and "weights" in opt:
        opt["cfg"] = ""  # the network is that of the weights
    words = ["python", "tests/profile_training_loop.py"]
    for key in ("data", "cfg", "weights", "hyp", "batch_size", "img_size", "workers"):
        if key in opt and (key != "weights" or opt["cfg"] == ""):
            values = opt[key] if isinstance(opt[key], list) else [opt[key]]
            words += [f"--{key.replace('_', '-')}", *map(str, values)]
    return shlex.join([*words, "--output", str(run.folder)])


def _figure(run: Run, key: str) -> float:
    value = run.profile.get(key)
    return float(value) if isinstance(value, int | float) else math.nan


def _stage(stage: dict | None) -> str:
    if stage is None:
        return ""
    spread = f" ± {stage['std_ms']:.1f}" if stage.get("std_ms") is not None else ""
    part = f" ({stage['fraction'] * 100:.1f}%)" if stage.get("fraction") is not None else ""
    return f"{stage['mean_ms']:.1f}{spread} ms{part}" if math.isfinite(stage["mean_ms"]) else "unknown"


def time_and_cost(runs: list[Run], rate: float | None) -> Section:
    pair = len(runs) == 2
    hours = [run.total_hours for run in runs]
    final = [last(run.metrics["map"]) for run in runs]
    costs = [cost(run, rate) for run in runs]
    waits = [_mean(run, "data_wait_share") for run in runs]
    memory = [_mean(run, "memory_gb", np.nanmax) for run in runs]
    rows = [
        _row("time an epoch", [hours_per_epoch(r) for r in runs], duration, False, pair),
        _row("total time", hours, duration, False, pair),
        _row("iterations per second", [iterations_per_second(r) for r in runs], lambda v: number(v, ".2f"), True, pair),
        _row("mAP@.5:.95 per hour", [ratio(m, h) for m, h in zip(final, hours)], decimals, True, pair),
    ]
    if rate is not None:
        rows.append(_row(f"cost at ${rate:g} an hour", costs, money, False, pair))
        per_point = [ratio(c, m * 100) for c, m in zip(costs, final)]
        rows.append(_row("cost per 0.01 mAP@.5:.95", per_point, lambda v: number(v, ".3f"), False, pair))
    if any(math.isfinite(v) for v in waits):
        rows.append(_row("time waiting for data", waits, lambda v: number(v * 100, ".1f", "%"), False, pair))
    if any(v > 0 for v in memory):
        rows.append(_row("GPU memory, largest", memory, lambda v: number(v, ".2f", " GB"), False, pair))
    rows.append(["time taken from", *(run.time_source for run in runs), *[""] * pair])
    blocks: list = [ReportTable(_header(runs, "", pair), rows)]
    minutes = curve_chart(runs, "minutes", "Minutes an epoch", "minutes", _measured_minutes)
    if minutes:
        blocks.append([minutes])
    if rate is None:
        blocks.append(Text("Give `--rate` (money per hour of the machine) to see costs."))
    return Section("Time and cost", blocks)


def _measured_minutes(run: Run) -> np.ndarray | None:
    return run.seconds / 60 if run.seconds is not None and run.time_source == "results.csv" else None


def _mean(run: Run, name: str, by=np.nanmean) -> float:
    return float(by(run.figures[name])) if name in run.figures else math.nan


def equal_time(runs: list[Run]) -> Section:
    timed = [run for run in runs if run.hours is not None]
    if len(timed) < 2:
        return Section("Equal time", [Text("Needs at least two runs whose time is known.")])
    shortest = min(run.total_hours for run in timed)
    rows = []
    for part in (0.25, 0.5, 1.0):
        points = [at_hours(run, "map", shortest * part) for run in timed]
        won = winner([p.value for p in points], True)
        cells = [
            Cell(f"{decimals(p.value)} (epoch {p.epoch})" if p.epoch >= 0 else "no epoch yet", i == won)
            for i, p in enumerate(points)
        ]
        rows.append([f"after {duration(shortest * part)}", *cells])
    text = Text("mAP@.5:.95 each run had when the same time had passed, up to the length of the shortest run.")
    blocks: list = [text, ReportTable(_header(timed, "", False), rows)]
    target = min(best(run, "map").value for run in timed)
    if math.isfinite(target):
        values = [hours_to(run, "map", target) for run in timed]
        row = _row(f"time to reach {target:.3f}", values, duration, False, False)
        blocks.append(Text(f"Time to the accuracy that all of them reached (mAP@.5:.95 {target:.3f}):"))
        blocks.append(ReportTable(_header(timed, "", False), [row]))
    return Section("Equal time", blocks)


def accuracy_by_hours(runs: list[Run]) -> Section:
    drawn = [
        curve_chart(runs, f"hours_{name}", f"{LABELS[name]} against hours", LABELS[name], pick, by_hours=True)
        for name, pick in (("map", lambda run: run.metrics["map"]), ("map50", lambda run: run.metrics["map50"]))
    ]
    drawn = [p for p in drawn if p]
    return Section("Accuracy against hours", [drawn] if drawn else [Text("No run's time is known.")])


def file_sizes(runs: list[Run]) -> Section:
    known = ("best.pt", "best.pth", "last.pt", "last.pth", "init.pt")
    names = [n for n in known if any(n in run.weights for run in runs)]
    rows: list[list] = [
        [f"`{n}`", *(number(run.weights.get(n, math.nan) / 1e6, ".1f", " MB") for run in runs)] for n in names
    ]
    if any(run.weights for run in runs):
        rows.append(["all checkpoints", *(f"{sum(r.weights.values()) / 1e6:.1f} MB in {len(r.weights)}" for r in runs)])
        return Section("File sizes", [ReportTable(_header(runs, "file", False), rows)])
    return Section("File sizes", [Text("No run folder holds `weights/*.pt` or `*.pth`.")])
