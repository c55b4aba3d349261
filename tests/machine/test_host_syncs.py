"""Faults put in on purpose: each turns its line red, and those in the step are found with their source line."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.diagnostics import plants
from yolov7fast.assign.ota import Ota
from yolov7fast.checkpoint.api import save_checkpoint
from yolov7fast.core import device_copy
from yolov7fast.diagnostics import batches, correctness, host_syncs, resuming
from yolov7fast.diagnostics.results import FAILED, PASSED
from yolov7fast.families.yolo.family import YoloFamily
from yolov7fast.loading.shared_loader import SharedLoader
from yolov7fast.losses.yolo import YoloLoss
from yolov7fast.training.ema import ModelEMA
from yolov7fast.training.step import TrainStep

PLANTS = plants.__file__.split("/tests/")[1]


class Fault(NamedTuple):
    """What is planted where, and what the line says of it."""

    owner: type
    method: str
    plant: Callable
    says: str

    @property
    def place(self) -> str:
        """The line of the plant that is marked."""
        first = self.plant.__code__.co_firstlineno
        lines = Path(plants.__file__).read_text().splitlines()[first - 1 :]
        return f"tests/{PLANTS}:{first + next(n for n, line in enumerate(lines) if '# the fault' in line)}"


IN_THE_STEP = {
    "item in the loss": Fault(YoloLoss, "terms", plants.reads_item, "_local_scalar_dense reads a value"),
    "int of a tensor in the assigner": Fault(Ota, "count", plants.reads_int, "_local_scalar_dense reads a value"),
    "index from the host": Fault(YoloLoss, "positives", plants.takes_host_index, "takes its index from the host"),
    "boolean mask": Fault(YoloLoss, "terms", plants.takes_mask, "looks for the true places of a mask"),
    "nonzero in the EMA": Fault(ModelEMA, "update", plants.looks_for_nonzero, "nonzero reads a value"),
    "Python numbers sent": Fault(YoloLoss, "terms", plants.sends_numbers, "copies to the device and waits"),
    "unpinned copy": Fault(YoloLoss, "terms", plants.copies_pageable, "copies pageable memory"),
    "copy to the host": Fault(TrainStep, "_note_items", plants.copies_back, "copies to the host and waits"),
}


@pytest.mark.parametrize("name", IN_THE_STEP)
def test_a_wait_in_the_step_is_found_with_its_source_line(name, setting, few_layers, monkeypatch):
    fault = IN_THE_STEP[name]
    monkeypatch.setattr(fault.owner, fault.method, fault.plant(getattr(fault.owner, fault.method)))
    (line,) = host_syncs.check_steps(few_layers._replace(losses=("OTA",)), setting)
    assert line.status == FAILED and line.remedy
    assert any(fault.says in place and fault.place in place for place in line.places), (fault.place, line.places)


def test_memory_that_is_not_locked_before_it_is_sent_is_found(setting, few_layers, monkeypatch):
    """As if `send` had forgotten to lock its buffer."""
    monkeypatch.setattr(device_copy, "is_accelerator", lambda device: False)
    (line,) = host_syncs.check_steps(few_layers._replace(losses=("plain",)), setting)
    assert line.status == FAILED
    assert all("core/device_copy.py" in p and "(send)" in p and "pageable" in p for p in line.places)


def test_without_faults_the_step_is_green(setting, few_layers):
    plain, ota = host_syncs.check_steps(few_layers, setting)
    assert (plain.status, ota.status, plain.places, ota.places) == (PASSED, PASSED, (), ())
    assert plain.text.startswith("0 host syncs")


def test_what_cuda_alone_reports_is_found(setting, few_layers, monkeypatch):
    """CUDA's own watcher is played: it warns from inside the loss, as torch does."""
    modes = []
    monkeypatch.setattr(type(setting), "on_gpu", property(lambda self: True))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(YoloLoss, "terms", plants.warns_as_cuda(YoloLoss.terms))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the check must see it all the same
        (line,) = host_syncs.check_steps(few_layers._replace(losses=("plain",)), setting)
    assert line.status == FAILED and "waits, says CUDA" in line.places[0] and PLANTS in line.places[0]
    assert modes == ["warn", 0]  # left as it was


