"""The training loop by itself: when it stops, what it writes, and what it never writes."""

import csv
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import yolov7fast.training.trainer
from tests.training.fake_family import FakeFamily, fake_trainer
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.core.errors import UserError
from yolov7fast.evaluation.eval_result import SUMMARY
from yolov7fast.training.checkpoints.resume import (
    Limits,
    Progress,
    progress_of,
    random_states,
    restore_own_random,
    restore_state,
)
from yolov7fast.training.distributed import World
from yolov7fast.training.train import resume


def state_of(folder) -> dict:
    return load_checkpoint(folder / "weights" / "last.pt")


def resumed(folder, family=None, **flags):
    """A new trainer that resumes from the folder's last.pt."""
    trainer = fake_trainer(folder, family, **flags)
    resume(trainer, state_of(folder), is_changed=False)
    return trainer


# --- what is written --------------------------------------------------------------------------------------------------


def test_a_bad_loss_that_nobody_has_looked_at_yet_is_not_saved(tmp_path, monkeypatch):
    """On a device the host looks now and then; a save must not come before the look."""
    trainer = fake_trainer(tmp_path, FakeFamily(tmp_path, batches=[1.0, float("nan")]), epochs=1)
    monkeypatch.setattr(trainer, "show", lambda *_: None)
    with pytest.raises(UserError, match=r"loss of batch 1 .* is not finite"):
        trainer.fit()
    assert not (tmp_path / "weights" / "last.pt").exists()
    assert (tmp_path / "nonfinite_batch_1.txt").read_text() == "image of nan\n"


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
    """A gradient can be infinite where the loss is not."""
    family = FakeFamily(tmp_path, batches=[1.0])
    trainer = fake_trainer(tmp_path, family, epochs=3)
    weights = []

    def break_later():
        weights.append(family.model.weight.item())
        if len(weights) == 2:
            family.model.weight.data.fill_(float("nan"))

    family.during_validation = break_later
    with pytest.raises(UserError, match=r"weights are not finite after batch 1 \(epoch 2\)"):
        trainer.fit()
    assert state_of(tmp_path)["resume"]["model"]["weight"].item() == weights[0]


def test_a_damaged_last_checkpoint_never_replaces_the_good_one_before_it(tmp_path):
    fake_trainer(tmp_path).save(["last.pt"])
    good = (tmp_path / "weights" / "last.pt").read_bytes()
    (tmp_path / "weights" / "previous.pt").write_bytes(good)
    (tmp_path / "weights" / "last.pt").write_bytes(good[:100])
    trainer = fake_trainer(tmp_path)
    trainer.files.last_is_damaged = True
    trainer.progress.global_step = 7
    trainer.save(["last.pt"])
    assert (tmp_path / "weights" / "previous.pt").read_bytes() == good
    state_of(tmp_path)
    trainer.save(["last.pt"])
    kept = load_checkpoint(tmp_path / "weights" / "previous.pt")  # once whole again, last.pt is kept as ever
    assert kept["resume"]["progress"]["global_step"] == 7


def test_a_full_disk_is_a_warning_wherever_it_shows(tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    trainer = fake_trainer(tmp_path, epochs=3)
    trainer.save(["last.pt"])
    with monkeypatch.context() as disk:
        disk.setattr("yolov7fast.core.files.atomic.os.link", full)
        disk.setattr("yolov7fast.core.files.atomic.shutil.copyfile", full)
        trainer.save(["last.pt"])
    assert "cannot write" in caplog.text and "previous.pt" in caplog.text and "No space left on device" in caplog.text
    caplog.clear()
    with monkeypatch.context() as disk:
        disk.setattr("yolov7fast.core.files.atomic.os.fsync", full)
        trainer.train_epoch(0, stop=None)
        trainer.config = replace(trainer.config, nosave=True)
        trainer.finish_epoch(0, 1.0, stop=None)
    assert "results.txt" in caplog.text and "results.csv" in caplog.text
    assert not (tmp_path / "results.txt").exists()
    trainer.train_epoch(1, stop=None)
    trainer.finish_epoch(1, 1.0, stop=None)
    assert len((tmp_path / "results.txt").read_text().splitlines()) == 2  # the refused line came with the next
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("keep", "left"), [(None, ["epoch_0.pt", "epoch_1.pt", "epoch_2.pt"]), (1, ["epoch_2.pt"]), (0, [])]
)
def test_as_many_epoch_files_stay_as_the_user_wants(tmp_path, keep, left):
    family = FakeFamily(tmp_path)
    family.writes_epochs = True
    fake_trainer(tmp_path, family, epochs=3, keep_epochs=keep).fit()
    assert sorted(path.name for path in (tmp_path / "weights").glob("epoch_*")) == left
    assert (tmp_path / "weights" / "last.pt").is_file()


