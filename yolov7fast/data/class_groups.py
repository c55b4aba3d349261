"""Class weights and image weights from class frequencies, and groups of classes for the heads of a multi-head network.

Classes are grouped by the mean of ln(w/h) over their boxes (0 is square) and optionally by the mean of ln(sqrt(w*h)).
The groups are the best of several seeded starts of k-means.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.data.caches.label_cache import load_labels
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.labels import check_class_range, find_images, img2label_paths
from yolov7fast.nn.multihead import HeadConfig

log = logging.getLogger(__name__)
MIN_SIDE = 1.0  # pixels: thinner boxes say nothing about shape
TALL, WIDE = 0.75, 1.3  # w/h of a group below, above which it is called so
STARTS, SEED = 32, 42  # of k-means


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


# --- geometry ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassGeometry:
    """Mean shape and size of the boxes of each of nc classes."""

    count: np.ndarray  # (nc,) int64 number of boxes
    log_ratio: np.ndarray  # (nc,) mean ln(w/h); 0 for a class without boxes
    log_side: np.ndarray  # (nc,) mean ln(sqrt(w*h)), pixels; the mean of the others for a class without boxes

    @property
    def nc(self) -> int:
        return len(self.count)


def class_geometry(cls: np.ndarray, width: np.ndarray, height: np.ndarray, nc: int) -> ClassGeometry:
    """Return the mean shape per class of boxes given as class ids and sides in pixels, (n,) each."""
    cls = np.asarray(cls).astype(np.int64)
    if len(cls) and not 0 <= cls.min() <= cls.max() < nc:
        raise ValueError(f"boxes of class {cls.max() if cls.max() >= nc else cls.min()}, but nc is {nc}")
    w, h = np.asarray(width, np.float64), np.asarray(height, np.float64)
    used = (w > MIN_SIDE) & (h > MIN_SIDE)
    cls, w, h = cls[used], w[used], h[used]
    count = np.bincount(cls, minlength=nc)
    if not count.any():
        raise UserError(f"no box is larger than {MIN_SIDE:g} pixel: there is no geometry to group by")
    weight = 1 / np.maximum(count, 1)
    ratio = np.bincount(cls, np.log(w / h), nc) * weight
    side = np.bincount(cls, np.log(w * h) / 2, nc) * weight
    side[count == 0] = side[count > 0].mean()
    if not count.all():
        log.warning(f"no boxes for classes {np.flatnonzero(count == 0).tolist()}: taken as square")
    return ClassGeometry(count, ratio, side)


def label_geometry(labels: Sequence[np.ndarray], shapes: np.ndarray, nc: int, img_size: int) -> ClassGeometry:
    """Return `class_geometry` of label rows (m, 5) [class, cx, cy, w, h] per image and image sizes (n, 2) [w, h].

    Boxes are measured with the longer side of each image scaled to `img_size`, as in training.
    """
    shapes = np.asarray(shapes, np.float64)
    scaled = shapes * img_size / shapes.max(1, keepdims=True)
    rows = np.concatenate([np.zeros((0, 5)), *labels])
    sizes = np.repeat(scaled, [len(x) for x in labels], axis=0)
    return class_geometry(rows[:, 0], rows[:, 3] * sizes[:, 0], rows[:, 4] * sizes[:, 1], nc)


def training_geometry(data: DataYaml, img_size: int) -> ClassGeometry:
    """Return `class_geometry` of the labels of a data set's training images."""
    source = data.split("train")
    table = load_labels(find_images(source), source)
    check_class_range(table.labels, img2label_paths(table.img_files), data.nc, data.path)
    return label_geometry(table.labels, table.shapes, data.nc, img_size)


# ---- grouping points -------------------------------------------------------------------------------------------------


def k_means(points: np.ndarray, k: int) -> np.ndarray:
    """Return the group 0..k-1 of each of the points (n, d): the best of several seeded starts; no group is empty."""
    from scipy.cluster.vq import ClusterError, kmeans2  # slow to import and seldom needed

    best, best_cost = np.arange(len(points)) * k // len(points), np.inf
    for start in range(STARTS if len(np.unique(points, axis=0)) >= k else 0):
        try:
            _, groups = kmeans2(points, k, iter=100, minit="++", missing="raise", seed=SEED + start)  # type: ignore[call-arg]
        except ClusterError:  # a group became empty
            continue
        means = np.stack([points[groups == g].mean(0) for g in range(k)])
        cost = ((points - means[groups]) ** 2).sum()
        if cost < best_cost - 1e-12:
            best, best_cost = groups, cost
    return best


# ---- a head configuration --------------------------------------------------------------------------------------------


def group_classes(geometry: ClassGeometry, heads: int, use_area: bool = False) -> np.ndarray:
    """Return the head of each class (nc,): head 0 has the tallest, the last head the widest.

    use_area: the size of boxes counts as much as their shape (both are brought to unit variance first).
    """
    if not 1 <= heads <= geometry.nc:
        raise UserError(f"{geometry.nc} classes cannot be distributed over {heads} heads: ask for 1 to {geometry.nc}")
    axes = (geometry.log_ratio, geometry.log_side) if use_area else (geometry.log_ratio,)
    groups = k_means(np.stack([(a - a.mean()) / (a.std() or 1.0) for a in axes], 1), heads)
    centres = [geometry.log_ratio[groups == g].mean() for g in range(heads)]
    return np.argsort(np.argsort(centres, kind="stable"))[groups]


def group_ratio(geometry: ClassGeometry, classes: Sequence[int]) -> float:
    """Return the geometric mean of the w/h of a group of classes."""
    return float(np.exp(geometry.log_ratio[list(classes)].mean()))


def geometry_config(geometry: ClassGeometry, heads: int, use_area: bool = False) -> HeadConfig:
    """Return a head configuration for the boxes of a data set: weights 1, heads named by the shape of their classes."""
    groups = group_classes(geometry, heads, use_area)
    classes = tuple(tuple(int(c) for c in np.flatnonzero(groups == h)) for h in range(heads))
    ratios = [group_ratio(geometry, ids) for ids in classes]
    names = tuple("tall" if ratio < TALL else "wide" if ratio > WIDE else "square" for ratio in ratios)
    return HeadConfig(geometry.nc, classes, (1.0,) * heads, names, "geometry" + "_area" * use_area)
