"""--resume in awkward cases: groups of processes, runs that lack only their end, damaged files, stages of size."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import yaml

import yolov7fast.training.family
import yolov7fast.training.logging.reporter
from tests.training.commands import assert_same_weights, here, small_run
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, save_checkpoint
from yolov7fast.core.errors import UserError, one_line
from yolov7fast.training.config import YoloTrainConfig
from yolov7fast.training.family import plan_sizes, stage_of
from yolov7fast.training.logging.reporter import Reporter
from yolov7fast.training.yolo_family import YoloFamily


def rows(folder: Path) -> int:
    return len((folder / "results.txt").read_text().splitlines())


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory, shapes_small) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert here(*small_run(folder, shapes_small, "--epochs", "1", "--seed", "5", "--notest")) == 0
    return folder / "runs" / "run"


@pytest.fixture
def finished(one_epoch, tmp_path) -> Path:
    """A copy of a complete run of one epoch."""
    return Path(shutil.copytree(one_epoch, tmp_path / "runs" / "run"))


class Killed(BaseException):
    """As sudden as a signal that cannot be caught."""


def kill(*_, **__):
    raise Killed


# --- complete runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "moment"),
    [(yolov7fast.training.logging.reporter, "plot_results"), (yolov7fast.training.family, "strip_checkpoint")],
)
def test_a_run_killed_after_its_last_checkpoint_only_needs_its_end(
    tmp_path, shapes_small, monkeypatch, capsys, module, moment
):
    with monkeypatch.context() as patched:
        patched.setattr(module, moment, kill)
        with pytest.raises(Killed):
            here(*small_run(tmp_path, shapes_small, "--epochs", "2", "--seed", "5"))
    folder = tmp_path / "runs" / "run"
    assert here("--resume", str(folder)) == 0
    assert "only plots and final files are left" in capsys.readouterr().out
    assert rows(folder) == 2
    assert [load_checkpoint(folder / "weights" / f"{name}.pt")["epoch"] for name in ("last", "best")] == [-1, -1]
    assert (folder / "results.png").is_file() and not (folder / "weights" / "previous.pt").exists()
    with pytest.raises(UserError, match=r"nothing to do, the run has 2 epochs of 2; add --epochs N"):
        here("--resume", str(folder))


# --- options and files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("opt.yaml", "", r"opt\.yaml is empty or cut off, .* start a new run with --weights"),
        ("opt.yaml", "epochs: 1\nbatch_size", r"damaged: .*opt\.yaml is not valid YAML"),
        ("opt.yaml", "epochs: many\ntotal_batch_size: 4\n", r"opt\.yaml: epochs must be int, not 'many'"),
        ("opt.yaml", "epochs: 2\ntotal_batch_size: x\n", r"opt\.yaml: total_batch_size is 'x'"),
        ("opt.yaml", "epochs: 2\ntotal_batch_size: 4\nlabel_smoothing: .inf\n", r"must be a finite number .*opt\.yaml"),
        ("hyp.yaml", "", r"hyp\.yaml must hold a mapping"),
        ("results.csv", "", r"results\.csv, line 1: damaged; correct the line, or move the file away"),
    ],
)
def test_a_damaged_file_of_a_run_is_named_with_its_remedy(finished, name, content, complaint):
    (finished / name).write_text(content)
    with pytest.raises(UserError, match=complaint):
        here("--resume", str(finished), "--epochs", "2")


@pytest.mark.parametrize(
    "change",
    [
        lambda checkpoint: checkpoint.update(epoch="x"),
        lambda checkpoint: checkpoint.update(resume=[1]),
        lambda checkpoint: checkpoint.update(optimizer=[1]),
        lambda checkpoint: checkpoint.update(model=None, ema=None),
        lambda checkpoint: checkpoint["resume"]["progress"].update(epoch="x"),
        lambda checkpoint: checkpoint["resume"]["progress"].update(per_class_ap=3),
        lambda checkpoint: checkpoint["resume"].update(model={"weight": 1}),
        lambda checkpoint: checkpoint["resume"].update(random={"python": 3}),
        lambda checkpoint: checkpoint["resume"].update(version={}),
    ],
)
def test_entries_of_other_kinds_than_a_checkpoints_are_an_error_of_one_line(finished, change):
    (finished / "weights" / "last.pt").unlink()
    path = (finished / "weights" / "epoch_000.pt").rename(finished / "weights" / "last.pt")
    checkpoint = load_checkpoint(path)
    change(checkpoint)
    save_checkpoint(checkpoint, path)
    with pytest.raises(UserError, match=r"last\.pt") as caught:
        here("--resume", str(finished), "--epochs", "2")
    assert len(one_line(caught.value)) < 500


def test_files_of_a_run_are_written_in_one_step(finished, monkeypatch):
    """A kill before the rename leaves what was there."""
    names = ("opt.yaml", "hyp.yaml", "results.txt", "results.csv")
    before = {name: (finished / name).read_text() for name in names}
    monkeypatch.setattr("yolov7fast.core.files.atomic.os.replace", kill)
    with pytest.raises(Killed):
        here("--resume", str(finished), "--epochs", "2")
    assert {name: (finished / name).read_text() for name in names} == before


def test_a_run_file_given_with_resume_counts(finished, tmp_path):
    """And opt.yaml says what the run began with, however often it is resumed."""
    before = yaml.safe_load((finished / "opt.yaml").read_text())
    more = tmp_path / "more.yaml"
    more.write_text("epochs: 2\nbatch_size: 4\n")
    assert here("--resume", str(finished), "--config", str(more), "--hyp", before["hyp"]) == 0
    assert rows(finished) == 2
    after = yaml.safe_load((finished / "opt.yaml").read_text())
    assert [after[name] for name in ("weights", "cfg", "hyp")] == [before[name] for name in ("weights", "cfg", "hyp")]
    more.write_text("epochs: 3\nbatch_size: 8\n")
    with pytest.raises(UserError, match=r"--batch-size of the run file .*more\.yaml cannot change .*run has 4\)"):
        here("--resume", str(finished), "--config", str(more))


# --- stages of size ---------------------------------------------------------------------------------------------------


def test_stages_keep_the_batch_of_the_one_before_and_must_be_divided_by_the_processes():
    def planned(schedule: str, processes: int = 2):
        config = YoloTrainConfig(img_size=[64], resize_schedule=schedule, batch_size=4)
        return plan_sizes(config, grid=32, processes=processes)[0]

    stages = planned("1:60,2:96:8,3:128")
    assert [tuple(stage) for stage in stages] == [(0, 64, 4), (1, 96, 8), (2, 128, 8)]
    assert [stage_of(stages, epoch).size for epoch in (0, 1, 2, 49)] == [64, 96, 128, 128]  # what a run comes to
    assert [tuple(stage) for stage in planned("", 1)] == [(0, 64, 4)]
    with pytest.raises(UserError, match=r"--resize-schedule: the batch 3 of epoch 2 must be a multiple .*, 2"):
        planned("1:64,2:96:3")


def test_the_size_of_validation_is_that_of_the_run_after_a_resume_too(tmp_path, shapes_small, capsys):
    arguments = small_run(tmp_path, shapes_small, "--epochs", "2", "--seed", "5", "--max-iter", "2", "--notest")
    at = arguments.index("--img")
    del arguments[at : at + 2]
    assert here(*arguments, "--resize-schedule", "1:64,2:96") == 0
    assert "Image sizes 64 train, 96 test" in capsys.readouterr().out
    assert here("--resume", str(tmp_path / "runs" / "run"), "--max-iter", "0") == 0
    assert "Image sizes 64 train, 96 test" in capsys.readouterr().out


def test_inside_a_later_stage_images_losses_and_decay_are_taken_up_exactly(tmp_path, shapes_small, monkeypatch):
    """Indices drawn by weight, the batch's accumulation and weight decay: all belong to the stage."""
    flags = ["--epochs", "2", "--seed", "5", "--image-weights", "--resize-schedule", "1:64:8,2:96:4", "--notest"]
    seen = []
    original = YoloFamily.start_epoch

    def noted(self, epoch, batch_index, per_class_ap):
        original(self, epoch, batch_index, per_class_ap)
        groups = self.optimizer.param_groups
        seen.append((self.schedule.total_batch, groups[1]["weight_decay"], self.model.hyp["weight_decay"]))

    monkeypatch.setattr(YoloFamily, "start_epoch", noted)
    for name in "ab":
        (tmp_path / name).mkdir()
    assert here(*small_run(tmp_path / "a", shapes_small, *flags)) == 0
    whole = list(seen)
    assert [batch for batch, *_ in whole] == [8, 4]
    assert all(decay == stored for _, decay, stored in whole)

    def stopping(self, batch, number, names):
        if number == 3:  # two batches of the first stage, two of the second
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Reporter, "draw_batch", stopping)
        assert here(*small_run(tmp_path / "b", shapes_small, *flags)) == 143
    assert here("--resume", str(tmp_path / "b" / "runs" / "run")) == 0
    assert seen[-1] == whole[-1]
    assert_same_weights(*(tmp_path / name / "runs/run/weights/epoch_001.pt" for name in "ab"))


