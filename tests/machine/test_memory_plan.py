"""The predicted memory of a step against what the CPU's allocator hands out."""

import contextlib
import gc
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.conftest import ROOT
from yolov7fast.nn.model import Model
from yolov7fast.planning.density import assumed_labels, dense_targets
from yolov7fast.planning.memory import MemoryPlan, NetworkBytes, Workload, half
from yolov7fast.planning.step_memory import LOSS, StepBytes, loss_of, measure_step, meta_network
from yolov7fast.training.hyperparameters import load_hyp, scale_gains

HYP = load_hyp(str(ROOT / "data/hyp.scratch.p5.yaml"))
CFGS = sorted(path.stem for path in (ROOT / "cfg/training").glob("*.yaml"))
TOLERANCE = 0.05


def description(name: str) -> str:
    return str(ROOT / f"cfg/training/{name}.yaml")


def targets(batch: int) -> torch.Tensor:
    return dense_targets(assumed_labels(80, mean=5, most=12), HYP, batch)


def predicted(cfg: str, size: int, batch: int, dtype: torch.dtype) -> StepBytes:
    model = meta_network(description(cfg), 80, HYP, size)
    return measure_step(model, batch, size, targets(batch), "ota", dtype)


def allocated(cfg: str, size: int, batch: int, dtype: torch.dtype) -> int:
    """Bytes that the CPU's allocator has handed out, and not got back, when the loss is there: forward and loss run
    with real numbers, and torch's own record of allocations is added up."""
    model = Model(description(cfg), ch=3, nc=80).train()
    head = model.model[-1]
    model.hyp, model.gr = scale_gains(HYP, levels=head.nl, classes=80, img_size=size, smoothing=0.0), 1.0
    criterion, rows, images = loss_of(model, "ota"), targets(batch), torch.rand(batch, 3, size, size)
    mixed = torch.autocast("cpu", dtype) if dtype is not torch.float32 else contextlib.nullcontext()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        with mixed:
            outputs = model(images)
            total, parts = criterion(outputs, rows, images)
        del outputs, parts
    assert total.requires_grad
    return sum(event.nbytes() for event in record.profiler.kineto_results.events() if event.name() == "[memory]")


def check(cfg: str, size: int, batch: int = 2, dtype: torch.dtype = torch.float32) -> float:
    found, seen = predicted(cfg, size, batch, dtype), allocated(cfg, size, batch, dtype)
    assert abs(found.activations / seen - 1) <= TOLERANCE, f"{cfg} at {size}: {found.activations} against {seen}"
    return found.activations / seen


@pytest.mark.parametrize(
    ("cfg", "dtype"),
    [
        ("yolov7-tiny", torch.float32),
        ("yolov7-tiny", torch.bfloat16),
        ("yolov7-tiny-1b4h-attn", torch.bfloat16),
    ],
)
def test_predicted_activations_are_what_the_allocator_hands_out(cfg, dtype):
    check(cfg, 96, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("cfg", CFGS)
@pytest.mark.parametrize("size", [128, 256, 384])
def test_predicted_activations_of_every_network(cfg, size, record_property):
    record_property("ratio", check(cfg, size, batch=1))


def test_every_training_cfg_is_among_them():
    assert len(CFGS) == len(list(Path(ROOT / "cfg/training").iterdir())) == 20


def test_layers_add_up_and_the_loss_is_one_of_them():
    found = predicted("yolov7-tiny", 64, 2, torch.float32)
    assert sum(found.by_layer.values()) == found.activations and found.by_layer[LOSS] > 0
    assert next(iter(found.by_layer)).startswith("0 ") and found.peak >= found.activations


def test_more_boxes_take_more_memory_in_the_loss():
    model = meta_network(description("yolov7-tiny"), 80, HYP, 64)
    few, many = (
        measure_step(model, 2, 64, dense_targets(assumed_labels(80, 2, most), HYP, 2), "ota").by_layer[LOSS]
        for most in (3, 60)
    )
    assert many > 3 * few


def workload(**changed) -> Workload:
    given = {"cfg": description("yolov7-tiny"), "classes": 80, "img_size": 64, "hyp": HYP}
    return Workload(**{**given, "labels": assumed_labels(80), **changed})


def test_the_largest_batch_fits_and_the_next_does_not():
    work = workload(reserve=0)
    capacity = 400 << 20
    largest = work.largest_batch(capacity, 1000)
    assert abs(work.estimated_batch(capacity) / largest - 1) < 0.1
    assert work.plan(largest).total <= capacity * 0.9 < work.plan(largest + max(largest // 10, 1)).total
    assert work.largest_batch(1 << 20, 1000) == work.estimated_batch(1 << 20) == 0
    assert work.largest_batch(capacity, 8) == 8


def test_adam_and_frozen_layers_change_what_the_optimizer_holds():
    plain, adam, frozen = workload().network, workload(adam=True).network, workload(frozen=("model.0.",)).network
    assert adam.optimizer == 2 * plain.optimizer == 2 * plain.gradients
    assert frozen.gradients < plain.gradients and frozen.weights == plain.weights == plain.ema


def test_the_total_is_the_sum_of_its_parts():
    plan = MemoryPlan(4, NetworkBytes(1, 2, 3, 4), 10, StepBytes(50, {}, 70), 1000)
    assert plan.total == 1 + 2 + 3 + 4 + 10 + 70 + 1000


@pytest.mark.parametrize(
    ("mode", "is_gpu", "dtype"),
    [
        ("auto", True, torch.float16),
        ("auto", False, torch.float32),
        ("bf16", False, torch.bfloat16),
        ("fp16", True, torch.float16),
        ("off", True, torch.float32),
    ],
)
def test_the_precision_of_amp(mode, is_gpu, dtype):
    assert half(mode, is_gpu) is dtype
