"""The three losses against recorded figures, with every option and precision."""

import numpy as np
import pytest
import torch

from tests.losses.loss_golden import GOLDEN, HYP, LOSSES, Case, names, stand_in
from yolov7fast.core.boxes import bbox_iou
from yolov7fast.core.errors import UserError


def check_against_record(name: str, dtype: torch.dtype) -> None:
    case = Case(name, dtype)
    for _ in range(case.meta.get("calls", 1)):
        loss, items = case.call()
    loss.backward()
    assert loss.shape == (1,) and items.shape == (4,) and not items.requires_grad
    assert loss.dtype == items.dtype == torch.float32
    np.testing.assert_allclose(loss.detach(), case.figures["loss"], rtol=1e-5)
    np.testing.assert_allclose(items, case.figures["items"], rtol=1e-5)
    for m, prediction in enumerate(case.maps):
        grad = prediction.grad
        index, value, sums = (case.figures[f"grad{m}_{field}"] for field in ("idx", "val", "sum"))
        np.testing.assert_allclose(grad.flatten()[torch.from_numpy(index)], value, rtol=1e-4, atol=1e-8)
        wide = grad.double()
        np.testing.assert_allclose([wide.sum(), wide.abs().sum()], sums[:2], rtol=1e-4, atol=1e-7)
        if dtype == torch.float32:
            assert (grad != 0).sum() == sums[2]
    if case.meta.get("autobalance"):
        np.testing.assert_allclose(case.loss.balance, case.meta["balance_after_each_call"][-1], rtol=1e-5)


@pytest.mark.parametrize("name", names("plain", "ota", "aux"))
def test_recorded_losses_and_gradients(name):
    check_against_record(name, torch.float32)


@pytest.mark.parametrize("name", ["aux_w6_nc3_b16", "ota_edge", "plain_edge", "aux_crowd", "ota_fitted", "ota_wide"])
def test_recorded_losses_and_gradients_in_double_precision(name):
    check_against_record(name, torch.float64)


def test_ciou_table():
    z = np.load(GOLDEN / "loss_debug.npz")
    predicted = torch.from_numpy(z["ciou/pred_xywh"]).requires_grad_()
    value = bbox_iou(predicted.T, torch.from_numpy(z["ciou/target_xywh"]), x1y1x2y2=False, CIoU=True)
    value.sum().backward()
    np.testing.assert_allclose(value.detach(), z["ciou/value"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(predicted.grad, z["ciou/grad_pred"], rtol=1e-4, atol=1e-6)


def small_case(seed=0, nc=5, boxes=12, batch=2, size=96, spread=1.0):
    random = np.random.RandomState(seed)
    maps = [
        torch.from_numpy(random.randn(batch, 3, size // s, size // s, 5 + nc).astype(np.float32) * spread)
        for s in (8, 16, 32)
    ]
    xy, wh = random.uniform(0.05, 0.95, (boxes, 2)), np.exp(random.uniform(-3, -0.5, (boxes, 2)))
    rows = [random.randint(0, batch, (boxes, 1)), random.randint(0, nc, (boxes, 1)), xy, wh]
    return maps, torch.from_numpy(np.concatenate(rows, 1).astype(np.float32)), torch.zeros(batch, 3, size, size)


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", "ota", "aux"])
def test_half_precision_maps_are_computed_in_single(kind, dtype):
    """The same items as those of the rounded maps in fp32; gradients come back in the maps' precision."""
    maps, targets, images = small_case()
    maps = [m.to(dtype) for m in (maps * 2 if kind == "aux" else maps)]
    loss, extra = LOSSES[kind](stand_in("p5", 5)), [] if kind == "plain" else [images]
    exact = [m.float().requires_grad_() for m in maps]
    half = [m.clone().requires_grad_() for m in maps]
    value, items = loss(exact, targets, *extra)
    value_half, items_half = loss(half, targets, *extra)
    assert torch.equal(items, items_half)
    value.backward()
    value_half.backward()
    for a, b in zip(half, exact):
        assert a.grad.dtype == dtype
        torch.testing.assert_close(a.grad, b.grad.to(dtype), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 1.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", "ota", "aux"])
def test_logits_of_fifty_give_finite_losses_and_gradients(kind, dtype, gamma):
    base, targets, images = small_case(spread=1.0)
    loss, extra = LOSSES[kind](stand_in("p5", 5, {**HYP, "fl_gamma": gamma})), [] if kind == "plain" else [images]
    for extreme in (lambda m: m.sign() * 50, lambda m: torch.full_like(m, 50.0), lambda m: torch.full_like(m, -50.0)):
        maps = [extreme(m).to(dtype).requires_grad_() for m in (base * 2 if kind == "aux" else base)]
        value, items = loss(maps, targets, *extra)
        value.backward()
        assert torch.isfinite(items).all()
        assert all(torch.isfinite(m.grad).all() for m in maps)


@pytest.mark.parametrize("kind", ["plain", "ota", "aux"])
def test_maps_may_lie_in_memory_as_the_convolution_left_them(kind):
    maps, targets, images = small_case()
    maps = maps * 2 if kind == "aux" else maps
    loss, extra = LOSSES[kind](stand_in("p5", 5)), [] if kind == "plain" else [images]
    packed = [m.clone().requires_grad_() for m in maps]
    planes = [m.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2).requires_grad_() for m in maps]
    (value, items), (value_planes, items_planes) = loss(packed, targets, *extra), loss(planes, targets, *extra)
    assert torch.equal(items, items_planes)
    value.backward()
    value_planes.backward()
    for a, b in zip(packed, planes):
        assert torch.equal(a.grad, b.grad) and b.grad.stride() == b.stride()


# --- edges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "ota", "aux"])
def test_no_targets_and_no_fitting_targets_leave_objectness_alone(kind):
    maps, _, images = small_case()
    loss, extra = LOSSES[kind](stand_in("p5", 5)), [] if kind == "plain" else [images]
    maps = [m.requires_grad_() for m in (maps * 2 if kind == "aux" else maps)]
    tiny = torch.tensor([[0, 1, 0.5, 0.5, 1e-4, 1e-4], [1, 1, 0.5, 0.5, 0.0, 0.3]])
    for targets in (torch.zeros(0, 6), tiny):
        value, items = loss(maps, targets, *extra)
        value.backward()
        assert items[0] == 0 and items[2] == 0 and items[1] > 0
        assert all(m.grad[..., :4].abs().sum() == 0 and m.grad[..., 4].abs().sum() > 0 for m in maps)


@pytest.mark.parametrize("kind", ["plain", "ota"])
@pytest.mark.parametrize("cls", [5, -1])
def test_a_class_that_the_model_lacks_is_named(kind, cls):
    maps, _, images = small_case()
    loss, extra = LOSSES[kind](stand_in("p5", 5)), [] if kind == "plain" else [images]
    with pytest.raises(UserError, match=rf"class {cls} .* model has 5"):
        loss(maps, torch.tensor([[0, cls, 0.5, 0.5, 0.2, 0.2]]), *extra)
    with pytest.raises(IndexError, match="image 7 of a batch of 2"):
        loss(maps, torch.tensor([[7, 0, 0.5, 0.5, 0.2, 0.2]]), *extra)
