"""Two processes on one CPU, started by torchrun as a user would: they agree, and a lost one ends the other."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import yaml

from tests.processes import run_group
from tests.training.commands import assert_same_weights, small_run, torchrun, train, weights_of
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.core.errors import UserError
from yolov7fast.training.distributed import (
    World,
    join,
    name_of_start,
    peer_failure_as_user_error,
    world_from_environment,
)
from yolov7fast.training.hyperparameters import load_hyp

# A loss that is a mean over all cells, with steps large enough to stand out from rounding.
CELLS_ONLY = {"box": 0.0, "cls": 0.0, "obj": 100.0, "loss_ota": 0, "weight_decay": 0.0}
AT_ONCE = {"warmup_epochs": 0.0, "warmup_min_iters": 0, "nominal_batch": 4}
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, shapes_small):
    folder = tmp_path_factory.mktemp("ddp")
    arguments = small_run(folder, shapes_small, "--epochs", "2", "--seed", "3")
    return torchrun(*arguments, RECORD=str(folder)), folder / "runs" / "run"


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


@pytest.mark.parametrize(("accumulated", "batches"), [(1, 2), (2, 3)])
def test_two_processes_follow_one_with_the_same_batch(accumulated, batches, tmp_path, shapes_small):
    """The same samples make up each step, so the same gradient does: what training changed is compared.

    Two things belong to a process by design and are taken out: statistics of batch norm, and means over the boxes
    that it happens to have. Weight decay, which is the same whatever the gradient, would hide a difference.
    """
    hyp = tmp_path / "hyp.yaml"
    hyp.write_text(
        yaml.safe_dump(load_hyp("data/hyp.small.yaml") | CELLS_ONLY | AT_ONCE | {"nominal_batch": 4 * accumulated})
    )
    found = []
    for name, launch in (("two", group), ("one", train)):
        (tmp_path / name).mkdir()
        arguments = small_run(tmp_path / name, shapes_small, "--epochs", "1", "--seed", "3", "--shuffle", "--notest")
        arguments += ["--max-iter", str(batches), "--hyp", str(hyp)]
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


PATIENCE = timedelta(seconds=60)


@pytest.fixture
def store() -> dist.TCPStore:
    """As torchrun keeps it over a restart: with what a process wrote that was killed before it was answered."""
    kept = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
    kept.set("waiting/2", "one that is gone")
    return kept


def starts(store: dist.TCPStore, size: int, first_is_late: bool) -> list[str]:
    """The names that processes of one start agree on; threads stand for them, each with its own connection."""
    ranks = range(size)
    with ThreadPoolExecutor(size) as pool:

        def join(rank: int) -> Future[str]:
            return pool.submit(name_of_start, store.clone(), rank, size, PATIENCE)

        joining = {rank: join(rank) for rank in ranks[first_is_late:]}
        if first_is_late:
            store.wait([f"waiting/{rank}" for rank in ranks[1:]])
            joining[0] = join(0)
        return [joining[rank].result(timeout=60) for rank in ranks]


@pytest.mark.parametrize("first_is_late", [False, True])
def test_a_restart_shares_nothing_with_the_processes_before_it(store, first_is_late):
    """A process must not connect to an address that one before the restart left in the store."""
    names = [starts(store, 3, first_is_late) for _ in range(3)]
    assert all(len(set(agreed)) == 1 for agreed in names)
    assert len({agreed[0] for agreed in names}) == 3


def test_a_process_that_never_starts_is_reported(store):
    store.set("waiting/1", "one that is gone")
    with pytest.raises(UserError, match=r"rank 0: another process of this run did not start within 0:00:00\.2"):
        name_of_start(store, 0, 3, timedelta(seconds=0.2))


@pytest.mark.parametrize(("by_torchrun", "launcher"), [(True, os.getppid()), (False, 0)])
def test_only_torchrun_must_outlive_its_processes(monkeypatch, by_torchrun, launcher):
    """A shell that started them in the background may end."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    if by_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert world_from_environment() == World(1, 1, 2, launcher)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_processes_are_restarted_by_torchrun_to_the_same_weights(two_processes, tmp_path, shapes_small):
    """Killed before the first checkpoint, then in the second epoch: all processes start again from the last one."""
    _, whole = two_processes
    arguments = small_run(tmp_path, shapes_small, "--epochs", "2", "--seed", "3", "--resume", "auto")
    done = torchrun(*arguments, restarts=3, timeout=800, FATAL_RANK="1", FATAL="step 3|step 6")
    assert done.returncode == 0, done.stderr[-3000:]
    run = tmp_path / "runs" / "run"
    assert_same_weights(whole / "weights" / "epoch_001.pt", run / "weights" / "epoch_001.pt")
    assert (run / "results.txt").read_text() == (whole / "results.txt").read_text()
    log = (run / "train.log").read_text()
    assert log.count("\n--- ") + log.startswith("--- ") == 3 and "Resuming" in log


