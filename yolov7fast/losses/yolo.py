"""The three losses: plain (every candidate is a positive), OTA (positives by assignment), auxiliary OTA (both heads).

`loss(maps, targets)` or `loss(maps, targets, images)` gives (total x batch size as a 1-element tensor with the graph,
detached items box / objectness / class / their sum). Maps are the head's training output: a list over levels of raw
logits (image, anchor, row, column, 5 + classes). Targets are (N, 6) rows image, class, centre x, centre y, width,
height normalised to 0..1, best on the host: there the candidates are found, so that the device is never asked for a
number. Everything is computed in fp32 (fp64 for fp64 maps), whatever the network runs in.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from yolov7fast.assign.candidates import NEAR, WIDE, Candidates, find_candidates, first_on_cell
from yolov7fast.assign.ota import Assignment, Pools, assign, lay_out_pools
from yolov7fast.core.boxes import bbox_iou, decode_wh, decode_xy, xywh2xyxy
from yolov7fast.core.device_copy import send
from yolov7fast.core.errors import UserError

LEVEL_WEIGHTS = {3: (4.0, 1.0, 0.4)}  # of the objectness loss, by number of levels
OTHER_LEVEL_WEIGHTS = (4.0, 1.0, 0.25, 0.06, 0.02)
OTA_TOP, AUX_TOP = 10, 20  # how many of a box's best overlaps say how many candidates it takes
AUX_WEIGHT = 0.25  # of the auxiliary head's loss against the lead head's
FOCAL_ALPHA = 0.25


class Criterion(NamedTuple):
    """Binary cross-entropy with logits, element by element, with the focal factor where gamma > 0."""

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
        """Loss at target `after` less loss at `before`; without the focal factor it is linear in the target."""
        return (
            self(x, after) - self(x, before) if self.gamma > 0 else self._slope(x, after - before if before else after)
        )

    def _slope(self, x: torch.Tensor, by: torch.Tensor | float) -> torch.Tensor:
        """What a target higher by `by` adds to the loss."""
        return x * -by if self.positive_weight == 1 else by * ((self.positive_weight - 1) * F.softplus(-x) - x)


class _ReadMaps(torch.autograd.Function):
    """Rows of candidate cells, and every cell's objectness, out of all maps; rows of narrow maps are filled with zeros.

    Given in the loss's precision. Backward writes one gradient map for each map, where indexing and slicing would
    write three and add them up, and rounds an objectness gradient to the map's precision once, when it is complete.
    A map may lie in memory in any order (a permuted convolution output); it is not copied, and its gradient lies alike.
    Such a map is read by `places`; one in order, as ordinary heads write it, by the numbers of its cells.
    """

    @staticmethod
    def forward(ctx, places, *cells_and_maps):
        cells, maps = _halves(cells_and_maps)
        ctx.save_for_backward(places, *cells)
        ctx.layouts, ctx.dtype = [(m.shape, m.stride()) for m in maps], maps[0].dtype
        precision = torch.promote_types(ctx.dtype, torch.float32)
        width = max(m.shape[-1] for m in maps)
        rows, objectness = [], []
        for c, place, m in zip(cells, _by_map(places, cells), maps):
            flat = _flat(m) if m.is_contiguous() else None
            row = m[place] if flat is None else flat.index_select(0, c)
            rows.append(row if row.shape[1] == width else F.pad(row, (0, width - row.shape[1])))
            objectness.append(m[..., 4].reshape(-1) if flat is None else flat[:, 4])
        return torch.cat(rows).to(precision), torch.cat(objectness).to(precision)

    @staticmethod
    def backward(ctx, grad_rows, grad_objectness):
        places, *cells = ctx.saved_tensors
        grads = []
        rows = grad_rows.split([len(c) for c in cells])
        objectness = grad_objectness.split([shape[:-1].numel() for shape, _ in ctx.layouts])
        for c, place, (shape, stride), row, obj in zip(cells, _by_map(places, cells), ctx.layouts, rows, objectness):
            grad = grad_rows.new_empty_strided(shape, stride, dtype=ctx.dtype).zero_()
            where, to = ((c,), _flat(grad)) if grad.is_contiguous() else (place, grad)
            to.index_put_(where, row[:, : shape[-1]].to(ctx.dtype), accumulate=True)  # in the same order on every run
            obj = obj.index_put((c,), row[:, 4], accumulate=True)
            grad[..., 4] = obj.view(shape[:-1])
            grads.append(grad)
        return None, *[None] * len(cells), *grads


def _halves(items):
    return items[: len(items) // 2], items[len(items) // 2 :]


def _flat(m: torch.Tensor) -> torch.Tensor:
    """A contiguous map as rows, one for each cell."""
    return m.view(-1, m.shape[-1])


def _by_map(places: torch.Tensor | None, cells) -> list[tuple[torch.Tensor, ...] | None]:
    """Image, anchor, row and column of the candidates of each map."""
    return [None] * len(cells) if places is None else [p.unbind() for p in places.split([len(c) for c in cells], 1)]


class Plan(NamedTuple):
    """What is known of a batch before any prediction, on the device: n candidates, N targets."""

    cells: tuple[torch.Tensor, ...]  # of each map, the (n_map,) numbers of its candidates' cells
    anchor: torch.Tensor  # (n, 2) in cells
    stride: torch.Tensor  # (n, 1) pixels of a cell
    scale: torch.Tensor  # (n, 4) columns, rows, columns, rows of the candidate's map
    corner: torch.Tensor  # (n, 4) column, row, 0, 0 of the cell
    twin: torch.Tensor  # (n,) int64, the first candidate on the same cell
    target: torch.Tensor  # (n,) int64, row number of the box that proposed the cell
    target_box: torch.Tensor  # (N, 4) normalised centre and size
    target_class: torch.Tensor  # (N,) int64
    area: torch.Tensor  # (maps,) float, cells of each map
    balance: torch.Tensor  # (levels,) float, level weights of the objectness loss
    gains: torch.Tensor  # (3,) float, of box, objectness and class loss
    pools: Pools | None  # who competes with whom; None: every candidate is a positive
    learnt: torch.Tensor | None = None  # (n, C) bool, class columns that the candidate's map has; None: all
    fixed: torch.Tensor | None = None  # (n, C) logits that stand in the assignment's cost for the others
    places: torch.Tensor | None = None  # (4, n) int64 image, anchor, row, column; None: all maps are contiguous
    weight: torch.Tensor | None = None  # (N,) of each target in the class loss; None: all weigh the same


class Predicted(NamedTuple):
    """What the maps say at the n candidates, in the loss's own precision."""

    box: torch.Tensor  # (n, 4) centre relative to the cell, size; in cells
    objectness: torch.Tensor  # (n, 1) logit
    classes: torch.Tensor  # (n, C) logits
    everywhere: torch.Tensor  # (all cells of all maps,) objectness logit


