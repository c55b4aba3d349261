"""Whole training steps: no error of device, dtype or order; waits, copies and launches within a written budget."""

from collections import Counter

import pytest
import torch
from fake_cuda_hooks import FAKE

from tests.cuda_host.training_steps import DETR, YOLO, detr_step, yolo_step
from tests.training.families.detr_commands import needs_transformers
from yolov7fast.machine.gpu_check import reported_syncs
from yolov7fast.nn.cuda_graphs import CAPTURED_AFTER

AMP = ("off", "fp16", "bf16")
# most kernels and matrix products of a step (batch 2, an eighth of the width, convolutions image by image); the fp16
# step, the longest, needs 5% less
LAUNCHES = {"plain": 1750, "ota": 1860, "tal": 1920, "auxiliary heads": 3680, "multi-head": 2300}
DETR_LAUNCHES = {"detr": 1330, "rt-detr": 3370}
GRAPH_LAUNCHES = {"plain": 385, "ota": 495, "tal": 555, "auxiliary heads": 975, "multi-head": 800}  # without the graphs
# One copy of the cost matrix is the loss's. Everything else is transformers' forward pass: attention masks (3 syncs in
# DETR); in RT-DETR the sizes of 3 feature maps (2 copies and syncs each), a check for infinite values, the places of
# denoising queries, a check in each of the 2 decoder layers.
DETR_WAITS = {
    "detr": {"pageable copy to the host": 1, "cudaStreamSynchronize": 4},
    "rt-detr": {"pageable copy to the device": 6, "pageable copy to the host": 1, "cudaStreamSynchronize": 11},
}


def counted_step(step) -> tuple[Counter, list]:
    """Counters of the third step, and where it waited: the optimizer's state exists, the allocator has its blocks."""
    step(0)
    step(1)
    torch.cuda.synchronize()
    FAKE.waits.clear()
    with FAKE.counted() as counts:
        step(2)
    return counts, list(FAKE.waits)


def report(kind: str, amp: str, counts: Counter, waits: list) -> None:
    """Shown by `pytest -rP` and where a test fails."""
    print(kind, amp, dict(counts))
    for wait, times in Counter(map(str, waits)).items():
        print(f"{times:4d} x {wait}")


@pytest.mark.parametrize("amp", AMP)
@pytest.mark.parametrize("kind", YOLO)
def test_a_yolo_step_waits_for_nothing(kind, amp, tmp_path):
    counts, waits = counted_step(yolo_step(kind, amp, tmp_path))
    report(kind, amp, counts, waits)
    assert waits == []
    assert counts["h2d_pageable"] == counts["d2h_pageable"] == 0 and 1 <= counts["h2d_pinned"] <= 5
    assert counts["malloc"] == counts["host_alloc"] == 0, "the step still grows"
    assert counts["launch"] + counts["gemm"] <= LAUNCHES[kind]


@pytest.mark.parametrize(("kind", "amp"), [*((kind, "fp16") for kind in YOLO), ("ota", "bf16"), ("plain", "off")])
def test_a_step_with_cuda_graphs_launches_two_of_them(kind, amp, tmp_path):
    step = yolo_step(kind, amp, tmp_path, cuda_graph=True)
    for number in range(CAPTURED_AFTER):
        step(number)
    counts, waits = counted_step(step)
    report(kind, amp, counts, waits)
    assert waits == [] and counts["graph_launch"] == 2
    assert counts["malloc"] == counts["host_alloc"] == counts["captured_node"] == 0
    assert counts["launch"] + counts["gemm"] <= GRAPH_LAUNCHES[kind]


def test_a_capture_that_cuda_refuses_leaves_an_eager_step(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("FAKE_CUDA_REFUSE_CAPTURE", "1")
    step = yolo_step("plain", "fp16", tmp_path, cuda_graph=True)
    for number in range(CAPTURED_AFTER + 1):
        step(number)
    counts, waits = counted_step(step)
    assert waits == [] and counts["graph_launch"] == 0 and counts["launch"] > GRAPH_LAUNCHES["plain"]
    assert caplog.text.count("CUDA graphs cannot be captured, continuing without them") == 1


@needs_transformers
@pytest.mark.parametrize("amp", AMP)
@pytest.mark.parametrize("kind", DETR)
def test_a_detr_step_waits_as_often_as_written(kind, amp, tmp_path, shapes_small):
    step = detr_step(kind, amp, tmp_path, shapes_small)
    counts, waits = counted_step(step)
    report(kind, amp, counts, waits)
    by_kind = Counter(wait[0] for wait in waits)
    assert all(number <= DETR_WAITS[kind].get(what, 0) for what, number in by_kind.items()), by_kind
    with reported_syncs() as found:  # what `yolov7fast check` counts
        step(3)
    assert len(found) <= sum(DETR_WAITS[kind].values()), found
    assert counts["launch"] + counts["gemm"] <= DETR_LAUNCHES[kind]


def test_a_planted_wait_is_found_with_its_line(tmp_path):
    step = yolo_step("plain", "off", tmp_path)
    values = torch.ones(3, device="cuda")
    _, waits = counted_step(lambda number: (step(number), values.sum().item()))
    assert len(waits) == 1 and "test_steps.py" in waits[0][2][0] and "cudaStreamSynchronize" in str(waits[0])


def test_a_planted_pageable_copy_is_found(tmp_path):
    step = yolo_step("plain", "off", tmp_path)
    _, waits = counted_step(lambda number: (step(number), torch.ones(3).to("cuda", non_blocking=True)))
    assert [wait[0] for wait in waits] == ["pageable copy to the device"]


class Read(torch.autograd.Function):
    """Reads its gradient in the backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad.sum().item()
        return grad


def test_the_check_finds_waits_of_both_passes_and_no_empty_copy():
    x = torch.ones(3, device="cuda", requires_grad=True)
    with reported_syncs() as found:
        torch.zeros(0, 6).to("cuda")
        y = Read.apply(x).sum()
    assert found == []
    with reported_syncs() as found:
        y.backward()
        y.item()
    assert len(found) == 2 and all("test_steps.py" in place for place in found)
