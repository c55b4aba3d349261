"""What a run reports: TensorBoard's tags, the bottleneck, a GPU that is too small."""

import csv
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.training.fake_family import FakeFamily
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.training import train as training_run
from yolov7fast.training.config import TrainConfig
from yolov7fast.training.distributed import World
from yolov7fast.training.family import summary_columns
from yolov7fast.training.logging import bottleneck
from yolov7fast.training.logging.reporter import EpochRow, Reporter, TensorBoardLogger

COLUMNS = summary_columns(("box", "obj", "cls", "total"))
PER_EPOCH = (
    *("train/box_loss", "train/obj_loss", "train/cls_loss"),
    *("metrics/precision", "metrics/recall", "metrics/mAP_0.5", "metrics/mAP_0.5:0.95"),
    *("val/box_loss", "val/obj_loss", "val/cls_loss", "x/lr0", "x/lr1", "x/lr2"),
)


def epoch_row(**changes) -> EpochRow:
    row = {
        **{"epoch": 0, "epochs": 2, "memory_gb": 0.0, "means": [0.1, 0.2, 0.3, 0.6], "labels": 9, "img_size": 64},
        **{
            "metrics": dict(zip(COLUMNS, [0.5, 0.6, 0.7, 0.4, 0.01, 0.02, 0.03])),
            "lrs": (0.11, 0.12, 0.13),
            "validated": True,
        },
        **{"seconds": 10.0, "train_seconds": 8.0, "val_seconds": 2.0, "iterations": 4, "data_wait_fraction": 0.0},
    }
    return EpochRow(**(row | changes))


