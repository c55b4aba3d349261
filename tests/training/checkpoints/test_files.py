"""Best weights are written, or kept until they can be, or missed aloud: a full disk never makes best.pt stale."""

import errno
import os
import shutil

import pytest

import yolov7fast.core.files.atomic
from tests.training.fake_family import FakeFamily, fake_trainer
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.core.errors import UserError
from yolov7fast.training.train import resume


class Disk:
    """Refuses to replace the files named in `refused`."""

    def __init__(self, monkeypatch):
        self.refused: set[str] = set()
        self.replace = os.replace
        monkeypatch.setattr(yolov7fast.core.files.atomic.os, "replace", self)

    def __call__(self, source, target) -> None:
        if target.name in self.refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.replace(source, target)


@pytest.fixture
def disk(monkeypatch) -> Disk:
    return Disk(monkeypatch)


class BestFamily(FakeFamily):
    """Names its best weights, as real families do."""

    def checkpoint(self, progress, results_text):
        return super().checkpoint(progress, results_text) | {"best_fitness": progress.best_fitness}

    def checkpoint_names(self, epoch, final, is_best) -> list[str]:
        return ["last.pt", *["best.pt"] * is_best, f"epoch_{epoch:03d}.pt"]


def best_of(folder) -> int:
    """The epoch whose weights best.pt holds."""
    return load_checkpoint(folder / "weights" / "best.pt")["epoch"]


@pytest.mark.parametrize("refused", [{"best.pt"}, {"last.pt", "best.pt", "epoch_001.pt"}])
def test_best_weights_that_found_no_room_are_written_at_the_next_save(tmp_path, disk, caplog, refused):
    family = BestFamily(tmp_path, fitnesses=[0.3, 0.5, 0.1])
    trainer = fake_trainer(tmp_path, family, epochs=3)
    left = iter([set(), refused, set()])
    family.during_validation = lambda: setattr(disk, "refused", next(left))
    assert trainer.fit().interrupted == 0
    assert best_of(tmp_path) == 1 and "best.pt" in caplog.text
    assert (tmp_path / "weights" / "epoch_001.pt").is_file() == (len(refused) == 1)  # it cost no other file


def test_a_run_that_never_wrote_its_best_weights_says_so(tmp_path, disk):
    family = BestFamily(tmp_path, fitnesses=[0.3, 0.5, 0.1])
    trainer = fake_trainer(tmp_path, family, epochs=3)
    left = iter([set(), {"best.pt"}, {"best.pt"}])
    family.during_validation = lambda: setattr(disk, "refused", next(left))
    with pytest.raises(UserError, match=r"best\.pt could not be written: the best weights \(fitness 0\.5\) are lost"):
        trainer.fit()
    assert "finish" in family.events  # all else is complete
    assert load_checkpoint(tmp_path / "weights" / "last.pt")["epoch"] == 2


@pytest.mark.parametrize(("later", "written"), [(0.4, 3), (0.6, 3)])
def test_best_weights_lost_with_their_process_do_not_hide_later_ones(tmp_path, disk, caplog, later, written):
    """Killed while the best weights waited: best.pt takes what is better than what it holds."""
    family = BestFamily(tmp_path, fitnesses=[0.3, 0.5, 0.2])
    trainer = fake_trainer(tmp_path, family, epochs=4)
    left = iter([set(), {"best.pt"}, {"best.pt"}])
    family.during_validation = lambda: setattr(disk, "refused", next(left))
    for epoch in range(3):
        trainer.train_epoch(epoch, stop=None)
        trainer.finish_epoch(epoch, 1.0, stop=None)
    disk.refused = set()
    again = fake_trainer(tmp_path, BestFamily(tmp_path, fitnesses=[later]), epochs=4)
    resume(again, load_checkpoint(tmp_path / "weights" / "last.pt"), is_changed=False)
    assert "were never written" in caplog.text
    if later > 0.5:
        again.fit()
    else:
        with pytest.raises(UserError, match=r"fitness 0\.5\) are lost"):
            again.fit()
    assert best_of(tmp_path) == written


def test_best_weights_written_just_before_a_kill_are_recognised(tmp_path, disk, caplog):
    """last.pt of that save still says that they wait."""
    family = BestFamily(tmp_path, fitnesses=[0.3, 0.5, 0.2])
    trainer = fake_trainer(tmp_path, family, epochs=4)
    left = iter([set(), {"best.pt"}, set()])
    family.during_validation = lambda: setattr(disk, "refused", next(left))
    for epoch in range(3):
        trainer.train_epoch(epoch, stop=None)
        trainer.finish_epoch(epoch, 1.0, stop=None)
    again = fake_trainer(tmp_path, BestFamily(tmp_path, fitnesses=[0.1]), epochs=4)
    resume(again, load_checkpoint(tmp_path / "weights" / "last.pt"), is_changed=False)
    assert "were never written" not in caplog.text
    again.fit()
    assert best_of(tmp_path) == 1


def test_no_temporary_file_remains_where_nothing_fits(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    trainer = fake_trainer(tmp_path, BestFamily(tmp_path), epochs=2)
    trainer.save(["last.pt"])
    monkeypatch.setattr(yolov7fast.core.files.atomic.os, "link", full)
    monkeypatch.setattr(shutil, "copyfile", full)
    monkeypatch.setattr(yolov7fast.core.files.atomic.os, "fsync", full)
    trainer.save(["last.pt", "best.pt"])
    assert sorted(os.listdir(tmp_path / "weights")) == ["last.pt"]
