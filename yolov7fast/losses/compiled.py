"""The device part of a loss by torch.compile, in three parts: candidate features, matching of a chunk, loss terms.

Each is compiled once, for sizes that change from batch to batch. Reading of the raw outputs, a chunk of an image too
large to be matched at once, and batches with next to no boxes run without the compiler.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from yolov7fast.losses.assignment import MatchingChunk, Predictions
from yolov7fast.losses.simota import SimOTA
from yolov7fast.losses.yolo import Predicted, YoloLoss
from yolov7fast.nn.compiling import CompiledPart

LEAST = 2  # sizes of 0 and 1 are special to a compiler


def compile_loss(loss: YoloLoss, compiler: Callable | None = None) -> list[CompiledPart]:
    """Compile the parts of a loss, in place, each at its first use; compiler: in the place of torch.compile."""
    parts = [_replace(loss, "candidate_terms", "the loss", _learns, compiler)]
    if isinstance(loss.assigner, SimOTA):
        parts.append(_replace(loss.assigner, "prepare", "the assigner's scores", _some_predictions, compiler))
        fits = partial(_ordinary_sizes, top=loss.assigner.top)
        parts.append(_replace(loss.assigner, "match_chunk", "the assigner", fits, compiler))
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
    object.__setattr__(owner, method, part)  # assigners are frozen dataclasses
    return part


def _learns(predicted: Predicted, *_) -> bool:
    """In training, with enough candidates; a validation's loss, without gradients, would be compiled separately."""
    return predicted.box.requires_grad and len(predicted.rows) >= LEAST


def _some_predictions(predictions: Predictions) -> bool:
    return len(predictions.objectness) >= LEAST


def _ordinary_sizes(chunk: MatchingChunk, boxes: torch.Tensor, gt_boxes: torch.Tensor, *_, top: int) -> bool:
    sizes = *chunk.candidates.shape, chunk.gt_idx.shape[1], boxes.shape[1], len(gt_boxes)
    return min(sizes) >= LEAST and chunk.candidates.shape[1] > top + 1
