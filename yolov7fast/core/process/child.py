"""A training in a child process: start, wait, stop, and the reason of a failure."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

OUTPUT = "output.txt"  # output of a training, in or next to its folder
LOOK_SECONDS = 0.2
GRACE_SECONDS = 60.0  # for finishing the step and the checkpoint after a request to stop
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def follow(command: Sequence[str], output: Path, look: Callable[[], float | None], places: int = 1) -> int:
    """Run a training in a process; returns its exit code.

    output: the file for its output. look: called repeatedly; returns the seconds that the training has left to finish
    its step and write a checkpoint, or None to let it continue. places: number of trainings that share the cores.
    The process has its own session, so Ctrl-C reaches it only through its parent. On Linux the kernel kills it when
    the waiting thread dies.
    """
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // places))} if places > 1 else {}
    with output.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**threads, **os.environ, "PYTHONUNBUFFERED": "1"},  # the user's OMP_NUM_THREADS has precedence
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
        if process.poll() is None:  # with its own child processes
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode


def _die_with(parent: int) -> Callable[[], None]:
    """A function for the child, between fork and exec: ask the kernel to kill it when its parent ends."""
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the request
            os._exit(1)

    return ask


def last_words(output: Path, limit: int = 200) -> str:
    """The error line in the output of a training, or else the last line."""
    with contextlib.suppress(FileNotFoundError), output.open("rb") as f:
        f.seek(max(0, f.seek(0, os.SEEK_END) - 20_000))
        lines = [line.strip() for line in re.split(r"[\r\n]+", f.read().decode(errors="replace")) if line.strip()]
        errors = [line for line in lines if re.match(r"(error: |[\w.]*(Error|Exception|Interrupt)\b)", line)]
        words = (errors or lines or [""])[-1].removeprefix("error: ")
        return words if len(words) <= limit else f"{words[: limit - 1]}…"
    return ""


def explain(code: int, output: Path) -> str:
    """The reason why a training ended with this exit code, in one line."""
    if code == -signal.SIGKILL:
        return "killed (SIGKILL): most often the machine ran out of memory"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return last_words(output) or f"ended with code {code} without output"