# --- correctness ------------------------------------------------------------------------------------------------------


def only(lines, name: str):
    (line,) = [line for line in lines if name in line.name]
    return line


@pytest.fixture
def quick(few_layers, monkeypatch):
    monkeypatch.setattr(correctness, "AMP_STEPS", 3)
    few = [name for name in correctness.names("plain", "ota", "aux") if "tiny_nc3_b4" in name]
    assert len(few) >= 2
    monkeypatch.setattr(correctness, "names", lambda *kinds: few)


def test_without_faults_every_comparison_is_green(setting, quick):
    def operator(boxes: torch.Tensor, scores: torch.Tensor, iou: float) -> torch.Tensor:
        return torch.from_numpy(correctness.greedy_nms(boxes.numpy(), scores.numpy(), iou, most=len(boxes)))

    lines = [
        correctness.check_recorded_losses(setting),
        *correctness.check_step_against_cpu(setting),
        *correctness.check_amp(setting),
        correctness.check_bad_batch(setting),
        correctness.check_fused_optimizer(setting),
        correctness.check_nms(setting, operator),
    ]
    assert [(line.name, line.text) for line in lines if line.status != PASSED] == []
    assert len(lines) == 9


def test_a_loss_that_is_off_by_a_thousandth_is_found(setting, quick, monkeypatch):
    monkeypatch.setattr(YoloLoss, "class_rows", plants.scaled(YoloLoss.class_rows, 1.001))
    line = correctness.check_recorded_losses(setting)
    assert line.status == FAILED and line.remedy and line.places


def test_a_device_that_rounds_too_much_is_found(setting, quick, monkeypatch):
    """Single precision as TF32 would have it."""
    monkeypatch.setattr(torch.nn.functional, "softplus", plants.rounded(torch.nn.functional.softplus))
    line = only(correctness.check_step_against_cpu(setting), "fp32")
    assert line.status == FAILED and line.figures["loss_error"] > 1e-4


def test_a_nan_under_fp16_is_found_and_bf16_stays_green(setting, quick, monkeypatch):
    monkeypatch.setattr(YoloFamily, "forward_loss", plants.nan_in_half(YoloFamily.forward_loss))
    half, wide = correctness.check_amp(setting)
    assert half.status == FAILED and "3 steps without a finite loss, the first is step 1" in half.text
    assert "--amp bf16" in half.remedy and wide.status == PASSED


def test_a_bad_batch_that_moves_the_weights_is_found(setting, quick, monkeypatch):
    monkeypatch.setattr(TrainStep, "_note_finite", lambda self, loss, global_step: True)
    line = correctness.check_bad_batch(setting)
    assert line.status == FAILED and len(line.places) == 3


def test_an_overflow_that_the_fused_optimizer_does_not_skip_is_found(setting, monkeypatch):
    monkeypatch.setattr(torch.amp.GradScaler, "step", lambda self, optimizer: optimizer.step())
    monkeypatch.setattr(torch.amp.GradScaler, "update", lambda self: None)
    line = correctness.check_fused_optimizer(setting)
    assert line.status == FAILED and "--amp bf16" in line.remedy


def test_a_suppression_that_keeps_too_much_is_found(setting):
    line = correctness.check_nms(setting, lambda boxes, scores, iou: scores.argsort(descending=True, stable=True))
    assert line.status == FAILED and len(line.places) == 3 and "torchvision" in line.remedy


