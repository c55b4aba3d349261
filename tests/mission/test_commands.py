"""What the user wrote down works as written: every command of the documents, on a small stand-in for COCO."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.mission import commands
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.nn import compiling


def runs_of(place) -> set[Path]:
    return set((place.folder / "runs" / "train").glob("*"))


def trained(place, command: str) -> Path:
    """The folder that a command made, which must hold a complete run."""
    assert place.run(command) == 0
    (run,) = runs_of(place)
    assert load_checkpoint(run / "weights" / "last.pt")["epoch"] == -1
    return run


def test_help_names_the_flag(place):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(commands.HELP, shell=True, cwd=place.folder, env=environment, capture_output=True, text=True)
    assert done.stdout.split()[:3] == ["--fast-dataloader", "short", "for"], done.stderr


@pytest.mark.parametrize("command", commands.WITHOUT_NETWORK)
def test_a_command_without_a_network_trains_yolov7(place, command, capfd, caplog):
    with caplog.at_level("INFO"):
        run = trained(place, command)
    assert "training cfg/training/yolov7.yaml from scratch" in caplog.text
    assert "cfg: cfg/training/yolov7.yaml" in (run / "opt.yaml").read_text()
    asked = int(re.search(r"--workers (\d+)", command)[1])
    used = min(asked, os.cpu_count() or 1)
    printed = capfd.readouterr().out
    assert f"Using {used} dataloader worker" in printed
    assert (f"of the {asked} that --workers allows: this machine has" in printed) == (used < asked)


@pytest.mark.parametrize("command", commands.TRAINING)
def test_a_training_command_runs(place, command):
    run = trained(place, command)
    name = re.search(r"--name (\S+)", command)
    assert re.fullmatch(name[1] if name else r"exp\d*", run.name)
    plain = re.search("noota", command) is not None
    assert f"loss_ota: {0 if plain else 1}" in (run / "hyp.yaml").read_text() or not plain


def test_a_run_is_measured_by_its_name(place, capfd):
    trained(place, f"{commands.SMALL} --name test_original")
    capfd.readouterr()
    assert place.run(commands.TEST) == 0
    assert re.search(r"^ +all +8 ", capfd.readouterr().out, re.MULTILINE)


def test_diagnosis_reports_and_ends(place, capfd):
    assert place.run(commands.DIAGNOSE) == 0
    printed = capfd.readouterr().out
    assert re.search(r"^DYNAMO EXPLANATION REPORT\ngraphs: 1 +graph breaks: 0", printed, re.MULTILINE)
    assert not runs_of(place)


def test_compiling_says_so(place, monkeypatch, caplog):
    """With a compiler that does nothing; the real one, which needs a minute, runs in the slow test."""
    monkeypatch.setattr(compiling.CompiledNet.__init__, "__defaults__", (partial,))
    monkeypatch.setattr(compiling, "PART_COMPILER", partial)
    with caplog.at_level("INFO"):
        trained(place, commands.COMPILE)
    assert re.search(r"Model compiled successfully in \d+\.\d s", caplog.text)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiling_with_the_real_compiler_ends_well(place, caplog):
    with caplog.at_level("INFO"):
        trained(place, commands.COMPILE)
    assert "Model compiled successfully" in caplog.text or "continuing without it" in caplog.text


def test_the_profiler_alone_measures_synthetic_input(place, capfd):
    assert place.run(commands.PROFILE) == 0
    printed = capfd.readouterr().out
    assert printed.startswith("measuring on synthetic input") and "yolov7-tiny" in printed
    assert (place.folder / "runs" / "profile" / "profile.json").is_file()
