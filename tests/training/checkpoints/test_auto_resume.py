"""`--resume auto`: one command line starts a run, resumes it, and leaves it alone when it is finished."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.commands import ROOT, assert_same_weights, here, small_run, train
from tests.training.fake_family import FakeFamily, fake_trainer
from tests.training.families.detr_commands import needs_transformers, run_file
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.cli.commands.train import run as run_training
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.locks import FolderLock
from yolov7fast.training.checkpoints.files import CheckpointFiles
from yolov7fast.training.config import DetrTrainConfig, YoloTrainConfig
from yolov7fast.training.distributed import World
from yolov7fast.training.start import order_is_shuffled
from yolov7fast.training.step import TrainStep

FATAL = "tests/training/fatal_train.py"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shapes_small) -> Path:
    """A run of 2 epochs of 4 batches that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    assert here(*arguments(folder, shapes_small)) == 0
    return folder / "runs" / "run"


def arguments(folder: Path, shapes: Path) -> list[str]:
    return small_run(folder, shapes, "--epochs", "2", "--seed", "5", "--resume", "auto")


def assert_same_run(one: Path, other: Path) -> None:
    assert_same_weights(one / "weights" / "epoch_001.pt", other / "weights" / "epoch_001.pt")
    assert (one / "results.txt").read_text() == (other / "results.txt").read_text()
    assert {path.name for path in (one / "weights").iterdir()} == {path.name for path in (other / "weights").iterdir()}


def test_one_command_starts_resumes_and_leaves_alone(whole, tmp_path, shapes_small, caplog):
    """Killed before the first checkpoint, between the first epoch's best.pt and last.pt, in the second epoch."""
    command = arguments(tmp_path, shapes_small)
    run = tmp_path / "runs" / "run"
    for moment in ("rename 1", "rename 2", "step 6"):
        done = train(*command, script=FATAL, FATAL=moment)
        assert done.returncode == -signal.SIGKILL, (moment, done.stdout[-500:], done.stderr[-2000:])
    assert here(*command) == 0
    assert_same_run(whole, run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != "train.log"}
    caplog.set_level("INFO")
    assert here(*command) == 0
    assert "nothing to do, the run has 2 epochs of 2" in caplog.text
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != "train.log"}
    assert not Path(f"{run}2").exists()


def killed_in(monkeypatch, place: type, method: str, command: list[str]) -> None:
    """Start a run that dies when it comes to a method."""

    def die(*_, **__):
        raise SystemExit("killed")

    with monkeypatch.context() as patched, pytest.raises(SystemExit, match="killed"):
        patched.setattr(place, method, die)
        here(*command)


def test_a_run_without_any_checkpoint_starts_again_with_its_own_options(
    whole, tmp_path, shapes_small, monkeypatch, capsys
):
    """Of a process killed before its first checkpoint, or of a version that wrote one after an epoch only."""
    killed_in(monkeypatch, CheckpointFiles, "write", arguments(tmp_path, shapes_small))
    run = tmp_path / "runs" / "run"
    (run / "results.txt").write_text("       0/1 lost\n")  # the row of an epoch whose checkpoint was not written
    (run / "results.csv").write_text("epoch\n0\n")
    assert not list((run / "weights").glob("last*"))
    with pytest.raises(UserError, match="--batch-size cannot change when resuming"):
        here("--resume", str(run), "--batch-size", "8")
    with pytest.raises(UserError, match=rf"a run of the yolo family; resume with: .*train.* --resume {run}"):
        run_training(parser_for("train", "detr").parse_args(["--resume", str(run)]), "detr")
    assert here("--resume", str(run)) == 0
    assert f"{run} has no checkpoint yet: the run starts again" in capsys.readouterr().out
    assert_same_run(whole, run)
    assert not Path(f"{run}2").exists()


@pytest.mark.parametrize("nosave", [False, True])
def test_a_run_has_a_checkpoint_before_its_first_step_unless_it_saves_none(tmp_path, shapes_small, monkeypatch, nosave):
    killed_in(monkeypatch, TrainStep, "__call__", [*arguments(tmp_path, shapes_small), *["--nosave"] * nosave])
    weights = tmp_path / "runs" / "run" / "weights"
    assert {path.name for path in weights.iterdir()} == ({"init.pt"} if nosave else {"init.pt", "last.pt"})
    if not nosave:
        assert load_checkpoint(weights / "last.pt")["resume"]["progress"]["global_step"] == 0


@needs_transformers
def test_a_detr_is_started_and_resumed_by_the_same_command(tmp_path, shapes_small):
    config = run_file(tmp_path, shapes_small)
    command = ["--config", config, "--resume", "auto", "--max-iter", "2"]

    def start(*more: str) -> int:
        return run_training(parser_for("train", "detr").parse_args([*command, *more]), "detr")

    assert start() == 0 and start() == 0
    assert start("--max-iter", "4") == 0
    (path,) = (tmp_path / "runs" / "run").rglob("checkpoint_epoch_2.pth")  # of a finished run last.pth is stripped
    assert load_checkpoint(path)["resume"]["progress"]["global_step"] == 4


