"""Whole training steps: no error of device, dtype or order; waits, copies and launches within a written budget."""

import pytest
import torch
from fake_cuda_hooks import FAKE

from tests.cuda_host.training_steps import DETR, YOLO, detr_step, yolo_step
from tests.training.families.detr_commands import needs_transformers

AMP = ("off", "fp16", "bf16")


def counted_step(step):
    step(0)
    step(1)  # the optimizer's state exists now, and the allocator has its blocks
    torch.cuda.synchronize()
    FAKE.waits.clear()
    with FAKE.counted() as counts:
        step(2)
    return counts, list(map(str, FAKE.waits))


@pytest.mark.parametrize("amp", AMP)
@pytest.mark.parametrize("kind", YOLO)
def test_a_yolo_step_waits_for_nothing(kind, amp, tmp_path):
    counts, waits = counted_step(yolo_step(kind, amp, tmp_path))
    print(kind, amp, dict(counts))
    assert waits == []


@needs_transformers
@pytest.mark.parametrize("amp", AMP)
@pytest.mark.parametrize("kind", DETR)
def test_a_detr_step_waits_for_its_matching_alone(kind, amp, tmp_path, shapes_small):
    counts, waits = counted_step(detr_step(kind, amp, tmp_path, shapes_small))
    print(kind, amp, dict(counts))
    assert waits == []
