"""The README's walk - smoke, overfit, search, full run, with resume - command by command, on the project's own data."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT

CHAPTER = "## Find good settings for little money"
LINKED = ("train.py", "test.py", "detect.py", "tools", "engine", "models", "utils", "cfg", "configs", "experiments")
# flags behind a command that make it smaller, not different; what is as small as it may be runs as written
SMALLER = {
    "configs/overfit.yaml": [],
    "configs/tiny_smoke.yaml": ["--img", "96"],
    "experiments/lr_bs.json": ["--budget-epochs", "1", "--budget-subset", "16", "--budget-size", "64"],
    "outputs/trials/best.yaml": ["--epochs", "1", "--img", "96"],
}


def walk() -> list[list[str]]:
    """The commands of the chapter's shell block, in order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    chapter = text.split(CHAPTER)[1].split("\n## ")[0]
    block = re.search(r"```bash\n(.*?)```", chapter, re.DOTALL)[1].replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in block.splitlines() if line.startswith("python ")]


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_readmes_walk_runs_as_written(tmp_path):
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "data", tmp_path / "data", ignore=shutil.ignore_patterns("shapes", "*.cache"))
    commands = walk()
    assert [command[0] for command in commands] == ["train.py"] * 2 + ["tools/run_trials.py"] * 2 + ["train.py"]
    for command in commands:
        smaller = [flags for word, flags in SMALLER.items() if word in command]
        done = subprocess.run(
            [sys.executable, *command, *(smaller[0] if smaller else [])],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    assert (tmp_path / "runs" / "train" / "smoke" / "weights" / "best.pt").is_file()
    assert (tmp_path / "runs" / "train" / "best" / "weights" / "best.pt").is_file()
    (table,) = (tmp_path / "outputs" / "trials").glob("trials_*.csv")
    assert table.read_text().count("completed") == 4
