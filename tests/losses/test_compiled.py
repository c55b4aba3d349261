"""The compiled loss: how often it is compiled while the number of boxes changes, and that it is the same loss."""

import shutil
import sys
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.losses.loss_golden import stand_in
from tests.losses.test_device import extra, random_maps, random_targets
from yolov7fast.losses.loss_builder import compile_loss
from yolov7fast.losses.yolo_loss import ComputeLossOTA
from yolov7fast.nn import compiling
from yolov7fast.nn.compiling import CompiledPart

EACH = (6, 9, 3, 1, 0, 30, 12)  # boxes an image, batch after batch


def agrees_and_compiles(backend: str) -> int:
    """How many graphs were compiled for batches of changing numbers of boxes, in each of which both losses agree."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    eager, compiled = (ComputeLossOTA(stand_in("p5", 5)) for _ in range(2))
    parts = compile_loss(compiled, partial(torch.compile, dynamic=True, fullgraph=True, backend=counter))
    torch.manual_seed(0)
    for each in EACH:
        maps, targets = random_maps(3, 64, 5), random_targets(3, each, 5, seed=each)
        (value, items), (expected, expected_items) = (
            loss(maps, targets, *extra("ota", 3, 64)) for loss in (compiled, eager)
        )
        torch.testing.assert_close(items, expected_items, rtol=1e-6, atol=1e-8)
        for grad, other in zip(torch.autograd.grad(value, maps), torch.autograd.grad(expected, maps), strict=True):
            torch.testing.assert_close(grad, other, rtol=1e-4, atol=1e-7)
    assert not any(part.failure for part in parts)
    return counter.frame_count


def test_changing_numbers_of_boxes_compile_three_times():
    """Tracing for sizes that change takes seconds: without it a run would compile anew for every batch."""
    assert agrees_and_compiles("eager") == 3


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compilers_with_a_backward_compile_three_times_and_agree(backend, monkeypatch):
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # Inductor changes it, and the path of imports
    monkeypatch.setattr(sys, "path", [*sys.path])
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("Inductor needs a C++ compiler on a CPU: apt-get install g++")
    assert agrees_and_compiles(backend) == 3


def test_a_validation_without_gradients_compiles_no_loss():
    called = []
    loss = ComputeLossOTA(stand_in("p5", 5))
    terms, *_ = compile_loss(loss, lambda function: lambda *args: called.append(function.__name__) or function(*args))
    with torch.no_grad():
        loss(random_maps(2, 64, 5), random_targets(2, 6, 5), *extra("ota", 2, 64))
    assert terms.name == "the loss" and "candidate_terms" not in called


def test_a_part_that_fails_to_compile_runs_as_it_is(caplog):
    def compiler(function):
        def call(*_):
            raise RuntimeError("no compiler here\nand more")

        return call

    part = CompiledPart("the loss", lambda x: x + 1, lambda x: x > 1, compiler)
    assert part(1) == 2 and part.failure is None  # it does not fit, and is not tried
    assert part(2) == 3 and part(3) == 4
    assert caplog.text.count("torch.compile of the loss failed, continuing without it: RuntimeError: no compiler") == 1
    assert part.failure == "RuntimeError: no compiler here"


def test_a_setting_that_this_version_of_pytorch_lacks_is_left_out(monkeypatch):
    monkeypatch.setattr(compiling, "PART_SETTINGS", ((torch._dynamo.config, {"no_such_setting": True}),))
    part = CompiledPart("the loss", lambda x: x + 1, lambda x: True, lambda function: function)
    assert part(1) == 2 and part.failure is None
