"""The device part of a loss by torch.compile: what surrounds the reads of the raw outputs, in three pieces.

Scores of the candidates, the matching of a block of pools, and the loss of each candidate are compiled once each, for
sizes that change from batch to batch. The reads themselves, a block too large to be matched at once, and batches with
next to no boxes run as they are.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from yolov7fast.assign.base import Predictions
from yolov7fast.assign.pooled import PooledAssigner
from yolov7fast.assign.pools import PoolBlock, pairs_at_once
from yolov7fast.losses.yolo import Predicted, YoloLoss
from yolov7fast.nn.compiling import CompiledPart

LEAST = 2  # sizes of 0 and 1 are special to a compiler


def compile_loss(loss: YoloLoss, compiler: Callable | None = None) -> list[CompiledPart]:
    """Compile the parts of a loss, in place, each at its first use; compiler: in the place of torch.compile."""
    parts = [_replace(loss, "candidate_terms", "the loss", _learns, compiler)]
    if isinstance(loss.assigner, PooledAssigner):
        assigner, at_once = loss.assigner, _matched_at_once(loss.assigner.top)
        parts.append(_replace(assigner, "prepare", "the assigner's scores", _some_predictions, compiler))
        parts.append(_replace(assigner, "match_block", "the assigner", at_once, compiler))
    return parts


def diagnose_loss(loss: YoloLoss, p: list[torch.Tensor], targets: torch.Tensor, images: torch.Tensor) -> int:
    """Print what compiles of a loss, which is compiled in place by it; exit code 0 if all of it does, else 1."""
    graphs = []

    def count(graph, example):
        graphs.append(graph)
        return graph.forward

    parts = compile_loss(loss, partial(torch.compile, fullgraph=True, backend=count))
    loss(p, targets, images)
    print(f"loss: {len(graphs)} of {len(parts)} parts compile as a graph")
    failed = [part for part in parts if part.failure]
    for part in failed:
        print(f"loss: {part.name} does not: {part.failure}")
    return 1 if failed else 0


def _replace(owner: Any, method: str, name: str, fits: Callable[..., bool], compiler: Callable | None) -> CompiledPart:
    part = CompiledPart(name, getattr(owner, method), fits, compiler)
    object.__setattr__(owner, method, part)  # assigners are frozen: their settings, that is
    return part


def _learns(predicted: Predicted, *_) -> bool:
    """In training, with enough candidates; a validation's loss, without gradients, would be compiled by itself."""
    return predicted.box.requires_grad and len(predicted.rows) >= LEAST


def _some_predictions(predictions: Predictions) -> bool:
    return len(predictions.objectness) >= LEAST


def _matched_at_once(top: int) -> Callable[[PoolBlock, torch.Tensor, torch.Tensor], bool]:
    def fits(block: PoolBlock, table: torch.Tensor, score: torch.Tensor) -> bool:
        (pools, slots), boxes = block.padding_cost.shape, block.present.shape[1]
        small = min(pools, boxes, len(score)) >= LEAST and slots > top + 1
        return small and pools * slots * boxes <= pairs_at_once(table.device)

    return fits
