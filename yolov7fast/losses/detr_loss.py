"""The set loss of DETR and RT-DETR (class, L1 and GIoU losses of every decoder layer) and its Hungarian matcher.

The losses are those of transformers' criteria, which measure layer by layer with several host syncs each. Here all
layers are matched and measured together, with one host sync: the copy of the cost matrix, which SciPy reads.

Shape letters: L layer, B image, Q query, C class, G object (padded to the largest number in an image), N matched pair,
T object (of all images, one after the other).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from yolov7fast.core.device import send
from yolov7fast.nn.detr_model import DetrNetwork

PARTS = ("box", "giou", "cls")
Targets = Sequence[Mapping[str, torch.Tensor]]  # of each image: class_labels (g,), boxes (g, 4) xywhn


class BoxesNotFinite(Exception):
    """A predicted box is NaN or infinite."""


class MatchCosts(NamedTuple):
    """Weights of the parts of the matching cost, and alpha and gamma of the focal class cost (None: minus softmax)."""

    cls: float
    box: float
    giou: float
    focal: tuple[float, float] | None = None


# --- matching ---------------------------------------------------------------------------------------------------------


def cost_block(costs: MatchCosts, logits: torch.Tensor, boxes: torch.Tensor, targets: Targets) -> torch.Tensor:
    """(L, B, Q, G): the cost of assigning a query to an object. logits: (L, B, Q, C);  boxes: (L, B, Q, 4).

    The arithmetic is that of transformers, so that the assignments are the same. Columns of padding are not used.
    """
    wanted = pad_sequence([t["boxes"] for t in targets], batch_first=True).to(boxes)  # (B, G, 4)
    classes = pad_sequence([t["class_labels"] for t in targets], batch_first=True)  # (B, G)
    score = logits.sigmoid() if costs.focal else logits.softmax(-1)
    score = score.gather(3, classes[None, :, None].expand(*logits.shape[:3], -1))
    if costs.focal:
        alpha, gamma = costs.focal
        negative = (1 - alpha) * (score**gamma) * (-(1 - score + 1e-8).log())
        positive = alpha * ((1 - score) ** gamma) * (-(score + 1e-8).log())
        class_cost = positive - negative
    else:
        class_cost = -score
    box_cost = torch.cdist(boxes, wanted[None].expand(len(boxes), -1, -1, -1), p=1)
    cost = costs.box * box_cost + costs.cls * class_cost
    cost = cost - costs.giou * iou_and_giou(boxes[..., None, :], wanted[:, None])[1]
    most = torch.finfo(cost.dtype).max  # NaN is matched last
    return torch.nan_to_num(cost, nan=most, posinf=most, neginf=most)


def iou_and_giou(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """IoU and GIoU of xywh boxes (..., 4) and (..., 4), whose leading dimensions are broadcast."""
    left, top, right, bottom = _corners(a)
    left2, top2, right2, bottom2 = _corners(b)
    width = (torch.minimum(right, right2) - torch.maximum(left, left2)).clamp(min=0)
    inter = width * (torch.minimum(bottom, bottom2) - torch.maximum(top, top2)).clamp(min=0)
    union = (right - left) * (bottom - top) + (right2 - left2) * (bottom2 - top2) - inter
    width = (torch.maximum(right, right2) - torch.minimum(left, left2)).clamp(min=0)
    around = width * (torch.maximum(bottom, bottom2) - torch.minimum(top, top2)).clamp(min=0)
    iou = inter / union
    return iou, iou - (around - union) / around


def _corners(boxes: torch.Tensor) -> tuple[torch.Tensor, ...]:
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return *(centre - half).unbind(-1), *(centre + half).unbind(-1)


def to_host(values: torch.Tensor) -> np.ndarray:
    """Copy to the host: the only host sync of the loss."""
    return values.cpu().numpy()


@torch.no_grad()
def match_layers(costs: MatchCosts, logits: torch.Tensor, boxes: torch.Tensor, targets: Targets) -> np.ndarray:
    """(4, N) layer, image, query and object (0..T-1) of the matched pairs. logits: (L, B, Q, C);  boxes: (L, B, Q, 4).

    A query is matched with objects of its image only.
    """
    from scipy.optimize import linear_sum_assignment

    sizes = [len(t["boxes"]) for t in targets]
    cost = cost_block(costs, logits, boxes, targets)
    finite = torch.isfinite(boxes).all().to(cost.dtype)
    block = to_host(torch.cat([cost.transpose(2, 3).reshape(-1), finite[None]]))  # objects in rows: SciPy's own order
    if not block[-1]:
        raise BoxesNotFinite
    block = block[:-1].reshape(*cost.shape[:2], cost.shape[3], cost.shape[2])
    first = np.cumsum([0, *sizes])
    found = [np.zeros((4, 0), np.int64)]
    for layer, tables in enumerate(block):
        for image, table in enumerate(tables):
            objects, queries = linear_sum_assignment(table[: sizes[image]])
            where = np.full_like(queries, layer), np.full_like(queries, image)
            found.append(np.stack([*where, queries, objects + first[image]]))
    return np.concatenate(found, 1)


def denoising_pairs(sizes: Sequence[int], groups: int, layers: int) -> np.ndarray:
    """(4, N) layer, image, query and object of RT-DETR's denoising queries that are assigned to an object.

    A group has for every image as many of them as the image with the most objects, then as many that are assigned to
    none.
    """
    image = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(image)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its image
    layer, group, wanted = (
        x.ravel() for x in np.meshgrid(*map(np.arange, (layers, groups, len(image))), indexing="ij")
    )
    return np.stack([layer, image[wanted], place[wanted] + group * 2 * max(sizes), wanted])


# --- losses of matched pairs ------------------------------------------------------------------------------------------


def cross_entropy(logits: torch.Tensor, target: torch.Tensor, background_weight: float) -> torch.Tensor:
    """Sum over layers of the weighted mean of all queries. The last class, the background, has that weight, others 1.

    logits: (L, B, Q, C);  target: class of each query, (L, B, Q).
    """
    weight = torch.where(target == logits.shape[-1] - 1, background_weight, 1.0)
    loss = -logits.log_softmax(-1).gather(3, target.unsqueeze(3)).squeeze(3)
    return ((loss * weight).sum((1, 2)) / weight.sum((1, 2))).sum()


def varifocal(
    logits: torch.Tensor, place: tuple[torch.Tensor, ...], iou: torch.Tensor, alpha: float, gamma: float
) -> torch.Tensor:
    """Sum over all logits (L, B, Q, C). The target is the IoU at `place`, the matched queries' classes, and else 0."""
    score = torch.zeros_like(logits).index_put(place, iou)
    negative = torch.ones_like(logits).index_put(place, torch.zeros_like(iou))
    weight = alpha * logits.detach().sigmoid() ** gamma * negative + score
    return F.binary_cross_entropy_with_logits(logits, score, weight, reduction="sum")


