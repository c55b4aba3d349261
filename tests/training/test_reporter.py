"""What a run tells while it goes on: TensorBoard's tags, the doctor's line, a GPU that is too small."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.training.fake_family import FakeFamily
from yolov7fast.core.errors import UserError
from yolov7fast.training import bottleneck as doctor
from yolov7fast.training import run as launch
from yolov7fast.training.distributed import World
from yolov7fast.training.reporter import EpochRow, Reporter, TensorBoardLogger
from yolov7fast.training.step import Amp
from yolov7fast.training.trainer import TrainSettings

PER_EPOCH = (
    *("train/box_loss", "train/obj_loss", "train/cls_loss"),
    *("metrics/precision", "metrics/recall", "metrics/mAP_0.5", "metrics/mAP_0.5:0.95"),
    *("val/box_loss", "val/obj_loss", "val/cls_loss", "x/lr0", "x/lr1", "x/lr2"),
)


def epoch_row(**changes) -> EpochRow:
    row = {
        **{"epoch": 0, "epochs": 2, "memory_gb": 0.0, "means": [0.1, 0.2, 0.3, 0.6], "labels": 9, "img_size": 64},
        **{"results": [0.5, 0.6, 0.7, 0.4, 0.01, 0.02, 0.03], "lrs": (0.11, 0.12, 0.13), "validated": True},
        **{"seconds": 10.0, "train_seconds": 8.0, "val_seconds": 2.0, "iterations": 4, "data_wait_share": 0.0},
    }
    return EpochRow(**(row | changes))


def test_tensorboard_has_the_reference_tags(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    logger.classes(torch.tensor([0.0, 1.0, 1.0]))
    reporter = Reporter(tmp_path, ("box", "obj", "cls", "total"), [logger])
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


# --- the doctor -------------------------------------------------------------------------------------------------------

STEP = {"data": [9.0], "forward": [0.2, 0.3, 0.2], "loss": [0.1], "backward": [0.1], "optimizer": [0.0]}


def test_the_doctor_shares_out_the_epoch():
    parts = doctor.shares(STEP, epoch_row(data_wait_share=0.25))
    # 2 of 10 s are waits for data; of the 6 s left the loss has a quarter, as in a step; validation has 2
    assert parts == pytest.approx({"data": 0.2, "loss": 0.15, "network": 0.45, "validation": 0.2})
    assert doctor.shares({}, epoch_row(train_seconds=0.0, val_seconds=0.0)) == dict.fromkeys(parts, 0.0)


@pytest.mark.parametrize(
    "parts, bound_by",
    [
        ({"data": 0.2, "loss": 0.2, "network": 0.4, "validation": 0.2}, "network"),
        ({"data": 0.3, "loss": 0.1, "network": 0.6, "validation": 0.0}, "data"),  # less than the network, but avoidable
        ({"data": 0.3, "loss": 0.0, "network": 0.3, "validation": 0.4}, "validation"),
        ({"data": 0.0, "loss": 0.8, "network": 0.2, "validation": 0.0}, "loss"),
    ],
)
def test_the_doctor_names_what_bounds_the_run(parts, bound_by):
    assert doctor.verdict(parts) == bound_by


def test_the_doctor_speaks_one_line_with_the_flag_to_try(capsys):
    row = epoch_row(data_wait_share=0.9)
    doctor.tell(STEP, row, torch.device("cpu"), {})
    doctor.tell(STEP, row, torch.device("cpu"), {"data": "a slow disk"})
    usual, of_the_family = capsys.readouterr().out.splitlines()
    assert usual.startswith("doctor: data 72%, loss 2%, network 6%, validation 20% of the first epoch on cpu. ")
    assert "--fast-dataloader" in usual and of_the_family.endswith("It is bound by a slow disk")


# --- a GPU that is too small ------------------------------------------------------------------------------------------


def test_no_memory_left_is_told_with_the_flags_that_help(tmp_path, monkeypatch):
    def too_large(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore of it")

    family, closed = FakeFamily(tmp_path), []
    family.dataset = SimpleNamespace(labels=[torch.zeros(1, 5)])
    monkeypatch.setattr(family, "forward_loss", too_large)
    monkeypatch.setattr(family, "close", lambda: closed.append(True))
    monkeypatch.setattr(launch, "tell_start", lambda *_: None)
    opt = Namespace(save_dir=str(tmp_path), resume="", total_batch_size=4)
    settings = TrainSettings(epochs=1, amp=Amp(False), keep_files=False)
    with pytest.raises(UserError, match=r"no memory left .*2\.00 GiB\.\): lower --batch-size or --img-size"):
        launch.drive(family, settings, opt, None, torch.device("cpu"), World())
    assert closed


@pytest.mark.parametrize(("subset", "remedy"), [(0, "label some"), (2, "--subset-seed")])
def test_images_without_any_box_are_refused_before_a_folder_is_made(tmp_path, subset, remedy):
    family = FakeFamily(tmp_path)
    family.dataset = SimpleNamespace(labels=[torch.zeros(0, 5)] * 3)
    opt = Namespace(save_dir=str(tmp_path / "run"), data="my.yaml", subset_size=subset)
    with pytest.raises(UserError, match=rf"none of the 3 training images of my\.yaml has a box: .*{remedy}"):
        launch.drive(family, TrainSettings(epochs=1, amp=Amp(False)), opt, None, torch.device("cpu"), World())
    assert not (tmp_path / "run").exists()
