"""`index.html` of a run, kept up to date by a background thread: the training loop passes plain values and never waits.
An error here is logged as one warning and never ends a run. The state behind the page is `page.json`, from which the
page of a resumed run continues.
"""

import functools
import json
import logging
import os
import platform
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

import cv2
import numpy as np
import torch

import yolov7fast
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.core.files.paths import CHECKOUT
from yolov7fast.core.process.threads import SideThread
from yolov7fast.core.text import counted, printable
from yolov7fast.reports.run_page import REFRESH_SECONDS, run_page
from yolov7fast.reports.run_status import STATE
from yolov7fast.training.checkpoints.resume import Progress
from yolov7fast.training.config import NOT_STORED, TrainConfig
from yolov7fast.training.family import Family

log = logging.getLogger(__name__)
PAGE = "index.html"
MOST_WARNINGS, MOST_COMMANDS = 100, 20
RUNNING, COMPLETE, STOPPED, FAILED = "running", "complete", "stopped", "failed"


def harmless(method: Callable[..., None]) -> Callable[..., None]:
    """Convert an exception of a method of the page into one warning; training continues."""

    @functools.wraps(method)
    def guarded(self: "RunPage", *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            if not self.failed:
                log.warning("the page %s cannot be written (%s); training continues", self.folder / PAGE, error)
            self.failed = True

    return guarded


class WarningList(logging.Handler):
    """Remembers the program's warnings, the same one once."""

    def __init__(self, warnings: list[list[str]]):
        super().__init__(logging.WARNING)
        self.warnings = warnings

    def emit(self, record: logging.LogRecord) -> None:
        text = printable(record.getMessage(), 500)
        if len(self.warnings) < MOST_WARNINGS and all(text != known for _, known in self.warnings):
            self.warnings.append([_now(), text])


class RunPage:
    """The page of one run; only the main process has one."""

    def __init__(self, folder: Path, resumed: bool = False):
        self.folder = folder
        self.state: dict[str, Any] = self._stored() if resumed else {}
        self.state.setdefault("warnings", [])
        self.state.setdefault("mirror", None)  # when and what `copied` said last
        self.state["progress"] = {"status": RUNNING}
        self.executor = SideThread("page")
        self.pending: Future | None = None
        self.failed = False
        self.facts: dict[str, Any] = {}  # used by the thread only: looked up once
        self.find_facts: Callable[[], dict[str, Any]] = dict
        self.device = torch.device("cpu")
        self.written = 0.0
        self.closed = False
        self.limits = 1, 0  # epochs and iterations of the run
        self.handler = WarningList(self.state["warnings"])
        logging.getLogger("yolov7fast").addHandler(self.handler)

    def _stored(self) -> dict[str, Any]:
        """The state that the run stored when it stopped; empty if it cannot be read."""
        try:
            state = json.loads((self.folder / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) and isinstance(state.get("warnings", []), list) else {}

    # --- called by the run's thread, without waiting ---------------------------------------------------------------

    @harmless
    def begin(self, family: Family, progress: Progress, next_steps: Sequence[tuple[str, str]]) -> None:
        """Record the settings of the run; the page is written before the first step.

        next_steps: (what for, command) that a user may want after the run.
        """
        config = family.config
        self.limits = config.epochs, config.max_iter
        self.state |= {
            "commands": [*self.state.get("commands", []), [_now(), command_line()]][-MOST_COMMANDS:],
            "rate": config.rate,
            "next": list(next_steps),
            "images_per_epoch": len(family.dataset),
            "batches_per_epoch": len(family.loader) * config.world_size,
        }
        settings, device = changed_settings(config), family.device
        self.device = device
        self.find_facts = lambda: {"settings": settings, "facts": machine_facts(device)}
        self.progress(progress, len(family.loader), {}, device)
        self.write()

    @harmless
    def progress(
        self, progress: Progress, batches: int, losses: Mapping[str, float], device: torch.device, status: str = RUNNING
    ) -> None:
        """Record the progress of the run, without writing the page. batches: of an epoch."""
        epochs, max_iter = self.limits
        self.state["memory_gb"], self.state["memory_of"] = peak_memory(device)
        self.state["progress"] = {
            "status": status,
            "epoch": progress.epoch,
            "epochs": epochs,
            "batch": progress.batch_index,
            "batches": batches,
            "max_iter": max_iter,
            "epoch_seconds": progress.epoch_seconds,
            "step": progress.global_step,
            "waited": progress.epoch_waited,
            "losses": dict(losses),
        }

    def is_due(self) -> bool:
        """Whether the page of a long epoch is old enough to be written again, and the last one is done."""
        busy = self.pending is not None and not self.pending.done()
        return not busy and time.monotonic() - self.written > REFRESH_SECONDS

    @harmless
    def epoch_done(
        self, epoch: int, findings: Mapping[str, Any], stages: Mapping[str, list[float]], bottleneck: str
    ) -> None:
        """Record the results of an epoch; empty where nothing was measured. stages: milliseconds of its iterations."""
        if findings:
            self.state["validation"] = {**findings, "epoch": epoch}
        if stages:
            self.state["stages"] = {name: median(times) for name, times in stages.items() if times}
            self.state["bottleneck"] = bottleneck

    @harmless
    def end(self, status: str, note: str = "") -> None:
        """Record how the run ended; `close` waits for the last page."""
        if note:
            self.handler.warnings.append([_now(), printable(note, 500)])
        self.state["progress"]["status"] = status
        self.write()

    def close(self) -> None:
        logging.getLogger("yolov7fast").removeHandler(self.handler)
        self.executor.shutdown(wait=True)
        self.closed = True

    @harmless
    def copied(self, what: str) -> None:
        """A copy of the run was verified. Called by the mirror's thread; after `close` the page is written at once."""
        self.state["mirror"] = [_now(), what]
        if self.closed:
            self._write(self._snapshot())

    @harmless
    def write(self) -> None:
        """Write the page in the background: the thread gets a copy, since the loop changes the state."""
        self.written = time.monotonic()
        self.state["progress"]["updated"] = round(time.time())
        self.pending = self.executor.submit(self._write, self._snapshot())

    def _snapshot(self) -> str:
        return json.dumps({**self.state, "warnings": list(self.handler.warnings)})

    # --- the page's thread --------------------------------------------------------------------------------------------

    @harmless
    def _write(self, snapshot: str) -> None:
        self.facts = self.facts or self.find_facts()
        state = {**json.loads(snapshot), **self.facts, "gpu_use": gpu_use(self.device)}
        write_atomically(self.folder / STATE, json.dumps(state), durable=False)
        write_atomically(self.folder / PAGE, run_page(self.folder, state), durable=False)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M")


# --- how and where the run was started --------------------------------------------------------------------------------

# follow from others, or are facts of the command line
NOT_SHOWN = {
    *NOT_STORED,
    *("save_dir", "resume", "local_rank", "global_rank", "world_size", "shuffled", "test_size", "bucket", "rate"),
}
LONGEST = 300  # characters of a value


def command_line() -> str:
    """The command line, as far as Python knows it."""
    return shlex.join(sys.argv if sys.argv[0].startswith("yolov7fast ") else ["python", *sys.argv])


def changed_settings(config: TrainConfig) -> dict[str, str]:
    """Options that differ from their defaults."""
    values, defaults = asdict(config), asdict(type(config)())
    changed = {name: value for name, value in values.items() if name not in NOT_SHOWN and value != defaults[name]}
    return {name: str(value)[:LONGEST] for name, value in changed.items()}


def machine_facts(device: torch.device) -> dict[str, str]:
    """Values of the environment by their names on the page."""
    facts = {
        "Commit": _commit(),
        "Machine": f"{platform.node()}, {platform.system()} {platform.release()}",
        "Processor": f"{_processor()}, {os.cpu_count()} cores",
        "Memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "Device": _device(device),
        "YOLOv7 Fast": yolov7fast.__version__,
        "Python": platform.python_version(),
        "torch": torch.__version__ + (f", CUDA {torch.version.cuda}" if torch.version.cuda else ""),
        "NumPy": np.__version__,
        "OpenCV": cv2.__version__,
    }
    return {name: value for name, value in facts.items() if value}


def _commit() -> str:
    """The commit of the running checkout; empty if the program is installed or git cannot tell."""
    if CHECKOUT is None:
        return ""
    words = ["git", "--no-optional-locks", "-C", str(CHECKOUT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _device(device: torch.device) -> str:
    if device.type != "cuda":
        return f"{device.type}, {counted(torch.get_num_threads(), 'thread')}"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(names)


def gpu_use(device: torch.device) -> float | None:
    """Percent of the last second in which the GPUs that this process sees were busy; None: nvidia-smi does not say."""
    if device.type != "cuda":
        return None
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = [
        "nvidia-smi",
        "--query-gpu=utilization.gpu",
        "--format=csv,noheader,nounits",
        *([f"--id={seen}"] if seen else []),
    ]
    try:
        return mean(
            map(float, subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.split())
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def peak_memory(device: torch.device) -> tuple[float, str]:
    """Peak memory in GB so far, and its kind."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 1e9, "GPU, at most"
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, "main process, at most"
