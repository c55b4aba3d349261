"""Networks with a level at stride 4: levels, anchors, a step of both losses, and weights taken over from their base."""

import pytest
import torch

from tests.losses.loss_golden import HYP
from tests.nn.parity import build
from yolov7fast.losses.yolo import ComputeLoss, ComputeLossOTA

SHARED = {"training/yolov7-tiny-p2": ("training/yolov7-tiny", 57), "training/yolov7-p2": ("training/yolov7", 75)}


@pytest.mark.parametrize("name", SHARED)
def test_four_levels_from_stride_4_with_rising_anchors(name):
    head = build(name, nc=2).model[-1]
    assert head.stride.tolist() == [4, 8, 16, 32]
    areas = (head.anchor_grid.view(4, 3, 2).prod(2)).mean(1)
    assert areas.tolist() == sorted(areas.tolist())


@pytest.mark.parametrize("name", SHARED)
def test_the_first_layers_are_those_of_the_base_so_that_its_weights_fit(name):
    base, last = SHARED[name]
    own, other = build(name, nc=2).state_dict(), build(base, nc=2).state_dict()
    shared = [key for key in other if int(key.split(".")[1]) <= last]
    assert len(shared) > 200
    assert all(own[key].shape == other[key].shape for key in shared)


@pytest.mark.parametrize("loss", [ComputeLoss, ComputeLossOTA])
def test_a_box_that_no_other_level_has_anchors_for_is_learnt_at_stride_4(loss):
    torch.manual_seed(0)
    model = build("training/yolov7-tiny-p2", nc=2)
    model.hyp, model.gr = HYP, 1.0
    images = torch.rand(1, 3, 96, 96)
    targets = torch.tensor([[0, 1, 0.5, 0.5, 2.4 / 96, 2.6 / 96]])
    maps = model.train()(images)
    value, _ = loss(model)(*((maps, targets) if loss is ComputeLoss else (maps, targets, images)))
    value.sum().backward()
    grads = [m.weight.grad.view(3, 7, -1)[:, 5:].abs().sum().item() for m in model.model[-1].m]  # of the class rows
    assert grads[0] > 0
    assert grads[1:] == [0, 0, 0]