class Positives(NamedTuple):
    """What the n candidates are to learn."""

    taken: torch.Tensor  # (n,) bool
    last: torch.Tensor  # (n,) bool, the last positive on its cell: it sets the cell's objectness
    box: torch.Tensor  # (n, 4) as in Predicted
    cls: torch.Tensor  # (n, 1) int64
    weight: torch.Tensor | None = None  # (n,) in the class loss


class Terms(NamedTuple):
    """Mean loss of each level, (levels,), before level weights and gains."""

    box: torch.Tensor
    objectness: torch.Tensor
    cls: torch.Tensor


def last_on_cell(taken: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
    """(n,) bool: taken, and no later candidate on the same cell is. The same on every device."""
    order = torch.arange(1, len(taken) + 1, device=taken.device)
    latest = torch.zeros_like(order).scatter_reduce_(0, twin, order * taken, "amax")
    return latest.index_select(0, twin) == order


class _Loss:
    """What the losses share: settings taken from the model once, and the arithmetic on positives.

    The model gives `.model[-1]` (the head: nl, na, nc, anchors in cells, stride), `.hyp` and `.gr`. `balance`, the
    level weights, changes only under `autobalance`, and then on the device.
    """

    def __init__(self, model, autobalance: bool = False, class_weights: np.ndarray | None = None):
        """class_weights: (nc,) weight of an object of each class in the class loss."""
        model = getattr(model, "module", model)  # a parallel wrapper
        self.class_weights = None if class_weights is None else np.asarray(class_weights, np.float32)
        head, hyp = model.model[-1], model.hyp
        self.levels, self.nc, self.gr, self.autobalance = head.nl, head.nc, model.gr, autobalance
        self.anchors = head.anchors.detach().cpu().numpy()  # (levels, anchors, 2)
        self.stride = np.asarray([float(s) for s in head.stride], dtype=np.float32)
        self.gains = hyp["box"], hyp["obj"], hyp["cls"]
        self.anchor_t = hyp["anchor_t"]
        smoothing = hyp.get("label_smoothing", 0.0)
        self.class_positive, self.class_negative = 1 - 0.5 * smoothing, 0.5 * smoothing
        self.class_criterion = Criterion(hyp["cls_pw"], hyp["fl_gamma"])
        self.objectness_criterion = Criterion(hyp["obj_pw"], hyp["fl_gamma"])
        self.balance = LEVEL_WEIGHTS.get(self.levels, OTHER_LEVEL_WEIGHTS)
        self.level_weights = self.balance[: self.levels]
        self.heads, self.head_of, self.column_of = 1, np.zeros(self.nc, np.int64), np.arange(self.nc)  # of each class

    def maps_of(self, p) -> list[torch.Tensor]:
        """The maps to learn from, level by level, in each level head by head."""
        return p[: self.levels]

    def plan(self, targets: torch.Tensor, maps, reach: float, height: int | None = None) -> Plan:
        """The host's part: candidates and all that is known of them, sent to the maps' device.

        height: of the input picture; given, the candidates compete in pools (OTA), else each is a positive.
        """
        batch, na = maps[0].shape[:2]
        sizes = [tuple(m.shape[2:4]) for m in maps[:: self.heads]]
        rows = self.check(targets, batch)
        image, classes = rows[:, :2].astype(np.int64).T
        head, column = self.head_of[classes], self.column_of[classes]
        found = find_candidates(rows, self.anchors, sizes, self.anchor_t, reach)
        number = found.level * self.heads + head[found.target]  # of the map
        if self.heads > 1:
            order = np.argsort(number, kind="stable")
            found, number = Candidates(*(field[order] for field in found)), number[order]
        cell = found.cell(sizes, na)
        counts = np.bincount(number, minlength=len(maps)).tolist()
        scale = np.array([[nx, ny, nx, ny] for ny, nx in sizes], dtype=rows.dtype)[found.level]
        corner = np.stack([found.column, found.row, *np.zeros((2, len(cell)), np.int64)], 1).astype(rows.dtype)
        anchor = self.anchors[found.level, found.anchor].astype(np.float32)
        stride = self.stride[found.level, None]
        twin = first_on_cell(number, cell)
        area = np.array([m.shape[:-1].numel() for m in maps], dtype=np.float32)
        balance = np.array(self.level_weights, np.float64 if maps[0].dtype == torch.float64 else np.float32)
        gains = np.array(self.gains, np.float32)
        arrays = [cell, anchor, stride, scale, corner, twin, found.target, rows[:, 2:6], column, area, balance, gains]
        # known here: to work them out on the device would take numbers from the host, and a wait for each
        places = [found.image, found.anchor, found.row, found.column]
        placed = [] if all(m.is_contiguous() for m in maps) else [np.stack(places)]
        weighted = [] if self.class_weights is None else [self.class_weights[classes]]
        layout = []
        if height is not None:
            corners = xywh2xyxy(rows[:, 2:6] * height)  # by the height alone, as the reference; it matters off-square
            pool = image * self.heads + head
            layout = lay_out_pools(pool[found.target], pool, corners, column, max(m.shape[-1] for m in maps) - 5)
        cell, *tensors = send([*arrays, *placed, *weighted, *layout], maps[0].device)
        known, rest = tensors[: len(arrays) - 1], tensors[len(arrays) - 1 :]
        at = rest.pop(0) if placed else None
        weight = rest.pop(0) if weighted else None
        pools = None if height is None else Pools.of(*rest)
        return Plan(cell.split(counts), *known, pools, places=at, weight=weight)

    def check(self, targets: torch.Tensor, batch: int) -> np.ndarray:
        """Targets on the host, fp32 or fp64. Those of a device are waited for here, and only here."""
        targets = targets.cpu()
        rows = (targets if targets.dtype == torch.float64 else targets.float()).numpy()
        image, cls = rows[:, :2].astype(np.int64).T
        bad = np.flatnonzero((cls < 0) | (cls >= self.nc))
        if len(bad):
            raise UserError(
                f"class {cls[bad[0]]} in the labels, but the model has {self.nc} (0..{self.nc - 1}): "
                "correct the labels, or nc in the data file"
            )
        bad = np.flatnonzero((image < 0) | (image >= batch))
        if len(bad):
            raise IndexError(f"target row {bad[0]} names image {image[bad[0]]} of a batch of {batch}")
        return rows

    # --- device ---

    def assignment(self, predicted: Predicted, plan: Plan) -> Assignment:
        """Which candidates are positives, and of which target."""
        raise NotImplementedError

    def on_device(self, maps, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        """All that is left to do once the plan is made; this part can be compiled."""
        predicted = self.predicted(maps, plan)
        positives = self.positives(plan, self.assignment(predicted, plan))
        terms = self.terms(predicted, positives, maps, plan)
        return self.total(terms, terms.objectness, maps[0].shape[0], plan)

    @torch.no_grad()
    def chosen(self, p, targets: torch.Tensor, height: int) -> np.ndarray:
        """(m, 6) level, image, anchor, row, column, target row of each positive: to look at, on the host."""
        maps = self.maps_of(p)
        plan = self.plan(targets, maps, NEAR, height)
        given = self.assignment(self.predicted(maps, plan), plan)
        counts, rows = [len(c) for c in plan.cells], []
        for number, (cells, taken, target) in enumerate(
            zip(plan.cells, given.taken.split(counts), given.target.split(counts))
        ):
            place = np.unravel_index(cells[taken].cpu().numpy(), maps[number].shape[:4])
            level = np.full(len(place[0]), number // self.heads)
            rows.append(np.stack([level, *place, target[taken].cpu().numpy()], 1))
        return np.concatenate(rows)

    def predicted(self, maps, plan: Plan) -> Predicted:
        rows, everywhere = _ReadMaps.apply(plan.places, *plan.cells, *maps)
        box, objectness, classes = rows.split([4, 1, rows.shape[1] - 5], 1)
        xy, wh = box.sigmoid().chunk(2, 1)
        box = torch.cat([decode_xy(xy), decode_wh(wh, plan.anchor)], 1)
        return Predicted(box, objectness, classes, everywhere)

    @torch.no_grad()
    def match(self, predicted: Predicted, plan: Plan, top: int) -> Assignment:
        """The assignment, made on boxes in pixels."""
        centre, size = ((predicted.box + plan.corner) * plan.stride).chunk(2, 1)
        half = size / 2
        corners = torch.cat([centre - half, centre + half], 1)
        logits = predicted.classes
        if plan.learnt is not None:
            logits = torch.where(plan.learnt, logits, plan.fixed)
        return assign(corners, predicted.objectness, logits, plan.pools, top)

    def positives(self, plan: Plan, given: Assignment) -> Positives:
        """Each candidate's target, relative to its cell."""
        box = plan.target_box.index_select(0, given.target) * plan.scale - plan.corner
        cls = plan.target_class.index_select(0, given.target)[:, None]
        weight = None if plan.weight is None else plan.weight.index_select(0, given.target)
        return Positives(given.taken, last_on_cell(given.taken, plan.twin), box, cls, weight)

    def terms(self, predicted: Predicted, positives: Positives, maps, plan: Plan) -> Terms:
        """Per-level means, made of sums over each map.

        Objectness is the loss of an empty map, corrected at the cells that are wanted: no target map is written.
        """
        counts, cells = [len(c) for c in plan.cells], [m.shape[:-1].numel() for m in maps]
        ciou = bbox_iou(predicted.box.T, positives.box, x1y1x2y2=False, CIoU=True)
        wanted = ciou.detach().clamp(min=0)
        wanted = wanted if self.gr == 1 else (1.0 - self.gr) + self.gr * wanted
        x = predicted.objectness.squeeze(1)
        correction = self.objectness_criterion.change(x, 0.0, wanted)
        cls = self.class_rows(predicted.classes, positives.cls, plan.learnt)
        cls = cls if positives.weight is None else cls * positives.weight
        columns = torch.stack(
            [
                (1.0 - ciou) * positives.taken,
                cls * positives.taken,
                positives.taken.to(ciou.dtype),
                correction * positives.last,
            ]
        )
        box, cls, count, correction = torch.stack([c.sum(1) for c in columns.split(counts, 1)], 1)
        empty = self.objectness_criterion(predicted.everywhere, 0.0)
        empty = torch.stack([level.mean() for level in empty.split(cells)])
        return self.means(box, empty + correction / plan.area, cls, count)

    def means(self, box, objectness, cls, count) -> Terms:
        """Of the sums over positives, and the number of positives, in each map; objectness is a mean already."""
        count = count.clamp(min=1)
        return Terms(box / count, objectness, cls / (count * self.nc))

    def class_rows(self, logits: torch.Tensor, cls: torch.Tensor, learnt: torch.Tensor | None) -> torch.Tensor:
        """(n,) class loss of each candidate, summed over the classes learnt; 0 if there is but one class."""
        if self.nc == 1:
            return torch.zeros_like(logits[:, 0])
        own = logits.gather(1, cls)
        others = self.class_criterion(logits, self.class_negative)
        wanted = self.class_criterion.change(own, self.class_negative, self.class_positive)
        if learnt is not None:
            others, wanted = others * learnt, wanted * learnt.gather(1, cls)
        return others.sum(1) + wanted.squeeze(1)

    def total(self, terms: Terms, lead_objectness, batch: int, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        """Level weights, gains, sum. The running sums are fp32 for fp64 maps too."""
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
        """Move level weights slowly towards equal losses, relative to stride 16. Seen from the next call on."""
        moved = self.balance[: self.levels] * 0.9999 + 0.0001 / objectness.float()
        balance = torch.cat([moved, self.balance[self.levels :]])
        self.balance = balance / balance[self.stride.tolist().index(16)]


class ComputeLoss(_Loss):
    """The plain loss, `loss(maps, targets)`: every candidate is a positive."""

    def __call__(self, p, targets):
        maps = self.maps_of(p)
        return self.on_device(maps, self.plan(targets, maps, NEAR))

    def assignment(self, predicted: Predicted, plan: Plan) -> Assignment:
        return Assignment(torch.ones_like(plan.target, dtype=torch.bool), plan.target)


class ComputeLossOTA(_Loss):
    """`loss(maps, targets, images)`: positives by assignment. Of the images only their height is used."""

    def __call__(self, p, targets, imgs):
        maps = self.maps_of(p)
        return self.on_device(maps, self.plan(targets, maps, NEAR, imgs.shape[2]))

    def assignment(self, predicted: Predicted, plan: Plan) -> Assignment:
        return self.match(predicted, plan, OTA_TOP)


class ComputeLossAuxOTA(_Loss):
    """`loss(maps, targets, images)` for a lead and an auxiliary head: the lead's maps, then the auxiliary head's.

    Both assignments are made on the lead's predictions; the auxiliary head has candidates of wider reach.
    """

    def __call__(self, p, targets, imgs):
        lead, aux = p[: self.levels], p[self.levels :]
        plans = [self.plan(targets, lead, reach, imgs.shape[2]) for reach in (NEAR, WIDE)]
        return self.on_device(lead, aux, *plans)

    def on_device(self, lead, aux, near: Plan, wide: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        predicted = self.predicted(lead, near)
        matched = self.positives(near, self.match(predicted, near, AUX_TOP))
        lead_terms = self.terms(predicted, matched, lead, near)
        with torch.no_grad():
            matched = self.positives(wide, self.match(self.predicted(lead, wide), wide, AUX_TOP))
        aux_terms = self.terms(self.predicted(aux, wide), matched, aux, wide)
        both = Terms(*(a + AUX_WEIGHT * b for a, b in zip(lead_terms, aux_terms)))
        return self.total(both, lead_terms.objectness, lead[0].shape[0], near)
