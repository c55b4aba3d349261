"""One training: its record in the study, what it leaves in its folder, its process."""

import contextlib
import ctypes
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from yolov7fast.core.bounded import is_whole
from yolov7fast.core.errors import UserError
from yolov7fast.metrics.names import MAP, MAP50
from yolov7fast.metrics.run_curves import number, read_csv

COMPLETED, INTERRUPTED, PRUNED, FAILED, RUNNING = "completed", "interrupted", "pruned", "failed", "running"
ENDED = (COMPLETED, PRUNED, FAILED)  # these stay as they are; all others are resumed
MOST = 1 << 40  # trainings
OUTPUT = "output.txt"
LOOK_SECONDS = 0.2
GRACE_SECONDS = 60.0  # after being asked to stop, a training has so long to finish its step and its checkpoint
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


class Point(NamedTuple):
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

    def __post_init__(self) -> None:
        """TypeError or ValueError where a study holds what no run has."""
        self.curve = [Point(*point) for point in self.curve]
        figures = [self.seconds, *(value for point in self.curve for value in point if value is not None)]
        is_plain = isinstance(self.params, dict) and all(isinstance(value, int | float) for value in figures)
        if self.status not in (*ENDED, INTERRUPTED, RUNNING) or not is_plain or not is_whole(self.id, 0, MOST):
            raise ValueError("it has other values than trials have")

    @property
    def record(self) -> dict[str, Any]:
        """What a study keeps of it, beside its setting and seed."""
        return {"status": self.status, "curve": self.curve, "seconds": self.seconds, "reason": self.reason}

    @property
    def name(self) -> str:
        """Its folder, below the output folder."""
        return f"trial_{self.id:03d}"

    @property
    def epochs(self) -> int:
        return self.curve[-1].epoch + 1 if self.curve else 0

    @property
    def final_loss(self) -> float | None:
        return self.curve[-1].loss if self.curve else None

    @property
    def validated(self) -> list[Point]:
        return [point for point in self.curve if point.map is not None]

    @property
    def final(self) -> Point:
        """The last validation; a failed run has none that could be compared."""
        return self.validated[-1] if self.validated and self.status != FAILED else Point(0, math.nan)

    @property
    def best_epoch(self) -> int | None:
        return max(self.validated, key=lambda point: point.map or 0.0).epoch if self.validated else None


def read_curve(folder: Path) -> list[Point]:
    """The epochs in results.csv; a last line that is still being written is left for the next look."""
    try:
        rows = read_csv(folder / "results.csv")
    except (FileNotFoundError, UserError):
        return []
    curve = []
    for epoch, row in sorted(rows.items()):
        if None not in row.values():
            losses = [math.nan, *(number(text) for name, text in row.items() if name and name.startswith("train/"))]
            maps = (number(row.get(name)) for name in (MAP, MAP50))
            curve.append(Point(epoch, losses[-1], *(value if math.isfinite(value) else None for value in maps)))
    return curve


# --- its process ------------------------------------------------------------------------------------------------------


def follow(command: Sequence[str], output: Path, look: Callable[[], float | None], places: int = 1) -> int:
    """Train in a process; returns its exit code.

    output: the file that takes what it prints; look: called time and again: the seconds that the training has left to
    finish its step, write a checkpoint and end, or None: it continues; places: how many share the machine's cores.
    The process leads its own session, so Ctrl-C reaches it only through its parent. On Linux the kernel kills it when
    the thread that waits here dies, however that happens; a killed training loses nothing but time.
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
        while process.poll() is None:
            if (left := look()) is not None:
                if asked is None:
                    asked = time.monotonic()
                    process.terminate()
                if time.monotonic() - asked > left:
                    break
            time.sleep(LOOK_SECONDS)
    finally:
        if process.poll() is None:  # with all that it has started
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode


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
