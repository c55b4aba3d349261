"""The fake runtime itself: refused requests, devices, graph capture, child processes, collectives."""

import os

import numpy as np
import pytest
import torch
from fake_cuda_hooks import FAKE

from tests.small_network import small_network
from yolov7fast.predictors.nms import nms_operator, non_max_suppression


@pytest.fixture(autouse=True)
def no_error_left():
    yield
    torch.zeros(1, device="cuda")  # raises where an earlier call left its error behind


def test_an_allocation_is_refused_once_torch_has_emptied_its_cache(monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_MEMORY_MB", "64")
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info()[1] == 64 << 20


def test_copies_are_executed_and_kernels_are_not():
    values = torch.arange(300.0)
    near = values.cuda()
    assert torch.equal(near.cpu(), values)
    assert torch.equal(near.clone().cpu(), values)
    with FAKE.counted() as counts:
        near.add_(1)
    assert torch.equal(near.cpu(), values) and counts == {"launch": 1}


def test_a_forward_and_backward_pass_are_captured_and_replayed():
    network = small_network(4, list("abcd")).cuda().train()
    images = torch.zeros(2, 3, 64, 64, device="cuda")
    with FAKE.counted() as capture:
        graphed = torch.cuda.make_graphed_callables(lambda x: tuple(network(x)), (images.requires_grad_(),))
    with FAKE.counted() as replay:
        sum(x.sum() for x in graphed(images)).backward()
    assert capture["captured_node"] > 100 and replay["graph_launch"] == 2
    assert replay["launch"] + replay["gemm"] < 40


def test_a_sync_in_a_capture_is_refused():
    values = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        values.sum().item()
    assert values.sum().item() == 0.0  # syncs are possible again


def test_capture_can_be_refused_as_a_whole(monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_REFUSE_CAPTURE", "1")
    with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(1, device="cuda")


def test_a_forked_child_has_no_device():
    torch.ones(1, device="cuda")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            torch.ones(3, device="cuda").cpu()
            os.write(write, b"worked")
        except RuntimeError:
            os.write(write, b"refused")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"refused"


def test_suppression_of_fed_candidates_runs_to_its_end():
    """Three candidates pass each filter, two of the first image and one of the second; all are kept."""
    prediction = torch.rand(2, 50, 9).cuda()
    nms_operator("cuda")  # tries torchvision's operator once, which reads, too
    three, two, one = (np.int32(number).tobytes() for number in (3, 2, 1))
    FAKE.feeds = [three, three, np.array([2, 1], np.int64).tobytes(), two, one]
    found = non_max_suppression(prediction, 0.25, 0.5)
    fed, FAKE.feeds = FAKE.feeds, []
    assert not fed, f"{len(fed)} of the reads did not happen"
    assert [(x.device.type, *x.shape) for x in found] == [("cuda", 2, 6), ("cuda", 1, 6)]


def test_two_devices(run):
    code = (
        "import torch; assert torch.cuda.device_count() == 2; a = torch.arange(9., device='cuda:1'); "
        "b = torch.arange(9.).to('cuda:0').to('cuda:1'); assert b.device.index == 1; "
        "assert b.cpu().tolist() == list(range(9)); a + b\n"
        "try: a + b.to('cuda:0')\nexcept RuntimeError as error: print(error)"
    )
    assert "same device" in run("-c", code, FAKE_CUDA_DEVICES="2").stdout
    shown = "import torch; print(torch.cuda.device_count())"
    assert run("-c", shown, FAKE_CUDA_DEVICES="2", CUDA_VISIBLE_DEVICES="1").stdout == "1\n"
    assert run("-c", shown, CUDA_VISIBLE_DEVICES="-1").stdout == "0\n"
