"""scripts/vast_onstart.sh: begins or resumes until a run is finished, and gives up where repeating cannot help."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "vast_onstart.sh"


def onstart(
    folder: Path, codes: list[int], *flags: str, **environment: str
) -> tuple[subprocess.CompletedProcess, list]:
    """The script with a training that ends with these codes in turn; returns also what each start was given."""
    for number, code in enumerate(codes):
        (folder / f"code{number}").write_text(str(code))
    train = folder / "train"
    train.write_text(
        f'#!/bin/sh\nn=$(wc -l < "{folder}/starts")\necho "$*" >> "{folder}/starts"\nexit $(cat "{folder}/code$n")\n'
    )
    train.chmod(0o755)
    (folder / "starts").write_text("")
    env = os.environ | {"TRAIN": str(train), "PAUSE": "0", **environment}
    done = subprocess.run(["bash", str(SCRIPT), *flags], env=env, capture_output=True, text=True)
    return done, (folder / "starts").read_text().splitlines()


def test_a_run_is_started_again_until_it_is_finished(tmp_path):
    done, starts = onstart(tmp_path, [137, 1, 143, 0], "--name", "x", "--epochs", "3")
    assert done.returncode == 0 and starts == ["--name x --epochs 3 --resume auto"] * 4
    assert "ended with code 137; the next attempt follows" in done.stderr


@pytest.mark.parametrize(("code", "ends_with"), [(2, 2), (130, 130)])
def test_a_mistake_and_an_interrupt_are_not_repeated(tmp_path, code, ends_with):
    done, starts = onstart(tmp_path, [1, code, 0], "--config", "run.yaml")
    assert (done.returncode, len(starts)) == (ends_with, 2)


def test_a_run_that_makes_no_progress_is_given_up(tmp_path):
    done, starts = onstart(tmp_path, [1] * 5, "--name", "x", ATTEMPTS="3")
    assert (done.returncode, len(starts)) == (2, 3)
    assert "3 attempts in a row without a new checkpoint (last code 1)" in done.stderr


@pytest.mark.parametrize(
    ("flags", "complaint"), [(["--epochs", "3"], "give --name"), (["--name", "x", "--resume"], "leave --resume out")]
)
def test_what_would_resume_another_run_is_refused(tmp_path, flags, complaint):
    done, starts = onstart(tmp_path, [0], *flags)
    assert done.returncode == 2 and complaint in done.stderr and not starts


def test_help_is_the_comment_above(tmp_path):
    done, starts = onstart(tmp_path, [0], "--help")
    assert done.returncode == 0 and "on-start script" in done.stdout and not starts
