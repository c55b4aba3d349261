"""Two processes on one CPU, started by torchrun as a user would: they agree, and a lost one ends the other."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.processes import run_group
from tests.training.commands import ROOT, small_run, train, weights_of
from yolov7fast.checkpoint.api import load_checkpoint
from yolov7fast.training.hyperparameters import load_hyp

# A loss that is a mean over all cells, with steps large enough to stand out from rounding.
CELLS_ONLY = {"box": 0.0, "cls": 0.0, "obj": 100.0, "loss_ota": 0, "weight_decay": 0.0}
AT_ONCE = {"warmup_epochs": 0.0, "warmup_min_iters": 0, "nominal_batch": 4}
pytestmark = pytest.mark.timeout(240)


def torchrun(*arguments: str, script="tests/training/agreeing_train.py", **environment: str):
    """As a user starts it: torchrun's own process, then each of the two from the beginning."""
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


def test_the_group_ends_before_its_processes_do(two_processes):
    """Its threads run Python code when they drop a tensor: one that did so during exit ended the process by SIGABRT."""
    done, _ = two_processes
    assert done.stdout.count("threads of the group at the end: 0") == 2, done.stdout[-3000:]


def group(*arguments: str, script="tests/training/agreeing_train.py", **environment: str):
    """Two processes that find each other as torchrun's do, without the seconds that it takes to start them."""
    return run_group(script, *arguments, **environment)


def test_two_processes_follow_one_with_the_same_batch(tmp_path, shapes_small):
    """The same samples make up each step, so the same gradient does: what training changed is compared.

    Two things belong to a process by design and are taken out: statistics of batch norm, and means over the boxes
    that it happens to have. Weight decay, which is the same whatever the gradient, would hide a difference.
    """
    hyp = tmp_path / "hyp.yaml"
    hyp.write_text(yaml.safe_dump(load_hyp("data/hyp.small.yaml") | CELLS_ONLY | AT_ONCE))
    found = []
    for name, launch in (("two", group), ("one", train)):
        (tmp_path / name).mkdir()
        arguments = small_run(tmp_path / name, shapes_small, "--epochs", "1", "--seed", "3", "--shuffle", "--notest")
        arguments += ["--max-iter", "2", "--hyp", str(hyp)]
        done = launch(*arguments, script="tests/training/agreeing_train.py", NORM_BY_IMAGE="1")
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(changes(tmp_path / name / "runs" / "run" / "weights"))
    two, one = found
    distance = [float((two[name] - one[name]).norm() / one[name].norm()) for name in one]
    assert np.median(distance) < 0.02  # measured: 0.0015, after one step 1e-6; a gradient half as large: 0.5


def changes(weights: Path) -> dict[str, torch.Tensor]:
    """How far a run's convolutions have come from where they began."""
    first = load_checkpoint(weights / "init.pt").state_dict()
    last = weights_of(weights / "epoch_000.pt")
    return {n: last[f"model.{n}"] - first[n].float() for n in first if n.endswith("conv.weight")}


def test_a_bad_batch_of_one_process_is_skipped_by_all(tmp_path, shapes_small):
    """Else one would wait for gradients that the other does not send."""
    arguments = small_run(tmp_path, shapes_small, "--epochs", "1", "--seed", "3", "--notest", "--skip-nonfinite", "1")
    done = group(*arguments, BAD_RANK="1", BAD_STEP="2")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "weights agree: True over 2 processes" in done.stdout
    state = load_checkpoint(tmp_path / "runs/run/weights/epoch_000.pt")["resume"]
    assert state["count"] == 3 and state["bad"].tolist() == [1.0, 3.0]  # on the main process too, whose loss was fine
    assert len(state["random_ranks"]) == 2
    assert not torch.equal(*(ranks["torch"] for ranks in state["random_ranks"]))


def test_a_killed_process_ends_the_other_with_a_message(tmp_path, shapes_small):
    arguments = small_run(tmp_path, shapes_small, "--epochs", "2", "--seed", "3")
    done = group(*arguments, FATAL_RANK="1", FATAL="step 3")
    assert done.returncode != 0
    assert "another process of this run has ended" in done.stderr, done.stderr[-3000:]


def test_a_batch_that_the_processes_cannot_divide_is_refused(tmp_path, shapes_small):
    done = group(*small_run(tmp_path, shapes_small), "--batch-size", "3")
    assert done.returncode != 0
    assert "--batch-size 3 must be a multiple of the number of processes, 2" in done.stderr
