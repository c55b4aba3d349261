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


def test_cpu_hides_the_gpus(monkeypatch):
    pretend_gpus(monkeypatch, 2)
    assert select_device("cpu") == torch.device("cpu")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"


def test_nothing_asked_takes_a_gpu_if_there_is_one(monkeypatch):
    pretend_gpus(monkeypatch, 0)
    assert select_device("").type == "cpu"
    pretend_gpus(monkeypatch, 1)
    assert select_device("").type == "cuda"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_numbers_choose_gpus(monkeypatch):
    pretend_gpus(monkeypatch, 2)
    assert select_device("1,3", batch_size=8) == torch.device("cuda", 0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_a_batch_must_divide_by_the_gpus(monkeypatch):
    pretend_gpus(monkeypatch, 2)
    with pytest.raises(UserError, match=r"--batch-size 7 .* 2 GPUs"):
        select_device("0,1", batch_size=7)


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


def test_marks_of_the_cpu_are_times():
    queue = DeviceQueue(torch.device("cpu"))
    assert not queue.runs_ahead
    first, second = queue.mark(), queue.mark()
    assert 0 <= first.elapsed_time(second) < 60_000
    with queue.beside(second):
        pass


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
