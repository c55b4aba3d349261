"""The YOLO loss: positives by an assigner (`losses.assigners`), then box, objectness and class terms.

`loss(raw, targets)` or `loss(raw, targets, images)` gives (total x batch size as a 1-element tensor with the graph,
detached items box / objectness / class / their sum). `raw`, the head's training output, is a list over levels of logits
(image, anchor, row, column, 5 + classes). Targets are (N, 6) rows image, class, centre x, centre y, width, height
normalised to 0..1, best on the host: there the candidates are found, so that the device is never asked for a value.
Everything is computed in fp32 (fp64 for fp64 outputs), whatever the network runs in.

`ComputeLoss`, `ComputeLossOTA` and `ComputeLossAuxOTA` are the names under which scripts for WongKinYiu/yolov7
("upstream") know these losses.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from yolov7fast.core.boxes import bbox_iou, decode_wh, decode_xy
from yolov7fast.losses.assigners import make_assigner
from yolov7fast.losses.assignment import Assigner, Assignment, Predictions
from yolov7fast.losses.candidates import AUX_REACH, LEAD_REACH
from yolov7fast.losses.cells import read_cells
from yolov7fast.losses.criterion import Criterion
from yolov7fast.losses.plan import HeadLayout, Plan, make_plan

LEVEL_WEIGHTS = {3: (4.0, 1.0, 0.4)}  # of the objectness loss, by number of levels
OTHER_LEVEL_WEIGHTS = (4.0, 1.0, 0.25, 0.06, 0.02)
LOSS_NAMES = ("box", "obj", "cls")  # of the terms, in the order in which a loss returns them, before their sum
AUX_WEIGHT = 0.25  # of the auxiliary head's loss against the lead head's


class Predicted(NamedTuple):
    """What the raw outputs say at the n candidates, in the loss's own precision."""

    rows: torch.Tensor  # (n, 5 + C) logits
    box: torch.Tensor  # (4, n) centre relative to the cell, size; in cells
    objectness: torch.Tensor  # (n, 1) logit, a view of rows
    classes: torch.Tensor  # (n, C) logits, a view of rows
    all_objectness: torch.Tensor  # (all cells of all raw outputs,) logit


