"""One training: its process, what it leaves in its folder, and its record in the study."""

import contextlib
import ctypes
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from yolov7fast.core.bounded import is_whole
from yolov7fast.core.errors import UserError
from yolov7fast.core.process.signals import ASKING
from yolov7fast.metrics.names import MAP, MAP50
from yolov7fast.metrics.run_curves import number, read_csv

COMPLETED, INTERRUPTED, PRUNED, FAILED, RUNNING = "completed", "interrupted", "pruned", "failed", "running"
ENDED = (COMPLETED, PRUNED, FAILED)  # these stay as they are; all others are resumed
MOST = 1 << 40  # trials, seeds, epochs
OUTPUT = "output.txt"
LOOK_SECONDS = 0.2
GRACE_SECONDS = 60.0  # after being asked to stop, a training has so long to finish its step and its checkpoint
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


@dataclass
class Point:
    """One epoch (counted from 0): mean training loss; mAP@.5:.95 and mAP@.5, None where it was not validated."""

    epoch: int
    loss: float
    map: float | None = None
    map50: float | None = None


@dataclass
class Run:
    """One training of one setting with one seed. `curve` holds the epochs that count for its figures.

    It is `pruned` as soon as that is decided, though its process may still be ending.
    """

    id: int
    setting: int
    seed: int
    params: dict[str, Any]
    status: str = RUNNING
    curve: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    reason: str = ""

    @property
    def name(self) -> str:
        """Its folder, below the output folder."""
        return f"trial_{self.id:03d}"

    @property
    def validated(self) -> list[Point]:
        return [point for point in self.curve if point.map is not None]

    @property
    def final(self) -> Point:
        """The last validation; a failed run has none that could be compared."""
        return self.validated[-1] if self.validated and self.status != FAILED else Point(0, math.nan)

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
    figures = [run.seconds, *(v for p in run.curve for v in (p.loss, p.map, p.map50) if v is not None)]
    if run.status not in (*ENDED, INTERRUPTED, RUNNING) or not isinstance(run.params, dict):
        raise ValueError("a trial has values of other kinds than trials have")
    if not all(is_whole(value, 0, MOST) for value in whole) or not all(isinstance(v, int | float) for v in figures):
        raise ValueError("a trial has figures that are no numbers, or out of range")
    return run


def finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def read_curve(folder: Path) -> list[Point]:
    """The epochs in results.csv; a last line that is still being written is left for the next look."""
    try:
        rows = read_csv(folder / "results.csv")
    except (FileNotFoundError, UserError):
        return []
    whole = [(epoch, row) for epoch, row in sorted(rows.items()) if None not in row.values()]
    total = ["", *(name for name in (whole or [(0, {})])[0][1] if name and name.startswith("train/"))][-1]
    return [
        Point(epoch, number(row.get(total)), *map(_measured, (row.get(MAP), row.get(MAP50)))) for epoch, row in whole
    ]


def _measured(text: str | None) -> float | None:
    """An empty field was not measured; what is not a finite number measured nothing."""
    return value if finite(value := number(text)) else None


# --- its process ------------------------------------------------------------------------------------------------------


def follow(
    command: Sequence[str], output: Path, look: Callable[[], object], places: int = 1
) -> Generator[None, None, int]:
    """Train in a process; yields while that runs, returns its exit code. Closed before, it kills the process.

    output: the file that takes what it prints; look: called time and again, true when the training is to stop: it
    finishes its step, writes a checkpoint and ends; places: how many trainings share the machine and so its cores.
    The process leads its own session, so Ctrl-C reaches it only through its parent. On Linux the kernel kills it when
    the parent dies, however that happens; a killed training loses nothing but time.
    """
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // places))} if places > 1 else {}
    with output.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**threads, **os.environ, "PYTHONUNBUFFERED": "1"},  # a number of threads that the user has set stays
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()) if sys.platform == "linux" else None,
        )
    asked: float | None = None  # when it was asked to stop
    try:
        while (code := process.poll()) is None:
            if look() and asked is None:
                asked = time.monotonic()
                process.terminate()
            if asked is not None and time.monotonic() - asked > GRACE_SECONDS:
                break
            yield
        return -signal.SIGKILL if code is None else code
    finally:
        if process.poll() is None:  # with all that it has started
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(training: Generator[None, None, int]) -> int:
    """Follow one training to its end; returns its exit code."""
    with contextlib.closing(training):
        while True:
            try:
                next(training)
            except StopIteration as end:
                return end.value
            time.sleep(LOOK_SECONDS)


def _die_with(parent: int) -> Callable[[], None]:
    """What a child does between fork and exec: ask the kernel to be killed when its parent ends."""
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before we could ask
            os._exit(1)

    return ask


def last_words(output: Path, limit: int = 200) -> str:
    """The line of its output that says why a training ended: its error, or else the last line."""
    with contextlib.suppress(FileNotFoundError), output.open("rb") as f:
        f.seek(max(0, f.seek(0, os.SEEK_END) - 20_000))
        lines = [line.strip() for line in re.split(r"[\r\n]+", f.read().decode(errors="replace")) if line.strip()]
        errors = [line for line in lines if re.match(r"(error: |[\w.]*(Error|Exception|Interrupt)\b)", line)]
        words = (errors or lines or [""])[-1].removeprefix("error: ")
        return words if len(words) <= limit else f"{words[: limit - 1]}…"
    return ""


def explain(code: int, output: Path) -> str:
    """Why a training that ended with this code failed, in one line."""
    if code == -signal.SIGKILL:
        return "killed (SIGKILL): most often the machine ran out of memory"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return last_words(output) or f"ended with code {code} and said nothing"


def was_stopped(code: int) -> bool:
    """Whether a training ended because it was asked to, with or without the time to say so."""
    return -code in ASKING or code - 128 in ASKING
