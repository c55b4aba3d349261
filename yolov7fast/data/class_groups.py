"""Grouping classes by the geometry of their boxes, for the heads of a multi-head network.

The axis is the mean of ln(w/h) over a class's boxes: 0 is square, and tall and wide are equally far from it. Optionally
the mean of ln(sqrt(w*h)) is a second one. On one axis the best grouping is contiguous in sorted order, so a dynamic
programme finds it exactly; on two axes, or with equal group sizes, k-means with many fixed starts comes close.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.data.caches.label_cache import load_labels
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.labels import check_class_range, find_images, img2label_paths
from yolov7fast.nn.head_config import HeadConfig

log = logging.getLogger(__name__)
MIN_SIDE = 1.0  # pixels: thinner boxes say nothing about shape
TALL, WIDE = 0.75, 1.3  # w/h of a group below, above which it is called so
STARTS, SEED = 32, 42  # of k-means


@dataclass(frozen=True)
class ClassGeometry:
    """What the boxes of each of nc classes look like, in the mean."""

    count: np.ndarray  # (nc,) int64 boxes that were used
    log_ratio: np.ndarray  # (nc,) mean ln(w/h); 0 for a class without boxes
    log_side: np.ndarray  # (nc,) mean ln(sqrt(w*h)), pixels; the mean of the others for a class without boxes

    @property
    def nc(self) -> int:
        return len(self.count)


def class_geometry(cls: np.ndarray, width: np.ndarray, height: np.ndarray, nc: int) -> ClassGeometry:
    """Mean shape per class of boxes given as class ids and sides in pixels, (n,) each."""
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
    """The same from label rows (m, 5) [class, cx, cy, w, h] of each image and image sizes (n, 2) [width, height].

    Boxes are measured with the image's longer side brought to `img_size`, as training sees them.
    """
    shapes = np.asarray(shapes, np.float64)
    scaled = shapes * img_size / shapes.max(1, keepdims=True)
    rows = np.concatenate([np.zeros((0, 5)), *labels])
    sizes = np.repeat(scaled, [len(x) for x in labels], axis=0)
    return class_geometry(rows[:, 0], rows[:, 3] * sizes[:, 0], rows[:, 4] * sizes[:, 1], nc)


def training_geometry(data: DataYaml, img_size: int) -> ClassGeometry:
    """The same from the labels of a data set's training images."""
    source = data.split("train")
    table = load_labels(find_images(source), source)
    check_class_range(table.labels, img2label_paths(table.img_files), data.nc, data.path)
    return label_geometry(table.labels, table.shapes, data.nc, img_size)


# ---- grouping points -------------------------------------------------------------------------------------------------


def partition_line(values: np.ndarray, k: int) -> np.ndarray:
    """Exact k-means on one axis: group 0..k-1 of each of the values (n,), ascending with the group's mean."""
    order = np.argsort(values, kind="stable")
    x = np.asarray(values, np.float64)[order]
    n = len(x)
    total, square = np.concatenate(([0.0], x.cumsum())), np.concatenate(([0.0], (x * x).cumsum()))
    ends = np.arange(n + 1)
    length = np.maximum(ends[None] - ends[:, None], 1)
    spread = square[None] - square[:, None] - (total[None] - total[:, None]) ** 2 / length  # of x[start:end]
    spread[ends[:, None] >= ends[None]] = np.inf  # groups are not empty
    best, cuts = spread[0], []
    for _ in range(k - 1):
        cost = best[:, None] + spread  # previous groups end at row, the new one at column
        cuts.append(cost.argmin(0))
        best = cost.min(0)
    groups, end = np.empty(n, np.int64), n
    for g in range(k - 1, -1, -1):
        start = int(cuts[g - 1][end]) if g else 0
        groups[order[start:end]] = g
        end = start
    return groups


