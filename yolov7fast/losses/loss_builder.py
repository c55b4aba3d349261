"""Choice of the loss by the network's detection layer, and its compilation.

torch.compile gets three parts of a loss: candidate features, matching of a chunk, loss terms. Each is compiled once
for all batch sizes. Reading of the raw outputs, chunks of an image too large to be matched at once, and batches with
fewer than two boxes run eagerly.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from yolov7fast.losses.assigners import find_assigner
from yolov7fast.losses.multihead_loss import MultiHeadLoss
from yolov7fast.losses.simota import MatchingChunk, Predictions, SimOTA
from yolov7fast.losses.yolo_loss import AuxiliaryLoss, Predicted, YoloLoss
from yolov7fast.nn.compiling import CompiledPart
from yolov7fast.nn.heads import IAuxDetect
from yolov7fast.nn.multihead import MultiHeadDetect

LEAST = 2  # torch.compile specialises on sizes of 0 and 1


def build_loss(model: Any, assigner: str, autobalance: bool = False) -> YoloLoss:
    """The loss of a network with one head, a lead and an auxiliary head, or several heads.

    With the plain assigner auxiliary heads are not trained: for validation only.
    """
    head = getattr(model, "module", model).model[-1]
    if isinstance(head, MultiHeadDetect):
        return MultiHeadLoss(model, assigner, autobalance)
    if isinstance(head, IAuxDetect) and find_assigner(assigner).compares:
        return AuxiliaryLoss(model, assigner, autobalance)
    return YoloLoss(model, assigner, autobalance)


def compile_loss(loss: YoloLoss, compiler: Callable | None = None) -> list[CompiledPart]:
    """Compile the parts of a loss in place, each at its first use. compiler: replaces torch.compile."""
    parts: list[tuple[Any, str, str, Callable[..., bool]]] = [(loss, "candidate_terms", "the loss", _learns)]
    if isinstance(loss.assigner, SimOTA):
        fits = partial(_ordinary_sizes, top=loss.assigner.top)
        parts.append((loss.assigner, "prepare", "the assigner's scores", _some_predictions))
        parts.append((loss.assigner, "match_chunk", "the assigner", fits))
    compiled = []
    for owner, method, name, fits in parts:
        compiled.append(CompiledPart(name, getattr(owner, method), fits, compiler))
        object.__setattr__(owner, method, compiled[-1])  # assigners are frozen dataclasses
    return compiled


def _learns(predicted: Predicted, *_) -> bool:
    """Whether gradients are needed; without them, as in validation, the loss would be compiled a second time."""
    return predicted.box.requires_grad and len(predicted.rows) >= LEAST


def _some_predictions(predictions: Predictions) -> bool:
    return len(predictions.objectness) >= LEAST


def _ordinary_sizes(chunk: MatchingChunk, boxes: torch.Tensor, gt_boxes: torch.Tensor, *_, top: int) -> bool:
    sizes = *chunk.candidates.shape, chunk.gt_idx.shape[1], boxes.shape[1], len(gt_boxes)
    return min(sizes) >= LEAST and chunk.candidates.shape[1] > top + 1
