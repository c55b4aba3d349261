"""The fake runtime itself: refused requests, devices, graph capture, child processes, collectives."""

import os

import numpy as np
import pytest
import torch
from fake_cuda_hooks import FAKE

from tests.small_network import small_network
from yolov7fast.core.boxes import xywh2xyxy
from yolov7fast.evaluation.eval_loop import evaluate
from yolov7fast.evaluation.eval_result import MAP
from yolov7fast.nn.cuda_graphs import end_capture_of_generators
from yolov7fast.predictors.predictor import PredictOptions
from yolov7fast.predictors.yolo_predictor import network_predictor


@pytest.fixture(autouse=True)
def no_error_left():
    yield
    end_capture_of_generators()
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


@pytest.mark.parametrize("bf16", [False, True])
def test_a_half_precision_network_is_evaluated_up_to_the_boxes(bf16):
    """Three candidates pass each filter of NMS, two of the first image and one of the second; all are kept, and are
    the labels' boxes when the host reads them. The network is a fused, channels-last copy."""
    network = small_network(4, list("abcd")).cuda()
    options = PredictOptions(conf_thres=0.001, iou_thres=0.6, bf16=bf16)
    predictor = network_predictor(network, options)
    assert (
        predictor.precision == ("bfloat16" if bf16 else "float16") and next(network.parameters()).dtype is torch.float
    )
    layers = list(predictor.model.modules())
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in layers)
    weight = next(
        layer.weight for layer in layers if isinstance(layer, torch.nn.Conv2d) and layer.kernel_size == (3, 3)
    )
    assert weight.is_contiguous(memory_format=torch.channels_last)
    images, shapes = torch.zeros(2, 3, 64, 64, dtype=torch.uint8), [((64, 64), ((1.0, 1.0), (0.0, 0.0)))] * 2
    predictor(images)  # tries torchvision's operator once, which reads, too
    targets = torch.tensor([[0, 1, 0.5, 0.5, 0.25, 0.5], [0, 2, 0.25, 0.25, 0.25, 0.25], [1, 3, 0.5, 0.5, 0.5, 0.5]])
    boxes = torch.cat((xywh2xyxy(targets[:, 2:]) * 64, torch.full((3, 1), 0.9), targets[:, 1:2]), 1)
    three, two, one = (np.int32(number).tobytes() for number in (3, 2, 1))
    FAKE.feeds = [three, three, np.array([2, 1], np.int64).tobytes(), two, one, boxes.numpy().tobytes()]
    result = evaluate(predictor, [(images, targets, ("a", "b"), shapes)], 4)
    fed, FAKE.feeds = FAKE.feeds, []
    assert not fed, f"{len(fed)} of the reads did not happen"
    assert result.metrics[MAP] > 0.99


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