def assign_balanced(distance: np.ndarray) -> np.ndarray:
    """Nearest group of each point under group sizes that differ by at most one; distance (n, k).

    An assignment problem: every group has n // k seats that must be taken and one that may stay empty. Phantom points,
    for which only the latter are cheap, make the matrix square.
    """
    from scipy.optimize import linear_sum_assignment  # takes a while to load and is seldom needed

    n, k = distance.shape
    seats = np.concatenate((np.repeat(np.arange(k), n // k), np.arange(k)))
    phantom = np.zeros((len(seats) - n, len(seats)))
    phantom[:, :-k] = 1e6 * (1 + distance.max())
    _, seat_of = linear_sum_assignment(np.concatenate((distance[:, seats], phantom)))
    return seats[seat_of[:n]]


def k_means(points: np.ndarray, k: int, balanced: bool = False) -> np.ndarray:
    """Group 0..k-1 of each of the points (n, d): the best of several seeded starts; no group is empty."""
    rng = np.random.RandomState(SEED)
    best, best_cost = np.zeros(len(points), np.int64), np.inf
    for _ in range(STARTS):
        centres = points[spread_out(points, k, rng)]
        groups = np.full(len(points), -1)
        for _ in range(100):
            distance = ((points[:, None] - centres[None]) ** 2).sum(2)
            new = assign_balanced(distance) if balanced else nearest(distance)
            if (new == groups).all():
                break
            groups = new
            centres = np.stack([points[groups == g].mean(0) for g in range(k)])
        cost = ((points - centres[groups]) ** 2).sum()
        if cost < best_cost - 1e-12:
            best, best_cost = groups, cost
    return best


def spread_out(points: np.ndarray, k: int, rng: np.random.RandomState) -> list[int]:
    """k different points, each drawn in proportion to its squared distance from those before."""
    chosen = [int(rng.randint(len(points)))]
    while len(chosen) < k:
        distance = ((points[:, None] - points[chosen][None]) ** 2).sum(2).min(1)
        if not distance.any():  # as many different points as groups do not exist: take any
            chosen.append(next(i for i in range(len(points)) if i not in chosen))
        else:
            chosen.append(int(rng.choice(len(points), p=distance / distance.sum())))
    return chosen


def nearest(distance: np.ndarray) -> np.ndarray:
    """Nearest group of each point; an empty group takes the point that is farthest from its own; distance (n, k)."""
    groups = distance.argmin(1)
    for g in range(distance.shape[1]):
        if not (groups == g).any():
            alone = np.bincount(groups, minlength=distance.shape[1])[groups] == 1
            groups[np.where(alone, -1, distance[np.arange(len(groups)), groups]).argmax()] = g
    return groups


# ---- a head configuration --------------------------------------------------------------------------------------------


def group_classes(geometry: ClassGeometry, heads: int, use_area: bool = False, balanced: bool = False) -> np.ndarray:
    """Head of each class (nc,): head 0 holds the tallest, the last head the widest.

    use_area: the size of boxes counts as much as their shape (both are brought to unit variance first).
    balanced: numbers of classes of any two heads differ by at most one.
    """
    if not 1 <= heads <= geometry.nc:
        raise UserError(f"{geometry.nc} classes cannot be distributed over {heads} heads: ask for 1 to {geometry.nc}")
    if not use_area and not balanced:
        return partition_line(geometry.log_ratio, heads)
    axes = [geometry.log_ratio, geometry.log_side] if use_area else [geometry.log_ratio]
    points = np.stack([(a - a.mean()) / (a.std() or 1.0) for a in axes], 1)
    groups = k_means(points, heads, balanced)
    centres = [geometry.log_ratio[groups == g].mean() for g in range(heads)]
    return np.argsort(np.argsort(centres, kind="stable"))[groups]


def group_ratio(geometry: ClassGeometry, classes: Sequence[int]) -> float:
    """w/h of the middle of a group: the geometric mean of its classes' ratios."""
    return float(np.exp(geometry.log_ratio[list(classes)].mean()))


def shape_word(ratio: float) -> str:
    """tall, square or wide."""
    return "tall" if ratio < TALL else "wide" if ratio > WIDE else "square"


def geometry_config(geometry: ClassGeometry, heads: int, use_area: bool = False, balanced: bool = False) -> HeadConfig:
    """A head configuration made from the boxes of a data set: weights 1, heads named by the shape of their classes."""
    groups = group_classes(geometry, heads, use_area, balanced)
    classes = tuple(tuple(int(c) for c in np.flatnonzero(groups == h)) for h in range(heads))
    names = tuple(shape_word(group_ratio(geometry, ids)) for ids in classes)
    grouping = "geometry" + "_area" * use_area + "_balanced" * balanced
    return HeadConfig(geometry.nc, classes, (1.0,) * heads, names, grouping)
