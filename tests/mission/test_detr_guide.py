"""The guide for DETR as written: runs in outputs/NAME, resumed by the files it names, overfit, subsets, trials."""

import csv
import re
import sys
from pathlib import Path

import pytest
import torch

from tests.mission import commands
from tests.training.families.detr_commands import needs_transformers
from yolov7fast.cli import checks
from yolov7fast.cli.checks import check_train
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.train_command import config_of
from yolov7fast.core.process import child
from yolov7fast.core.programs import Program
from yolov7fast.core.text import counted
from yolov7fast.training.logging.messages import FELL_TO

STAND_IN = Path(__file__).with_name("stand_in_detr.py")


def rows(run: Path) -> int:
    return len((run / "results.txt").read_text().splitlines())


@pytest.mark.parametrize("text", commands.RUN_FILES)
def test_a_run_file_of_the_guide_is_pasted_as_it_is(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text + "\n")
    opt = parser_for("train", "detr").parse_args(["--config", str(path)])
    check_train(opt, "detr")
    config = config_of(opt, "detr")
    assert (config.overfit, config.subset_size) == ((10, 0) if "overfit: true" in text else (0, opt.subset_size))
    assert opt.amp == ("off" if "amp: false" in text else "auto") and opt.resume is False
    assert opt.resize_schedule == ("1:640,20:800,40:960" if "640" in text else "")
    assert opt.subset_seed == (42 if "42" in text else 0)


@needs_transformers
def test_the_baseline_is_resumed_from_the_files_that_the_guide_names(place, capfd):
    run = place.folder / "outputs" / "baseline_run"
    assert place.run(commands.BASELINE, "--epochs", "10") == 0
    assert {path.name for path in run.glob("*.pth")} == {"best.pth", "last.pth", "checkpoint_epoch_10.pth"}
    content = torch.load(run / "checkpoint_epoch_10.pth", weights_only=True)
    assert {"model", "optimizer", "scheduler", "epoch", "best_fitness"} <= content.keys()
    assert {"scaler", "progress", "random"} <= content["resume"].keys()
    for epochs, command in enumerate(commands.BASELINE_RESUMED, 11):
        assert place.run(command, "--epochs", str(epochs)) == 0
        assert rows(run) == epochs and f"after {epochs - 1} epochs" in capfd.readouterr().out
    in_file = "base: detr_baseline.yaml\ntraining:\n  resume: outputs/baseline_run/checkpoint_epoch_10.pth\n"
    (place.folder / "configs" / "resumed.yaml").write_text(in_file)
    assert place.run(commands.DETR.replace("detr_{}", "resumed"), "--epochs", "11") == 0
    assert rows(run) == 11
    assert not list(run.parent.glob("baseline_run?*"))


@needs_transformers
def test_the_smoke_run_is_resumed_and_memorises_a_subset(place, capfd):
    run = place.folder / "outputs" / "smoke_test"
    assert place.run(commands.SMOKE) == 0
    assert rows(run) == 2 and (run / "checkpoint_epoch_1.pth").is_file()
    assert place.run(commands.SMOKE_RESUMED) == 0
    assert rows(run) == 2 and re.search(r"Resuming \S*checkpoint_epoch_1.pth after 1 epoch\n", capfd.readouterr().out)


@needs_transformers
@pytest.mark.parametrize("command", commands.OVERFIT)
def test_ten_images_are_trained_on_for_as_long_as_it_takes(place, command, capfd, monkeypatch):
    """With fewer iterations; memorising itself is tested in tests/training/families/test_detr_commands.py."""
    monkeypatch.setitem(checks.ITERATIONS, "detr", 6)
    code = place.run(command)
    batches = 3 if "smoke" in command else 1
    epochs = 2 if "smoke" in command else 12  # no fewer than the run file has
    (run,) = (place.folder / "outputs").iterdir()
    assert rows(run) == epochs and [path.name for path in run.glob("checkpoint_*")] == [
        f"checkpoint_epoch_{epochs}.pth"
    ]
    printed = capfd.readouterr().out
    assert f"{epochs} epochs of {counted(batches, 'batch', 'batches')}" in printed
    first, last = (float(number) for number in re.search(r"overfit: loss (\S+) -> (\S+) ", printed).groups())
    assert code == (0 if last <= FELL_TO * first else 1)


@needs_transformers
def test_a_length_on_the_command_line_is_kept(place, capfd):
    """In an epoch ten images are not memorised: the exit code says so."""
    assert place.run(commands.OVERFIT[0], "--epochs", "1") == 1
    printed = capfd.readouterr().out
    assert "1 epoch of 3 batches" in printed and "(did not fall enough), mAP@.5 0." in printed


@needs_transformers
@pytest.mark.parametrize("command", commands.SUBSET)
def test_a_part_of_the_images_is_trained_on(place, command):
    assert place.run(command, "--epochs", "2") == 0
    (run,) = (place.folder / "outputs").iterdir()
    table = list(csv.DictReader((run / "results.csv").open()))
    measured = [bool(row["metrics/mAP_0.5"].strip()) for row in table]
    assert measured == ([False, True] if "eval-interval" in command else [True, True])


def table_of(folder: Path) -> list[list[str]]:
    (path,) = folder.glob("trials_*.csv")
    return list(csv.reader(path.open()))


HEADER = "trial_id,status,final_map,final_loss,param_training.optimizer.lr,param_training.batch_size"


@pytest.mark.parametrize("command", commands.TRIALS)
def test_trials_give_the_table_of_the_guide(place, command, monkeypatch):
    """With a stand-in for the training of each trial."""
    (place.folder / "experiments" / "my_trials.json").write_text(commands.MY_TRIALS)
    monkeypatch.setattr(Program, "child", lambda self: [sys.executable, str(STAND_IN)])
    monkeypatch.setattr(child, "LOOK_SECONDS", 0.05)
    assert place.run(command) == 0
    head, *trials = table_of(place.folder / re.search(r"--output-dir (\S+)", command)[1])
    assert ",".join(head).startswith(f"{HEADER},")
    assert [row[0] for row in trials] == [str(number) for number in range(1, len(trials) + 1)]
    assert {row[1] for row in trials} == {"completed"}
    assert trials[0][4:6] == ["0.0001", "4"]


@needs_transformers
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_trials_keep_weights_alone(place):
    (place.folder / "experiments" / "my_trials.json").write_text(commands.MY_TRIALS)
    command = commands.TRIALS[0].replace("outputs/trials ", "outputs/real ").replace("epochs 5", "epochs 1")
    assert place.run(command.replace("--budget-size 640", "--budget-size 64")) == 0
    folder = place.folder / "outputs" / "real"
    assert [row[1] for row in table_of(folder)[1:]] == ["completed"] * 2
    files = sorted(folder.glob("trial_*/*.pth"))
    assert [path.name for path in files] == ["best.pth"] * 2
    assert all(torch.load(path, weights_only=True)["optimizer"] is None for path in files)