def test_the_best_epoch_is_remembered_with_its_figures(tmp_path):
    family = FakeFamily(tmp_path, fitnesses=[0.1, 0.5, 0.3])
    trainer = fake_trainer(tmp_path, family, epochs=3)
    trainer.fit()
    assert trainer.progress.best_epoch == 1 and set(SUMMARY) <= trainer.progress.best_metrics.keys()
    assert state_of(tmp_path)["resume"]["progress"]["best_epoch"] == 1


# --- when it stops ----------------------------------------------------------------------------------------------------


def test_patience_counts_epochs_and_not_validations(tmp_path):
    family = FakeFamily(tmp_path, fitnesses=[0.5, 0.4, 0.3, 0.2])
    outcome = fake_trainer(tmp_path, family, epochs=20, patience=4, eval_interval=2).fit()
    assert outcome.progress.epoch == 6  # best at the second epoch, four more since
    assert family.events[-2:] == ["validate", "finish"]


def test_a_signal_in_validation_ends_the_run_right_after_it(tmp_path):
    family = FakeFamily(tmp_path)
    family.during_validation = lambda: os.kill(os.getpid(), signal.SIGTERM)
    outcome = fake_trainer(tmp_path, family, epochs=3, nosave=True).fit()
    assert (outcome.interrupted, family.events) == (143, ["epoch 0", "validate"])
    assert state_of(tmp_path)["resume"]["progress"]["epoch"] == 1
    outcome = resumed(tmp_path, epochs=3).fit()
    assert (outcome.interrupted, outcome.progress.epoch) == (0, 3)


@pytest.mark.parametrize("seed", [1, None])
def test_a_signal_in_validation_stops_it_and_a_resumed_run_begins_with_it(tmp_path, seed):
    """No batch is trained again, with --seed or without, and the best epoch and patience are as if it had not been."""
    whole = fake_trainer(tmp_path / "whole", FakeFamily(tmp_path / "whole", fitnesses=[0.5, 0.4]), epochs=2).fit()
    family = FakeFamily(tmp_path, fitnesses=[0.5])
    family.stops_in_validation = True
    family.during_validation = lambda: os.kill(os.getpid(), signal.SIGINT)
    outcome = fake_trainer(tmp_path, family, epochs=2, seed=seed).fit()
    assert (outcome.interrupted, family.events) == (130, ["epoch 0", "validate"])
    progress = state_of(tmp_path)["resume"]["progress"]
    assert (progress["epoch"], progress["batch_index"], progress["epochs_since_best"]) == (0, 2, 0)
    again = resumed(tmp_path, epochs=2, seed=seed)
    again.family.fitnesses = [0.5, 0.4]
    outcome = again.fit()
    assert again.family.events == ["validate", "epoch 1", "validate", "finish"]
    assert outcome.progress.global_step == whole.progress.global_step == 4
    assert (outcome.progress.best_fitness, outcome.progress.epochs_since_best) == (0.5, 1)
    assert outcome.last_loss == whole.last_loss


def test_a_signal_before_the_first_step_is_obeyed(tmp_path, monkeypatch):
    family = FakeFamily(tmp_path)
    monkeypatch.setattr(yolov7fast.training.trainer.StopRequest, "__bool__", lambda self: True)
    outcome = fake_trainer(tmp_path, family).fit()
    assert (outcome.interrupted, family.events) == (143, [])
    assert state_of(tmp_path)["resume"]["progress"]["global_step"] == 0


def test_a_signal_in_the_last_validation_leaves_only_the_end_to_do(tmp_path):
    family = FakeFamily(tmp_path)
    family.during_validation = lambda: os.kill(os.getpid(), signal.SIGINT)
    written = []
    trainer = fake_trainer(tmp_path, family, epochs=1)
    whole = trainer.save
    trainer.save = lambda names: (written.append(names), whole(names))
    assert trainer.fit().interrupted == 130
    assert family.events == ["epoch 0", "validate"] and len(written) == 1
    again = resumed(tmp_path, epochs=1)
    outcome = again.fit()
    assert again.family.events == ["finish"]
    assert outcome.interrupted == 0 and outcome.last_loss == trainer.progress.last_loss


