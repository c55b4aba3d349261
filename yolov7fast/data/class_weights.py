"""Class weights and image weights (`--image-weights`) from class frequencies."""

from collections.abc import Sequence

import numpy as np
import torch


def labels_to_class_weights(labels: Sequence[np.ndarray], nc: int = 80) -> torch.Tensor:
    """Labels (m, 5) of every image -> (nc,) float64: one over the count of each class (0 counts as 1), sum 1."""
    if not len(labels):
        return torch.Tensor()
    classes = np.concatenate(labels, 0)[:, 0].astype(int)
    counts = np.bincount(classes, minlength=nc)
    counts[counts == 0] = 1
    weights = 1 / counts
    return torch.from_numpy(weights / weights.sum())


def labels_to_image_weights(
    labels: Sequence[np.ndarray], nc: int = 80, class_weights: np.ndarray | None = None
) -> np.ndarray:
    """(n,) weights of images: the sum over their boxes of the weight of the box's class (1 if none are given)."""
    weights = np.ones(nc) if class_weights is None else np.asarray(class_weights)
    counts = np.array([np.bincount(rows[:, 0].astype(int), minlength=nc) for rows in labels])
    return (weights.reshape(1, nc) * counts).sum(1)
