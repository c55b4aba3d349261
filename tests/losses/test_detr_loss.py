"""DETR's loss and matchings of all decoder layers, made together, against those that transformers makes one by one."""

import copy
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from benchmarks.op_counter import OpCounter
from tests.training.families.detr_commands import NETWORKS, needs_transformers
from yolov7fast.losses import detr_loss
from yolov7fast.losses.detr_loss import PARTS, BoxesNotFinite, MatchCosts, SetLoss, match_layers
from yolov7fast.nn.detr_model import build, transformers

LAYERS, IMAGES, QUERIES, CLASSES = 4, 3, 40, 5


def matchers_of(kind: str):
    """(costs, transformers' matcher with the same)"""
    transformers()  # first, as it hides a torchvision that cannot be imported
    costs = MatchCosts(2.0, 5.0, 2.0, (0.25, 2.0) if kind == "focal" else None)
    if kind == "detr":
        module = import_module("transformers.loss.loss_for_object_detection")
        return costs, module.HungarianMatcher(costs.cls, costs.box, costs.giou)
    weights = {"matcher_class_cost": 2.0, "matcher_bbox_cost": 5.0, "matcher_giou_cost": 2.0}
    focal = {"use_focal_loss": kind == "focal", "matcher_alpha": 0.25, "matcher_gamma": 2.0}
    module = import_module("transformers.loss.loss_rt_detr")
    return costs, module.RTDetrHungarianMatcher(SimpleNamespace(**weights, **focal))


def case(seed: int, counts=(7, 0, 50)):
    """Logits, boxes and targets; one image has nothing in it, one more objects than there are queries."""
    torch.manual_seed(seed)
    logits = torch.randn(LAYERS, IMAGES, QUERIES, CLASSES) * 3
    boxes = torch.rand(LAYERS, IMAGES, QUERIES, 4)
    targets = [{"class_labels": torch.randint(CLASSES, (n,)), "boxes": torch.rand(n, 4)} for n in counts]
    return logits, boxes, targets


@needs_transformers
@pytest.mark.parametrize("kind", ["detr", "softmax", "focal"])
@pytest.mark.parametrize("seed", range(2))
def test_assignments_are_those_of_transformers(kind, seed):
    logits, boxes, targets = case(seed)
    costs, matcher = matchers_of(kind)
    found = {tuple(pair) for pair in match_layers(costs, logits, boxes, targets).T.tolist()}
    first, expected = [0, 7, 7], set()
    for layer in range(LAYERS):
        of_images = matcher({"logits": logits[layer], "pred_boxes": boxes[layer]}, targets)
        for image, (queries, objects) in enumerate(of_images):
            expected |= {(layer, image, q, o + first[image]) for q, o in zip(queries.tolist(), objects.tolist())}
    assert found == expected


@pytest.mark.parametrize("layers_wanted", [1, 4])
def test_the_host_waits_once_for_all_layers(monkeypatch, layers_wanted):
    copies, to_host = [], detr_loss.to_host
    monkeypatch.setattr(detr_loss, "to_host", lambda values: copies.append(values.shape) or to_host(values))
    logits, boxes, targets = case(0)
    with OpCounter() as counter:
        match_layers(MatchCosts(2.0, 5.0, 2.0, (0.25, 2.0)), logits[:layers_wanted], boxes[:layers_wanted], targets)
    assert len(copies) == 1 and counter.host_reads == 0


def test_a_box_that_is_no_number_in_any_layer_is_noticed():
    logits, boxes, targets = case(2)
    boxes[2, 1, 3, 0] = torch.nan
    with pytest.raises(BoxesNotFinite):
        match_layers(MatchCosts(1, 5, 2), logits, boxes, targets)


@needs_transformers
@pytest.mark.parametrize("counts", [(3, 0, 5), (0, 0, 0)])
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        *(("detr", {}), ("detr", {"auxiliary_loss": False})),
        *(("rtdetr_v2", {}), ("rtdetr_v2", {"num_denoising": 0}), ("rtdetr_v2", {"auxiliary_loss": False})),
    ],
)
def test_loss_and_gradients_are_those_of_transformers(architecture, settings, counts):
    torch.manual_seed(3)
    network = copy.deepcopy(NETWORKS[architecture]) | {"dropout": 0.0, "num_denoising": 6} | settings
    if architecture == "detr":
        del network["num_denoising"]
    detector = build(architecture, ["a", "b", "c", "d"], network).train()
    theirs, ours = detector.network.loss_function, SetLoss(detector)
    labels = [{"class_labels": torch.randint(4, (n,)), "boxes": torch.rand(n, 4) * 0.3 + 0.3} for n in counts]
    images, mask = torch.rand(3, 3, 64, 64), torch.ones(3, 64, 64, dtype=torch.long)
    seen = []

    def both(*args, **kwargs):
        seen.append((theirs(*args, **kwargs), ours(*args, **kwargs)))
        return seen[0][0]

    detector.network.loss_function = both
    detector(images, mask, labels)
    ((expected, details, _), (total, parts, _)) = seen[0]
    torch.testing.assert_close(total, expected, rtol=2e-5, atol=1e-6)
    assert tuple(parts) == PARTS and sum(parts.values()).item() == pytest.approx(total.item(), rel=1e-5)
    weights = {"loss_bbox": 5.0, "loss_giou": 2.0} if architecture == "detr" else {}
    for name, key in (("box", "loss_bbox"), ("giou", "loss_giou")):
        value = sum(v for k, v in details.items() if k.startswith(key)) * weights.get(key, 1.0)
        torch.testing.assert_close(parts[name], value.detach(), rtol=2e-5, atol=1e-6)
    learnt = [p for p in detector.parameters() if p.requires_grad]
    for one, other in zip(
        *(torch.autograd.grad(x, learnt, retain_graph=True, allow_unused=True) for x in (expected, total))
    ):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-5)
