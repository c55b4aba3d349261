"""The predicted memory of a step against what the CPU's allocator hands out."""

import contextlib
import gc

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.conftest import ROOT
from yolov7fast.nn.model import Model
from yolov7fast.training.hyperparameters import load_hyp, scale_gains
from yolov7fast.training.memory_plan import (
    StepCost,
    Workload,
    assumed_labels,
    dense_targets,
    loss_of,
    measure_step,
    meta_network,
)

HYP = load_hyp(str(ROOT / "data/hyp.scratch.p5.yaml"))
CFGS = sorted(path.stem for path in (ROOT / "cfg/training").glob("*.yaml"))
TOLERANCE = 0.05


def description(name: str) -> str:
    return str(ROOT / f"cfg/training/{name}.yaml")


def targets(batch: int) -> torch.Tensor:
    return dense_targets(assumed_labels(mean=5, most=12), HYP, batch)


def predicted(cfg: str, size: int, batch: int, dtype: torch.dtype) -> StepCost:
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


def check(cfg: str, size: int, batch: int = 2, dtype: torch.dtype = torch.float32) -> None:
    found, seen = predicted(cfg, size, batch, dtype), allocated(cfg, size, batch, dtype)
    assert abs(found.activations / seen - 1) <= TOLERANCE, f"{cfg} at {size}: {found.activations} against {seen}"


@pytest.mark.parametrize(
    ("cfg", "dtype"),
    [
        ("yolov7-tiny", torch.float32),
        ("yolov7-tiny-1b4h-attn", torch.bfloat16),
    ],
)
def test_predicted_activations_are_what_the_allocator_hands_out(cfg, dtype):
    check(cfg, 96, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("cfg", CFGS)
def test_predicted_activations_of_every_network(cfg):
    check(cfg, 256, batch=1)


def rows(count: int) -> np.ndarray:
    return np.tile(np.array([[0, 0.5, 0.5, 0.2, 0.4]], np.float32), (count, 1))


def test_the_first_sample_holds_the_four_densest_images_and_the_others_the_mean():
    labels, mosaic = [rows(n) for n in (1, 9, 4, 8, 5, 7, 1)], {"mosaic": 1.0, "mixup": 0.0}  # mean 5
    for hyp, expected in (
        (mosaic, [9 + 8 + 7 + 5, 20, 20]),
        (mosaic | {"mixup": 0.1}, [2 * 29, 20]),
        ({"mosaic": 0.0, "mixup": 0.1}, [9, 5]),
    ):
        assert torch.bincount(dense_targets(labels, hyp, len(expected))[:, 0].long()).tolist() == expected
    found = dense_targets([rows(1)], mosaic, 1)
    torch.testing.assert_close(found[:, 4:], torch.tensor([[0.1, 0.2]] * 4))  # boxes of a mosaic have half their size


def workload(**changed) -> Workload:
    given = {"cfg": description("yolov7-tiny"), "classes": 80, "img_size": 64, "hyp": HYP}
    return Workload(**{**given, "labels": assumed_labels(), **changed})


def test_the_network_counts_what_trains_it():
    """Weights, gradients, optimizer and EMA; frozen layers have no gradients and no optimizer state."""
    plain, adam, frozen = workload(), workload(adam=True), workload(frozen=("model.0.",))
    parameters = sum(p.nbytes for p in plain.model.parameters())
    buffers = sum(b.nbytes for b in plain.model.buffers())
    assert plain.network_bytes == 2 * (parameters + buffers) + 2 * parameters
    assert adam.network_bytes == plain.network_bytes + parameters
    first = sum(p.nbytes for name, p in plain.model.named_parameters() if name.startswith("model.0."))
    assert frozen.network_bytes == plain.network_bytes - 2 * first


def test_a_step_costs_three_forward_passes_and_a_plan_adds_what_stays(monkeypatch):
    """yolov7-tiny needs 13.2 GFLOP an image of 640 pixels in its forward pass, a hundredth of that at 64."""
    work = workload()
    small, large = work.cost(2), work.cost(8)
    assert workload(labels=assumed_labels(2, 300)).cost(2).activations > 1.2 * small.activations
    assert 0.9 < small.flops / (2 * 3 * 0.132e9) < 1.1 and large.flops == pytest.approx(4 * small.flops, rel=0.02)
    assert large.traffic > 10 * large.activations and 1.5 < large.traffic / small.traffic < 4
    assert 2 < large.peak / small.peak <= 4.1
    monkeypatch.setattr(Workload, "cost", lambda self, batch: {2: small, 8: large}[batch])
    assert work.plan(2) == (work.network_bytes, 2 * 3 * 64 * 64 * 5, small.peak, work.reserve)
    assert work.plan(8).total == sum(work.plan(8)) > work.plan(2).total
