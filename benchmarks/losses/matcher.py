"""DETR's matching: all decoder layers together against transformers' matcher, layer after layer.

    python -m benchmarks.losses.matcher [--quick] [--json FILE]

Random predictions of 300 queries in six decoder layers (and RT-DETR's encoder), 8 images, 80 classes; CPU time of one
thread, both sides in turn in this process on the same tensors; the assignments must be equal.
"""

import sys
from functools import partial
from types import SimpleNamespace

import torch

from benchmarks.measure import cpu_seconds, in_turn, note, quick_parser, show_machine, write_json
from yolov7fast.losses.detr_loss import MatchCosts, match_layers
from yolov7fast.nn.detr_model import transformers

IMAGES, QUERIES, CLASSES = 8, 300, 80
WANTED_AT = 150  # objects an image


def matchers() -> dict[str, tuple]:
    """(costs, transformers' matcher, layers) of each kind, with the weights of transformers' configurations."""
    transformers()  # first, as it hides a torchvision that cannot be imported
    from transformers.loss.loss_for_object_detection import HungarianMatcher
    from transformers.loss.loss_rt_detr import RTDetrHungarianMatcher

    costs = SimpleNamespace(matcher_class_cost=2.0, matcher_bbox_cost=5.0, matcher_giou_cost=2.0)
    costs.use_focal_loss, costs.matcher_alpha, costs.matcher_gamma = True, 0.25, 2.0
    return {
        "DETR": (MatchCosts(1, 5, 2), HungarianMatcher(1, 5, 2), 6),
        "RT-DETR": (MatchCosts(2.0, 5.0, 2.0, (0.25, 2.0)), RTDetrHungarianMatcher(costs), 7),
    }


def inputs(layers: int, objects: int) -> tuple[torch.Tensor, torch.Tensor, list[dict[str, torch.Tensor]]]:
    """Boxes of 2 to 30% of the side; half of the queries lie near an object, as in a trained network."""
    torch.manual_seed(0)
    targets, predicted = [], torch.rand(layers, IMAGES, QUERIES, 4) * torch.tensor([1.0, 1.0, 0.28, 0.28])
    predicted[..., 2:] += 0.02
    for image in range(IMAGES):
        boxes = torch.rand(objects, 4) * torch.tensor([1.0, 1.0, 0.28, 0.28]) + torch.tensor([0.0, 0.0, 0.02, 0.02])
        targets.append({"class_labels": torch.randint(CLASSES, (objects,)), "boxes": boxes})
        near = boxes[torch.randint(objects, (layers, QUERIES // 2))]
        predicted[:, image, : QUERIES // 2] = (near + torch.randn(near.shape) * 0.01).clamp(0.001, 1)
    logits = torch.randn(layers, IMAGES, QUERIES, CLASSES) * 2
    return logits, predicted, targets


def compare(results: dict, kind: str, costs: MatchCosts, matcher, layers: int, objects: int, runs: int) -> None:
    logits, boxes, targets = inputs(layers, objects)
    outputs = [{"logits": a, "pred_boxes": b} for a, b in zip(logits, boxes)]
    alone = [
        (layer, image, int(query), int(wanted) + image * objects)
        for layer, output in enumerate(outputs)
        for image, matched in enumerate(matcher(output, targets))
        for query, wanted in zip(*matched)
    ]
    assert sorted(alone) == sorted(map(tuple, match_layers(costs, logits, boxes, targets).T.tolist())), "they differ"
    seconds = in_turn(
        {
            "one by one": partial(cpu_seconds, lambda: [matcher(layer, targets) for layer in outputs]),
            "together": partial(cpu_seconds, lambda: match_layers(costs, logits, boxes, targets)),
        },
        runs,
    )
    ratio = seconds["one by one"] / seconds["together"]
    figures = f"{seconds['one by one'] * 1e3:10.1f} ms {seconds['together'] * 1e3:10.1f} ms"
    print(f"{kind:<8}{layers} layers, {objects:4} objects an image{figures}")
    results["cases"].append({"kind": kind, "layers": layers, "objects": objects, **seconds})
    what = f"{kind} matcher, {objects} objects an image, one by one / together"
    note(results, what, ratio, ">= 1.4" if objects == WANTED_AT else "-", runs)


def main(argv: list[str] | None = None) -> int:
    opt = quick_parser("benchmarks.losses.matcher", __doc__, "150 objects alone, fewer runs").parse_args(argv)
    torch.set_num_threads(1)
    runs = 3 if opt.quick else 11
    results: dict = {"machine": show_machine(), "runs": runs, "cases": []}
    for kind, (costs, matcher, layers) in matchers().items():
        for objects in (WANTED_AT,) if opt.quick else (10, 50, WANTED_AT):
            compare(results, kind, costs, matcher, layers, objects, runs)
    write_json(opt.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
