"""Autoanchor: how well anchors fit the boxes of a data set, and k-means with evolution for better ones.

A box and an anchor match by the worse of their two side ratios, each taken as a number up to 1. A box can be learnt if
its best match is over 1 / `thr`; the fraction of such boxes is the best possible recall (BPR). Only NumPy: the data
checks use this module and should not wait for the import of PyTorch.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from tqdm import tqdm

from yolov7fast.core.errors import UserError

LOGGER = logging.getLogger(__name__)
ENOUGH_RECALL = 0.98
MUTATED = 0.9  # fraction of anchor sides that one step of the evolution changes
SPREAD = 0.1  # standard deviation of these changes


def check_anchors(dataset, model, thr: float = 4.0, imgsz: int = 640) -> None:
    """Log how well the model's anchors fit; replace them if they fit badly and better ones are found.

    Draws one number per image from NumPy's global generator: box sizes are varied by up to a tenth.
    """
    import torch

    from yolov7fast.nn.heads import check_anchor_order

    head = (model.module if hasattr(model, "module") else model).model[-1]
    scale = np.random.uniform(0.9, 1.1, size=(dataset.shapes.shape[0], 1))
    wh = box_sizes(dataset, imgsz, scale).astype(np.float32)
    if not len(wh):
        LOGGER.warning("autoanchor: no labels, so the anchors are not changed")
        return
    anchors = head.anchor_grid.detach().cpu().view(-1, 2).numpy()
    recall, per_target = anchor_fit(wh, anchors, thr)
    LOGGER.info(f"autoanchor: anchors/target = {per_target:.2f}, Best Possible Recall (BPR) = {recall:.4f}")
    if recall >= ENOUGH_RECALL:
        return
    LOGGER.info("autoanchor: searching for better anchors...")
    try:
        found = kmean_anchors(dataset, n=len(anchors), img_size=imgsz, thr=thr, gen=1000, verbose=False)
    except UserError as error:
        LOGGER.warning(f"autoanchor: {error}; the anchors are not changed")
        return
    if anchor_fit(wh, found.astype(np.float32), thr)[0] <= recall:
        LOGGER.info("autoanchor: the original anchors are better than those found and are kept")
        return
    new = torch.tensor(found, device=head.anchors.device).type_as(head.anchors)
    head.anchor_grid[:] = new.view_as(head.anchor_grid)
    head.anchors[:] = new.view_as(head.anchors)
    check_anchor_order(head)
    head.anchors /= head.stride.to(head.anchors.device).view(-1, 1, 1)
    LOGGER.info("autoanchor: new anchors are in the model; write them into its YAML to use them from now on")


def box_sizes(dataset, img_size: int, scale: np.ndarray | float = 1.0) -> np.ndarray:
    """Return widths and heights (n, 2) of all labels in pixels, images having `img_size` as their longer side."""
    shapes = img_size * dataset.shapes / dataset.shapes.max(1, keepdims=True)
    return np.concatenate([rows[:, 3:5] * shape for shape, rows in zip(shapes * scale, dataset.labels)])


def anchor_fit(wh: np.ndarray, anchors: np.ndarray, thr: float) -> tuple[float, float]:
    """Return (best possible recall, anchors per target) of boxes (n, 2) and anchors (k, 2), float32 in pixels."""
    near = side_ratios(wh, anchors) > 1 / thr
    return _mean(near.max(1)), _mean(near.sum(1))


def side_ratios(wh: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Return the worse side ratio, up to 1, of boxes (n, 2) and anchors (k, 2): (n, k)."""
    r = wh[:, None] / anchors[None]
    return np.minimum(r, 1 / r).min(2)


def _mean(values: np.ndarray) -> float:
    return values.astype(np.float32).mean().item()


def kmean_anchors(dataset, n: int = 9, img_size: int = 640, thr: float = 4.0, gen: int = 1000, verbose: bool = True):
    """Return n anchors (n, 2) in pixels, sorted by area: k-means over the box sizes, then `gen` random mutations.

    dataset: anything with `shapes` (w, h) and `labels`. Deterministic for a seed of NumPy's global generator.
    """
    wh_all = box_sizes(dataset, img_size)
    small = int((wh_all < 3.0).any(1).sum())
    if small:
        LOGGER.warning(f"autoanchor: {small} of {len(wh_all)} labels are under 3 pixels wide or high at {img_size}")
    wh = wh_all[(wh_all >= 2.0).any(1)]
    anchors = cluster(wh, n)
    boxes, boxes_all = wh.astype(np.float32), wh_all.astype(np.float32)
    _describe(anchors, boxes_all, thr, img_size)
    anchors = evolve(anchors, lambda candidate: anchor_fitness(candidate, boxes, thr), gen, verbose)
    anchors = anchors[np.argsort(anchors.prod(1))]
    _describe(anchors, boxes_all, thr, img_size)
    return anchors


def cluster(wh: np.ndarray, n: int) -> np.ndarray:
    """Return (n, 2) cluster centres of box sizes (m, 2), sorted by area."""
    from scipy.cluster.vq import kmeans  # slow to import and seldom needed

    if len(wh) < n:
        raise UserError(f"{len(wh)} labels are too few for {n} anchors")
    LOGGER.info(f"autoanchor: running k-means for {n} anchors on {len(wh)} boxes...")
    spread = wh.std(0)
    if not spread.all():
        raise UserError("all boxes are equally wide or high, so there is nothing to cluster")
    centres, _ = kmeans(wh / spread, n, iter=30)
    if len(centres) != n:
        raise UserError(f"k-means found {len(centres)} groups of boxes where {n} anchors are wanted")
    centres *= spread
    return centres[np.argsort(centres.prod(1))]


def anchor_fitness(anchors: np.ndarray, wh: np.ndarray, thr: float) -> float:
    """Return the mean best match of boxes (n, 2), float32; 0 for boxes that no anchor fits."""
    best = side_ratios(wh, anchors.astype(np.float32)).max(1)
    return _mean(best * (best > 1 / thr))


def evolve(anchors: np.ndarray, fitness: Callable[[np.ndarray], Any], gen: int, verbose: bool = False) -> np.ndarray:
    """Multiply sides of anchors (n, 2) by random factors near 1, `gen` times, and keep what `fitness` rates higher."""
    draw = np.random
    fit, shape = fitness(anchors), anchors.shape
    bar = tqdm(range(gen), desc="autoanchor: evolving anchors")
    for _ in bar:
        factor = np.ones(shape)
        while (factor == 1).all():
            factor = ((draw.random(shape) < MUTATED) * draw.random() * draw.randn(*shape) * SPREAD + 1).clip(0.3, 3.0)
        candidate = (anchors * factor).clip(min=2.0)
        candidate_fit = fitness(candidate)
        if candidate_fit > fit:
            fit, anchors = candidate_fit, candidate
            if verbose:
                bar.desc = f"autoanchor: evolving anchors with fitness = {fit:.4f}"
    return anchors


def _describe(anchors: np.ndarray, wh: np.ndarray, thr: float, img_size: int) -> None:
    k = anchors.astype(np.float32)
    recall, per_target = anchor_fit(wh, k, thr)
    sizes = ",  ".join(f"{round(w)},{round(h)}" for w, h in anchors.tolist())
    LOGGER.info(
        f"autoanchor: {len(anchors)} anchors at {img_size}, thr {1 / thr:.2f}: {recall:.4f} best possible recall, "
        f"{per_target:.2f} anchors past it, mean best match {side_ratios(wh, k).max(1).mean():.3f}: {sizes}"
    )