# --- what changes in a run's folder -----------------------------------------------------------------------------------


def test_edited_hyper_parameters_are_used_and_named(tmp_path, shapes_small, caplog):
    command = small_run(tmp_path, shapes_small, "--epochs", "3", "--seed", "5", "--notest", "--max-iter", "1")
    assert here(*command) == 0
    run = tmp_path / "runs" / "run"
    assert here("--resume", str(run), "--max-iter", "2") == 0
    assert "was edited" not in caplog.text
    hyp = yaml.safe_load((run / "hyp.yaml").read_text())
    before = {name: hyp[name] for name in ("weight_decay", "mixup")}
    (run / "hyp.yaml").write_text(yaml.safe_dump(hyp | {"weight_decay": 0.25, "mixup": 0.5}))
    assert here("--resume", str(run), "--max-iter", "3") == 0
    for name, value in (("weight_decay", 0.25), ("mixup", 0.5)):
        assert f"{name} {before[name]} -> {value}" in caplog.text
    assert f"{run / 'hyp.yaml'} was edited after this checkpoint" in caplog.text and "lr0" not in caplog.text
    checkpoint = load_checkpoint(run / "weights" / "epoch_002.pt")
    decays = [group["weight_decay"] for group in checkpoint["optimizer"]["param_groups"]]
    assert max(decays) == pytest.approx(0.25, rel=0.1) and checkpoint["resume"]["recipe"]["hyp"]["mixup"] == 0.5


def test_a_folder_that_is_removed_while_its_run_trains_is_made_again(
    tmp_path, shapes_small, monkeypatch, capsys, caplog
):
    run, to_device, steps = tmp_path / "runs" / "run", YoloFamily.to_device, []

    def removed(self, batch, device):
        steps.append(batch)
        if len(steps) == 6:
            run.rename(tmp_path / "removed")  # first: threads that draw write into the folder
            shutil.rmtree(tmp_path / "removed")
        return to_device(self, batch, device)

    monkeypatch.setattr(YoloFamily, "to_device", removed)
    assert here(*small_run(tmp_path, shapes_small, "--epochs", "3", "--seed", "5")) == 0
    assert f"{run / 'weights'} was removed: it is created again" in caplog.text
    assert rows(run) == 3 and len((run / "results.csv").read_text().splitlines()) == 4
    assert {"opt.yaml", "hyp.yaml", "train.log", "results.png"} <= {path.name for path in run.iterdir()}
    assert any(path.stat().st_size for path in run.glob("events.out.tfevents.*"))
    assert "3 epochs completed" in (run / "train.log").read_text()
    assert "Traceback" not in capsys.readouterr().err
    assert here("--resume", str(run), "--epochs", "4") == 0 and rows(run) == 4