def test_tensorboard_has_upstreams_tags(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    logger.begin(SimpleNamespace(dataset=SimpleNamespace(labels=[np.array([[0.0]]), np.array([[1.0], [1.0]])])))
    reporter = Reporter(tmp_path, ("box", "obj", "cls", "total"))
    reporter.loggers = [logger]
    for epoch in range(2):
        reporter.epoch_done(epoch_row(epoch=epoch))
    reporter.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(events.Tags()["scalars"]) == sorted(PER_EPOCH)
    assert [event.step for event in events.Scalars("x/lr0")] == [0, 1]
    written = [events.Scalars(tag)[0].value for tag in PER_EPOCH]
    assert written == pytest.approx([0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.4, 0.01, 0.02, 0.03, 0.11, 0.12, 0.13])
    (histogram,) = events.Histograms("classes")
    assert histogram.histogram_value.num == 3


# --- the bottleneck ---------------------------------------------------------------------------------------------------

STEP = {"data": [9.0], "forward": [0.2, 0.3, 0.2], "loss": [0.1], "backward": [0.1], "optimizer": [0.0]}


def test_an_epochs_time_is_split_by_stage():
    parts = bottleneck.time_fractions(STEP, epoch_row(data_wait_fraction=0.25))
    # 2 of 10 s are waits for data; of the 6 s left the loss has a quarter, as in a step; validation has 2
    assert parts == pytest.approx({"data": 0.2, "loss": 0.15, "network": 0.45, "validation": 0.2})
    assert bottleneck.time_fractions({}, epoch_row(train_seconds=0.0, val_seconds=0.0)) == dict.fromkeys(parts, 0.0)


@pytest.mark.parametrize(
    "parts, name",
    [
        ({"data": 0.2, "loss": 0.2, "network": 0.4, "validation": 0.2}, "network"),
        ({"data": 0.3, "loss": 0.1, "network": 0.6, "validation": 0.0}, "network"),
        ({"data": 0.3, "loss": 0.0, "network": 0.3, "validation": 0.4}, "validation"),
        ({"data": 0.0, "loss": 0.8, "network": 0.2, "validation": 0.0}, "loss"),
    ],
)
def test_the_bottleneck_is_what_takes_most_of_the_time(parts, name):
    assert bottleneck.find_bottleneck(parts) == name


def test_the_bottleneck_is_one_line_with_the_flag_to_try(capsys):
    row = epoch_row(data_wait_fraction=0.9)
    bottleneck.report(STEP, row, torch.device("cpu"), {})
    bottleneck.report(STEP, row, torch.device("cpu"), {"data": bottleneck.Advice("a slow disk")})
    usual, of_the_family = capsys.readouterr().out.splitlines()
    assert usual.startswith("first epoch on cpu: data 72%, loss 2%, network 6%, validation 20%. Bottleneck: ")
    assert "--fast-dataloader" in usual and of_the_family.endswith("Bottleneck: a slow disk")


def test_what_else_could_be_avoided_is_named_as_such():
    parts = {"data": 0.01, "loss": 0.01, "network": 0.69, "validation": 0.29}
    text = bottleneck.advice_text(parts, {})
    assert text.startswith("the network (the usual case); try USE_COMPILE=1, ")
    assert text.endswith(". Validation takes 29%; try --eval-interval 5 or a larger --test-batch-size")


def test_nothing_is_recommended_that_is_in_use(monkeypatch):
    def recommended(*flags: str) -> str:
        opt = parser_for("train").parse_args(["--workers", "0", *flags])
        in_use = bottleneck.options_in_use(opt, torch.device("cpu"))
        parts = {"data": 0.3, "loss": 0.0, "network": 0.4, "validation": 0.3}
        return bottleneck.advice_text(parts, {}, in_use)

    assert all(word in recommended() for word in ("USE_COMPILE=1", "--amp bf16", "--eval-interval 5", "more --workers"))
    assert "USE_COMPILE" not in recommended("--compile") and "--amp" not in recommended("--amp", "bf16")
    assert "--eval-interval" not in recommended("--notest") + recommended("--epochs", "1")
    assert "--cache-images" not in recommended("--cache-images", "ram")
    assert "--workers" not in recommended("--workers", "999")
    monkeypatch.setenv("USE_COMPILE", "1")
    assert "USE_COMPILE" not in recommended() and "--channels-last" in recommended()


# --- what ends a run before it begins ---------------------------------------------------------------------------------


def train_fake(folder, family: FakeFamily, **flags) -> None:
    """Train a family that is built already, without files."""

    class Built:
        name = "scalar"
        find_files = staticmethod(lambda config: config)
        build_network = staticmethod(lambda *_: family.model)

        def __new__(cls, *_) -> FakeFamily:
            return family

    config = TrainConfig(**{"data": "my.yaml", "project": str(folder), "name": "run", "epochs": 1, **flags})
    training_run.train(replace(config, keep_files=False), Built, World())


def test_no_memory_left_is_reported_with_the_flags_that_help(tmp_path, monkeypatch):
    def too_large(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore of it")

    family, closed = FakeFamily(tmp_path), []
    family.dataset = SimpleNamespace(labels=[torch.zeros(1, 5)])
    monkeypatch.setattr(family, "forward_loss", too_large)
    monkeypatch.setattr(family, "close", lambda: closed.append(True))
    monkeypatch.setattr(training_run, "load_run_data", lambda *_: None)
    monkeypatch.setattr(training_run.messages, "print_header", lambda *_, **__: None)
    with pytest.raises(UserError, match=r"no memory left .*2\.00 GiB\.\): lower --batch-size or --img-size"):
        train_fake(tmp_path, family)
    assert closed


@pytest.mark.parametrize(("subset", "remedy"), [(0, "label some"), (2, "--subset-seed")])
def test_images_without_any_box_are_refused_before_a_folder_is_made(tmp_path, monkeypatch, subset, remedy):
    monkeypatch.setattr(training_run, "load_run_data", lambda *_: None)
    family = FakeFamily(tmp_path)
    family.dataset = SimpleNamespace(labels=[torch.zeros(0, 5)] * 3)
    with pytest.raises(UserError, match=rf"none of the 3 training images of my\.yaml has a box: .*{remedy}"):
        train_fake(tmp_path, family, subset_size=subset)
    assert not (tmp_path / "run").exists()


# --- epochs without a validation --------------------------------------------------------------------------------------


class Scalars:
    """A logger that keeps what it is given."""

    def __init__(self):
        self.epochs = {}

    def epoch(self, scalars, epoch) -> None:
        self.epochs[epoch] = scalars

    def close(self) -> None:
        pass


def test_an_epoch_without_validation_gets_no_points_of_one(tmp_path):
    """Loggers and results.csv leave them out; results.txt repeats the last ones, as upstream does."""
    kept, board = Scalars(), TensorBoardLogger(tmp_path)
    reporter = Reporter(tmp_path, ("box", "obj", "cls", "total"), ["metrics/AP_small"])
    reporter.loggers = [kept, board]
    row = epoch_row(metrics=dict(zip([*COLUMNS, "metrics/AP_small"], [0.5, 0.6, 0.7, 0.4, 0.01, 0.02, 0.03, 0.2])))
    for epoch, validated in enumerate((True, False, True)):
        reporter.epoch_done(row._replace(epoch=epoch, validated=validated))
    reporter.close()
    measured = {tag for tag in PER_EPOCH if tag.startswith(("metrics/", "val/"))} | {"metrics/AP_small"}
    assert set(kept.epochs[0]) - set(kept.epochs[1]) == measured and kept.epochs[0] == kept.epochs[2]
    events = EventAccumulator(str(tmp_path)).Reload()
    assert all([event.step for event in events.Scalars(tag)] == [0, 2] for tag in measured)
    assert [event.step for event in events.Scalars("train/box_loss")] == [0, 1, 2]
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [row["metrics/mAP_0.5"] for row in rows] == ["0.7", "", "0.7"]
    assert [row["metrics/AP_small"] for row in rows] == ["0.2", "", "0.2"]
    lines = [line.split()[8:] for line in (tmp_path / "results.txt").read_text().splitlines()]
    assert lines[0] == lines[1] == lines[2] and len(lines[0]) == 7
