"""Device choice without and with (pretended) GPUs."""

import os

import pytest
import torch

from tests.played_gpu import PlayedGpu
from yolov7fast.core.device import DeviceQueue, select_device
from yolov7fast.core.errors import UserError


@pytest.fixture(autouse=True)
def keep_environment(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def pretend_gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    properties = type("P", (), {"name": "Pretended", "total_memory": 2**30})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: properties)


def test_devices_are_chosen_by_name_or_number(monkeypatch):
    pretend_gpus(monkeypatch, 2)
    assert select_device("").type == "cuda"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert select_device("1,3", batch_size=8) == torch.device("cuda", 0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,3"
    with pytest.raises(UserError, match=r"--batch-size 7 .* 2 GPUs"):
        select_device("0,1", batch_size=7)
    assert select_device("cpu") == torch.device("cpu")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"


def test_an_absent_gpu_is_told(monkeypatch):
    pretend_gpus(monkeypatch, 0)
    with pytest.raises(UserError, match=r"--device 0: .* sees 0 GPUs; try --device cpu"):
        select_device("0")
    with pytest.raises(UserError, match="'gpu' is neither"):
        select_device("gpu")


# --- marks, and results read in a second stream -----------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch) -> PlayedGpu:
    return PlayedGpu(monkeypatch)


def test_a_mark_of_cuda_measures_the_device_and_does_not_wait(gpu):
    queue = DeviceQueue(torch.device("cuda", 0))
    gpu.queue(7)  # of the batch before
    begun = queue.mark()
    gpu.queue(10)
    ended = queue.mark()
    assert gpu.now == 0 and begun.elapsed_time(ended) == 10


def test_reading_beside_waits_for_the_mark_and_not_for_what_follows(gpu):
    queue = DeviceQueue(torch.device("cuda", 0))
    gpu.queue(10)
    mark = queue.mark()
    gpu.queue(100)  # of the next batch
    with queue.beside(mark):
        assert gpu.now == 10 and gpu.current is queue.side and queue.side.priority < 0
        gpu.queue(2)
        gpu.read()
        assert gpu.now == 12
    assert gpu.current is gpu.main and gpu.now == 12


@pytest.mark.parametrize("error", [None, ValueError], ids=["left", "left by an error"])
def test_what_was_begun_beside_is_done_when_the_block_is_left(gpu, error):
    queue = DeviceQueue(torch.device("cuda", 0))
    try:
        with queue.beside(queue.mark()):
            gpu.queue(5)
            if error:
                raise error
    except ValueError:
        pass
    assert gpu.now == 5 and gpu.current is gpu.main


# --- a GPU that torch cannot use --------------------------------------------------------------------------------------


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Puts an nvidia-smi on PATH that lists one GPU with this driver, and says for which CUDA torch was built."""

    def put(version: str, cuda: str | None) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\necho '{version}, NVIDIA GeForce RTX 5090'\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        pretend_gpus(monkeypatch, 0)

    return put


@pytest.mark.parametrize(
    ("version", "cuda", "build", "remedy"),
    [
        (
            "570.124.06",
            "13.0",
            "CUDA 13.0",
            "install --force-reinstall 'torch>=2.6,<2.14' torchvision --index-url .*cu128",
        ),
        ("580.65.06", None, "a build for the CPU", "install --force-reinstall torch==2.13.0 torchvision==0.28.0"),
        ("570.124.06", "12.8", "CUDA 12.8", r"find out why: python -c 'import torch; torch.cuda.init\(\)'"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_refused(driver, version, cuda, build, remedy):
    driver(version, cuda)
    listed = rf"nvidia-smi lists NVIDIA GeForce RTX 5090 \(driver {version}\), but torch .* \({build}\) cannot use it"
    with pytest.raises(UserError, match=f"{listed}: .*{remedy}.*; or give --device cpu"):
        select_device("")


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_and_the_cpu_are_not_refused(driver, monkeypatch, visible):
    driver("570.124.06", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert select_device("").type == "cpu"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert select_device("cpu").type == "cpu"
