"""DETR's matchings of all decoder layers, made together, against those that transformers makes one by one."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.op_counter import OpCounter
from tests.training.families.detr_commands import needs_transformers
from yolov7fast.losses import detr_loss
from yolov7fast.losses.detr_loss import BoxesNotFinite, loss_modules, match_layers

LAYERS, IMAGES, QUERIES, CLASSES = 4, 3, 40, 5


def matcher_of(kind: str):
    detr, rt_detr = loss_modules()
    if kind == "detr":
        return detr.HungarianMatcher(1, 5, 2)
    weights = {"matcher_class_cost": 2.0, "matcher_bbox_cost": 5.0, "matcher_giou_cost": 2.0}
    focal = {"use_focal_loss": kind == "focal", "matcher_alpha": 0.25, "matcher_gamma": 2.0}
    return rt_detr.RTDetrHungarianMatcher(SimpleNamespace(**weights, **focal))


def case(seed: int, counts=(7, 0, 50)):
    """Layers and targets; one image has nothing in it, one more objects than there are queries."""
    torch.manual_seed(seed)
    layers = [
        {"logits": torch.randn(IMAGES, QUERIES, CLASSES) * 3, "pred_boxes": torch.rand(IMAGES, QUERIES, 4)}
        for _ in range(LAYERS)
    ]
    targets = [{"class_labels": torch.randint(CLASSES, (n,)), "boxes": torch.rand(n, 4)} for n in counts]
    return layers, targets


@needs_transformers
@pytest.mark.parametrize("kind", ["detr", "softmax", "focal"])
@pytest.mark.parametrize("seed", range(2))
def test_assignments_are_those_of_transformers(kind, seed):
    layers, targets = case(seed)
    matcher = matcher_of(kind)
    for layer, found in zip(layers, match_layers(matcher, layers, targets), strict=True):
        for ours, theirs in zip(found, matcher(layer, targets), strict=True):
            assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(ours, theirs, strict=True))


@needs_transformers
@pytest.mark.parametrize("layers_wanted", [1, 4])
def test_the_host_waits_once_for_all_layers(monkeypatch, layers_wanted):
    copies, to_host = [], detr_loss.to_host
    monkeypatch.setattr(detr_loss, "to_host", lambda values: copies.append(values.shape) or to_host(values))
    layers, targets = case(0)
    matcher = matcher_of("focal")
    with OpCounter() as counter:
        match_layers(matcher, layers[:layers_wanted], targets)
    assert len(copies) == 1 and counter.host_reads == 0
    with OpCounter() as counter:
        matcher(layers[0], targets)
    assert counter.host_reads >= 2  # so a read is counted where there is one


@needs_transformers
def test_a_box_that_is_no_number_in_any_layer_is_noticed():
    layers, targets = case(2)
    layers[2]["pred_boxes"][1, 3, 0] = torch.nan
    with pytest.raises(BoxesNotFinite):
        match_layers(matcher_of("detr"), layers, targets)
