"""The tutorial with a DETR: smoke, overfit, resume, trials. What must be a process of its own is one (slow imports)."""

import csv
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from tests.mission.commands import OVERFIT
from tests.training.commands import ROOT, assert_same_weights, train
from tests.training.families.detr_commands import needs_transformers, run_file
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint, save_checkpoint
from yolov7fast.cli.checks import check_test
from yolov7fast.cli.commands.detect import detect
from yolov7fast.cli.commands.test import run as measure
from yolov7fast.cli.commands.train import run as run_training
from yolov7fast.cli.parser import parse_inference, parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.data.shapes import NAMES
from yolov7fast.evaluation.eval_result import MAP

pytestmark = needs_transformers
FATAL = "tests/training/families/fatal_detr.py"


def start(*arguments: str) -> int:
    """tools/train_detr.py in this process; its exit code."""
    return run_training(parser_for("train", "detr").parse_args(arguments), "detr")


@pytest.fixture(scope="module", params=["detr", "rtdetr_v2"])
def finished(request, tmp_path_factory, shapes_small) -> tuple[Path, str]:
    """A run of 2 epochs of 4 batches that nothing disturbs, and its architecture."""
    folder = tmp_path_factory.mktemp(request.param)
    assert start("--config", run_file(folder, shapes_small, request.param)) == 0
    return folder / "runs" / "run", request.param


def test_a_run_writes_what_every_run_writes(finished):
    run, _ = finished
    names = {"last.pth", "best.pth", "checkpoint_epoch_1.pth", "checkpoint_epoch_2.pth"}
    assert {path.name for path in run.glob("*.pth")} == names and not (run / "weights").exists()
    for name in ("results.txt", "results.png", "opt.yaml", "PR_curve.png", "test_batch0_pred.jpg", "train_batch0.jpg"):
        assert (run / name).is_file(), name
    assert list(run.glob("events.out.tfevents*"))
    page = (run / "index.html").read_text()
    assert "Loss: giou" in page and 'id="confusion"' in page and "2 of 2 epochs" in page
    rows = list(csv.DictReader((run / "results.csv").open()))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert float(rows[1]["peak_memory_gb"]) > 0 and 0 <= float(rows[1]["metrics/AP_small"]) <= 1
    parts = [float(rows[1][f"train/{name}"]) for name in ("box", "giou", "cls")]
    assert sum(parts) == pytest.approx(float(rows[1]["train/total"]), rel=1e-3)
    losses = json.loads((run / "metrics.json").read_text())["losses"]
    assert list(losses) == ["box", "giou", "cls"]
    assert losses["giou"] == pytest.approx(float(rows[1]["val/giou"]), rel=1e-4)


def test_a_killed_run_ends_with_the_same_weights(finished, tmp_path, shapes_small):
    """Killed in the middle of the second epoch, after a checkpoint there, and resumed: bit for bit the same."""
    run, architecture = finished
    config = run_file(tmp_path, shapes_small, architecture)
    killed = train("--config", config, "--save-every", "0.00001", script=FATAL, FATAL="step 7")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = tmp_path / "runs" / "run"
    progress = load_checkpoint(again / "last.pth")["resume"]["progress"]
    assert (progress["epoch"], progress["batch_index"]) == (1, 2)
    assert start("--resume", str(again)) == 0
    assert_same_weights(run / "checkpoint_epoch_2.pth", again / "checkpoint_epoch_2.pth")
    assert (again / "results.txt").read_text() == (run / "results.txt").read_text()


def test_a_finished_run_keeps_its_state_in_the_files_of_epochs_alone(finished):
    """best.pth and last.pth are for inference: weights in full precision, no optimizer."""
    run, _ = finished
    whole = load_checkpoint(run / "checkpoint_epoch_2.pth")
    assert whole["optimizer"]["state"] and whole["resume"]["progress"]["global_step"] == 8
    for name in ("best.pth", "last.pth"):
        stripped = load_checkpoint(run / name)
        assert stripped["epoch"] == -1 and "resume" not in stripped
        assert all(stripped[key] is None for key in ("ema", "optimizer", "scheduler"))
        assert (run / name).stat().st_size < (run / "checkpoint_epoch_2.pth").stat().st_size / 3
    averaged = whole["ema"]
    assert all(torch.equal(averaged[key], value) for key, value in load_checkpoint(run / "last.pth")["model"].items())
    for path in run.glob("*.pth"):
        assert torch.load(path, weights_only=True)["names"] == list(NAMES)  # plain values alone
    begun = load_checkpoint(run / "checkpoint_epoch_1.pth")["scheduler"]
    assert (begun["kind"], begun["global_step"], begun["epoch"]) == ("step", 4, 1)
    assert begun["last_lr"] == pytest.approx([1e-3, 1e-3])  # of the next iteration: the drop comes after it
    assert whole["scheduler"]["last_lr"] == pytest.approx([1e-4, 1e-4])


