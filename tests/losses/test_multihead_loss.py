"""Losses of several heads: recorded figures, agreement with one head and with heads taken one by one."""

import numpy as np
import pytest
import torch

from tests.recorded_heads import ANCHORS, CHANNELS, VARIANTS, features, network, recorded_head, with_strides
from yolov7fast.losses.multihead_loss import CERTAIN, MultiHeadLoss
from yolov7fast.losses.yolo_loss import YoloLoss
from yolov7fast.nn.heads import Detect
from yolov7fast.nn.multihead import HeadConfig, MultiHeadDetect

IMAGES = torch.zeros(4, 3, 64, 64)
HYP = {
    "base": {},
    "smooth0.1": {"label_smoothing": 0.1},
    "focal1.5": {"fl_gamma": 1.5},
    "empty": {},
    "only_head1_classes": {},
}


def recorded_targets(golden, case: str) -> torch.Tensor:
    targets = torch.from_numpy(golden("eval_multihead.npz")["targets"])
    if case == "empty":
        return targets[:0]
    return targets[(targets[:, 1] == 0) | (targets[:, 1] == 3)] if case == "only_head1_classes" else targets


@pytest.mark.parametrize("case", HYP)
@pytest.mark.parametrize("variant", VARIANTS)
def test_summed_heads_give_the_recorded_losses_and_gradients(variant, case, golden):
    head = recorded_head(golden, variant).train()
    loss = MultiHeadLoss(network(head, per_head_loss=1, **HYP[case]), "plain")
    total, items = loss(head(features(golden)), recorded_targets(golden, case))
    total.backward()
    expected = golden("eval_multihead.json")["loss"][f"{variant}/{case}"]
    assert total.item() == pytest.approx(expected["loss"], rel=1e-6)
    assert items.tolist() == pytest.approx(expected["box_obj_cls_total"], rel=1e-6)
    gradients = [sum(p.grad.abs().sum().item() for p in convolutions.parameters()) for convolutions in head.heads]
    assert gradients == pytest.approx(expected["head_grad_abs_sum"], rel=1e-6)


# --- maps and targets of no recording ---------------------------------------------------------------------------------


def random_maps(widths, seed: int = 0) -> list[list[torch.Tensor]]:
    """For each head, its number of class columns given, maps of 4 images of 64 pixels."""
    draw = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(4, 3, side, side, 5 + width, generator=draw).requires_grad_() for side in (8, 4, 2)]
        for width in widths
    ]


def random_targets(nc: int, count: int = 40, seed: int = 0) -> torch.Tensor:
    draw = np.random.RandomState(seed)
    columns = [draw.randint(0, 3, count), draw.randint(0, nc, count), *draw.rand(2, count)]
    sides = np.exp(draw.uniform(np.log(0.08), np.log(0.9), (2, count)))
    return torch.tensor(np.stack([*columns, *sides], 1), dtype=torch.float32)  # the fourth image is empty


def several(config: HeadConfig) -> MultiHeadDetect:
    return with_strides(MultiHeadDetect(config.nc, ANCHORS, config, CHANNELS))


def ordinary(nc: int) -> Detect:
    return with_strides(Detect(nc, ANCHORS, CHANNELS))


def run(loss, maps, targets):
    """Total, items and the gradient of each map."""
    flat = [m for head in maps for m in head] if isinstance(maps[0], list) else maps
    total, items = loss(maps, targets, IMAGES)
    return total.detach(), items, torch.autograd.grad(total, flat)


@pytest.mark.parametrize("per_head", [0, 1])
@pytest.mark.parametrize("nc", [6, 1])
@pytest.mark.parametrize("assigner", ["plain", "ota", "tal"])
def test_one_head_with_all_classes_has_the_ordinary_loss_bit_for_bit(assigner, nc, per_head):
    config = HeadConfig(nc, (tuple(range(nc)),), (1.0,), ("all",))
    maps, targets = random_maps([nc]), random_targets(nc)
    total, items, gradients = run(
        MultiHeadLoss(network(several(config), per_head_loss=per_head), assigner), maps, targets
    )
    expected = run(YoloLoss(network(ordinary(nc)), assigner), maps[0], targets)
    assert torch.equal(total, expected[0]) and torch.equal(items, expected[1])
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected[2], strict=True))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("hyp", [{}, {"label_smoothing": 0.1, "cls_pw": 1.5, "fl_gamma": 1.0}])
@pytest.mark.parametrize("assigner", ["plain", "ota", "tal"])
def test_heads_together_learn_what_each_would_alone(assigner, hyp, full):
    """Each head by itself: its own maps, its own targets with local classes, everything else ground."""
    config = HeadConfig(6, ((4,), (0, 3), (5, 1, 2)), (1.0, 1.5, 0.7), ("a", "b", "c"), full_head=full)
    maps, targets = random_maps(config.widths), random_targets(6)
    loss = MultiHeadLoss(network(several(config), per_head_loss=1, **hyp), assigner)
    total, items, gradients = run(loss, maps, targets)
    sums, alone = torch.zeros(4), []
    for head, (ids, weight) in enumerate(zip(config.classes, config.weights)):
        own = targets[(targets[:, 1:2] == torch.tensor(ids)).any(1)]
        own[:, 1] = torch.tensor(config.local_of)[own[:, 1].long()].float()
        columns = [*range(5), *(5 + c for c in config.columns[head])]
        parts = [m[..., columns].detach() for m in maps[head]]
        if len(ids) == 1:
            for part in parts:
                part[..., 5] = CERTAIN
        by_itself = YoloLoss(network(ordinary(len(ids)), **hyp), assigner)
        _, found, grads = run(by_itself, [p.requires_grad_() for p in parts], own)
        sums += weight * found
        for m, grad in zip(maps[head], grads, strict=True):
            alone.append(torch.zeros_like(m).index_copy(-1, torch.tensor(columns), weight * grad))
    torch.testing.assert_close(items, sums, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(total, items[3:] * 4)
    for grad, expected in zip(gradients, alone, strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("per_head", [0, 1])
@pytest.mark.parametrize(("heads", "weight"), [(3, 5), (8, 15)])
def test_background_counts_alike_in_every_head(heads, weight, per_head):
    """Objectness is summed over heads, each a mean over its own map: one that is sure of its emptiness adds nothing.

    By default the sum weighs more than with one head, since it has to tell the heads' objects apart.
    """
    weight = 1 if per_head else weight
    config = HeadConfig.consecutive(2 * heads, heads)
    (one,) = random_maps([2])
    silent = [m.detach().index_fill(-1, torch.tensor([4]), -CERTAIN) for m in one]
    targets = random_targets(2)  # of the first head alone
    loss = MultiHeadLoss(network(several(config), per_head_loss=per_head), "ota")
    one_head = YoloLoss(network(ordinary(2)), "ota")
    expected = weight * one_head(one, targets, IMAGES)[1][1].item()
    assert loss([one, *[silent] * (heads - 1)], targets, IMAGES)[1][1].item() == pytest.approx(expected, rel=1e-6)
    empty = weight * one_head(one, targets[:0], IMAGES)[1][1].item()
    assert loss([one] * heads, targets[:0], IMAGES)[1][1].item() == pytest.approx(heads * empty, rel=1e-6)