def batches(folder: Path) -> dict[int, list[str]]:
    """By global step the images of all processes, of the last time the step was done."""
    found: dict[int, dict[str, list[str]]] = {}
    for path in folder.glob("rank*.txt"):
        for line in path.read_text().splitlines():
            step, *names = line.split()
            found.setdefault(int(step), {})[path.name] = names
    return {step: sorted(name for names in ranks.values() for name in names) for step, ranks in found.items()}


@pytest.mark.slow
def test_a_run_resumed_with_another_number_of_processes_sees_the_same_batches(two_processes, tmp_path, shapes_small):
    """Begun by two, resumed by one: the order of the samples belongs to the run, not to its processes."""
    _, whole = two_processes
    arguments = small_run(tmp_path, shapes_small, "--epochs", "2", "--seed", "3", "--save-every", "0.00001")
    parts = [tmp_path / "two", tmp_path / "one"]
    for part in parts:
        part.mkdir()
    killed = group(*arguments, RECORD=str(parts[0]), FATAL_RANK="1", FATAL="step 6")
    assert killed.returncode != 0
    run = tmp_path / "runs" / "run"
    resumed = train("--resume", str(run), script="tests/training/agreeing_train.py", RECORD=str(parts[1]))
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    expected, begun, ended = batches(whole.parent.parent), batches(parts[0]), batches(parts[1])
    assert sorted(expected) == list(range(8)) and min(ended) == 5 and max(ended) == 7
    assert {step: (begun | ended)[step] for step in expected} == expected
    state, other = (load_checkpoint(path / "weights" / "epoch_001.pt")["resume"] for path in (whole, run))
    assert state["progress"]["global_step"] == other["progress"]["global_step"] == 8


def test_processes_that_see_different_checkpoints_say_so(tmp_path, shapes_small):
    """As on two machines without shared storage, where only the first has the run's folder."""
    arguments = small_run(tmp_path, shapes_small, "--epochs", "3", "--seed", "3", "--max-iter", "1", "--notest")
    assert train(*arguments).returncode == 0
    done = group(*arguments, "--max-iter", "2", "--resume", "auto", FAR_RANK="1")
    assert done.returncode != 0
    assert "rank 1 begins at iteration 0, rank 0 at 1: every machine must see the same run" in done.stderr


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
    assert "another process of this run has ended or cannot be reached" in done.stderr, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("rank", "moment"),
    [("1", "stop 3"), pytest.param("0", "stop 3", marks=pytest.mark.slow), ("0", "validate 1")],
    ids=["rank 1", "rank 0", "rank 0 in a validation"],
)
def test_a_stopped_process_ends_the_other_within_the_timeout(tmp_path, shapes_small, rank, moment):
    """SIGSTOP keeps its connections open. The survivor never trains on; load only makes it end earlier."""
    arguments = small_run(tmp_path, shapes_small, "--epochs", "2", "--seed", "3", "--dist-timeout", "0.1")
    stopped = {"FATAL_RANK": rank, "FATAL": moment, "STOPPED": str(tmp_path / "stopped")}
    done = group(*arguments, **stopped)
    survivor = 1 - int(rank)
    assert "exit code 2 of the process that was left" in done.stderr, done.stderr[-3000:]
    lines = [line for line in done.stderr.splitlines() if f"error: rank {survivor}: " in line]
    assert len(lines) == 1 and "then resume with --resume" in lines[0], done.stderr[-3000:]
    assert "Traceback" not in done.stderr and "weights agree" not in done.stdout
    last = tmp_path / "runs/run/weights/last.pt"
    assert load_checkpoint(last)["resume"]["progress"]["global_step"] == 0


@pytest.mark.parametrize("message", ["Application timeout caused pair closure", "Connection reset by peer", "odd"])
def test_what_gloo_says_of_a_lost_process_is_one_line(message):
    lost = message != "odd"
    said = r"^rank 1: another process .* \(" + message if lost else "odd"
    with pytest.raises(UserError if lost else RuntimeError, match=said), peer_failure_as_user_error(World(1, 1, 2)):
        raise RuntimeError(message)


def test_a_batch_that_the_processes_cannot_divide_is_refused():
    with pytest.raises(UserError, match="--batch-size 3 must be a multiple of the number of processes, 2"):
        join(World(0, 0, 2), torch.device("cpu"), 3)
