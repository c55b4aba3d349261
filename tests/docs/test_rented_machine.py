"""The two stories of VAST_SETUP.md, run from its text: a lost machine, and a meter that stops."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.shell import BLOCK, ROOT
from tests.training.commands import assert_same_weights, small_network

TEXT = (ROOT / "VAST_SETUP.md").read_text(encoding="utf-8")
SMALLER = ["--img", "64", "--batch-size", "4", "--workers", "0", "--device", "cpu", "--noautoanchor", "--notest"]


def command_of(*words: str) -> str:
    """The one command of the page's blocks that has these words."""
    blocks = [match["text"].replace("\\\n", " ") for match in BLOCK.finditer(TEXT)]
    (line,) = (line for block in blocks for line in block.splitlines() if all(word in line for word in words))
    return line


class Machine:
    """A fresh clone with the interpreter of the tests, `vastai` on PATH, and the folders of the other machines."""

    def __init__(self, folder: Path, name: str, shapes: Path):
        self.folder, self.root = folder / name, folder
        subprocess.run(["git", "clone", "-q", str(ROOT), str(self.folder)], check=True)
        changed = subprocess.run(["git", "diff", "HEAD", "--binary"], cwd=ROOT, capture_output=True, check=True).stdout
        if changed:
            subprocess.run(["git", "apply"], cwd=self.folder, input=changed, check=True)
        data = (shapes / "shapes.yaml").read_text()
        for place in ("shapes", "coco320"):
            (self.folder / "data" / f"{place}.yaml").write_text(data)
        (self.folder / "cfg/training/yolov7-tiny.yaml").write_text(Path(small_network(folder)).read_text())
        programs = self.folder / "bin"
        programs.mkdir()
        for program, text in (("python", f'exec {sys.executable} "$@"'), ("vastai", f'echo "$*" >> {folder}/calls')):
            (programs / program).write_text(f"#!/bin/sh\n{text}\n")
            (programs / program).chmod(0o755)
        self.environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        self.environment |= {"CONTAINER_ID": "7", "CONTAINER_API_KEY": "key", "GRACE": "0", "PAUSE": "0"}

    def start(self, command: str, *more: str, **environment: str) -> subprocess.Popen:
        """A command of the page, at a reduced size; `mirrors` and the other machine's folder lie next to the clones."""
        command = command.replace("user@host:mirrors", "mirrors").replace("mirrors/", f"{self.root}/mirrors/")
        log = (self.folder / "log").open("ab")
        line = f"{command} {shlex.join(more)}"
        return subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment | environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def run(self, *command: str, **environment: str) -> int:
        return self.start(*command, **environment).wait(timeout=200)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]


@pytest.mark.slow
def test_a_lost_machine_costs_the_steps_since_the_last_copy(tmp_path, shapes_small):
    """(a) Train with --mirror, kill -9 everything, delete the run, resume from the mirror in a fresh clone."""
    train, resume = command_of("train.py", "--name mirrored", "--mirror"), command_of("train.py --resume mirrors")
    first, second = (Machine(tmp_path, name, shapes_small) for name in ("first", "second"))
    small = [*SMALLER, "--epochs", "4", "--save-every", "0.00001"]
    assert first.run(train, *small, "--name", "whole", "--mirror", "") == 0, first.log()
    process = first.start(train, *small)
    manifest = tmp_path / "mirrors" / "mirrored" / "mirror.json"
    while not (manifest.is_file() and json.loads(manifest.read_text())["step"] > 1):
        assert process.poll() is None, first.log()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    run = Path("runs/train/mirrored")
    subprocess.run(["rm", "-r", str(first.folder / run)], check=True)
    assert second.run(resume, "--device", "cpu") == 0, second.log()
    weights = [first.folder / "runs/train/whole", second.folder / run]
    assert_same_weights(*(folder / "weights" / "epoch_003.pt" for folder in weights))
    assert json.loads(manifest.read_text())["step"] == 16


@pytest.mark.slow
def test_the_meter_stops_when_the_training_ends(tmp_path, shapes_small):
    """(b) A finished run stops the instance after the verified copy; one whose Python crashes does, too."""
    machine = Machine(tmp_path, "first", shapes_small)
    small = [*SMALLER, "--epochs", "1", "--cfg", "cfg/training/yolov7-tiny.yaml", "--hyp", "data/hyp.small.yaml"]
    look = 'ls "$COPY"/weights >> "$CALLS"; '
    by_hook = command_of("--on-end 'vastai stop").replace("--on-end '", f"--on-end '{look}")
    places = {"COPY": str(tmp_path / "mirrors" / "tiny320"), "CALLS": str(tmp_path / "calls")}
    assert machine.run(by_hook, *small, **places) == 0, machine.log()
    stopped = "stop instance 7 --api-key key"
    assert (tmp_path / "calls").read_text().split("\n") == ["best.pt", "last.pt", stopped, ""]
    (tmp_path / "calls").unlink()
    supervised = command_of("vast_onstart.sh", "AT_END=stop").partition("&&")[2].replace("> onstart.log 2>&1 &", "")
    (tmp_path / "crash.py").write_text("import os; os.abort()")
    crash = {"TRAIN": f"{sys.executable} {tmp_path}/crash.py", "ATTEMPTS": "2"}
    assert machine.run(supervised, *small, "--name", "second", **crash) == 2, machine.log()
    assert (tmp_path / "calls").read_text() == f"{stopped}\n" and "2 attempts in a row" in machine.log()
