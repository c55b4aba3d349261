"""The progress of runs, in one line each, from the files in their folders: local ones, and those that --mirror copied
to.

`page.json` in a run's folder is the only state that a run writes about itself; its page and `yolov7fast status` read
it.
"""

import json
import math
import os
import re
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.locks import NAME as LOCK
from yolov7fast.core.files.settings_files import MOST_BYTES, is_number
from yolov7fast.core.text import printable
from yolov7fast.reports.run_page import images_per_second, progress_values
from yolov7fast.reports.run_results import read_run
from yolov7fast.reports.run_statistics import best, duration, last

STATE = "page.json"  # in a run's folder
MIRROR_FOLDER, MANIFEST = ".mirror", "mirror.json"  # in a run's folder; at the destination of --mirror
VERIFIED = "verified"  # in MIRROR_FOLDER: the last copy that was verified
LOST, LOST_SECONDS = "lost", 1800  # a run that should be running, but has not written its state for this time
HOLDER = re.compile(r"process (\d+) on (\S+),")


def runs_below(paths: Iterable[str | os.PathLike]) -> list[Path]:
    """The folders of runs among these and below them, newest first."""
    found: dict[Path, float] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give the folder of a run, or one that holds runs")
        for folder, folders, files in os.walk(path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            times = [(Path(folder) / name).stat().st_mtime for name in (STATE, "results.txt") if name in files]
            found |= {Path(folder): max(times)} if times else {}
    return sorted(found, key=lambda folder: -found[folder])


def run_status(folder: Path, rate: float | None = None) -> dict[str, Any]:
    """The status of a run; None: unknown. rate: price per hour, instead of the one the run was started with."""
    try:
        return _status(folder, rate)
    except (TypeError, ValueError, AttributeError, KeyError):  # the folder may come from anywhere
        return dict.fromkeys(COLUMNS) | {"run": printable(folder, 200), "state": f"damaged {STATE}"}


def _status(folder: Path, rate: float | None) -> dict[str, Any]:
    state = _read(folder / STATE)
    try:
        run = read_run(folder)
    except UserError:
        run = None  # no epoch is complete
    shown = progress_values(state.get("progress") or {}, run)
    seconds = float(shown.get("epoch_seconds") or 0.0) if shown.get("batch") else 0.0
    waited = float(shown.get("waited") or 0.0) / seconds if seconds else math.nan
    speed, losses, rate = None, shown["losses"], rate if rate is not None else state.get("rate")
    if seconds and shown.get("batches"):
        speed = (state.get("images_per_epoch") or 0) * shown["batch"] / shown["batches"] / seconds
    if run is not None:
        speed = speed or images_per_second(run, state)
        losses = losses or {name: last(values) for name, values in run.losses.items()}
        waited = (
            last(run.figures["data_wait_share"]) if math.isnan(waited) and "data_wait_share" in run.figures else waited
        )
        seconds += run.total_hours * 3600 if run.seconds is not None else 0.0
    copies = [_read(path) for path in (folder / MIRROR_FOLDER / VERIFIED, folder / MANIFEST)]
    values = {
        "epoch": shown.get("epoch", len(run.epoch) if run else None),
        "epochs": shown.get("epochs", run.planned if run else None),
        "iteration": shown.get("step"),
        "images_per_second": speed,
        "left_seconds": shown["left_seconds"] if shown["running"] else None,
        "loss": losses.get("total"),
        "best_map": best(run, "map").value if run else None,
        "data_wait": waited,
        "gpu_use": state.get("gpu_use"),
        "cost": rate * seconds / 3600 if rate is not None else None,
        "copied": max((copy["copied"] for copy in copies if is_number(copy.get("copied"), 0, 1e11)), default=None),
        "updated": shown["updated"] or None,
    }
    values = {name: None if value is None or not math.isfinite(value) else value for name, value in values.items()}
    return {"run": printable(folder, 200), "state": _state(folder, shown), **values}


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file cannot be read, or if its numbers have wrong types."""
    try:
        found = json.loads(path.read_bytes()[:MOST_BYTES])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _state(folder: Path, progress: Mapping[str, Any]) -> str:
    """The state in the file; `lost` if it is `running` but its process has ended."""
    if not progress["running"]:
        return progress["status"] or "unknown"
    try:
        holder = HOLDER.match((folder / LOCK).read_text(errors="replace")[:200])
        if holder and holder[2] == socket.gethostname():
            os.kill(int(holder[1]), 0)
    except ProcessLookupError:
        return LOST
    except (OSError, OverflowError):
        pass  # no lock: a mirrored run; a process of another user
    return LOST if time.time() - progress["updated"] > LOST_SECONDS else progress["status"]


# --- as text ----------------------------------------------------------------------------------------------------------

# value -> (heading, its text)
COLUMNS = {
    "run": ("run", str),
    "state": ("state", str),
    "epoch": ("epoch", str),
    "iteration": ("iteration", "{:,}".format),
    "images_per_second": ("images/s", "{:.1f}".format),
    "left_seconds": ("left", lambda value: duration(value / 3600)),
    "loss": ("loss", "{:.4g}".format),
    "best_map": ("best mAP", "{:.3f}".format),
    "data_wait": ("data wait", "{:.0%}".format),
    "gpu_use": ("GPU", "{:.0f}%".format),
    "cost": ("cost", "${:.2f}".format),
    "copied": ("last copy", lambda value: f"{duration((time.time() - value) / 3600)} ago"),
}


def status_table(rows: list[dict[str, Any]]) -> str:
    """A line for each run, below headings; columns without any value are left out."""
    known = [{**row, "epoch": None if row["epoch"] is None else f"{row['epoch']}/{row['epochs']}"} for row in rows]
    shown = [name for name in COLUMNS if any(row[name] is not None for row in known)]
    lines = [[COLUMNS[name][0] for name in shown]]
    lines += [["" if row[name] is None else COLUMNS[name][1](row[name]) for name in shown] for row in known]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)
