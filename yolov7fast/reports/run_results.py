"""Reads a training run back from its folder: curves, times, settings, files. Missing values stay unknown (NaN).

results.csv names its columns. results.txt, the only table of upstream's runs, has a line per epoch: `epoch/last`,
memory, then numbers (TEXT_COLUMNS). If both contain an epoch, results.csv is used: its fields are empty if a value was
not measured, while results.txt repeats the last validation. A resumed run may repeat epochs; the last line of an epoch
is used.
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
from yolov7fast.evaluation.eval_result import MAP, MAP50, PRECISION, RECALL

# the columns of a line after epoch and memory, by their names in results.csv
TEXT_COLUMNS = (
    "train/box", "train/obj", "train/cls", "train/total", "labels", "img_size",
    PRECISION, RECALL, MAP50, MAP, "val/box", "val/obj", "val/cls",
)  # fmt: skip
LONGEST_EPOCH = 9  # digits
METRICS = {"precision": PRECISION, "recall": RECALL, "map50": MAP50, "map": MAP}


def read_text(path: Path) -> tuple[dict[int, Mapping[str, Any]], int]:
    """The epochs of a results.txt, and the planned number of epochs (from `3/299`)."""
    rows: dict[int, Mapping[str, Any]] = {}
    planned = 0
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    for fields in filter(None, map(str.split, lines)):
        epoch, _, last = fields[0].partition("/")
        if (current := epoch_number(epoch)) is not None:  # else a header or a comment
            rows[current] = _measured(dict(zip(TEXT_COLUMNS, map(number, fields[2:]))))
            planned = max(planned, (epoch_number(last) or current) + 1)
    return rows, planned


def epoch_number(text: str) -> int | None:
    """The number of an epoch, or None if the text is not one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LONGEST_EPOCH else None


def _measured(row: dict[str, float]) -> dict[str, float]:
    """A line of results.txt without its zeros that mean "not measured".

    Those are a loss of exactly 0, and the four metrics of an epoch whose metrics and validation losses are all 0
    (training without validation writes such lines).
    """
    tested = any(value != 0 for name, value in row.items() if name.startswith(("metrics/", "val/")))
    return {
        name: value
        for name, value in row.items()
        if (tested and name.startswith("metrics/")) or value != 0 or not name.startswith(("metrics/", "val/", "train/"))
    }


def read_csv(path: Path) -> dict[int, dict[str, str]]:
    """Rows of a results.csv by epoch; the last row of an epoch is used."""
    rows: dict[int, dict[str, str]] = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as f:
        try:
            for row in csv.DictReader(f):
                epoch = number(row.get("epoch"))
                if 0 <= epoch < 10**LONGEST_EPOCH:
                    rows[int(epoch)] = row
        except csv.Error as error:
            raise UserError(f"{path} is not a table of epochs ({one_line(error, 100)}); restore it") from None
    return rows


def number(text: Any) -> float:
    """A field as a number; NaN if it is not one."""
    try:
        return float(text)
    except (TypeError, ValueError, OverflowError):
        return math.nan


WEIGHTS = (".pt", ".pth")  # detectors of the YOLO family, detectors of transformers
FIGURES = ("seconds", "train_seconds", "val_seconds", "iterations", "data_wait_share", "memory_gb", "lr0", "lr1", "lr2")


@dataclass
class Run:
    """One run. Arrays are by finished epoch, (n,); NaN where a value was not measured."""

    name: str
    folder: Path
    epoch: np.ndarray  # numbers from 0, ascending; may have holes
    planned: int  # planned epochs
    losses: dict[str, np.ndarray]  # training loss by part, "total" last
    val_losses: dict[str, np.ndarray]
    metrics: dict[str, np.ndarray]  # precision, recall, map50, map
    seconds: np.ndarray | None  # per epoch; None: unknown
    time_source: str  # origin of the seconds
    figures: dict[str, np.ndarray]  # further columns of results.csv
    opt: dict[str, Any] = field(default_factory=dict)
    hyp: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)  # file name -> bytes
    profile: dict[str, Any] = field(default_factory=dict)  # of profile.json; empty: none
    notes: list[str] = field(default_factory=list)  # notes on the numbers

    @property
    def hours(self) -> np.ndarray | None:
        """Hours since the start at the end of each epoch (n,), or None."""
        return None if self.seconds is None else np.cumsum(self.seconds) / 3600

    @property
    def total_hours(self) -> float:
        return math.nan if self.seconds is None else float(self.seconds.sum() / 3600)


