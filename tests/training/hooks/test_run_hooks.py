"""--on-save and --on-end: when they run, what they are told, and that no failure of theirs is one of the training."""

import logging
import signal

import pytest

from tests.training.fake_family import FakeFamily, fake_trainer
from tests.training.hooks.places import rclone
from yolov7fast.core.errors import UserError
from yolov7fast.core.process import background
from yolov7fast.core.process.signals import Ended
from yolov7fast.training.config import TrainConfig
from yolov7fast.training.hooks import run_hooks
from yolov7fast.training.hooks.run_hooks import RunHooks


def run(folder, end=None, **flags):
    """Two epochs of a network of one weight with hooks; end: raised after them."""
    trainer = fake_trainer(folder, FakeFamily(folder, fitnesses=[0.1, 0.2]), **flags)
    with RunHooks(TrainConfig(save_dir=str(folder), **flags), None) as hooks:
        hooks.begin(trainer, resumed=False)
        trainer.fit()
        hooks.ended = ("complete", "all done")
        if end is not None:
            raise end


ON_END = 'echo "$STATUS|$MESSAGE|$MIRROR|$EPOCH|$STEP" >> ended'


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (None, "complete|all done"),
        (UserError("the GPU has no memory left (...)"), "failed|the GPU has no memory left (...)"),
        (RuntimeError("odd"), "failed|RuntimeError: odd"),
        (Ended(signal.SIGTERM), "stopped|stopped by SIGTERM"),
    ],
)
def test_the_end_is_told_once_after_the_last_copy(tmp_path, monkeypatch, end, said):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    command = f"{ON_END}; cat {tmp_path}/copy/weights/last.pt | cmp - $CHECKPOINT && echo same >> ended"
    try:
        run(folder, end, mirror=str(tmp_path / "copy"), on_end=command)
    except BaseException as error:
        assert error is end
    assert (tmp_path / "ended").read_text() == f"{said}|verified|2|4\nsame\n"
    assert [path.name for path in (folder / ".mirror").iterdir() if path.is_dir()] == []


def test_the_newest_checkpoint_is_handed_over_last(tmp_path):
    run(tmp_path, on_save=f"echo $EPOCH >> {tmp_path}/epochs; echo said; exit 3")
    epochs = [int(line) for line in (tmp_path / "epochs").read_text().split()]
    assert epochs == sorted(epochs) and epochs[-1] == 2
    assert "said" in (tmp_path / "hooks.log").read_text()


def test_hooks_that_hang_or_fail_end_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(run_hooks, "END_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING):
        run(tmp_path, on_save="sleep 1000", on_end="sleep 1000")
    assert "the --on-end command did not end and was killed" in caplog.text
    caplog.clear()
    monkeypatch.undo()
    run(tmp_path, on_end="echo sorry; exit 5")
    assert "the --on-end command ended with code 5" in caplog.text


def test_an_unreachable_destination_is_tried_again(tmp_path, monkeypatch, caplog):
    root = rclone(tmp_path, monkeypatch)
    monkeypatch.setattr(background, "FIRST_PAUSE", 0.0)
    failed = RunHooks._copy

    def reachable_after_a_failure(self, snapshot):
        done = failed(self, snapshot)
        if not done:
            (root / "unreachable").unlink(missing_ok=True)
        return done

    monkeypatch.setattr(RunHooks, "_copy", reachable_after_a_failure)
    trainer = fake_trainer(tmp_path / "run", mirror="disk:x", on_end=ON_END)
    with (
        caplog.at_level(logging.INFO),
        RunHooks(TrainConfig(mirror="disk:x", save_dir=str(tmp_path / "run")), None) as hooks,
    ):
        hooks.begin(trainer, resumed=False)
        (root / "unreachable").touch()
        trainer.fit()
    assert caplog.text.count("training continues, the copy is tried again") == 1
    assert "disk:x can be written again" in caplog.text
    assert (root / "x/weights/last.pt").read_bytes() == (tmp_path / "run/weights/last.pt").read_bytes()


def test_the_end_does_not_wait_forever_and_says_so(tmp_path, monkeypatch, caplog):
    root = rclone(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_hooks, "END_SECONDS", 0.5)
    trainer = fake_trainer(tmp_path / "run")
    config = TrainConfig(mirror="disk:x", on_end=ON_END, save_dir=str(tmp_path / "run"))
    with caplog.at_level(logging.WARNING), RunHooks(config, None) as hooks:
        hooks.begin(trainer, resumed=False)
        (root / "unreachable").touch()
        trainer.fit()
        hooks.ended = ("complete", "all done")
    assert "the last copy to disk:x is not verified: rclone: connection refused" in caplog.text
    assert (tmp_path / "ended").read_text() == "complete|all done; the last copy is not verified|not verified|2|4\n"
