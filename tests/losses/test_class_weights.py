"""Weights of classes in the class loss: objects count by their class, nothing else changes, nothing is waited for."""

import numpy as np
import pytest
import torch

from tests.losses.loss_golden import HYP, LOSSES, stand_in
from tests.losses.test_yolo import small_case
from yolov7fast.losses.yolo import ComputeLossOTA

NC = 5


def items(kind: str, weights=None, only: int | None = None) -> torch.Tensor:
    """Box, objectness, class loss and their sum; only: the class that all targets get."""
    maps, targets, images = small_case(nc=NC)
    if only is not None:
        targets[:, 1] = only
    loss = LOSSES[kind](stand_in("p5", NC, HYP, 1.0), class_weights=weights)
    return (loss(maps, targets) if kind == "plain" else loss(maps, targets, images))[1]


@pytest.mark.parametrize("kind", ["plain", "ota"])
def test_equal_weights_change_nothing(kind):
    torch.testing.assert_close(items(kind, np.ones(NC)), items(kind), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["plain", "ota"])
def test_an_object_counts_by_the_weight_of_its_class_in_the_class_loss_alone(kind):
    weights = np.array([1, 1, 3, 1, 1])
    plain, weighed = items(kind, only=2), items(kind, weights, only=2)
    torch.testing.assert_close(weighed[2], 3 * plain[2], rtol=1e-6, atol=0)
    torch.testing.assert_close(weighed[:2], plain[:2], rtol=0, atol=0)
    torch.testing.assert_close(items(kind, weights, only=1), items(kind, only=1), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["plain", "ota"])
def test_weights_add_up_over_the_classes(kind):
    """The class loss is linear in the weights."""
    parts = [items(kind, np.eye(NC)[c])[2] for c in range(NC)]
    weights = np.array([0.5, 1, 2, 4, 8])
    whole = items(kind, weights)[2]
    torch.testing.assert_close(whole, sum(w * p for w, p in zip(weights.tolist(), parts)), rtol=1e-5, atol=0)


def test_the_device_is_asked_for_nothing():
    """On `meta` any read of a value raises."""
    maps, targets, images = small_case(nc=NC)
    loss = ComputeLossOTA(stand_in("p5", NC, HYP, 1.0), class_weights=np.ones(NC))
    value, _ = loss([m.to("meta") for m in maps], targets, images.to("meta"))
    assert value.device.type == "meta"
