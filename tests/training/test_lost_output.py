"""A run outlives its terminal: pipes without a reader, full disks, closed streams, lost sessions."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.commands import ROOT, small_run, train
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint


def log_of(folder: Path) -> list[str]:
    return (folder / "runs" / "run" / "train.log").read_text().splitlines()


@pytest.mark.parametrize(
    "redirection",
    [
        "2>&1 | head -1",
        pytest.param("> /dev/full", marks=pytest.mark.slow),
        pytest.param("2> /dev/full", marks=pytest.mark.slow),
        pytest.param("> /dev/full 2>&1", marks=pytest.mark.slow),
        pytest.param(">&- 2>&-", marks=pytest.mark.slow),
    ],
)
def test_losing_the_output_does_not_end_the_training(tmp_path, shapes_small, redirection):
    command = [sys.executable, "train.py", *small_run(tmp_path, shapes_small, "--epochs", "1", "--workers", "2")]
    shell = f'"$@" {redirection}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", shell, "bash", *command],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    lines = log_of(tmp_path)
    assert lines[0].startswith("--- 20") and any("100%" in line for line in lines)
    assert any(line.startswith("1 epoch completed in ") for line in lines[-10:])
    assert (tmp_path / "runs/run/weights/last.pt").is_file()


def test_the_log_has_what_was_printed_and_how_it_ended(tmp_path, shapes_small):
    done = train(*small_run(tmp_path, shapes_small, "--epochs", "1", "--notest"), "--max-iter", "1")
    printed = [line for line in done.stdout.splitlines() if line]
    assert done.returncode == 0 and set(printed) <= set(log_of(tmp_path))
    (tmp_path / "runs/run/weights/last.pt").write_bytes(b"damaged")
    refused = train("--resume", str(tmp_path / "runs" / "run"), "--max-iter", "2")
    assert refused.returncode == 2  # before the run has its folder: nothing of the run is touched


def test_a_lost_session_is_an_asked_for_stop(tmp_path, shapes_small):
    """A terminal that is closed: SIGHUP to its processes, and every further print fails."""
    master, slave = pty.openpty()
    command = [sys.executable, "-u", "train.py", *small_run(tmp_path, shapes_small, "--epochs", "50", "--seed", "5")]
    process = subprocess.Popen(
        [*command, "--workers", "2"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup before the tests would ignore it
    )
    os.close(slave)
    seen = b""
    while b"gpu_mem" not in seen:  # the first epoch has begun
        seen = seen[-1000:] + os.read(master, 1000)
    os.close(master)
    os.killpg(process.pid, signal.SIGHUP)  # what the kernel does where the terminal is the controlling one
    assert process.wait(timeout=120) == 128 + signal.SIGHUP
    assert load_checkpoint(tmp_path / "runs/run/weights/last.pt")["resume"]["progress"]["global_step"] > 0
    text = "\n".join(log_of(tmp_path))
    assert "SIGHUP: finishing this step" in text and "--resume" in log_of(tmp_path)[-1]
