"""`results.txt` as columns: one reader for plots and reports, forgiving towards old, cut or extended files.

A line holds `epoch/last`, memory, then numbers (see COLUMNS). A run resumed or restarted in the same folder may
repeat epochs: the last line of an epoch counts. Missing columns and unreadable fields become NaN.
"""

import math
import os
from pathlib import Path

import numpy as np

from yolov7fast.core.errors import UserError

# what stands in each column of a line, by position
COLUMNS = (
    "epoch", "memory", "box", "obj", "cls", "total", "labels", "img_size",
    "precision", "recall", "map50", "map", "val_box", "val_obj", "val_cls",
)  # fmt: skip
LONGEST_EPOCH = 9  # digits
LOSSES = ("box", "obj", "cls", "total", "val_box", "val_obj", "val_cls")
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
        number = epoch_number(epoch)
        if number is None:
            continue  # a header or a comment
        last_epoch = max(last_epoch, epoch_number(last) or number)
        rows[number] = [_number(fields[i]) if i < len(fields) else math.nan for i in range(1, len(COLUMNS))]
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
    for key in LOSSES:
        columns[key][columns[key] == 0] = np.nan


def _number(text: str) -> float:
    """A field as a number, with or without the unit of the memory column; NaN when it is none."""
    try:
        return float(text.rstrip("G"))
    except ValueError:
        return math.nan
