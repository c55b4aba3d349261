"""The tutorial of docs/search.md - smoke, overfit, search, full run, with resume - command by command, on drawn data.

Search and full run are stopped on the way, so that what the page says of resuming is done and not only started.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

GUIDE = ROOT / "docs" / "search.md"
LINKED = ("train.py", "test.py", "detect.py", "tools", "engine", "models", "utils", "cfg", "configs", "experiments")
# flags behind a command that make it smaller, not different; what is as small as it may be runs as written
SMALLER = {
    "configs/overfit.yaml": [],
    "configs/tiny_smoke.yaml": ["--img", "96"],
    "experiments/lr_bs.json": ["--budget-epochs", "1", "--budget-subset", "16", "--budget-size", "64"],
    "outputs/trials/best.yaml": ["--epochs", "1", "--img", "96"],
}


def tutorial() -> list[list[str]]:
    """The commands of the page's first shell block, in order, without `python`."""
    block = re.search(r"```bash\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1].replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in block.splitlines() if line.startswith("python ")]


def resume_of_the_full_run() -> list[str]:
    """The command that the prose below the block gives for a full run that was stopped."""
    return shlex.split(re.search(r"`python (train\.py --resume \S+)`", GUIDE.read_text())[1])


class Walker:
    """Runs commands in a copy of the project, small."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)
        shutil.copytree(ROOT / "data", folder / "data", ignore=shutil.ignore_patterns("shapes", "*.cache"))

    def start(self, command: list[str]) -> subprocess.Popen:
        smaller = [flags for word, flags in SMALLER.items() if word in command]
        return subprocess.Popen(
            [sys.executable, *command, *(smaller[0] if smaller else [])],
            cwd=self.folder,
            env=os.environ | {"OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: list[str]) -> str:
        """To its end, which must be a good one."""
        process = self.start(command)
        output = process.communicate()[0]
        assert process.returncode == 0, (command, output[-4000:])
        return output

    def stop(self, command: list[str], number: signal.Signals, after: str) -> str:
        """Send a signal once a line holds `after`; the command must end by it."""
        with self.start(command) as process:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if after in line:
                    process.send_signal(number)
                    break
            output = "".join(lines) + process.stdout.read()
        assert process.returncode == 128 + number, (command, output[-4000:])
        return output

    def table(self) -> str:
        (path,) = (self.folder / "outputs" / "trials").glob("trials_*.csv")
        return path.read_text()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_tutorial_runs_as_written(tmp_path):
    walker = Walker(tmp_path)
    smoke, overfit, search, resume, full = tutorial()
    assert [command[0] for command in (smoke, overfit, full)] == ["train.py"] * 3
    assert search[0] == resume[0] == "tools/run_trials.py" and "--resume" in resume
    walker.run(smoke)
    assert (tmp_path / "runs" / "train" / "smoke" / "weights" / "best.pt").is_file()
    walker.run(overfit)
    printed = walker.stop(search, signal.SIGINT, after="trial_001 completed")
    assert f"Resume with: python {shlex.join(resume)}" in printed
    assert walker.table().count("completed") < 4
    walker.run(resume)
    assert walker.table().count("completed") == 4
    walker.stop(full, signal.SIGTERM, after="gpu_mem")  # the heading of the first epoch's bar
    assert (tmp_path / "runs" / "train" / "best" / "weights" / "last.pt").is_file()
    assert "Resuming" in walker.run(resume_of_the_full_run())
    assert (tmp_path / "runs" / "train" / "best" / "results.csv").read_text().count("\n") == 2
