"""Anchors for box sizes: k-means, then an evolution towards a better fit, which the caller judges.

Without PyTorch: the data doctor, which ends in seconds, would spend most of them loading it.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from tqdm import tqdm

from yolov7fast.core.errors import UserError

LOGGER = logging.getLogger(__name__)
MUTATED = 0.9  # fraction of anchor sides that one step of the evolution changes
SPREAD = 0.1  # of those changes


def cluster(wh: np.ndarray, n: int) -> np.ndarray:
    """(n, 2) cluster centres of box sizes (m, 2), sorted by area."""
    from scipy.cluster.vq import kmeans  # takes a while to load and is seldom needed

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


def evolve(anchors: np.ndarray, fitness: Callable[[np.ndarray], Any], gen: int, verbose: bool = False) -> np.ndarray:
    """Multiply sides of anchors (n, 2) by random factors near 1, `gen` times, and keep what `fitness` finds better."""
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