class SetLoss:
    """Replaces the loss function of a network of transformers. It is computed in full precision.

    With several processes (`shared`), whose gradients are averaged, each divides by the mean number of boxes of a
    process, as one process would for the whole batch. All processes must then call it together: validation, which only
    the first one does, uses a separate loss.
    """

    def __init__(self, detector: DetrNetwork):
        config = detector.network.config
        self.has_background = detector.kind.has_background
        self.all_layers = config.auxiliary_loss
        if self.has_background:
            self.costs = MatchCosts(config.class_cost, config.bbox_cost, config.giou_cost)
            self.weights: dict[str, float] = {
                "box": config.bbox_loss_coefficient,
                "giou": config.giou_loss_coefficient,
                "cls": 1.0,
            }
            self.background_weight = config.eos_coefficient
        else:
            focal = (config.matcher_alpha, config.matcher_gamma) if config.use_focal_loss else None
            costs = config.matcher_class_cost, config.matcher_bbox_cost, config.matcher_giou_cost
            self.costs = MatchCosts(*costs, focal)
            weights = config.weight_loss_bbox, config.weight_loss_giou, config.weight_loss_vfl
            self.weights = dict(zip(PARTS, weights))
            self.focal = config.focal_loss_alpha, config.focal_loss_gamma
        self.shared = False
        self.mark: Callable[[str], None] = lambda stage: None
        self.timed = False  # whether the matcher (cost matrix, its copy, SciPy's assignment) is a separate stage

    def __call__(
        self,
        logits: torch.Tensor,
        labels: Targets,
        device: Any,
        boxes: torch.Tensor,
        config: Any,
        outputs_class: Any = None,
        outputs_coord: Any = None,
        enc_topk_logits: Any = None,
        enc_topk_bboxes: Any = None,
        denoising_meta_values: Any = None,
        **_: Any,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor], None]:
        """(total, {part: value} with that sum, None). Outputs that are NaN or infinite give a loss of NaN, which the
        training step handles.

        logits: (B, Q, C) of the last layer;  boxes: (B, Q, 4). outputs_...: of all decoder layers, (L, B, Q, C) in DETR
        and (B, L, Q, C) in RT-DETR, there with denoising queries first; enc_...: of RT-DETR's encoder, (B, Q, C).
        """
        self.mark("forward")
        with torch.autocast(logits.device.type, enabled=False):
            extra = denoising_meta_values["dn_num_split"][0] if denoising_meta_values else 0  # queries
            layers, denoising = [(logits[:, extra:], boxes[:, extra:])], []
            if self.all_layers and self.has_background:
                layers += zip(outputs_class[:-1], outputs_coord[:-1])
            elif self.all_layers:
                of_layers = outputs_class.transpose(0, 1), outputs_coord.transpose(0, 1)
                layers += [*zip(*(x[:-1, :, extra:] for x in of_layers)), (enc_topk_logits, enc_topk_bboxes)]
                denoising = [x[:, :, :extra].float() for x in of_layers] if extra else []
            all_logits, all_boxes = (torch.stack([x.float() for x in of_kind]) for of_kind in zip(*layers))
            if self.timed:
                self.mark("loss")
            try:
                pairs = match_layers(self.costs, all_logits, all_boxes, labels)
            except BoxesNotFinite:
                lost = all_boxes.sum() * torch.nan
                return lost, dict.fromkeys(PARTS, lost.detach()), None
            if self.timed:
                self.mark("assignment")
            count = self._box_count(labels, logits.device)
            parts = self._losses(all_logits, all_boxes, labels, pairs, count)
            if denoising:
                sizes, groups = [len(t["boxes"]) for t in labels], denoising_meta_values["dn_num_group"]
                pairs = denoising_pairs(sizes, groups, len(denoising[0]))
                more = self._losses(denoising[0], denoising[1], labels, pairs, count * groups)
                parts = {name: parts[name] + more[name] for name in PARTS}
        total = parts["box"] + parts["giou"] + parts["cls"]
        return total, {name: part.detach() for name, part in parts.items()}, None

    def _box_count(self, labels: Targets, device: torch.device) -> float | torch.Tensor:
        """What the losses of boxes are divided by."""
        own = float(sum(len(label["class_labels"]) for label in labels))
        if not self.shared:
            return max(own, 1.0)
        count = torch.full((), own, device=device)
        dist.all_reduce(count)
        return (count / dist.get_world_size()).clamp(min=1.0)

    def _losses(
        self, logits: torch.Tensor, boxes: torch.Tensor, labels: Targets, pairs: np.ndarray, count: float | torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The parts of the loss, summed over layers and weighted. logits: (L, B, Q, C);  boxes: (L, B, Q, 4)."""
        (on_device,) = send([pairs], logits.device)
        *query, wanted = on_device  # (N,) each; query: layer, image, query
        found = boxes[tuple(query)]
        gt_boxes = torch.cat([label["boxes"] for label in labels]).to(boxes)[wanted]
        gt_classes = torch.cat([label["class_labels"] for label in labels])[wanted]
        iou, giou = iou_and_giou(found, gt_boxes)
        parts = {"box": (found - gt_boxes).abs().sum() / count, "giou": (1 - giou).sum() / count}
        if self.has_background:
            background = torch.full(logits.shape[:3], logits.shape[3] - 1, device=logits.device)
            target = background.index_put(tuple(query), gt_classes)
            parts["cls"] = cross_entropy(logits, target, self.background_weight)
        else:
            parts["cls"] = varifocal(logits, (*query, gt_classes), iou.detach(), *self.focal) / count
        return {name: part * self.weights[name] for name, part in parts.items()}


def attach_loss(detector: DetrNetwork) -> SetLoss:
    """The network's `SetLoss`, which is created if needed."""
    present = detector.network.loss_function
    loss = present if isinstance(present, SetLoss) else SetLoss(detector)
    detector.network.loss_function = loss
    return loss