def until_done(command: list[str], kills: int, times: random.Random, log: Path) -> int:
    """`until COMMAND; do :; done`, whose processes are killed at random times; how many were."""
    killed = 0
    while True:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            if process.wait(timeout=times.uniform(0.5, 12) if killed < kills else 300) == 0:
                return killed
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            killed += 1
        assert killed <= kills, log.read_text()[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", [[], ["--workers", "2", "--fast-dataloader"]])
def test_whatever_is_killed_when_the_loop_ends_with_the_same_weights(tmp_path, shapes_small, extra):
    """Ten times `kill -9` to all its processes at any moment, from the imports to the final files."""
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    assert here(*arguments(folders[0], shapes_small), *extra) == 0
    seed = random.SystemRandom().randrange(2**32)
    command = [str(ROOT / "train.py"), *arguments(folders[1], shapes_small), *extra, "--save-every", "0.00001"]
    until_done(command, 10, random.Random(seed), tmp_path / "log")
    assert_same_run(*(folder / "runs" / "run" for folder in folders)), f"seed {seed}"


def test_files_may_be_named_as_they_were_at_the_start(tmp_path, shapes_small, monkeypatch):
    """opt.yaml holds the paths that short names were found at."""
    command = small_run(tmp_path, shapes_small, "--epochs", "3", "--seed", "5", "--notest", "--resume", "auto")
    command[command.index("--hyp") + 1] = str(ROOT / "data/hyp.small.yaml")
    (tmp_path / "below").mkdir()
    Path(command[command.index("--cfg") + 1]).rename(tmp_path / "below" / "other.yaml")
    command[command.index("--cfg") + 1] = "other.yaml"
    monkeypatch.chdir(tmp_path)
    assert here(*command, "--max-iter", "1") == 0
    assert here(*command, "--max-iter", "2") == 0
    state = load_checkpoint(tmp_path / "runs" / "run" / "weights" / "epoch_001.pt")["resume"]
    assert state["progress"]["global_step"] == 2
    with pytest.raises(UserError, match="--batch-size cannot change when resuming"):
        here(*command, "--batch-size", "8")


def test_a_folder_in_use_is_refused_by_every_way_into_it(whole):
    project = ["--project", str(whole.parent), "--name", "run"]
    with FolderLock(whole):
        for way in (["--resume", str(whole), "--epochs", "3"], [*project, "--resume", "auto", "--epochs", "3"]):
            with pytest.raises(UserError, match=rf"is in use: process {os.getpid()} on .* since 20.* UTC"):
                here(*way)


def test_a_run_that_another_process_trained_further_meanwhile_is_not_set_back(whole, tmp_path, monkeypatch):
    """Its checkpoint is read before its folder is locked."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.copy(run / "weights" / "epoch_001.pt", run / "weights" / "last.pt")
    take = FolderLock.__enter__

    def take_late(self):
        os.utime(run / "weights" / "last.pt")  # as the other process does, then it ends
        return take(self)

    monkeypatch.setattr(FolderLock, "__enter__", take_late)
    with pytest.raises(UserError, match=r"last\.pt has just been replaced by another process"):
        here("--resume", str(run), "--epochs", "3")
    assert "has just been replaced" in (run / "train.log").read_text()


# --- checkpoints inside an epoch, order of samples --------------------------------------------------------------------


def test_a_checkpoint_is_written_after_a_minute_then_every_ten_unless_asked_otherwise(tmp_path, monkeypatch):
    def given(**flags) -> float:
        return YoloTrainConfig(**flags).save_minutes

    assert given() == 10 and given(save_every=0.0) == 0
    assert given(nosave=True) == 0 and given(nosave=True, save_every=3.0) == 3
    clock = [0.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    family = FakeFamily(tmp_path, batches=[1.0] * 7)
    trainer = fake_trainer(tmp_path, family, epochs=1, save_every=given())
    saved, rates = [], family.rates

    def a_step_takes_250_seconds(*args):
        clock[0] += 250
        return rates(*args)

    family.rates = a_step_takes_250_seconds
    trainer.save = lambda names: saved.append(trainer.progress.batch_index)
    trainer.fit()
    assert saved == [1, 4, 7, 0]  # after 250, 1000 and 1750 seconds, and at the end of the epoch


def test_a_run_keeps_the_order_of_its_samples_whatever_its_processes():
    one, two = World(), World(0, 0, 2)
    assert not order_is_shuffled(YoloTrainConfig(), one, resumed=False)
    assert order_is_shuffled(YoloTrainConfig(), two, resumed=False)
    for begun in (True, False):
        for world in (one, two):
            assert order_is_shuffled(YoloTrainConfig(shuffled=begun), world, resumed=True) == begun
    assert order_is_shuffled(YoloTrainConfig(global_rank=0), one, resumed=True)  # an older run of several processes
    assert not order_is_shuffled(YoloTrainConfig(global_rank=-1), two, resumed=True)
    assert order_is_shuffled(DetrTrainConfig(), one, resumed=False)  # a family that always shuffles