def test_a_torchvision_that_does_not_load_is_red_on_a_gpu_and_left_out_on_a_cpu(setting, monkeypatch):
    monkeypatch.setattr(correctness, "nms_operator", lambda device_type, on_cpu: None)
    assert correctness.check_nms(setting).status == "left out"
    monkeypatch.setattr(type(setting), "on_gpu", property(lambda self: True))
    assert correctness.check_nms(setting).status == FAILED


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def few_batches(monkeypatch):
    monkeypatch.setattr(batches, "BATCHES", 20)


def test_batches_arrive_as_written(setting, few_batches):
    line = batches.check_shared_batches(setting)
    assert line.status == PASSED and line.text.startswith("20 of 20 batches from pageable")


def test_a_stale_slot_is_found(setting, few_batches, monkeypatch):
    """A batch that shows the images of the one before it, beside its own names."""
    monkeypatch.setattr(SharedLoader, "_take", plants.one_slot_late(SharedLoader._take))
    line = batches.check_shared_batches(setting)
    assert line.status == FAILED and line.figures["wrong"] == 19 and "--fast-dataloader" in line.remedy


def test_memory_that_the_system_does_not_lock_is_red_on_a_gpu(setting, few_batches, monkeypatch):
    monkeypatch.setattr(type(setting), "on_gpu", property(lambda self: True))
    line = batches.check_shared_batches(setting)
    assert line.status == FAILED and "refused to lock" in line.text and "memlock" in line.remedy


# --- resume -----------------------------------------------------------------------------------------------------------


def write_state(path, momentum: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"model": {"w": torch.ones(2)}, "ema": {"w": torch.ones(2)}, "progress": {"global_step": 3}}
    optimizer = {"state": {0: {"momentum_buffer": torch.full((2,), momentum)}}, "param_groups": []}
    save_checkpoint({"resume": state, "optimizer": optimizer, "model": {"w": torch.ones(2)}}, path)


@pytest.mark.parametrize(
    ("momentum", "status", "says"), [(0.5, PASSED, "killed after 3 of 12"), (0.0, FAILED, "1 tensors differ")]
)
def test_a_resume_that_forgets_the_momentum_is_found(momentum, status, says, setting, monkeypatch):
    """The processes are played: what a run leaves behind is compared."""

    def run_to_end(words, output):
        resumed = "--resume" in words
        folder = setting.folder / ("killed" if resumed else "undisturbed") / "run/weights"
        write_state(folder / "epoch_001.pt", momentum if resumed else 0.5)
        return 0

    def kill(words, output, last):
        write_state(last, 0.5)
        return True

    monkeypatch.setattr(resuming, "run_to_end", run_to_end)
    monkeypatch.setattr(resuming, "kill_in_mid_epoch", kill)
    line = resuming.check_resume(setting)
    assert line.status == status and says in line.text
    assert line.places == (() if status == PASSED else ("optimizer.0.momentum_buffer",))


def test_a_run_that_fails_shows_its_last_lines(setting, monkeypatch):
    words = [sys.executable, "-c", "print('so it goes'); raise SystemExit(3)"]
    monkeypatch.setattr(resuming, "train_words", lambda *_: words)
    line = resuming.check_resume(setting)
    assert line.status == FAILED and "exit code 3" in line.text and line.places == ("so it goes",)


def test_a_killed_process_is_told_from_one_that_ended(tmp_path):
    ended = [sys.executable, "-c", "pass"]
    assert not resuming.kill_in_mid_epoch(ended, tmp_path / "log", tmp_path / "last.pt")
    hangs = [sys.executable, "-c", f"open({str(tmp_path / 'last.pt')!r}, 'w'); import time; time.sleep(60)"]
    assert resuming.kill_in_mid_epoch(hangs, tmp_path / "log", tmp_path / "last.pt")


def test_checksums_see_exchanged_pixels():
    image = torch.from_numpy(batches.pixels(0, 1))[None]
    turned = image.flip(-1)
    assert batches.checksum(image) != batches.checksum(turned)
    assert int(batches.checksum(image)) == int((image.numpy().ravel().astype(np.int64) * np.arange(1, 12289)).sum())
