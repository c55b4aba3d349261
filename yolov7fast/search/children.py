"""One training as a child process: started in its folder, read from its files, ended with its parent."""

import contextlib
import csv
import ctypes
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from yolov7fast.core.process.signals import ASKING
from yolov7fast.metrics.results_file import epoch_number
from yolov7fast.metrics.run_curves import number
from yolov7fast.search.ledger import Point

OUTPUT = "output.txt"
MAP, MAP50 = "metrics/mAP_0.5:0.95", "metrics/mAP_0.5"  # columns of results.csv; its last `train/` one is the total
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
SIGNALS = {128 + int(number): number for number in ASKING}


class Child:
    """A training process, the leader of its own session: Ctrl-C reaches it only through its parent.

    On Linux the kernel kills it when the parent dies, however that happens; a killed training loses nothing but time.
    """

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]):
        self.output = (folder / OUTPUT).open("ab")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()) if sys.platform == "linux" else None,
        )

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        code = self.process.poll()
        if code is not None:
            self.output.close()
        return code

    def ask_to_stop(self) -> None:
        """It finishes its step, writes a checkpoint and ends."""
        if self.process.poll() is None:
            self.process.terminate()

    def kill(self) -> None:
        """End it and all it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()


def _die_with(parent: int):
    """What a child does between fork and exec: ask the kernel to be killed when its parent ends."""
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before we could ask
            os._exit(1)

    return ask


# --- what a training leaves in its folder -----------------------------------------------------------------------------


def read_curve(folder: Path) -> list[Point]:
    """The epochs in results.csv; a last line that is still being written is left for the next look."""
    try:
        text = (folder / "results.csv").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    try:
        rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    except csv.Error:
        return []
    if len(rows) < 2:
        return []
    header = rows[0]
    total = max((i for i, name in enumerate(header) if name.startswith("train/")), default=None)
    points = []
    for row in rows[1:]:
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
