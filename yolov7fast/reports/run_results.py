"""Reads a training run back from its folder: curves, times, settings, files. Missing values stay unknown (NaN).

results.csv names its columns. results.txt, the only table of upstream's runs, has a line per epoch: `epoch/last`,
memory, then numbers (COLUMNS). Where both have a number, results.csv counts: it leaves empty what an epoch did not
measure, while results.txt repeats the last validation. A resumed run may repeat epochs; the last line of an epoch
counts.
"""

import csv
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from yolov7fast.core.errors import UserError, one_line, shown
from yolov7fast.core.files.settings_files import read_yaml
from yolov7fast.core.text import printable
from yolov7fast.evaluation.eval_result import MAP, MAP50, PRECISION, RECALL, validation_loss

# what stands in each column of a line, by position
COLUMNS = (
    "epoch", "memory", "box", "obj", "cls", "total", "labels", "img_size",
    "precision", "recall", "map50", "map", "val_box", "val_obj", "val_cls",
)  # fmt: skip
LONGEST_EPOCH = 9  # digits
TEXT_LOSSES = ("box", "obj", "cls", "total", "val_box", "val_obj", "val_cls")
METRICS = ("precision", "recall", "map50", "map")


def read_results(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Columns of a results.txt as float arrays of one length, sorted by epoch; zeros that mean "not measured" are NaN.

    Not measured: a loss of exactly 0, and the four metrics of an epoch whose metrics and validation losses are all 0
    (training without validation writes such lines). `epoch` and `last_epoch` (from `3/299`) are whole numbers.
    """
    rows: dict[int, list[float]] = {}
    last_epoch = 0
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    for line in lines:
        fields = line.split()
        if not fields:
            continue
        epoch, _, last = fields[0].partition("/")
        current = epoch_number(epoch)
        if current is None:
            continue  # a header or a comment
        last_epoch = max(last_epoch, epoch_number(last) or current)
        rows[current] = [number(fields[i].rstrip("G")) if i < len(fields) else math.nan for i in range(1, len(COLUMNS))]
    if not rows:
        raise UserError(f"{path} holds no epoch; expected lines like '0/99 1.2G 0.09 0.04 0.08 ...'")
    epochs = sorted(rows)
    table = np.array([rows[e] for e in epochs], float)
    columns = {"epoch": np.array(epochs), "last_epoch": np.full(len(epochs), last_epoch)}
    columns |= {name: table[:, i] for i, name in enumerate(COLUMNS[1:])}
    _blank_unmeasured(columns)
    return columns


def epoch_number(text: str) -> int | None:
    """The number of an epoch, or None where the text is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LONGEST_EPOCH else None


def _blank_unmeasured(columns: dict[str, np.ndarray]) -> None:
    """Zeros that stand for "not measured" become NaN, in place."""
    tested = [np.nan_to_num(columns[k]) != 0 for k in (*METRICS, "val_box", "val_obj", "val_cls")]
    untested = ~np.any(tested, axis=0)
    for key in METRICS:
        columns[key][untested] = np.nan
    for key in TEXT_LOSSES:
        columns[key][columns[key] == 0] = np.nan


LOSSES = ("box", "obj", "cls", "total")  # parts of the loss in results.txt, in its order
CSV_METRICS = {"precision": PRECISION, "recall": RECALL, "map50": MAP50, "map": MAP}
Rows = Mapping[int, Mapping[str, str]]  # fields of results.csv by epoch


class RunCurves:
    """Columns over all epochs (n,) float; NaN where a figure was not measured."""

    def __init__(self, epoch: np.ndarray, columns: Mapping[str, np.ndarray] | None, rows: Rows):
        """epoch (n,) ascending; columns: of `read_results`; rows: of `read_csv`."""
        self.epoch, self.columns, self.rows = epoch, columns, rows
        names = [name for name in next(iter(rows.values()), {}) if name]  # fields beyond the header have none
        parts = [n.removeprefix("train/") for n in names if n.startswith("train/")]
        val_parts = [n.removeprefix("val/") for n in names if n.startswith("val/")]
        self.parts, self.val_parts = parts or list(LOSSES), val_parts or list(LOSSES[:-1])

    def of_csv(self, name: str) -> np.ndarray:
        return np.array([number(self.rows.get(int(e), {}).get(name)) for e in self.epoch])

    def of_text(self, name: str) -> np.ndarray:
        values = np.full(len(self.epoch), np.nan)
        if self.columns is not None:
            values[np.searchsorted(self.epoch, self.columns["epoch"])] = self.columns[name]
        return values

    def _merged(self, csv_name: str, text_name: str | None) -> np.ndarray:
        """results.csv where it has the column and the epoch (an empty field: not measured), else results.txt."""
        named = np.array([csv_name in self.rows.get(int(e), {}) for e in self.epoch])
        return np.where(named, self.of_csv(csv_name), self.of_text(text_name) if text_name else np.nan)

    def losses(self) -> dict[str, np.ndarray]:
        """Training losses by part, "total" last."""
        return {part: self._merged(f"train/{part}", part if part in LOSSES else None) for part in self.parts}

    def val_losses(self) -> dict[str, np.ndarray]:
        return {
            part: self._merged(validation_loss(part), f"val_{part}" if part in LOSSES else None)
            for part in self.val_parts
        }

    def metrics(self) -> dict[str, np.ndarray]:
        """precision, recall, map50, map."""
        return {name: self._merged(CSV_METRICS[name], name) for name in METRICS}


def read_curves(text: Path) -> RunCurves:
    """The curves of a results.txt and of the results.csv next to it, if there is one."""
    columns, table = read_results(text), text.with_suffix(".csv")
    rows = read_csv(table) if table.is_file() else {}
    return RunCurves(np.array(sorted({*rows, *columns["epoch"].tolist()})), columns, rows)


def read_csv(path: Path) -> dict[int, dict[str, str]]:
    """Rows of a results.csv by epoch; the last row of an epoch counts."""
    rows: dict[int, dict[str, str]] = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as f:
        try:
            for row in csv.DictReader(f):
                epoch = number(row.get("epoch"))
                if 0 <= epoch < 10**LONGEST_EPOCH:
                    rows[int(epoch)] = row
        except csv.Error as error:
            raise UserError(f"{path} is no table of epochs ({one_line(error, 100)}); restore it from a copy") from None
    return rows


def number(text: Any) -> float:
    """A field as a number; NaN where it is none."""
    try:
        return float(text)
    except (TypeError, ValueError, OverflowError):
        return math.nan


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
    """Every run with a unique name: its folder's, with as many parents as needed."""
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
    """Epochs that the run was started for, by its options; else the epochs done."""
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
