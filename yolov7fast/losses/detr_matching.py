"""DETR's matching of queries and objects, of all decoder layers at once: one cost block, one copy to the host.

transformers matches layer after layer: each time it takes every query of the batch against every object of the batch,
asks the device twice whether boxes are in order, copies the table to the host and uses its diagonal blocks. Here each
image's queries meet its own objects alone, in all layers together, and the host waits once.

Shape letters: L layer, B image, Q query, G object (padded to the most of an image).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from yolov7fast.core.boxes import xywh2xyxy
from yolov7fast.nn.detr import transformers

Targets = Sequence[Mapping[str, torch.Tensor]]  # of each image: class_labels (g,), boxes (g, 4) xywhn
Found = list[tuple[torch.Tensor, torch.Tensor]]  # of each image: matched queries, ascending, and their objects


class BoxesNotFinite(Exception):
    """A predicted box is not a number: there is nothing to match."""


def cost_block(matcher: Any, logits: torch.Tensor, boxes: torch.Tensor, targets: Targets) -> torch.Tensor:
    """(L, B, Q, G): what it costs to give a query an object, by the weights and the class cost of `matcher`.

    matcher: one of transformers' matchers;  logits: (L, B, Q, C);  boxes: (L, B, Q, 4). The arithmetic of a pair is
    that of transformers, so that the assignments are the same. Columns of padding mean nothing.
    """
    wanted = pad_sequence([t["boxes"] for t in targets], batch_first=True).to(boxes)  # (B, G, 4)
    classes = pad_sequence([t["class_labels"] for t in targets], batch_first=True)  # (B, G)
    focal = getattr(matcher, "use_focal_loss", False)
    score = logits.sigmoid() if focal else logits.softmax(-1)
    score = score.gather(3, classes[None, :, None].expand(*logits.shape[:3], -1))
    if focal:
        negative = (1 - matcher.alpha) * (score**matcher.gamma) * (-(1 - score + 1e-8).log())
        positive = matcher.alpha * ((1 - score) ** matcher.gamma) * (-(score + 1e-8).log())
        class_cost = positive - negative
    else:
        class_cost = -score
    box_cost = torch.cdist(boxes, wanted[None].expand(len(boxes), -1, -1, -1), p=1)
    cost = matcher.bbox_cost * box_cost + matcher.class_cost * class_cost
    cost = cost + matcher.giou_cost * -_giou(boxes, wanted)
    most = torch.finfo(cost.dtype).max  # what is no number is taken last
    return torch.nan_to_num(cost, nan=most, posinf=most, neginf=most)


def _giou(boxes: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """(L, B, Q, G) GIoU of xywh boxes (L, B, Q, 4) and (B, G, 4)."""
    a, b = (xywh2xyxy(x.reshape(-1, 4)).view(x.shape) for x in (boxes, wanted))
    left, top, right, bottom = a[..., None, :].unbind(-1)  # (L, B, Q, 1)
    left2, top2, right2, bottom2 = b[:, None].unbind(-1)  # (B, 1, G)
    width = (torch.minimum(right, right2) - torch.maximum(left, left2)).clamp(min=0)
    inter = width * (torch.minimum(bottom, bottom2) - torch.maximum(top, top2)).clamp(min=0)
    union = (right - left) * (bottom - top) + (right2 - left2) * (bottom2 - top2) - inter
    width = (torch.maximum(right, right2) - torch.minimum(left, left2)).clamp(min=0)
    around = width * (torch.maximum(bottom, bottom2) - torch.minimum(top, top2)).clamp(min=0)
    return inter / union - (around - union) / around


def to_host(values: torch.Tensor) -> np.ndarray:
    """The one copy of a step; the host waits here."""
    return values.cpu().numpy()


@torch.no_grad()
def match_layers(matcher: Any, layers: Sequence[Mapping[str, torch.Tensor]], targets: Targets) -> list[Found]:
    """The matching of each layer, as `matcher` would make it. layers: logits (B, Q, C), pred_boxes (B, Q, 4)."""
    from scipy.optimize import linear_sum_assignment

    sizes = [len(t["boxes"]) for t in targets]
    logits, boxes = (torch.stack([layer[key] for layer in layers]) for key in ("logits", "pred_boxes"))
    cost = cost_block(matcher, logits, boxes, targets)
    finite = torch.isfinite(boxes).all().to(cost.dtype)
    block = to_host(torch.cat([cost.transpose(2, 3).reshape(-1), finite[None]]))  # objects in rows: SciPy's own order
    if not block[-1]:
        raise BoxesNotFinite
    block = block[:-1].reshape(*cost.shape[:2], cost.shape[3], cost.shape[2])
    found = []
    for layer in block:
        of_images = [linear_sum_assignment(table[:size]) for table, size in zip(layer, sizes)]
        found.append([_by_query(objects, queries) for objects, queries in of_images])
    return found


def _by_query(objects: np.ndarray, queries: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    order = np.argsort(queries)
    return torch.from_numpy(queries[order]), torch.from_numpy(objects[order])


def loss_modules() -> tuple[ModuleType, ModuleType]:
    """Where transformers keeps the losses and matchers of DETR and of RT-DETR."""
    name = transformers().__name__
    detr, rt_detr = (import_module(f"{name}.loss.{part}") for part in ("loss_for_object_detection", "loss_rt_detr"))
    return detr, rt_detr


@contextmanager
def matched_together(around: Callable[[Callable[[], list[Found]]], list[Found]]) -> Iterator[None]:
    """While open, transformers' set losses get the matchings of all their layers from `match_layers`.

    around: calls the function it is given, which makes the matchings, and returns its result.
    """
    modules = loss_modules()
    criteria = modules[0].ImageLoss, modules[1].RTDetrLoss
    kept = [(criterion, criterion.forward) for criterion in criteria]

    def together(forward):
        def run(self, outputs, targets):
            layers = [outputs, *outputs.get("auxiliary_outputs", ())]
            found = around(lambda: match_layers(self.matcher, layers, targets))
            of_layer = {id(layer["logits"]): matching for layer, matching in zip(layers, found, strict=True)}
            del self.matcher  # a registered module, which a plain function cannot replace
            self.matcher = lambda layer, _: of_layer[id(layer["logits"])]
            return forward(self, outputs, targets)

        return run

    for criterion, forward in kept:
        criterion.forward = together(forward)
    try:
        yield
    finally:
        for criterion, forward in kept:
            criterion.forward = forward