class Positives(NamedTuple):
    """What the n candidates are to learn."""

    mask: torch.Tensor  # (n,) bool
    last: torch.Tensor  # (n,) bool, the last positive on its cell: it sets the cell's objectness
    box: torch.Tensor  # (4, n) as in Predicted
    cls: torch.Tensor  # (n, 1) int64
    weight: torch.Tensor | None = None  # (n,) in box and class loss, 0 where not taken; None: all positives alike
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
    """Settings taken from the model once, and the arithmetic on positives.

    The model gives `.model[-1]` (the detection layer: nl, na, nc, anchors in cells, stride), `.hyp` and `.gr`.
    `balance`, the level weights, changes only under `autobalance`, and then on the device.
    """

    auxiliary = False

    def __init__(self, model: Any, assigner: str, autobalance: bool = False):
        model = getattr(model, "module", model)  # a parallel wrapper
        head, hyp = model.model[-1], model.hyp
        self.assigner: Assigner = make_assigner(assigner, self.auxiliary)
        self.levels, self.nc, self.gr, self.autobalance = head.nl, head.nc, model.gr, autobalance
        anchors = head.anchors.detach().cpu().numpy()  # (levels, anchors, 2)
        stride = np.asarray([float(s) for s in head.stride], dtype=np.float32)
        one_head = 1, np.zeros(self.nc, np.int64), np.arange(self.nc)
        self.layout = HeadLayout(anchors, stride, hyp["anchor_t"], self.nc, *one_head)
        self.gains = hyp["box"], hyp["obj"], hyp["cls"]
        smoothing = hyp.get("label_smoothing", 0.0)
        self.class_positive, self.class_negative = 1 - 0.5 * smoothing, 0.5 * smoothing
        self.class_criterion = Criterion(hyp["cls_pw"], hyp["fl_gamma"])
        self.objectness_criterion = Criterion(hyp["obj_pw"], hyp["fl_gamma"])
        self.balance = LEVEL_WEIGHTS.get(self.levels, OTHER_LEVEL_WEIGHTS)
        self.level_weights = self.balance[: self.levels]

    def __call__(
        self, p: list, targets: torch.Tensor, imgs: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """imgs: the input images; assigners that compare predictions with boxes need their height."""
        raw = self.raw_outputs(p)
        return self.on_device(raw, self.plan(targets, raw, LEAD_REACH, self.height_of(imgs)))

    def raw_outputs(self, p: list) -> list[torch.Tensor]:
        """The raw outputs to learn from, level by level, in each level head by head."""
        return p[: self.levels]

    def height_of(self, imgs: torch.Tensor | None) -> int | None:
        """What the host needs of the images; None for an assigner that compares nothing."""
        if not self.assigner.compares:
            return None
        if imgs is None:
            raise TypeError(f"{type(self.assigner).__name__} needs the images too, for their height")
        return imgs.shape[2]

    def plan(self, targets: torch.Tensor, raw: list[torch.Tensor], reach: float, height: int | None = None) -> Plan:
        """The host's part; height: as `height_of` gives it."""
        return make_plan(self.layout, targets, raw, self.level_weights, self.gains, reach, height, self.assigner.exact)

    # --- on the device ------------------------------------------------------------------------------------------------

    def on_device(self, raw: list[torch.Tensor], plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        """All that is left to do once the plan is made; this part can be compiled."""
        predicted = self.predicted(raw, plan)
        terms = self.terms(predicted, self.match(predicted, plan), raw, plan)
        return self.total(terms, terms.objectness, raw[0].shape[0], plan)

    def predicted(self, raw: list[torch.Tensor], plan: Plan) -> Predicted:
        rows, all_objectness = read_cells(plan.places, plan.cells, raw)
        box, objectness, classes = rows.split([4, 1, rows.shape[1] - 5], 1)
        xy, wh = box.T.sigmoid().chunk(2)
        box = torch.cat([decode_xy(xy), decode_wh(wh, plan.anchor)])
        return Predicted(rows, box, objectness, classes, all_objectness)

    @torch.no_grad()
    def match(self, predicted: Predicted, plan: Plan) -> Assignment:
        """Which candidates are positives, and of which target; made on boxes in pixels."""
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

    def positives(self, plan: Plan, given: Assignment) -> Positives:
        """Each candidate's target, relative to its cell."""
        box = plan.target_box.index_select(1, given.matched_gt) * plan.scale - plan.corner
        cls = plan.target_class.index_select(0, given.matched_gt)[:, None]
        last = last_on_cell(given.positive_mask, plan.first_duplicate)
        return Positives(given.positive_mask, last, box, cls, given.weight, given.objectness)

    def terms(self, predicted: Predicted, given: Assignment, raw: list[torch.Tensor], plan: Plan) -> Terms:
        """Per-level means, made of sums over each raw output.

        Objectness is the loss of an empty output, corrected at the cells of positives: no target is written out.
        """
        counts, cells = [len(c) for c in plan.cells], [m.shape[:-1].numel() for m in raw]
        columns = self.candidate_terms(predicted, self.positives(plan, given), plan.trained)
        box, cls, count, correction = torch.stack([c.sum(1) for c in columns.split(counts, 1)], 1)
        empty = self.objectness_criterion(predicted.all_objectness, 0.0)
        empty = torch.stack([level.mean() for level in empty.split(cells)])
        return self.means(box, empty + correction / plan.area, cls, count)

    def candidate_terms(self, predicted: Predicted, positives: Positives, trained: torch.Tensor | None) -> torch.Tensor:
        """(4, n) of each candidate: box loss, class loss, 1 for a positive, what it changes of the objectness loss.

        trained: as in `Plan`.
        """
        overlap = partial(bbox_iou, x1y1x2y2=False, CIoU=True)
        if torch.compiler.is_compiling():  # bools are slow to write on a CPU: comparisons are made again backwards
            overlap = partial(checkpoint, overlap, use_reentrant=False)
        ciou = overlap(predicted.box, positives.box.T)
        wanted = ciou.detach().clamp(min=0) if positives.objectness is None else positives.objectness
        wanted = wanted if self.gr == 1 else (1.0 - self.gr) + self.gr * wanted
        x = predicted.objectness.squeeze(1)
        correction = self.objectness_criterion.change(x, 0.0, wanted)
        cls = self.class_rows(predicted.classes, positives.cls, trained)
        weight = positives.mask if positives.weight is None else positives.weight
        return torch.stack([(1.0 - ciou) * weight, cls * weight, weight.to(ciou.dtype), correction * positives.last])

    def means(self, box: torch.Tensor, objectness: torch.Tensor, cls: torch.Tensor, count: torch.Tensor) -> Terms:
        """Of the sums over positives, and their number or weight, in each output; objectness is a mean already."""
        count = count.clamp(min=1)
        return Terms(box / count, objectness, cls / (count * self.nc))

    def class_rows(self, logits: torch.Tensor, cls: torch.Tensor, trained: torch.Tensor | None) -> torch.Tensor:
        """(n,) class loss of each candidate, summed over the trained classes; 0 if there is but one class."""
        if self.nc == 1:
            return torch.zeros_like(logits[:, 0])
        own = logits.gather(1, cls)
        others = self.class_criterion(logits, self.class_negative)
        wanted = self.class_criterion.change(own, self.class_negative, self.class_positive)
        if trained is not None:
            others, wanted = others * trained, wanted * trained.gather(1, cls)
        return others.sum(1) + wanted.squeeze(1)

    def total(
        self, terms: Terms, lead_objectness: torch.Tensor, batch: int, plan: Plan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Level weights, gains, sum. The running sums are fp32 for fp64 outputs too."""
        balance = plan.balance
        if self.autobalance:
            self.balance = torch.as_tensor(self.balance, device=balance.device)
            balance = self.balance[: self.levels]
        parts = torch.stack([terms.box, terms.objectness * balance, terms.cls]).float().sum(1) * plan.gains
        if self.autobalance:
            self.rebalance(lead_objectness.detach())
        total = parts.sum(0, keepdim=True)
        return total * batch, torch.cat([parts, total]).detach()

    def rebalance(self, objectness: torch.Tensor) -> None:
        """Move level weights slowly towards equal losses, relative to stride 16. Used from the next call on."""
        weights = torch.as_tensor(self.balance)
        moved = weights[: self.levels] * 0.9999 + 0.0001 / objectness.float()
        balance = torch.cat([moved, weights[self.levels :]])
        self.balance = balance / balance[self.layout.stride.tolist().index(16)]

    # --- to look at ---------------------------------------------------------------------------------------------------

    def assigned_cells(self, p: list, targets: torch.Tensor, height: int) -> np.ndarray:
        """(m, 6) level, image, anchor, row, column, target row of each positive, on the host."""
        return self.weighted_cells(p, targets, height)[0]

    @torch.no_grad()
    def weighted_cells(self, p: list, targets: torch.Tensor, height: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each positive, on the host: (m, 6) level, image, anchor, row, column, target row, and (m,) its weight."""
        raw = self.raw_outputs(p)
        plan = self.plan(targets, raw, LEAD_REACH, height if self.assigner.compares else None)
        given = self.match(self.predicted(raw, plan), plan)
        counts, rows = [len(c) for c in plan.cells], []
        by_output = zip(plan.cells, given.positive_mask.split(counts), given.matched_gt.split(counts))
        for output, (cells, mask, target) in enumerate(by_output):
            place = np.unravel_index(cells[mask].cpu().numpy(), raw[output].shape[:4])
            level = np.full(len(place[0]), output // self.layout.heads)
            rows.append(np.stack([level, *place, target[mask].cpu().numpy()], 1))
        weight = given.positive_mask.float() if given.weight is None else given.weight
        return np.concatenate(rows), weight[given.positive_mask].cpu().numpy()


class AuxiliaryLoss(YoloLoss):
    """For a lead and an auxiliary head, `loss(raw, targets, images)`: raw outputs of the lead, then the other.

    Both assignments are made on the lead's predictions; the auxiliary head has candidates of wider reach.
    """

    auxiliary = True

    def __call__(
        self, p: list, targets: torch.Tensor, imgs: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lead, aux = p[: self.levels], p[self.levels :]
        plans = [self.plan(targets, lead, reach, self.height_of(imgs)) for reach in (LEAD_REACH, AUX_REACH)]
        return self.on_both(lead, aux, *plans)

    def on_both(
        self, lead: list[torch.Tensor], aux: list[torch.Tensor], lead_plan: Plan, aux_plan: Plan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All that is left to do once the plans are made."""
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
