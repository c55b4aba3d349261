"""Two processes on one CPU, started by torchrun as a user would: they agree, and a lost one ends the other."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.engine.commands import ROOT, small_run, train, weights_of

pytestmark = pytest.mark.timeout(240)


def torchrun(*arguments: str, script="tests/engine/agreeing_train.py", **environment: str):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0"]
    return subprocess.run(
        [*launcher, "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", str(ROOT / script), *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, shapes_small):
    folder = tmp_path_factory.mktemp("ddp")
    arguments = small_run(folder, shapes_small, "--epochs", "2", "--seed", "3", "--shuffle")
    return torchrun(*arguments), folder / "runs" / "run"


def test_processes_agree_and_only_the_first_writes(two_processes):
    done, run = two_processes
    assert done.returncode == 0, done.stderr[-3000:]
    assert "weights agree: True over 2 processes" in done.stdout
    assert len((run / "results.txt").read_text().splitlines()) == 2
    assert not Path(f"{run}2").exists()


def test_two_processes_follow_one_with_the_same_batch(two_processes, tmp_path, shapes_small):
    """The same samples make up each step. Batch statistics are each process's own, so the runs agree loosely."""
    done, run = two_processes
    assert done.returncode == 0, done.stderr[-3000:]
    arguments = small_run(tmp_path, shapes_small, "--epochs", "2", "--seed", "3", "--shuffle")
    alone = train(*arguments)
    assert alone.returncode == 0, alone.stderr
    both = weights_of(run / "weights" / "epoch_001.pt"), weights_of(tmp_path / "runs/run/weights/epoch_001.pt")
    names = [n for n in both[0] if n.startswith("model.") and n.endswith("conv.weight")]
    distance = [float((both[0][n] - both[1][n]).norm() / both[1][n].norm()) for n in names]
    assert np.median(distance) < 0.02


def test_a_killed_process_ends_the_other_with_a_message(tmp_path, shapes_small):
    arguments = small_run(tmp_path, shapes_small, "--epochs", "2", "--seed", "3")
    done = torchrun(*arguments, FATAL_RANK="1", FATAL="step 3")
    assert done.returncode != 0
    assert "another process of this run has ended" in done.stderr or "SIGTERM" in done.stdout, done.stderr[-3000:]


def test_a_batch_that_cannot_be_shared_out_is_refused(tmp_path, shapes_small):
    done = torchrun(*small_run(tmp_path, shapes_small), "--batch-size", "3")
    assert done.returncode != 0
    assert "--batch-size 3 must be a multiple of the number of processes, 2" in done.stderr