@pytest.mark.parametrize(
    ("limits", "raised"),
    [({"max_iter": 3}, {"max_iter": 5}), ({"patience": 1}, {"patience": 3}), ({"epochs": 2}, {"epochs": 4})],
)
def test_a_finished_run_trains_on_only_if_its_limit_was_raised(tmp_path, limits, raised):
    settings = {"epochs": 9} | limits
    done = fake_trainer(tmp_path, **settings).fit().progress
    assert done.finished
    same = resumed(tmp_path, **settings)
    assert same.fit().progress.global_step == done.global_step and same.family.events == ["finish"]
    more = resumed(tmp_path, **(settings | raised))
    assert more.fit().progress.global_step > done.global_step


def test_the_time_of_an_epoch_counts_what_was_before_an_interruption(tmp_path):
    trainer = fake_trainer(tmp_path, epochs=1)
    trainer.progress.batch_index = trainer.progress.global_step = 1  # the first of two batches is done
    trainer.progress.epoch_seconds, trainer.progress.epoch_waited = 1e6, 4e5  # what the test itself takes is nothing
    trainer.save(["last.pt"])
    again = resumed(tmp_path, epochs=1)
    again.fit()
    (row,) = csv.DictReader((tmp_path / "results.csv").open())
    assert [float(row[name]) for name in ("train_seconds", "seconds")] == pytest.approx([1e6] * 2, rel=1e-3)
    assert float(row["data_wait_share"]) == pytest.approx(0.4, rel=1e-2)


def test_waiting_for_data_is_measured_between_marks_of_the_device(tmp_path):
    """Which a busy device reaches at the same moment, however long the host waits."""
    trainer = fake_trainer(tmp_path, epochs=1)
    mark = SimpleNamespace(elapsed_time=lambda end: 250.0)
    trainer.queue = SimpleNamespace(mark=lambda: mark)
    assert trainer.fit().progress.epoch_waited == 0.5
    assert trainer.timer.totals()["data"] == [250.0, 250.0]


def test_processes_ask_each_other_every_ten_batches_after_an_update(tmp_path, monkeypatch):
    trainer = fake_trainer(tmp_path)
    monkeypatch.setattr(yolov7fast.training.trainer, "any_rank", lambda flags, world: [True, False])
    assert trainer.vote(None, is_updated=False) == [True, False]  # a single process always looks
    trainer.world = World(0, 0, 2)
    asked = [number for number in range(1, 31) if trainer.vote(None, is_updated=number % 4 == 0)[0]]
    assert asked == [12, 24]


def test_what_ended_a_run_is_named_with_its_remedy():
    done = Progress(epoch=3, global_step=12, epochs_since_best=2, finished=True)
    assert Limits(3).reached(done) == "the run has 3 epochs of 3; add --epochs N"
    assert "--max-iter 12" in Limits(9, max_iter=12).reached(done)
    assert "--patience 2" in Limits(9, patience=2).reached(done)
    assert Limits(9, 13, 3).reached(done) == ""
    assert Limits(3).reached(Progress(epoch=3)) == ""


# --- what is restored -------------------------------------------------------------------------------------------------


def test_bad_batches_since_the_last_step_are_remembered(tmp_path):
    trainer = fake_trainer(tmp_path)
    trainer.step.nonfinite_since_update += 1
    trainer.save(["last.pt"])
    assert resumed(tmp_path).step.nonfinite_since_update.item() == 1
    state = state_of(tmp_path)["resume"]
    del state["bad_since_step"], state["progress"]["last_loss"], state["random_ranks"]  # as older files are
    again = fake_trainer(tmp_path)
    restore_state(again.step, state)
    assert progress_of(state).global_step == 0
    assert again.step.nonfinite_since_update.item() == 0


def test_every_process_gets_its_own_random_state_back():
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        states.append(random_states())
    drawn = {}
    for rank in (0, 1):
        restore_own_random({"random": states[0], "random_ranks": states}, World(rank, rank, 2))
        drawn[rank] = torch.rand(()).item()
    assert drawn[0] != drawn[1]
    torch.manual_seed(2)
    assert torch.rand(()).item() == drawn[1]
    torch.manual_seed(7)
    restore_own_random({"random": states[0]}, World(1, 1, 2))  # an older file knows the first process alone
    torch.manual_seed(7)
    restore_own_random({"random": states[0]}, World())
    assert torch.rand(()).item() == drawn[0]


def test_resuming_without_seed_says_what_starts_anew(tmp_path, caplog):
    fake_trainer(tmp_path).save(["last.pt"])
    family = FakeFamily(tmp_path)
    resumed(tmp_path, family, seed=None)
    assert "data workers" not in caplog.text
    family.loader.num_workers = 2
    resumed(tmp_path, family, seed=None)
    assert caplog.text.count("random streams of the data workers are not restored") == 1
    resumed(tmp_path, family)
    assert caplog.text.count("data workers") == 1
