"""A training run read back from its folder: curves, times, settings, files. What is missing stays unknown."""

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.settings_files import read_yaml
from yolov7fast.core.text import printable
from yolov7fast.evaluation.run_curves import LONGEST_EPOCH, RunCurves, number, read_csv, read_results

WEIGHTS = (".pt", ".pth")  # detectors of the YOLO family, detectors of transformers
FIGURES = ("seconds", "train_seconds", "val_seconds", "iterations", "data_wait_share", "memory_gb", "lr0", "lr1", "lr2")


@dataclass
class Run:
    """One run. Arrays are by finished epoch, (n,); NaN where a figure was not measured."""

    name: str
    folder: Path
    epoch: np.ndarray  # numbers from 0, ascending; may have holes
    planned: int  # epochs the run was started for
    losses: dict[str, np.ndarray]  # training loss by part, "total" last
    val_losses: dict[str, np.ndarray]
    metrics: dict[str, np.ndarray]  # precision, recall, map50, map
    seconds: np.ndarray | None  # per epoch; None: unknown
    time_source: str  # where the seconds come from
    figures: dict[str, np.ndarray]  # further columns of results.csv
    opt: dict[str, Any] = field(default_factory=dict)
    hyp: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)  # file name -> bytes
    profile: dict[str, Any] = field(default_factory=dict)  # of profile.json; empty: none
    notes: list[str] = field(default_factory=list)  # what a reader should know of the figures

    @property
    def hours(self) -> np.ndarray | None:
        """Hours since the start at the end of each epoch (n,), or None."""
        return None if self.seconds is None else np.cumsum(self.seconds) / 3600

    @property
    def total_hours(self) -> float:
        return math.nan if self.seconds is None else float(self.seconds.sum() / 3600)


def read_runs(paths: list[str | os.PathLike]) -> list[Run]:
    """Every run, each under a name of its own: that of its folder, with the parents' names where that is not enough."""
    runs = [read_run(path) for path in paths]
    folders = [run.folder.resolve() for run in runs]
    doubles = {str(f) for f in folders if folders.count(f) > 1}
    if doubles:
        raise UserError(f"the same run is given twice: {', '.join(sorted(doubles))}")
    names: list[str] = []
    for depth in range(1, max(len(f.parts) for f in folders) + 1):
        names = ["/".join(f.parts[-depth:]) for f in folders]
        if len(set(names)) == len(names):
            break
    for run, name in zip(runs, names):
        run.name = printable(name, 200)
    return runs


def read_run(path: str | os.PathLike) -> Run:
    """A run from its folder, or from the results.txt in it."""
    folder = Path(path)
    folder = folder.parent if folder.is_file() else folder
    text, table = folder / "results.txt", folder / "results.csv"
    if not folder.is_dir():
        raise UserError(f"run folder {path} does not exist")
    if not text.is_file() and not table.is_file():
        raise UserError(
            f"{folder} holds neither results.txt nor results.csv: not a training run, or not one epoch done"
        )
    notes: list[str] = []
    rows = read_csv(table) if table.is_file() else {}
    if table.is_file() and not rows:
        notes.append("its results.csv holds no epoch")
    columns = read_results(text) if text.is_file() and (text.stat().st_size or not rows) else None
    if columns is None and not rows:
        raise UserError(f"{table} holds no epoch")
    epoch = np.array(sorted(set(rows) | set(columns["epoch"].tolist() if columns else ())))
    curves = RunCurves(epoch, columns, rows)
    seconds, time_source = _times(folder, epoch, curves.of_csv("seconds"), notes)
    opt = _read_yaml(folder / "opt.yaml", notes)
    planned = int(columns["last_epoch"][0]) + 1 if columns else _planned(opt, int(epoch[-1]) + 1, notes)
    holes = epoch[-1] + 1 - len(epoch)
    if holes:
        notes.append(f"{holes} epochs are missing from its results")
    if len(epoch) < planned and not holes:
        notes.append(f"ended after {len(epoch)} of {planned} epochs")
    return Run(
        name=folder.name,
        folder=folder,
        epoch=epoch,
        planned=max(planned, int(epoch[-1]) + 1),
        losses=curves.losses(),
        val_losses=curves.val_losses(),
        metrics=curves.metrics(),
        seconds=seconds,
        time_source=time_source,
        figures={name: values for name in FIGURES if np.isfinite(values := curves.of_csv(name)).any()},
        opt=opt,
        hyp=_read_yaml(folder / "hyp.yaml", notes),
        weights={p.name: p.stat().st_size for p in checkpoints(folder)},
        profile=_read_profile(folder / "profile.json", notes),
        notes=notes,
    )


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run: in `weights/`, or in the folder itself, where DETR's lie."""
    found = [*(folder / "weights").glob("*.pt*"), *folder.glob("*.pt*")]
    return sorted(path for path in found if path.suffix in WEIGHTS)


