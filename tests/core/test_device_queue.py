"""Marks in the work of a device, and results that are read beside it: on the CPU, and on a played CUDA device."""

import pytest
import torch

from tests.played_gpu import PlayedGpu
from yolov7fast.core.device import DeviceQueue


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
