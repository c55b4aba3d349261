"""What tests of the trial runner share: their settings, how they start it, how they read its tables."""

import csv
import json
import subprocess
import sys
from pathlib import Path

from tests.search.fake_trials import ROOT

CLOCK = ("wall_time",)  # the only column that may differ between two runs of the same trials
SIX = [{"lr0": 0.01}, {"lr0": 0.02}, {"lr0": 0.05, "batch_size": 8}, {"lr0": 0.03}, {"lr0": 0.001}, {"lr0": 0.04}]
SPACE = "lr0: {log_uniform: [0.001, 0.1]}\nbatch_size: {choice: [8, 16]}\nwarmup_epochs: {int: [1, 3]}\n"


def listed(folder: Path, trials: list[dict], *extra: str) -> list[str]:
    """Arguments that try these settings, in 4 epochs each."""
    folder.mkdir(exist_ok=True)
    (folder / "t.json").write_text(json.dumps(trials))
    return arguments(folder, "--trials-file", str(folder / "t.json"), *extra)


def searched(folder: Path, *extra: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "s.yaml").write_text(SPACE)
    return arguments(folder, "--search", str(folder / "s.yaml"), "--trials", "6", *extra)


def arguments(folder: Path, *extra: str) -> list[str]:
    base = ("--base-config", "configs/tiny_smoke.yaml", "--budget-epochs", "4", "--output-dir", str(folder / "out"))
    return [*base, *extra]


def table(folder: Path) -> list[dict[str, str]]:
    (path,) = (folder / "out").glob("trials_*.csv")
    with path.open() as f:
        return [{key: value for key, value in row.items() if key not in CLOCK} for row in csv.DictReader(f)]


def column(folder: Path, name: str) -> list[str]:
    return [row[name] for row in table(folder)]


def in_a_process(*flags: str) -> subprocess.CompletedProcess:
    """The same in a separate process, which a trial may kill."""
    script = str(ROOT / "tests" / "search" / "fake_trials.py")
    return subprocess.run([sys.executable, script, *flags], cwd=ROOT, capture_output=True, text=True, timeout=120)
