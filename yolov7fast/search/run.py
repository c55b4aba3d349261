"""One training of one setting: its record, and what it leaves in its folder."""

import csv
import math
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from yolov7fast.core.bounded import is_whole
from yolov7fast.core.process.signals import ASKING
from yolov7fast.metrics.results_file import epoch_number
from yolov7fast.metrics.run_curves import number

COMPLETED, PRUNED, FAILED, INTERRUPTED = "completed", "pruned", "failed", "interrupted"
WAITING, RUNNING = "waiting", "running"
ENDED = (COMPLETED, PRUNED, FAILED)  # these stay as they are; all others are resumed
STATES = (*ENDED, INTERRUPTED, WAITING, RUNNING)
MOST = 1 << 40  # trials, seeds, epochs
OUTPUT = "output.txt"
MAP, MAP50 = "metrics/mAP_0.5:0.95", "metrics/mAP_0.5"  # columns of results.csv; its last `train/` one is the total
SIGNALS = {128 + int(number): number for number in ASKING}


@dataclass
class Point:
    """One epoch (counted from 0): mean training loss; mAP@.5:.95 and mAP@.5, None where it was not validated."""

    epoch: int
    loss: float
    map: float | None = None
    map50: float | None = None


@dataclass
class Run:
    """One training of one setting with one seed. `curve` holds the epochs that count for its figures."""

    id: int
    setting: int
    seed: int
    params: dict[str, Any]
    status: str = WAITING
    curve: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    reason: str = ""
    stop: str = ""  # why it is to be pruned: decided, though its process may still be ending

    @property
    def name(self) -> str:
        """Its folder, below the output folder."""
        return f"trial_{self.id:03d}"

    @property
    def validated(self) -> list[Point]:
        return [point for point in self.curve if point.map is not None]

    @property
    def final(self) -> Point | None:
        """The last validation; a failed run has none that could be compared."""
        return self.validated[-1] if self.validated and self.status != FAILED else None

    @property
    def final_map(self) -> float | None:
        return self.final.map if self.final else None

    @property
    def final_map50(self) -> float | None:
        return self.final.map50 if self.final else None

    @property
    def final_loss(self) -> float | None:
        return self.curve[-1].loss if self.curve else None

    @property
    def best_epoch(self) -> int | None:
        return max(self.validated, key=lambda point: point.map or 0.0).epoch if self.validated else None

    def best_map50_by(self, epoch: int) -> float:
        """The highest mAP@.5 of the epochs up to this one; 0 where none was measured."""
        return max((point.map50 or 0.0 for point in self.validated if point.epoch <= epoch), default=0.0)


def run_from(values: Mapping[str, Any]) -> Run:
    """A run as its study holds it; ValueError, TypeError or KeyError where it is not one."""
    run = Run(**{**values, "curve": [Point(**point) for point in values["curve"]]})
    whole = (run.id, run.setting, run.seed, *(point.epoch for point in run.curve))
    figures = (run.seconds, *(value for p in run.curve for value in (p.loss, p.map or 0.0, p.map50 or 0.0)))
    texts = all(isinstance(text, str) for text in (run.reason, run.stop))
    if not texts or run.status not in STATES or not isinstance(run.params, dict):
        raise ValueError("a trial has values of other kinds than trials have")
    if not all(is_whole(value, 0, MOST) for value in whole) or not all(isinstance(v, int | float) for v in figures):
        raise ValueError("a trial has figures that are no numbers, or out of range")
    return run


def finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


# --- what a training leaves in its folder -----------------------------------------------------------------------------


def read_curve(folder: Path) -> list[Point]:
    """The epochs in results.csv; a last line that is still being written is left for the next look."""
    try:
        text = (folder / "results.csv").read_text(encoding="utf-8", errors="replace")
        header, *rows = csv.reader(text[: text.rfind("\n") + 1].splitlines())
    except (FileNotFoundError, csv.Error, ValueError):  # ValueError: it is empty
        return []
    total = max((i for i, name in enumerate(header) if name.startswith("train/")), default=None)
    points = []
    for row in rows:
        values = dict(zip(header, row))
        epoch = epoch_number(row[0]) if len(row) == len(header) else None
        if epoch is not None:
            loss = math.nan if total is None else number(row[total])
            points.append(Point(epoch, loss, _measured(values.get(MAP)), _measured(values.get(MAP50))))
    return points


def _measured(text: str | None) -> float | None:
    """An empty field was not measured; what is not a finite number measured nothing."""
    value = number(text)
    return value if math.isfinite(value) else None


def last_words(folder: Path, limit: int = 200) -> str:
    """The line of its output that says why a training ended: its error, or else the last line."""
    try:
        with (folder / OUTPUT).open("rb") as f:
            f.seek(max(0, f.seek(0, os.SEEK_END) - 20_000))
            text = f.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    errors = [line for line in lines if re.match(r"(error: |[\w.]*(Error|Exception|Interrupt)\b)", line)]
    words = (errors or lines or [""])[-1].removeprefix("error: ")
    return words if len(words) <= limit else f"{words[: limit - 1]}…"


def explain(code: int, folder: Path) -> str:
    """Why a training that ended with this code failed, in one line."""
    if code == -signal.SIGKILL:
        return "killed (SIGKILL): most often the machine ran out of memory"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return last_words(folder) or f"ended with code {code} and said nothing"


def was_stopped(code: int) -> bool:
    """Whether a training ended because it was asked to, with or without the time to say so."""
    return code in SIGNALS or -code in SIGNALS.values()