def test_a_run_is_resumed_from_the_file_of_an_epoch_also_as_its_run_file_says(finished, tmp_path, shapes_small, capsys):
    """The finished run again from its first epoch on: DETR's by the flag, RT-DETR's by `training.resume`."""
    run, architecture = finished
    again = Path(shutil.copytree(run, tmp_path / "runs" / "run"))
    options = yaml.safe_load((again / "opt.yaml").read_text()) | {"save_dir": str(again)}
    (again / "opt.yaml").write_text(yaml.safe_dump(options))
    checkpoint = str(again / "checkpoint_epoch_1.pth")
    in_file = {} if architecture == "detr" else {"resume": checkpoint}
    config = run_file(tmp_path, shapes_small, architecture, **in_file)
    (again / "checkpoint_epoch_2.pth").unlink()
    assert start("--config", config, *([] if in_file else ["--resume", checkpoint])) == 0
    assert f"Resuming {checkpoint} after 1 epoch\n" in capsys.readouterr().out
    assert_same_weights(run / "checkpoint_epoch_2.pth", again / "checkpoint_epoch_2.pth")
    assert (again / "results.txt").read_text() == (run / "results.txt").read_text()


def test_a_finished_run_trains_on_with_more_epochs(finished, tmp_path):
    """Its last.pth is stripped: the state comes from the file of its last epoch."""
    run, _ = finished
    again = tmp_path / "run"
    shutil.copytree(run, again)
    assert start("--resume", str(again / "last.pth"), "--epochs", "3") == 0
    assert len((again / "results.txt").read_text().splitlines()) == 3
    assert (again / "checkpoint_epoch_3.pth").is_file() and load_checkpoint(again / "last.pth")["epoch"] == -1
    for path in again.glob("checkpoint_epoch_*.pth"):
        path.unlink()
    with pytest.raises(UserError, match=r"stripped .* no checkpoint_epoch_\*\.pth is in its folder; start a new run"):
        start("--resume", str(again), "--epochs", "4")


def test_a_checkpoint_is_measured_and_detects(finished, tmp_path, shapes_small):
    run, _ = finished
    weights = str(run / "best.pth")
    common = ["--weights", weights, "--device", "cpu", "--project", str(tmp_path)]
    data = ["--data", str(shapes_small / "shapes.yaml"), "--workers", "0"]
    opt = parse_inference("test", [*common, *data])
    assert opt.img_size == 0  # the trained size
    check_test(opt)
    result = measure(opt)
    figures = json.loads((tmp_path / "exp" / "metrics.json").read_text())
    assert figures["images"] == result.seen == 8 and "small" in figures["sizes"]
    last = (run / "results.txt").read_text().splitlines()[-1].split()
    assert result.metrics[MAP] == pytest.approx(float(last[11]), abs=1e-4)  # as validation found it
    images = ["--source", str(shapes_small / "images" / "val"), "--conf-thres", "0.01", "--name", "seen"]
    assert detect(parse_inference("detect", [*common, *images])).images == 8
    assert len(list((tmp_path / "seen").glob("*.jpg"))) == 8
    assert set(figures["losses"]) == set() and figures["settings"]["precision"] == "float32"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--resume", "nowhere"], "no such file or run folder"),
        (["--resume", "RUN"], "nothing to do"),
        (["--resume", "RUN", "--lr", "1"], "--lr cannot change"),
        (["--pretrained", "nowhere/at/all"], "nowhere/at/all"),
        (["--network", "{num_querys: 3}"], "did you mean 'num_queries'"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    finished, tmp_path, shapes_small, monkeypatch, arguments, complaint
):
    run, _ = finished
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    arguments = [str(run) if argument == "RUN" else argument for argument in arguments]
    base = [] if "--resume" in arguments else ["--config", run_file(tmp_path, shapes_small)]
    with pytest.raises(UserError, match=complaint):
        start(*base, *arguments)
    assert not (tmp_path / "runs").exists()


MEMORISED = [  # command, mAP@.5 on its own images
    (OVERFIT[0], 0.5),
    ("python tools/train_detr.py --config configs/rtdetr_overfit.yaml", 0.5),
    ("python train.py --config configs/overfit.yaml", 0.5),
    (
        "python train.py --data data/shapes.yaml --img 160 --cfg cfg/training/yolov7-tiny.yaml --subset-size 10 "
        "--overfit",
        0.5,
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("command", "least"), MEMORISED)
def test_ten_images_are_memorised(tmp_path, command, least):
    """The verdict is the exit code."""
    words = [sys.executable, *shlex.split(command)[1:], "--project", str(tmp_path), "--device", "cpu"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-500:]
    map50 = float(re.search(r"overfit: loss .* \(fell\), mAP@\.5 (\S+) on its own images", done.stdout)[1])
    assert map50 >= least


def test_each_command_names_the_one_that_a_checkpoint_belongs_to(finished, tmp_path):
    run, _ = finished
    path = str(run / "last.pth")
    with pytest.raises(UserError, match=r"of the detr family; resume with: python tools/train_detr\.py --resume"):
        run_training(parser_for("train").parse_args(["--resume", path]))
    save_checkpoint({"model": torch.nn.Identity(), "epoch": 0}, tmp_path / "last.pt")
    with pytest.raises(UserError, match=r"of the yolo family; resume with: python train\.py --resume"):
        start("--resume", str(tmp_path / "last.pt"))


def test_weights_of_which_nothing_fits_are_refused(tmp_path, shapes_small):
    save_checkpoint({"model": {"model.0.conv.weight": torch.zeros(2, 3, 1, 1)}}, tmp_path / "yolo.pt")
    with pytest.raises(UserError, match=r"nothing in .*yolo\.pt fits this network"):
        start("--config", run_file(tmp_path, shapes_small), "--weights", str(tmp_path / "yolo.pt"))
    assert not (tmp_path / "runs").exists()
