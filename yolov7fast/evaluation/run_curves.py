"""Numbers of a training run by epoch, from the files it wrote: results.csv, which names its columns, and results.txt.

Where both have a number, results.csv counts: it leaves empty what an epoch did not measure, while results.txt repeats
the last validation. Runs of upstream have results.txt alone: a line holds `epoch/last`, memory, then numbers (COLUMNS).
A run resumed or restarted in the same folder may repeat epochs: the last line of an epoch counts. Missing columns and
unreadable fields become NaN.
"""

import csv
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from yolov7fast.core.errors import UserError, one_line
from yolov7fast.evaluation.result import MAP, MAP50, PRECISION, RECALL, validation_loss

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
    """The curves of a results.txt and of the table of the same name beside it, if there is one."""
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