def read_runs(paths: list[str | os.PathLike]) -> list[Run]:
    """The runs with unique names: those of their folders, with as many parent folders as needed."""
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
    if not folder.is_dir():
        raise UserError(f"run folder {path} does not exist")
    if not any((folder / name).is_file() for name in ("results.txt", "results.csv")):
        raise UserError(
            f"{folder} holds neither results.txt nor results.csv: not a training run, or no epoch is complete"
        )
    text, table = folder / "results.txt", folder / "results.csv"
    rows, planned = read_text(text) if text.is_file() else ({}, 0)
    rows |= read_csv(table) if table.is_file() else {}
    if not rows:
        raise UserError(f"{text} holds no epoch; expected lines like '0/99 1.2G 0.09 0.04 0.08 ...'")
    epoch = np.array(sorted(rows))

    def column(name: str) -> np.ndarray:
        return np.array([number(rows[e].get(name)) for e in epoch.tolist()])

    def losses(prefix: str) -> dict[str, np.ndarray]:
        """By part, "total" last."""
        names = dict.fromkeys(name for row in rows.values() for name in row if name and name.startswith(prefix))
        return {name.removeprefix(prefix): column(name) for name in names}

    notes: list[str] = []
    done = int(epoch[-1]) + 1
    seconds, time_source = _times(folder, epoch, column("seconds"), notes)
    opt = _read_yaml(folder / "opt.yaml", notes)
    planned = max(planned or _planned(opt, done, notes), done)
    if holes := done - len(epoch):
        notes.append(f"{holes} epochs are missing from its results")
    elif len(epoch) < planned:
        notes.append(f"ended after {len(epoch)} of {planned} epochs")
    return Run(
        name=folder.name,
        folder=folder,
        epoch=epoch,
        planned=planned,
        losses=losses("train/"),
        val_losses=losses("val/"),
        metrics={name: column(metric) for name, metric in METRICS.items()},
        seconds=seconds,
        time_source=time_source,
        figures={name: values for name in FIGURES if np.isfinite(values := column(name)).any()},
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
    """The planned epochs according to its options, else the finished epochs."""
    wanted = opt.get("epochs")
    if wanted is not None and not 0 <= number(wanted) < 10**LONGEST_EPOCH:
        notes.append(f"epochs in its opt.yaml is {shown(wanted)}, not a number: the {done} finished epochs are used")
        return done
    return int(number(wanted)) if wanted else done


def _times(folder: Path, epoch: np.ndarray, seconds: np.ndarray, notes: list[str]) -> tuple[np.ndarray | None, str]:
    """Seconds per epoch (n,) and where they come from.

    Epochs without a time get the median of the others. Without any, the span between the first and the last file of the
    run is distributed evenly, if it is long enough (copied files have equal times).
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
        notes.append("its time is unknown: no results.csv with seconds, and the file times cannot be used")
        return None, "unknown"
    notes.append("its time is estimated from file times (opt.yaml to results.txt): pauses are included")
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
    """The profile, whose stages have the numbers `mean_ms`, `std_ms` and `fraction`; empty without one."""
    if not path.is_file():
        return {}
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
        names = ("mean_ms", "std_ms", "fraction")
        stages = {key: {name: number(stage.get(name)) for name in names} for key, stage in profile["stages"].items()}
        return {**profile, "stages": stages}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        notes.append("its profile.json cannot be read")
        return {}
