"""Do the anchors fit the boxes of a data set, and if not, which would?

A box and an anchor match by the worse of their two side ratios, each taken as a number up to 1; a box can be learnt
if its best match is over 1 / `thr`. The fraction of such boxes is the best possible recall (BPR).
"""

import logging
from collections.abc import Sequence

import numpy as np
import torch

from yolov7fast.data.autoanchor import cluster, evolve
from yolov7fast.core.errors import UserError
from yolov7fast.nn.heads import check_anchor_order

__all__ = ["anchor_fit", "check_anchor_order", "check_anchors", "kmean_anchors"]

LOGGER = logging.getLogger(__name__)
ENOUGH_RECALL = 0.98


def _matches(wh: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """(n, 2) boxes and (k, 2) anchors -> (n, k): the worse side ratio, up to 1."""
    r = wh[:, None] / anchors[None]
    return torch.min(r, 1 / r).min(2)[0]


def anchor_fit(wh: torch.Tensor, anchors: torch.Tensor, thr: float) -> tuple[float, float]:
    """(best possible recall, anchors per target) of boxes (n, 2) and anchors (k, 2), in pixels."""
    x = _matches(wh, anchors)
    near = x > 1 / thr
    return (x.max(1)[0] > 1 / thr).float().mean().item(), near.float().sum(1).mean().item()


def _box_sizes(dataset, img_size: int, scale: np.ndarray | float = 1.0) -> np.ndarray:
    """Widths and heights (n, 2) of all labels in pixels, images having `img_size` as their longer side."""
    shapes = img_size * dataset.shapes / dataset.shapes.max(1, keepdims=True)
    return np.concatenate([rows[:, 3:5] * shape for shape, rows in zip(shapes * scale, dataset.labels)])


def check_anchors(dataset, model, thr: float = 4.0, imgsz: int = 640) -> None:
    """Report how well the model's anchors fit, and replace them if they fit badly and better ones are found.

    Draws one number per image from NumPy's global generator: box sizes are varied by up to a tenth.
    """
    head = (model.module if hasattr(model, "module") else model).model[-1]
    scale = np.random.uniform(0.9, 1.1, size=(dataset.shapes.shape[0], 1))
    wh = torch.tensor(_box_sizes(dataset, imgsz, scale)).float()
    if not len(wh):
        LOGGER.warning("autoanchor: no labels, so the anchors are left as they are")
        return
    anchors = head.anchor_grid.clone().cpu().view(-1, 2)
    recall, per_target = anchor_fit(wh, anchors, thr)
    LOGGER.info(f"autoanchor: anchors/target = {per_target:.2f}, Best Possible Recall (BPR) = {recall:.4f}")
    if recall >= ENOUGH_RECALL:
        return
    LOGGER.info("autoanchor: looking for better anchors, please wait...")
    try:
        found = kmean_anchors(dataset, n=len(anchors), img_size=imgsz, thr=thr, gen=1000, verbose=False)
    except UserError as error:
        LOGGER.warning(f"autoanchor: {error}; the anchors are left as they are")
        return
    found = torch.tensor(found, device=head.anchors.device).type_as(head.anchors)
    if anchor_fit(wh, found.cpu(), thr)[0] <= recall:
        LOGGER.info("autoanchor: the original anchors are better than those found and are kept")
        return
    head.anchor_grid[:] = found.view_as(head.anchor_grid)
    head.anchors[:] = found.view_as(head.anchors)
    check_anchor_order(head)
    head.anchors /= head.stride.to(head.anchors.device).view(-1, 1, 1)
    LOGGER.info("autoanchor: new anchors are in the model; write them into its YAML to use them from now on")


def kmean_anchors(dataset, n: int = 9, img_size: int = 640, thr: float = 4.0, gen: int = 1000, verbose: bool = True):
    """n anchors (n, 2) in pixels, sorted by area: k-means over the box sizes, then `gen` random improvements.

    dataset: anything with `shapes` (w, h) and `labels`. Deterministic for a seed of NumPy's global generator.
    """
    wh_all = _box_sizes(dataset, img_size)
    small = int((wh_all < 3.0).any(1).sum())
    if small:
        LOGGER.warning(f"autoanchor: {small} of {len(wh_all)} labels are under 3 pixels wide or high at {img_size}")
    wh = wh_all[(wh_all >= 2.0).any(1)]
    anchors = cluster(wh, n)
    boxes, boxes_all = torch.tensor(wh, dtype=torch.float32), torch.tensor(wh_all, dtype=torch.float32)
    _describe(anchors, boxes_all, thr, img_size)
    anchors = evolve(anchors, lambda candidate: _fitness(candidate, boxes, thr), gen, verbose)
    anchors = anchors[np.argsort(anchors.prod(1))]
    _describe(anchors, boxes_all, thr, img_size)
    return anchors


def _fitness(anchors: np.ndarray, wh: torch.Tensor, thr: float) -> torch.Tensor:
    """Mean best match of all boxes, 0 for those that no anchor fits."""
    best = _matches(wh, torch.tensor(anchors, dtype=torch.float32)).max(1)[0]
    return (best * (best > 1 / thr).float()).mean()


def _describe(anchors: np.ndarray, wh: torch.Tensor, thr: float, img_size: int) -> None:
    k = torch.tensor(anchors, dtype=torch.float32)
    recall, per_target = anchor_fit(wh, k, thr)
    sizes: Sequence[str] = [f"{round(w)},{round(h)}" for w, h in anchors.tolist()]
    LOGGER.info(
        f"autoanchor: {len(anchors)} anchors at {img_size}, thr {1 / thr:.2f}: {recall:.4f} best possible recall, "
        f"{per_target:.2f} anchors past it, mean best match {_matches(wh, k).max(1)[0].mean():.3f}: {',  '.join(sizes)}"
    )
