"""What the losses ask of the device: nothing to be read back, a fixed number of calls, bounded memory.

That a whole training step of every kind of network reads nothing back is shown in tests/training/test_step.py.
"""

import numpy as np
import pytest
import torch

from benchmarks.losses import dense
from benchmarks.op_counter import OpCounter
from tests.losses.loss_golden import LOSSES, stand_in
from yolov7fast.losses import simota
from yolov7fast.losses.candidates import LEAD_REACH
from yolov7fast.losses.yolo_loss import ComputeLossOTA
from yolov7fast.training.memory_plan import PeakMemory

GIB = 1 << 30


def random_targets(batch: int, each: int, nc: int, seed: int = 0) -> torch.Tensor:
    random = np.random.RandomState(seed)
    n = batch * each
    boxes = [random.uniform(0, 1, (n, 2)), np.exp(random.uniform(np.log(0.02), np.log(0.6), (n, 2)))]
    rows = [np.repeat(np.arange(batch), each)[:, None], random.randint(0, nc, (n, 1)), *boxes]
    return torch.from_numpy(np.concatenate(rows, 1).astype(np.float32))


def random_maps(batch: int, size: int, nc: int, device="cpu") -> list[torch.Tensor]:
    shapes = [(batch, 3, size // s, size // s, 5 + nc) for s in (8, 16, 32)]
    return [torch.randn(shape, device=device).requires_grad_() for shape in shapes]


def extra(kind: str, batch: int, size: int) -> list[torch.Tensor]:
    return [] if kind == "plain" else [torch.empty(batch, 3, size, size, device="meta")]


@pytest.mark.parametrize("kind", ["plain", "ota", "aux", "tal", "aux tal"])
@pytest.mark.parametrize("each", [0, 17])
def test_forward_and_backward_need_nothing_from_the_device(kind, each):
    """On the meta device there are no numbers to read: any read would raise."""
    maps = random_maps(4, 128, 80, "meta") * (2 if "aux" in kind else 1)
    loss, items = LOSSES[kind](stand_in("p5", 80))(maps, random_targets(4, each, 80), *extra(kind, 4, 128))
    loss.backward()
    assert loss.device.type == items.device.type == "meta"
    assert all(m.grad.shape == m.shape for m in maps)


@pytest.mark.parametrize("kind,most", [("plain", 160), ("ota", 260), ("aux", 593), ("tal", 330), ("aux tal", 700)])
def test_calls_do_not_grow_with_images_or_boxes_and_none_reads_back(kind, most):
    counts = set()
    loss = LOSSES[kind](stand_in("p5", 80))
    for batch, each in ((4, 17), (64, 17), (16, 1), (4, 60)):
        maps = random_maps(batch, 64, 80, "meta") * (2 if "aux" in kind else 1)
        with OpCounter() as counter:
            loss(maps, random_targets(batch, each, 80), *extra(kind, batch, 64))
        counts.add(counter.total)
        assert counter.host_reads == 0
    assert len(counts) == 1 and counts.pop() <= most


@pytest.mark.parametrize("kind", ["ota", "tal"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_device_part_is_one_graph(device, kind):
    """`fullgraph` refuses anything that would need the host; on the meta device, what a GPU would run."""
    loss = LOSSES[kind](stand_in("p5", 5))
    maps, targets = random_maps(2, 64, 5, device), random_targets(2, 6, 5)
    plan = loss.plan(targets, maps, 0.5, 64)
    _, items = torch.compile(loss.on_device, fullgraph=True, backend="eager")(maps, plan)
    if device == "cpu":
        torch.testing.assert_close(items, loss.on_device(maps, plan)[1])


def test_thousands_of_boxes_in_an_image_stay_within_two_gib():
    """Eight images of 2,000 boxes each at 640: what is allocated beside the inputs, counted on the meta device."""
    maps, targets = random_maps(8, 640, 3, "meta"), random_targets(8, 2000, 3)
    with PeakMemory() as memory:
        ComputeLossOTA(stand_in("p5", 3))(maps, targets, *extra("ota", 8, 640))
    assert GIB // 16 < memory.peak < 2 * GIB


def test_a_batch_of_xviews_shape_stays_within_one_and_a_half_gib():
    """128 images of 640 px, 60 classes, 75,357 boxes of which 4,967 in one image, forward and backward."""
    assert 0.5 < dense.peak_gib(dense.IMAGES, dense.targets(dense.IMAGES, dense.BOXES, dense.MOST)) < 1.5


def test_a_crowded_image_beside_others_is_matched_as_without_chunks(monkeypatch):
    """300 boxes in one image and few in the others, whatever is worked on at a time: the same bits."""
    rows, raw = dense.targets(3, 330, 300), [m[:3] for m in random_maps(3, 128, dense.CLASSES)]
    loss, results = ComputeLossOTA(stand_in("p5", dense.CLASSES)), []
    for limit in (1 << 30, 1 << 18, 1 << 13):
        monkeypatch.setattr(simota, "MAX_PAIRS", limit)
        plan = loss.plan(rows, raw, LEAD_REACH, 128)
        value, items = loss.on_device(raw, plan)
        results.append((len(plan.gt.chunks), items, *torch.autograd.grad(value, raw)))
    assert results[0][0] == 1 < results[2][0]
    for _, *tensors in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0][1:], tensors, strict=True))
