"""A run that is killed at any moment is resumed as if it had not been: real processes, really killed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.commands import ROOT, assert_same_weights, here, small_run, train
from yolov7fast.core.errors import UserError

FATAL = "tests/training/fatal_train.py"
KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, shapes_small) -> tuple[Path, list[str]]:
    """A run of 3 epochs of 4 batches that nothing disturbs, and the arguments that make it."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    arguments = small_run(folder, shapes_small, "--epochs", "3", "--seed", "5", "--multi-scale")
    done = train(*arguments)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "run", arguments


def elsewhere(arguments: list[str], folder: Path) -> list[str]:
    """The same run in another folder."""
    return [*arguments, "--project", str(folder / "runs")]


def without_times(results_csv: Path) -> list[list[str]]:
    """results.csv without the columns that a clock fills."""
    return [line.split(",")[:17] for line in results_csv.read_text().splitlines()]


@pytest.mark.parametrize(
    "moments",
    [
        ["step 2", "write 2", "text 5"],
        pytest.param(["step 3", "write 5", "step 10", "rename 1", "rename 4"], marks=pytest.mark.slow),
    ],
)
def test_killed_runs_end_with_the_same_weights(uninterrupted, tmp_path, moments):
    """Killed between steps, in the middle of writing a checkpoint and before its rename; resumed each time."""
    run, arguments = uninterrupted
    arguments = [*elsewhere(arguments, tmp_path), "--save-every", "0.00001"]  # a checkpoint after every step
    again = tmp_path / "runs" / "run"
    command = arguments
    for moment in moments:
        done = train(*command, script=FATAL, FATAL=moment)
        assert done.returncode == KILLED, (moment, done.stdout[-500:], done.stderr[-2000:])
        saved = (again / "weights" / "last.pt").is_file() or (again / "weights" / "previous.pt").is_file()
        command = ["--resume", str(again)] if saved else [*arguments, "--exist-ok"]
    done = train(*command)
    assert done.returncode == 0, done.stderr
    assert_same_weights(run / "weights" / "epoch_002.pt", again / "weights" / "epoch_002.pt")
    assert (again / "results.txt").read_text() == (run / "results.txt").read_text()
    assert without_times(again / "results.csv") == without_times(run / "results.csv")
    assert not list((again / "weights").glob(".*")) and not (again / "weights" / "previous.pt").exists()


@pytest.mark.parametrize(
    ("number", "code", "loader"),
    [
        (signal.SIGTERM, 143, []),
        pytest.param(signal.SIGINT, 130, ["--worker-tensor"], marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_all_processes_finishes_the_step_and_resume_is_exact(uninterrupted, tmp_path, number, code, loader):
    """As systemd, Slurm and torchrun send it: the workers get it too."""
    run, arguments = uninterrupted
    command = [sys.executable, "-u", str(ROOT / "train.py"), *elsewhere(arguments, tmp_path), "--workers", "2", *loader]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "bufsize": 1}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **pipes) as process:
        for line in process.stdout:
            if "Epoch" in line and "gpu_mem" in line:  # the first epoch has begun
                os.killpg(process.pid, number)
                break
        output = process.stdout.read()
        assert process.wait(timeout=120) == code, output
    again = tmp_path / "runs" / "run"
    assert f"--resume {again}" in output
    done = train("--resume", str(again))
    assert done.returncode == 0, done.stderr
    assert_same_weights(run / "weights" / "epoch_002.pt", again / "weights" / "epoch_002.pt")


def test_a_damaged_last_checkpoint_falls_back_to_the_one_before(uninterrupted, tmp_path):
    run, arguments = uninterrupted
    train(*elsewhere(arguments, tmp_path), script=FATAL, FATAL="step 10")  # two epochs are complete
    again = tmp_path / "runs" / "run"
    last = again / "weights" / "last.pt"
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    killed = train("--resume", str(again), script=FATAL, FATAL="rename 1")  # before there is another good one
    assert killed.returncode == KILLED
    done = train("--resume", str(again))
    assert done.returncode == 0, done.stderr
    assert "damaged" in done.stdout and "previous.pt" in done.stdout
    assert_same_weights(run / "weights" / "epoch_002.pt", again / "weights" / "epoch_002.pt")


def test_starting_from_weights_never_resumes(uninterrupted, tmp_path, shapes_small, caplog):
    run, _ = uninterrupted
    caplog.set_level("INFO")
    arguments = small_run(tmp_path, shapes_small, "--epochs", "1", "--seed", "5", "--max-iter", "1", "--notest")
    assert here(*arguments, "--weights", str(run / "weights" / "epoch_002.pt")) == 0
    assert re.search(r"Transferred \d+/\d+ items", caplog.text) and "only its weights are used" in caplog.text
    assert (tmp_path / "runs" / "run" / "results.txt").read_text().split()[0] == "0/0"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--resume", "nowhere"], "no such file or run folder"),
        (["--resume", "RUN", "--batch-size", "8"], "--batch-size cannot change"),
        (["--weights", "nothere.pt"], "nothere.pt does not exist"),
        (["--hyp", "data/shapes.yaml"], "unknown hyper-parameter"),
        (["--device", "7"], "--device 7"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(uninterrupted, tmp_path, shapes_small, arguments, complaint):
    run, _ = uninterrupted
    arguments = [str(run) if argument == "RUN" else argument for argument in arguments]
    with pytest.raises(UserError, match=complaint):
        here(*([] if "--resume" in arguments else small_run(tmp_path, shapes_small)), *arguments)
    assert not (tmp_path / "runs").exists()


def test_a_mistake_is_one_line_and_no_traceback(tmp_path, shapes_small):
    done = train(*small_run(tmp_path, shapes_small), "--weights", "nothere.pt")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.match("error: .*nothere.pt does not exist", done.stderr.splitlines()[-1])
