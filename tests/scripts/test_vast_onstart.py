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


# --- AT_END: the instance ---------------------------------------------------------------------------------------------

KEYS = {"CONTAINER_ID": "7", "CONTAINER_API_KEY": "key", "GRACE": "0"}


@pytest.fixture
def vastai(tmp_path) -> dict[str, str]:
    """A program of that name on PATH, which writes down how it was called."""
    program = tmp_path / "bin" / "vastai"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> "{tmp_path}/calls"\n')
    program.chmod(0o755)
    return {**KEYS, "PATH": f"{program.parent}:{os.environ['PATH']}"}


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []


def run_folder(folder: Path, verified: bool) -> list[str]:
    """A run whose last checkpoint was copied, or has been replaced since; its flags."""
    run = folder / "runs" / "x"
    for place, age in ((run / ".mirror" / "verified", 10), (run / "weights" / "last.pt", 10 if verified else 5)):
        place.parent.mkdir(parents=True)
        place.touch()
        os.utime(place, (1e9 - age, 1e9 - age))
    return ["--name", "x", "--project", str(folder / "runs"), "--mirror", "there"]


@pytest.mark.parametrize(
    ("at_end", "codes", "verified", "expected"),
    [
        ("nothing", [0], True, []),
        ("stop", [0], False, ["stop"]),
        ("destroy", [0], True, ["destroy"]),
        ("destroy", [1, 139, 0], False, ["stop"]),
        ("stop", [139] * 3, False, ["stop"]),  # segmentation faults until ATTEMPTS
        ("destroy", [2], True, ["destroy"]),
        ("stop", [130], True, []),  # Ctrl-C
    ],
)
def test_the_instance_ends_with_the_training(tmp_path, vastai, at_end, codes, verified, expected):
    flags = run_folder(tmp_path, verified)
    done, _ = onstart(tmp_path, codes, *flags, AT_END=at_end, ATTEMPTS="3", **vastai)
    assert calls(tmp_path) == [f"{what} instance 7 --api-key key" for what in expected], done.stderr
    assert codes == [130] or "the training has ended: " in done.stderr
    assert ("no verified copy" in done.stderr) == (at_end == "destroy" and not verified)


def test_what_a_session_lacks_is_looked_up_and_else_asked_for(tmp_path, vastai):
    known = tmp_path / "environ"
    known.write_bytes(b"A=1\0CONTAINER_ID=7\0CONTAINER_API_KEY=key\0")
    without = {name: value for name, value in vastai.items() if not name.startswith("CONTAINER")}
    empty = {"CONTAINER_ID": "", "CONTAINER_API_KEY": "", "AT_END": "stop", **without}
    done, starts = onstart(tmp_path, [0], "--name", "x", CONTAINER_ENVIRONMENT=str(tmp_path / "none"), **empty)
    assert done.returncode == 2 and "export them" in done.stderr and not starts
    onstart(tmp_path, [0], "--name", "x", CONTAINER_ENVIRONMENT=str(known), **empty)
    assert calls(tmp_path) == ["stop instance 7 --api-key key"]


@pytest.mark.parametrize(
    ("at_end", "path", "complaint"),
    [("stop", "/usr/bin:/bin", "pip install vastai"), ("destroy", "", "give --mirror"), ("halt", "", "AT_END is halt")],
)
def test_a_wrong_end_is_reported_before_the_first_epoch(tmp_path, vastai, at_end, path, complaint):
    done, starts = onstart(
        tmp_path, [0], "--name", "x", **{**vastai, "AT_END": at_end, **({"PATH": path} if path else {})}
    )
    assert done.returncode == 2 and complaint in done.stderr and not starts
