"""The set loss of DETR and RT-DETR (class, L1 and GIoU losses of every decoder layer) and its Hungarian matcher.

transformers matches layer by layer: every query of the batch against every object of the batch, with two host syncs
and a copy of the cost table for each layer. Here the queries of an image are matched with its own objects only, all
layers together, with one host sync.

Shape letters: L layer, B image, Q query, G object (padded to the largest number in an image).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence

from yolov7fast.core.boxes import xywh2xyxy
from yolov7fast.nn.detr_model import DetrNetwork, transformers

PARTS = {"box": ("loss_bbox",), "giou": ("loss_giou",), "cls": ("loss_ce", "loss_vfl")}  # name -> keys begin with
Targets = Sequence[Mapping[str, torch.Tensor]]  # of each image: class_labels (g,), boxes (g, 4) xywhn
Found = list[tuple[torch.Tensor, torch.Tensor]]  # of each image: matched queries, ascending, and their objects


class BoxesNotFinite(Exception):
    """A predicted box is NaN or infinite."""


def cost_block(matcher: Any, logits: torch.Tensor, boxes: torch.Tensor, targets: Targets) -> torch.Tensor:
    """(L, B, Q, G): the cost of assigning a query to an object, with the weights of `matcher`.

    matcher: one of transformers' matchers;  logits: (L, B, Q, C);  boxes: (L, B, Q, 4). The arithmetic is that of
    transformers, so that the assignments are the same. Columns of padding are not used.
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
    most = torch.finfo(cost.dtype).max  # NaN is matched last
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
    """Copy to the host: the only host sync of a step."""
    return values.cpu().numpy()


@torch.no_grad()
def match_layers(matcher: Any, layers: Sequence[Mapping[str, torch.Tensor]], targets: Targets) -> list[Found]:
    """The matching of each layer, as `matcher` computes it. layers: logits (B, Q, C), pred_boxes (B, Q, 4)."""
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
        of_images = [(queries, objects, np.argsort(queries)) for objects, queries in of_images]
        found.append([(torch.from_numpy(q[order]), torch.from_numpy(o[order])) for q, o, order in of_images])
    return found


def loss_modules() -> tuple[ModuleType, ModuleType]:
    """The modules of transformers with the losses and matchers of DETR and of RT-DETR."""
    name = transformers().__name__
    detr, rt_detr = (import_module(f"{name}.loss.{part}") for part in ("loss_for_object_detection", "loss_rt_detr"))
    return detr, rt_detr


@contextmanager
def matched_together(around: Callable[[Callable[[], list[Found]]], list[Found]]) -> Iterator[None]:
    """Inside the block transformers' set losses get the matchings of all their layers from `match_layers`.

    around: calls the function it is given, which computes the matchings, and returns its result.
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


class SetLoss:
    """Replaces the loss function of a network of transformers. It is computed in full precision.

    transformers divides by the number of boxes of one process. With several processes (`shared`), whose gradients are
    averaged, each divides by the mean number instead, as one process would for the whole batch. All processes must
    then call it together: validation, which only the first one does, uses a separate loss.
    """

    def __init__(self, detector: DetrNetwork):
        self.compute = detector.network.loss_function
        self.weights = {name: 1.0 for name in PARTS}  # RT-DETR's parts are weighted already
        config = detector.network.config
        if detector.kind.has_background:
            self.weights |= {"box": config.bbox_loss_coefficient, "giou": config.giou_loss_coefficient}
        # DETR's class loss is a mean over queries; everything else is divided by the number of boxes
        self.by_boxes = [name for name in PARTS if name != "cls" or not detector.kind.has_background]
        self.shared = False
        self.mark: Callable[[str], None] = lambda stage: None
        self.timed = False  # the matcher is timed as a separate stage

    def __call__(self, logits: torch.Tensor, labels, device, boxes: torch.Tensor, config, *args, **kwargs):
        """(total, {part: value} with that sum, per-layer outputs). Outputs that are NaN or infinite give a loss of NaN,
        which the training step handles."""
        self.mark("forward")
        factor = _mean_count_factor(labels, device) if self.shared else None
        with torch.autocast(logits.device.type, enabled=False):
            wide = [_float(value) for value in (logits, boxes, *args)]
            kwargs = {key: _float(value) for key, value in kwargs.items()}
            try:
                with matched_together(self._matching):
                    total, found, layers = self.compute(wide[0], labels, device, wide[1], config, *wide[2:], **kwargs)
            except (BoxesNotFinite, ValueError) as error:
                if isinstance(error, ValueError) and all(bool(torch.isfinite(value).all()) for value in wide[:2]):
                    raise
                lost = wide[1].sum() * torch.nan
                return lost, dict.fromkeys(PARTS, lost.detach()), None
        parts = {name: self._part(name, found) for name in PARTS}
        if factor is not None:
            total = total + (factor - 1) * sum(parts[name] for name in self.by_boxes)
            parts |= {name: parts[name] * factor for name in self.by_boxes}
        return total, {name: part.detach() for name, part in parts.items()}, layers

    def _matching(self, match: Callable[[], list[Found]]) -> list[Found]:
        if not self.timed:
            return match()
        self.mark("loss")
        found = match()
        self.mark("assignment")
        return found

    def _part(self, name: str, found: dict[str, torch.Tensor]) -> torch.Tensor:
        of_layers = [value for key, value in found.items() if key.startswith(PARTS[name])]
        return self.weights[name] * torch.stack(of_layers).sum()


def _mean_count_factor(labels: list[dict[str, torch.Tensor]], device) -> torch.Tensor:
    """The number of boxes of this process, which transformers divides by, over the mean of all processes."""
    own = float(sum(len(label["class_labels"]) for label in labels))
    count = torch.tensor(own, device=device)
    dist.all_reduce(count)
    return max(own, 1.0) / (count / dist.get_world_size()).clamp(min=1.0)


def _float(value):
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def attach_loss(detector: DetrNetwork) -> SetLoss:
    """The network's `SetLoss`, which is created if needed."""
    present = detector.network.loss_function
    loss = present if isinstance(present, SetLoss) else SetLoss(detector)
    detector.network.loss_function = loss
    return loss


@contextmanager
def matcher_timed(loss: SetLoss) -> Iterator[None]:
    """Inside the block the matcher (cost matrix, its copy to the host, SciPy's assignment) is timed separately."""
    loss.timed = True
    try:
        yield
    finally:
        loss.timed = False
