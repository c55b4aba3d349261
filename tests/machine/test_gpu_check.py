"""The checks: each kind of fault is found and named with its remedy. GPUs and readings of the machine are simulated."""

import os
import shutil
import signal
import warnings
from collections import namedtuple

import pytest
import torch

from yolov7fast.checkpoint.checkpoint_reader import save_checkpoint
from yolov7fast.core.torch_build import Gpu
from yolov7fast.losses.yolo_loss import YoloLoss
from yolov7fast.machine import gpu_check
from yolov7fast.machine.gpu_check import FAILED, PASSED, SKIPPED
from yolov7fast.training.yolo_family import YoloFamily

Usage = namedtuple("Usage", "total used free")
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """A healthy machine with an RTX 5090, whose readings a test may change."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "RTX 5090")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (31_000_000_000, 32_000_000_000))
    monkeypatch.setattr(torch, "ones", lambda *shape, device: torch.full(shape, 1.0))
    monkeypatch.setattr(gpu_check, "nvidia_gpus", lambda: [Gpu("RTX 5090", "575.51")])
    monkeypatch.setattr(gpu_check, "cpu_quota", lambda: None)
    monkeypatch.setattr(gpu_check, "available_ram", lambda: 60e9)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(16))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(200e9, 100e9, 100e9))
    return monkeypatch


def environment(device=CUDA) -> dict:
    return {line.name: line for line in gpu_check.check_environment(device, None)}


def test_a_healthy_machine_passes(gpu):
    found = environment()
    assert {name for name, line in found.items() if line.status != PASSED} == set()
    assert set(found) == {"GPU", "RAM", "disk", "/dev/shm", "GPU memory", "cores"} and "575.51" in found["GPU"].text


def no_kernel(*shape, device):
    raise RuntimeError("CUDA error: no kernel image is available for execution on the device")


UNFIT = {
    "a build without the card's code": (lambda m: m.setattr(torch, "ones", no_kernel), "GPU", "no kernel", "cu128"),
    "a GPU in use": (
        lambda m: m.setattr(torch.cuda, "mem_get_info", lambda device: (1_500_000_000, 32_000_000_000)),
        *("GPU memory", "1.50 GB free", "nvidia-smi"),
    ),
    "a container's small /dev/shm": (
        lambda m: m.setattr(shutil, "disk_usage", lambda path: Usage(2e11, 1e11, 64e6 if path == "/dev/shm" else 1e11)),
        *("/dev/shm", "0.06 GB free", "--shm-size 8g"),
    ),
    "cores that may not be used": (
        lambda m: m.setattr(gpu_check, "cpu_quota", lambda: 6.0),
        *("cores", "16 visible, 6 usable", "--workers 6 --fast-dataloader and OMP_NUM_THREADS=6"),
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_is_wrong_is_named_with_its_remedy(name, gpu):
    plant, line, says, remedy = UNFIT[name]
    plant(gpu)
    found = environment()[line]
    assert found.status == FAILED and says in found.text and remedy in found.remedy


def test_a_card_that_torch_does_not_reach_fails_with_the_message_of_train_py(monkeypatch):
    monkeypatch.setattr(gpu_check, "unused_gpu", lambda: ("nvidia-smi lists it", "pip install"))
    assert gpu_check.gpu_line(CPU) == ("GPU", FAILED, "nvidia-smi lists it", "pip install")


def test_without_a_gpu_its_lines_are_skipped(monkeypatch):
    monkeypatch.setattr(gpu_check, "unused_gpu", lambda: None)
    assert environment(CPU)["GPU"].status == SKIPPED and "GPU memory" not in environment(CPU)
    assert [line.status for line in gpu_check.check_host_syncs(CPU, None)] == [SKIPPED]


# --- host syncs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def watched_cuda(monkeypatch, small_cfg):
    """CUDA's sync debug mode is simulated; the step runs on the CPU. Gives the modes that were set."""
    modes = []
    real = gpu_check.step_on_random_batch
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(gpu_check, "WATCHED", ((small_cfg, 64, ("plain", "ota")),))
    monkeypatch.setattr(gpu_check, "narrow_cfg", lambda cfg, width, folder: cfg)
    monkeypatch.setattr(gpu_check, "step_on_random_batch", lambda device, *rest: real(CPU, *rest))
    return modes


def test_a_reported_sync_is_named_with_its_source_line(watched_cuda, tmp_path, monkeypatch):
    lines = list(gpu_check.check_host_syncs(CUDA, tmp_path))
    assert [line.status for line in lines] == [PASSED, PASSED] and lines[0].text == "0 host syncs"
    assert watched_cuda == ["warn", 0] * 2  # set back
    terms = YoloLoss.terms

    def warns_as_cuda(self, *args):
        warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        return terms(self, *args)

    monkeypatch.setattr(YoloLoss, "terms", warns_as_cuda)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's filters do not hide it
        lines = list(gpu_check.check_host_syncs(CUDA, tmp_path))
    assert [line.status for line in lines] == [FAILED, FAILED]
    assert "1 host syncs: test_gpu_check.py:" in lines[0].text


# --- correctness ------------------------------------------------------------------------------------------------------


def test_every_precision_is_compared_and_a_nan_under_fp16_is_found(small_cfg, tmp_path, monkeypatch):
    forward_loss = YoloFamily.forward_loss

    def nan_in_half(self, *args):
        loss, items = forward_loss(self, *args)
        half = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.float16
        return loss * (torch.nan if half and self.assigner == "ota" else 1), items

    monkeypatch.setattr(gpu_check, "narrow_cfg", lambda cfg, width, folder: small_cfg)
    monkeypatch.setattr(YoloFamily, "forward_loss", nan_in_half)
    lines = list(gpu_check.check_correctness(CPU, tmp_path))
    assert [line.name for line in lines if line.status != PASSED] == ["step, ota, --amp fp16"] and len(lines) == 6


# --- resume -----------------------------------------------------------------------------------------------------------


def write_state(path, momentum: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"model": {"w": torch.ones(2)}, "ema": {"w": torch.ones(2)}, "progress": {"global_step": 3}}
    optimizer = {"state": {0: {"momentum_buffer": torch.full((2,), momentum)}}, "param_groups": []}
    save_checkpoint({"resume": state, "optimizer": optimizer, "model": {"w": torch.ones(2)}}, path)


@pytest.mark.parametrize(("momentum", "status"), [(0.5, PASSED), (0.0, FAILED)])
def test_a_resume_that_forgets_the_momentum_is_found(momentum, status, tmp_path, monkeypatch):
    """The runs are simulated: the checkpoints that they leave are compared."""

    def run_training(words, log, kill_at=None):
        run = "killed" if "--resume" in words or kill_at else "whole"
        write_state(tmp_path / run / "run/weights/epoch_001.pt", momentum if run == "killed" else 0.5)
        return -signal.SIGKILL if kill_at else 0

    monkeypatch.setattr(gpu_check, "run_training", run_training)
    (line,) = gpu_check.check_resume(CPU, tmp_path)
    assert line.status == status and ("0 of 3" if status == PASSED else "1 of 3") in line.text


@pytest.mark.slow
def test_a_real_run_is_killed_within_an_epoch_and_resumes_bit_for_bit(tmp_path):
    """Three real processes, as the command starts them."""
    (line,) = gpu_check.check_resume(CPU, tmp_path)
    assert line.status == PASSED, line
