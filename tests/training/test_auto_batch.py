"""`--batch-size auto`: what is chosen, and what running out of memory does."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from tests.conftest import ROOT
from tests.drawing import draw_nothing
from tests.training.commands import assert_same_weights, here, small_run
from yolov7fast.core.errors import UserError
from yolov7fast.training import memory_plan
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.memory_plan import (
    GIB,
    BatchLimits,
    Workload,
    allowed_batches,
    assumed_labels,
    available_ram,
    choose_batch,
)
from yolov7fast.training.yolo_family import YoloFamily

HYP = load_hyp(str(ROOT / "data/hyp.small.yaml"))
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def quick_curves(monkeypatch):
    draw_nothing(monkeypatch)


class EvenWork(Workload):
    """A gigabyte, and a tenth of one for each image."""

    def plan(self, batch):
        return SimpleNamespace(total=GIB + batch * GIB // 10)


def even_work() -> EvenWork:
    return EvenWork("cfg", 3, 64, HYP, assumed_labels())


# --- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nominal", "images", "replicas", "allowed"),
    [
        (64, 1000, 1, [64, 32, 16, 8, 4, 2, 1]),
        (16, 1000, 2, [16, 8, 4, 2]),
        (64, 10, 1, [8, 4, 2, 1]),
        (64, 1000, 48, [48]),
    ],
)
def test_batches_divide_the_nominal_one_and_the_replicas_divide_them(nominal, images, replicas, allowed):
    assert allowed_batches(BatchLimits(nominal, images, replicas)) == allowed


def test_the_largest_that_leaves_a_tenth_free_and_none_is_refused():
    limits = BatchLimits(64, 1000)
    assert [choose_batch(even_work(), int(gigabytes * GIB), limits) for gigabytes in (100, 6, 1.3)] == [64, 32, 1]
    with pytest.raises(UserError, match=r"not even 1 image.* of 64 pixels fit into 1\.00 GB; lower --img-size"):
        choose_batch(even_work(), GIB, limits)


# --- free memory ------------------------------------------------------------------------------------------------------


def test_available_ram_respects_the_limit_of_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_plan.psutil, "virtual_memory", lambda: SimpleNamespace(available=5_000_000))
    assert available_ram(tmp_path) == 5_000_000
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1024000\n")
    assert available_ram(tmp_path) == 5_000_000
    (tmp_path / "memory.max").write_text("2048000\n")
    assert available_ram(tmp_path) == 1_024_000


# --- whole runs -------------------------------------------------------------------------------------------------------


def automatic(folder: Path, shapes: Path, *extra: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    arguments = small_run(folder, shapes, "--epochs", "1", "--seed", "5", *extra)
    at = arguments.index("--batch-size") + 1
    return [*arguments[:at], "auto", *arguments[at + 1 :]]


@pytest.fixture
def memory_for_eight(monkeypatch):
    """A machine whose memory is used up by more than eight images in a step."""
    original = YoloFamily.forward_loss

    def forward_loss(self, net, batch, mark):
        if len(batch[0]) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return original(self, net, batch, mark)

    monkeypatch.setattr(YoloFamily, "forward_loss", forward_loss)


def test_out_of_memory_in_the_first_steps_halves_the_batch_and_the_run_is_that_of_the_smaller_one(
    tmp_path, shapes_small, memory_for_eight, caplog
):
    caplog.set_level(logging.INFO)
    assert here(*automatic(tmp_path / "auto", shapes_small)) == 0
    assert "--batch-size auto: 16 images" in caplog.text
    assert [f"starts again with batch {n}" in caplog.text for n in (8, 4)] == [True, False]
    (tmp_path / "plain").mkdir()
    assert here(*small_run(tmp_path / "plain", shapes_small, "--epochs", "1", "--seed", "5", "--batch-size", "8")) == 0
    auto, plain = (tmp_path / name / "runs" / "run" for name in ("auto", "plain"))
    assert_same_weights(auto / "weights" / "epoch_000.pt", plain / "weights" / "epoch_000.pt")
    assert (auto / "results.txt").read_text() == (plain / "results.txt").read_text()
    stored = yaml.safe_load((auto / "opt.yaml").read_text())
    assert (stored["batch_size"], stored["total_batch_size"]) == (8, 8) and "automatic_batch" not in stored
    assert not [path for path in (tmp_path / "auto" / "runs").iterdir() if path.name != "run"]

    # the same command line resumes with the batch that was found
    assert here(*automatic(tmp_path / "auto", shapes_small, "--resume", "auto", "--epochs", "2")) == 0
    assert yaml.safe_load((auto / "opt.yaml").read_text())["total_batch_size"] == 8
    with pytest.raises(UserError, match=r"--batch-size cannot change when resuming \(the run has 8\)"):
        here(*small_run(tmp_path / "auto", shapes_small, "--resume", "auto", "--epochs", "3"))
