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

import pytest

from tests.conftest import ROOT

GUIDE = ROOT / "docs" / "search.md"
LINKED = ("train.py", "test.py", "detect.py", "tools", "models", "utils", "cfg", "configs", "experiments")
# flags behind a command that make it smaller, not different; what is as small as it may be runs as written
SMALLER = {
    "configs/overfit.yaml": [],
    "configs/tiny_smoke.yaml": ["--img", "96"],
    "experiments/lr_bs.json": ["--budget-epochs", "1", "--budget-subset", "16", "--budget-size", "64"],
    "outputs/trials/best.yaml": ["--epochs", "1", "--img", "96"],
}


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_tutorial_runs_as_written(tmp_path):
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "data", tmp_path / "data", ignore=shutil.ignore_patterns("shapes", "*.cache"))
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

    def run(command: list[str], number: int = 0, after: str = "") -> str:
        """To its end, which must be a good one, or until a line holds `after`: then it gets a signal and ends by it."""
        smaller = [flags for word, flags in SMALLER.items() if word in command] or [[]]
        full = [sys.executable, *command, *smaller[0]]
        with subprocess.Popen(full, cwd=tmp_path, env=environment, **pipes) as process:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if number and after in line:
                    process.send_signal(number)
                    break
            output = "".join(lines) + process.stdout.read()
        assert process.returncode == (128 + number if number else 0), (command, output[-4000:])
        return output

    def table() -> str:
        (path,) = (tmp_path / "outputs" / "trials").glob("trials_*.csv")
        return path.read_text()

    block = re.search(r"```bash\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1].replace("\\\n", " ")
    commands = [shlex.split(line)[1:] for line in block.splitlines() if line.startswith("python ")]
    smoke, overfit, search, resume, full = commands
    assert search[0] == resume[0] == "tools/run_trials.py" and "--resume" in resume
    run(smoke)
    assert (tmp_path / "runs/train/smoke/weights/best.pt").is_file()
    run(overfit)
    printed = run(search, signal.SIGINT, after="trial_001 completed")
    assert f"Resume with: python {shlex.join(resume)}" in printed
    assert table().count("completed") < 4
    run(resume)
    assert table().count("completed") == 4
    run(full, signal.SIGTERM, after="gpu_mem")  # the heading of the first epoch's bar
    assert (tmp_path / "runs/train/best/weights/last.pt").is_file()
    resume_of_the_full_run = shlex.split(re.search(r"`python (train\.py --resume \S+)`", GUIDE.read_text())[1])
    assert "Resuming" in run(resume_of_the_full_run)
    assert (tmp_path / "runs/train/best/results.csv").read_text().count("\n") == 2