def _planned(opt: dict[str, Any], done: int, notes: list[str]) -> int:
    """Epochs that the run was started for, by its options; those done where they do not say."""
    wanted = opt.get("epochs")
    if wanted is not None and not 0 <= number(wanted) < 10**LONGEST_EPOCH:
        notes.append(f"epochs in its opt.yaml is {shown(wanted)}, which is no number: taken as the {done} done")
        return done
    return int(number(wanted)) if wanted else done


def _times(folder: Path, epoch: np.ndarray, seconds: np.ndarray, notes: list[str]) -> tuple[np.ndarray | None, str]:
    """Seconds per epoch (n,) and where they come from.

    Epochs without a time get the median of the others. Without any, the span between the first and the last file of the
    run is distributed evenly, if it is long enough to be one (copied files have equal times).
    """
    known = np.isfinite(seconds)
    if known.any():
        missing = int((~known).sum())
        if missing:
            notes.append(f"time of {missing} epochs unknown: taken as the median of the others")
        return np.where(known, seconds, np.median(seconds[known])), "results.csv"
    starts = [f.stat().st_mtime for f in (folder / "opt.yaml", folder / "hyp.yaml") if f.is_file()]
    ends = [f.stat().st_mtime for f in (folder / "results.txt", folder / "results.csv") if f.is_file()]
    span = max(ends) - min(starts) if starts else 0.0
    if span < 2 * len(epoch):  # no epoch takes less than two seconds
        notes.append("its time is unknown: no results.csv with seconds, and the file times say nothing")
        return None, "unknown"
    notes.append("its time is estimated from file times (opt.yaml to results.txt): a pause would count as work")
    return np.full(len(epoch), span / len(epoch)), "file times"


def _read_yaml(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.is_file():
        notes.append(f"no {path.name} in its folder: settings unknown")
        return {}
    try:
        values = read_yaml(path)
    except UserError:
        notes.append(f"its {path.name} is not plain YAML in UTF-8: settings unknown")
        return {}
    return values if isinstance(values, dict) else {}


def _read_profile(path: Path, notes: list[str]) -> dict[str, Any]:
    """The profile with checked stages: `mean_ms` a number (NaN: unknown), `std_ms` and `fraction` a number or None.

    Empty if there is none, or it cannot be read.
    """
    if not path.is_file():
        return {}
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
        stages = {name: _stage(stage) for name, stage in profile["stages"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        profile, stages = {}, {}
    if not any(math.isfinite(stage["mean_ms"]) for stage in stages.values()):
        notes.append("its profile.json cannot be read")
        return {}
    return {**profile, "stages": stages}


def _stage(stage: dict[str, Any]) -> dict[str, Any]:
    stage = {"fraction": stage.get("share"), **stage}  # its name in older profiles
    further = {name: number(stage.get(name)) for name in ("std_ms", "fraction")}
    further = {name: value if math.isfinite(value) else None for name, value in further.items()}
    return {"mean_ms": number(stage["mean_ms"]), **further}
