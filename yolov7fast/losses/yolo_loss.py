"""The YOLO loss: positives by an assigner (`losses.assigners`), then box, objectness and class terms.

`loss(raw, targets)` or `loss(raw, targets, images)` returns (total x batch size as a 1-element tensor with gradient,
detached items box / objectness / class / their sum). `raw`, the head's training output, is a list over levels of logits
(image, anchor, row, column, 5 + classes). Targets are (N, 6) rows image, class, centre x, centre y, width, height
normalised to 0..1, preferably on the host, where the candidates are found: otherwise the host waits for them.
Everything is computed in fp32 (fp64 for fp64 outputs).

`ComputeLoss`, `ComputeLossOTA` and `ComputeLossAuxOTA` are the names under which scripts for WongKinYiu/yolov7
("upstream") know these losses.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from yolov7fast.core.boxes import bbox_iou, decode_wh, decode_xy
from yolov7fast.losses.assigners import find_assigner
from yolov7fast.losses.candidates import AUX_REACH, LEAD_REACH, HeadLayout, LossPlan, make_plan
from yolov7fast.losses.simota import Assigner, Assignment, Predictions

LEVEL_WEIGHTS = {3: (4.0, 1.0, 0.4)}  # of the objectness loss, by number of levels
OTHER_LEVEL_WEIGHTS = (4.0, 1.0, 0.25, 0.06, 0.02)
LOSS_NAMES = ("box", "obj", "cls")  # of the terms, in the order in which a loss returns them, before their sum
AUX_WEIGHT = 0.25  # of the auxiliary head's loss against the lead head's
FOCAL_ALPHA = 0.25


class Predicted(NamedTuple):
    """The raw outputs at the n candidates, in the precision of the loss."""

    rows: torch.Tensor  # (n, 5 + C) logits
    box: torch.Tensor  # (4, n) centre relative to the cell, size; in cells
    objectness: torch.Tensor  # (n, 1) logit, a view of rows
    classes: torch.Tensor  # (n, C) logits, a view of rows
    all_objectness: torch.Tensor  # (all cells of all raw outputs,) logit


class Positives(NamedTuple):
    """The targets of the n candidates."""

    mask: torch.Tensor  # (n,) bool
    last: torch.Tensor  # (n,) bool, the last positive on its cell: it sets the cell's objectness
    box: torch.Tensor  # (4, n) as in Predicted
    cls: torch.Tensor  # (n, 1) int64
    weight: torch.Tensor | None = None  # (n,) in box and class loss, 0 where not taken; None: equal for all positives
    objectness: torch.Tensor | None = None  # (n,) target of the cell's objectness; None: the overlap (CIoU)


class Terms(NamedTuple):
    """Mean loss of each level, (levels,), before level weights and gains."""

    box: torch.Tensor
    objectness: torch.Tensor
    cls: torch.Tensor


def last_on_cell(taken: torch.Tensor, first_duplicate: torch.Tensor) -> torch.Tensor:
    """(n,) bool: taken, and no later candidate on the same cell is. The same on every device."""
    order = torch.arange(1, len(taken) + 1, device=taken.device)
    latest = torch.zeros_like(order).scatter_reduce_(0, first_duplicate, order * taken, "amax")
    return latest.index_select(0, first_duplicate) == order


class YoloLoss:
    """The loss of a network with one head.

    Settings come from `model.model[-1]` (the detection layer: nl, na, nc, anchors in cells, stride), `model.hyp` and
    `model.gr`. `balance`, the level weights, changes only with `autobalance`, on the device.
    """

    auxiliary = False

    def __init__(self, model: Any, assigner: str, autobalance: bool = False):
        model = getattr(model, "module", model)  # a parallel wrapper
        head, hyp = model.model[-1], model.hyp
        self.assigner: Assigner = find_assigner(assigner).build(self.auxiliary)
        self.levels, self.nc, self.gr, self.autobalance = head.nl, head.nc, model.gr, autobalance
        anchors = head.anchors.detach().cpu().numpy()  # (levels, anchors, 2)
        stride = np.asarray([float(s) for s in head.stride], dtype=np.float32)
        one_head = 1, np.zeros(self.nc, np.int64), np.arange(self.nc)
        self.layout = HeadLayout(anchors, stride, hyp["anchor_t"], self.nc, *one_head)
        self.gains = tuple(hyp.get(name, 0.0) for name in LOSS_NAMES)
        smoothing = hyp.get("label_smoothing", 0.0)
        self.class_positive, self.class_negative = 1 - 0.5 * smoothing, 0.5 * smoothing
        self.class_criterion = FocalBCE(hyp["cls_pw"], hyp["fl_gamma"])
        self.objectness_criterion = FocalBCE(hyp["obj_pw"], hyp["fl_gamma"])
        self.balance = LEVEL_WEIGHTS.get(self.levels, OTHER_LEVEL_WEIGHTS)
        self.level_weights = self.balance[: self.levels]

    def __call__(
        self, p: list, targets: torch.Tensor, imgs: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """imgs: the input images; assigners that compare predictions with boxes need their height."""
        raw = self.raw_outputs(p)
        return self.on_device(raw, self.plan(targets, raw, LEAD_REACH, self.height_of(imgs)))

    def raw_outputs(self, p: list) -> list[torch.Tensor]:
        """The raw outputs that are trained, level by level, in each level head by head."""
        return p[: self.levels]

    def height_of(self, imgs: torch.Tensor | None) -> int | None:
        """Height of the images in pixels; None if the assigner does not need it."""
        if not self.assigner.compares:
            return None
        if imgs is None:
            raise TypeError(f"{type(self.assigner).__name__} needs the images too, for their height")
        return imgs.shape[2]

    def plan(self, targets: torch.Tensor, raw: list[torch.Tensor], reach: float, height: int | None = None) -> LossPlan:
        """The host part of the loss; height: from `height_of`."""
        return make_plan(self.layout, targets, raw, self.level_weights, self.gains, reach, height, self.assigner.exact)

    # --- on the device ------------------------------------------------------------------------------------------------

    def on_device(self, raw: list[torch.Tensor], plan: LossPlan) -> tuple[torch.Tensor, torch.Tensor]:
        """The device part of the loss."""
        predicted = self.predicted(raw, plan)
        terms = self.terms(predicted, self.match(predicted, plan), raw, plan)
        return self.total(terms, terms.objectness, raw[0].shape[0], plan)

    def predicted(self, raw: list[torch.Tensor], plan: LossPlan) -> Predicted:
        rows, all_objectness = ReadCells.apply(*plan.cells, *raw)
        box, objectness, classes = rows.split([4, 1, rows.shape[1] - 5], 1)
        xy, wh = box.T.sigmoid().chunk(2)
        box = torch.cat([decode_xy(xy), decode_wh(wh, plan.anchor)])
        return Predicted(rows, box, objectness, classes, all_objectness)

    @torch.no_grad()
    def match(self, predicted: Predicted, plan: LossPlan) -> Assignment:
        """Which candidates are positives, and of which target."""
        if plan.gt is None:
            return self.assigner(plan.target)
        centre, size = ((predicted.box + plan.corner) * plan.stride).chunk(2)
        half = size / 2
        corners = torch.cat([centre - half, centre + half])
        logits = predicted.classes
        if plan.trained is not None and plan.fixed is not None:
            logits = torch.where(plan.trained, logits, plan.fixed)
        predictions = Predictions(corners, predicted.objectness, logits, plan.corner, plan.stride)
        return self.assigner(plan.target, predictions, plan.gt)

    def positives(self, plan: LossPlan, given: Assignment) -> Positives:
        """Each candidate's target, relative to its cell."""
        box = plan.target_box.index_select(1, given.matched_gt) * plan.scale - plan.corner
        cls = plan.target_class.index_select(0, given.matched_gt).unsqueeze(1)
        last = last_on_cell(given.positive_mask, plan.first_duplicate)
        return Positives(given.positive_mask, last, box, cls, given.weight, given.objectness)

    def terms(self, predicted: Predicted, given: Assignment, raw: list[torch.Tensor], plan: LossPlan) -> Terms:
        """Per-level means, from sums over each raw output.

        Objectness is the loss of an output without objects, corrected at the cells of positives, so that no target
        tensor is needed.
        """
        counts, cells = [len(c) for c in plan.cells], [m.shape[:-1].numel() for m in raw]
        columns = self.candidate_terms(predicted, self.positives(plan, given), plan.trained)
        box, cls, count, correction, *further = torch.stack([c.sum(1) for c in columns.split(counts, 1)], 1).unbind()
        empty = self.objectness_criterion(predicted.all_objectness, 0.0)
        empty = torch.stack([level.mean() for level in empty.split(cells)])
        return self.means(Terms(box, empty + correction / plan.area, cls, *further), count)

    def candidate_terms(self, predicted: Predicted, positives: Positives, trained: torch.Tensor | None) -> torch.Tensor:
        """(4, n) of each candidate: box loss, class loss, weight, correction of the objectness loss; then other terms.

        trained: as in `LossPlan`.
        """
        overlap = partial(bbox_iou, x1y1x2y2=False, CIoU=True)
        if torch.compiler.is_compiling():  # recompute comparisons in backward instead of storing masks
            overlap = partial(checkpoint, overlap, use_reentrant=False)
        ciou = overlap(predicted.box, positives.box.T)
        wanted = ciou.detach().clamp(min=0) if positives.objectness is None else positives.objectness
        wanted = wanted if self.gr == 1 else (1.0 - self.gr) + self.gr * wanted
        x = predicted.objectness.squeeze(1)
        correction = self.objectness_criterion.change(x, 0.0, wanted)
        cls = self.class_rows(predicted.classes, positives.cls, trained)
        weight = positives.mask if positives.weight is None else positives.weight
        return torch.stack([(1.0 - ciou) * weight, cls * weight, weight.to(ciou.dtype), correction * positives.last])

    def means(self, sums: Terms, count: torch.Tensor) -> Terms:
        """Means from the sums over positives and their number (or weight); objectness is a mean already."""
        count = count.clamp(min=1)
        box, objectness, cls, *further = sums
        return Terms(box / count, objectness, cls / (count * self.nc), *(x / count for x in further))

    def class_rows(self, logits: torch.Tensor, cls: torch.Tensor, trained: torch.Tensor | None) -> torch.Tensor:
        """(n,) class loss of each candidate, summed over the trained classes; 0 if there is only one class."""
        if self.nc == 1:
            return torch.zeros_like(logits[:, 0])
        own = logits.gather(1, cls)
        others = self.class_criterion(logits, self.class_negative)
        wanted = self.class_criterion.change(own, self.class_negative, self.class_positive)
        if trained is not None:
            others, wanted = others * trained, wanted * trained.gather(1, cls)
        return others.sum(1) + wanted.squeeze(1)

    def total(
        self, terms: Terms, lead_objectness: torch.Tensor, batch: int, plan: LossPlan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Level weights, gains and sum, in fp32 also for fp64 outputs."""
        balance = plan.balance
        if self.autobalance:
            self.balance = torch.as_tensor(self.balance, device=balance.device)
            balance = self.balance[: self.levels]
        box, objectness, *others = terms
        parts = torch.stack([box, objectness * balance, *others]).float().sum(1) * plan.gains
        if self.autobalance:
            self.rebalance(lead_objectness.detach())
        total = parts.sum(0, keepdim=True)
        return total * batch, torch.cat([parts, total]).detach()

    def rebalance(self, objectness: torch.Tensor) -> None:
        """Move level weights slowly towards equal losses, relative to stride 16, from the next call on."""
        weights = torch.as_tensor(self.balance)
        moved = weights[: self.levels] * 0.9999 + 0.0001 / objectness.float()
        balance = torch.cat([moved, weights[self.levels :]])
        self.balance = balance / balance[self.layout.stride.tolist().index(16)]


class AuxiliaryLoss(YoloLoss):
    """The loss of a lead and an auxiliary head, whose raw outputs follow each other in `raw`.

    Both assignments use the lead's predictions; the auxiliary head has candidates of wider reach.
    """

    auxiliary = True

    def __call__(
        self, p: list, targets: torch.Tensor, imgs: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lead, aux = p[: self.levels], p[self.levels :]
        height = self.height_of(imgs)
        lead_plan, aux_plan = (self.plan(targets, lead, reach, height) for reach in (LEAD_REACH, AUX_REACH))
        predicted = self.predicted(lead, lead_plan)
        lead_terms = self.terms(predicted, self.match(predicted, lead_plan), lead, lead_plan)
        with torch.no_grad():
            given = self.match(self.predicted(lead, aux_plan), aux_plan)
        aux_terms = self.terms(self.predicted(aux, aux_plan), given, aux, aux_plan)
        both = Terms(*(a + AUX_WEIGHT * b for a, b in zip(lead_terms, aux_terms)))
        return self.total(both, lead_terms.objectness, lead[0].shape[0], lead_plan)


class ComputeLoss(YoloLoss):
    """`loss(raw, targets)`: every candidate is a positive."""

    def __init__(self, model: Any, autobalance: bool = False):
        super().__init__(model, "plain", autobalance)


class ComputeLossOTA(YoloLoss):
    """`loss(raw, targets, images)`: positives by SimOTA."""

    def __init__(self, model: Any, autobalance: bool = False):
        super().__init__(model, "ota", autobalance)


class ComputeLossAuxOTA(AuxiliaryLoss):
    """`loss(raw, targets, images)` for a lead and an auxiliary head, by SimOTA."""

    def __init__(self, model: Any, autobalance: bool = False):
        super().__init__(model, "ota", autobalance)


# --- binary cross-entropy and reading of candidate cells --------------------------------------------------------------


@dataclass(frozen=True)
class FocalBCE:
    """Element-wise binary cross-entropy with logits. gamma: exponent of the focal factor, 0 for none."""

    positive_weight: float
    gamma: float

    def __call__(self, x: torch.Tensor, t: torch.Tensor | float) -> torch.Tensor:
        loss = F.softplus(x)
        if isinstance(t, torch.Tensor) or t != 0:
            loss = loss + self._slope(x, t)
        if self.gamma > 0:
            p = x.sigmoid()
            miss = t * (1 - p) + (1 - t) * p
            loss = loss * (t * FOCAL_ALPHA + (1 - t) * (1 - FOCAL_ALPHA)) * miss**self.gamma
        return loss

    def change(self, x: torch.Tensor, before: float, after: torch.Tensor | float) -> torch.Tensor:
        """Loss at target `after` minus loss at `before`; without the focal factor it is linear in the target."""
        return (
            self(x, after) - self(x, before) if self.gamma > 0 else self._slope(x, after - before if before else after)
        )

    def _slope(self, x: torch.Tensor, by: torch.Tensor | float) -> torch.Tensor:
        """Change of the loss when the target grows by `by`."""
        return x * -by if self.positive_weight == 1 else by * ((self.positive_weight - 1) * F.softplus(-x) - x)


class ReadCells(torch.autograd.Function):
    """Reads the raw outputs: rows (n, widest) of the candidates' cells, and the objectness of all cells, concatenated.

    Arguments: of each raw output the flat indices of its candidates, then the raw outputs. Results are in the precision
    of the loss; rows of outputs with fewer classes are padded with zeros. Backward writes one gradient per raw output,
    where autograd would write three and add them, in the same order on every run.
    """

    @staticmethod
    def forward(ctx, *cells_and_raw):
        cells, raw = cells_and_raw[: len(cells_and_raw) // 2], cells_and_raw[len(cells_and_raw) // 2 :]
        ctx.save_for_backward(*cells)
        ctx.shapes, ctx.dtype = [m.shape for m in raw], raw[0].dtype
        precision = torch.promote_types(ctx.dtype, torch.float32)
        width = max(m.shape[-1] for m in raw)
        flat = [m.reshape(-1, m.shape[-1]) for m in raw]
        rows = [m.index_select(0, c) for m, c in zip(flat, cells)]
        rows = [row if row.shape[1] == width else F.pad(row, (0, width - row.shape[1])) for row in rows]
        return torch.cat(rows).to(precision), torch.cat([m.select(1, 4) for m in flat]).to(precision)

    @staticmethod
    def backward(ctx, *grad_outputs):
        cells, grads = ctx.saved_tensors, []
        rows = grad_outputs[0].split([len(c) for c in cells])
        objectness = grad_outputs[1].split([shape[:-1].numel() for shape in ctx.shapes])
        for c, shape, row, obj in zip(cells, ctx.shapes, rows, objectness):
            grad = row.new_zeros(shape, dtype=ctx.dtype)
            flat = grad.view(-1, shape[-1])
            flat.index_put_((c,), row[:, : shape[-1]].to(ctx.dtype), accumulate=True)
            flat.select(1, 4).copy_(obj.index_put((c,), row.select(1, 4), accumulate=True))  # rounded once
            grads.append(grad)
        return *[None] * len(cells), *grads
