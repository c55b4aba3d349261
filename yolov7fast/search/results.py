"""Tables of trials: the CSV of all trainings, the ranking of settings, the run file of the best ones."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.reports.trial_ranking import (
    COMPLETED,
    FAILED,
    TrialRun,
    aligned,
    best_settings,
    rank,
    ranking,
    verdict,
)
from yolov7fast.search.trial_training import TrialTraining

LEADING = ("trial_id", "status", "final_map", "final_loss")
TRAILING = ("wall_time", "best_epoch", "final_map50", "setting", "seed", "reason")


def setting_columns(runs: Sequence[TrialRun], training: TrialTraining) -> dict[str, list[str]]:
    """The settings of `runs`, in the order and spelling of the user's file: the value of each run as text.

    What a run does not set has the value of the base configuration.
    """
    used = dict.fromkeys(name for run in runs for name in run.params)
    names = [name for name in {**training.spelt, **used} if name in used]
    values = {name: [run.params.get(name, training.base_value(name)) for run in runs] for name in names}
    return {training.spelt.get(name, name): list(map(as_text, found)) for name, found in values.items()}


def as_text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(as_text, value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def write_csv(path: Path, runs: Sequence[TrialRun], training: TrialTraining) -> None:
    """One row for each training that has begun, written atomically."""
    params = setting_columns(runs, training)
    rows: list[list[Any]] = [[*LEADING, *(f"param_{name}" for name in params), *TRAILING]]
    for run, *values in zip(runs, *params.values()):
        rest = [f"{run.seconds:.1f}", run.best_epoch, run.final.map50, run.setting, run.seed, run.reason]
        rows.append([run.id, run.status, run.final.map, run.final_loss, *values, *rest])
    write_rows(path, rows)


def write_rows(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(as_text, row) for row in rows)
    write_atomically(path, text.getvalue())


def write_results(table: Path, runs: Sequence[TrialRun], training: TrialTraining) -> None:
    """Write and print the ranking, its noise, the plot, and the command of a full run with the best settings."""
    from yolov7fast.reports.run_plots import TrialCurve, plot_trials  # matplotlib takes a second to load

    stamp, ranked = table.stem.removeprefix("trials_"), rank(runs)
    text, rows, image = (table.with_name(f"ranking_{stamp}{end}") for end in (".txt", ".csv", ".png"))
    cells = ranking(ranked, setting_columns([place.run for place in ranked], training))
    summary = "\n\n".join(filter(None, [aligned(cells), verdict(ranked)]))
    write_csv(table, runs, training)
    write_atomically(text, summary + "\n")
    write_rows(rows, cells)
    points = [[(p.epoch, p.map) for p in run.validated if run.status != FAILED and p.map is not None] for run in runs]
    curves = [TrialCurve(run.name, run.setting, known, run.status == COMPLETED) for run, known in zip(runs, points)]
    plot_trials(image, curves, setting_columns(runs, training), [place.setting for place in ranked])
    print(f"\n{summary}\n\nwritten: {table}, {text.name}, {rows.name}, {image.name}")
    best, path = best_settings(ranked), table.with_name("best.yaml")
    if best is None:
        path.unlink(missing_ok=True)  # of an earlier part of these trials
    else:
        content, arguments = training.full_run(best, path)
        write_atomically(path, yaml.safe_dump(content, sort_keys=False))
        print(f"A full run with the best settings ({content.get('epochs')} epochs):\n  {' '.join(arguments)}")
