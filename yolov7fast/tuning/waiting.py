"""The trap of spinning threads: a step with each way of waiting, alone or beside a rival that keeps all cores busy."""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from yolov7fast.core.process.waiting import SHORT
from yolov7fast.tuning.trials import ChildTrial

POLICIES: dict[str, dict[str, str]] = {
    "spinning (OpenMP's default)": {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"},
    "brief spin (train.py's default)": SHORT,
    "passive": {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"},
}
SPINNING, BRIEF, PASSIVE = POLICIES
RIVAL = "import torch\na = torch.rand(1500, 1500)\nprint('busy', flush=True)\nwhile True: a @ a"
TRAPPED = 1.5  # so many times slower, spinning is called a trap
BUSY = 0.15  # fraction of the cores in use by others
STAT = Path("/proc/stat")


class Waiting(NamedTuple):
    """Seconds an image by way of waiting, medians; `slowdown` of spinning against a brief spin."""

    seconds: dict[str, float]

    @property
    def slowdown(self) -> float:
        return self.seconds[SPINNING] / self.seconds[BRIEF]


def measure_waiting(options: Mapping[str, Any], rounds: int, seconds: float) -> Waiting:
    """Each way in turn, in processes of their own. seconds: the longest that one may take."""
    times: dict[str, list[float]] = {name: [] for name in POLICIES}
    for _ in range(rounds):
        for name, environment in POLICIES.items():
            times[name].append(ChildTrial(options, {}, seconds, environment).burst())
    return Waiting({name: statistics.median(found) for name, found in times.items()})


@contextlib.contextmanager
def rival(threads: int) -> Iterator[None]:
    """While open, another process of torch keeps so many threads busy."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(
        [sys.executable, "-c", RIVAL], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def busy_fraction(seconds: float = 0.5, stat: Path = STAT) -> float:
    """Of all cores, in use during the next moment, in which this process does nothing; 0 where it cannot be known."""

    def used() -> tuple[int, int]:
        fields = [int(field) for field in stat.read_text().splitlines()[0].split()[1:9]]
        idle = fields[3] + fields[4]
        return sum(fields) - idle, sum(fields)

    try:
        first = used()
        time.sleep(seconds)
        second = used()
    except (OSError, ValueError, IndexError):
        return 0.0
    return (second[0] - first[0]) / max(second[1] - first[1], 1)


def verdict(found: Waiting, busy: float) -> str:
    """What to make of it, in a sentence."""
    fastest = min(found.seconds, key=lambda name: found.seconds[name])
    others = f"others use {busy:.0%} of the cores"
    if found.slowdown > TRAPPED:
        return (
            f"trap: beside other processes ({others}) spinning threads take {found.slowdown:.1f} times as long as a "
            f"brief spin, which train.py uses by itself; fastest here: {fastest}"
        )
    return f"{others}; spinning threads take {found.slowdown:.2f} times as long as a brief spin; fastest: {fastest}"
