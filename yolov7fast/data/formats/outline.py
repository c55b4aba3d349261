"""Outlines of objects: several rings as one path, and whether an outline agrees with its box."""

import numpy as np

MOST_PIXELS = 1.0  # that an outline's extent may differ from its box
MOST_PAIRS = 4_000_000  # of points whose distances are taken at once
MOST_FRACTION = 0.1  # of the union that may lie outside one of the two


def join_rings(rings: list[np.ndarray]) -> np.ndarray:
    """One closed path (n, 2) through all parts of an object: each part is reached and left where it is nearest.

    The connecting lines run there and back, so the filled area and the extent stay those of the parts.
    """
    path = rings[0]
    for ring in rings[1:]:
        i, j = _nearest(path, ring)
        path = np.concatenate((path[: i + 1], ring[j:], ring[: j + 1], path[i:]))
    return path


def _nearest(path: np.ndarray, ring: np.ndarray) -> tuple[int, int]:
    """The points (n, 2) and (m, 2) that are nearest to each other: an index of each."""
    if len(path) * len(ring) > MOST_PAIRS:  # a table of all distances would not fit into memory
        from scipy.spatial import KDTree

        distances, nearest = KDTree(path).query(ring)
        j = int(distances.argmin())
        return int(np.asarray(nearest)[j]), j
    distance = ((path[:, None] - ring[None]) ** 2).sum(2)
    i, j = np.unravel_index(distance.argmin(), distance.shape)
    return int(i), int(j)


def corners(box: np.ndarray) -> np.ndarray:
    """The outline (4, 2) of a box left, top, right, bottom."""
    left, top, right, bottom = box
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float64)


def with_four_points(path: np.ndarray) -> np.ndarray:
    """Readers take a line for a polygon from four points on: a triangle gets its first point again."""
    return path if len(path) >= 4 else np.concatenate((path, path[: 4 - len(path)]))


def extent(path: np.ndarray) -> np.ndarray:
    """(4,) left, top, right, bottom."""
    return np.concatenate((path.min(0), path.max(0)))


def agrees(path: np.ndarray, box: np.ndarray, pixel: tuple[float, float]) -> bool:
    """Whether an outline's extent is its box's, up to a pixel or a tenth of their union. pixel: its sides."""
    own = extent(path)
    if (np.abs(own - box) <= MOST_PIXELS * np.array((*pixel, *pixel))).all():
        return True
    low, high = np.maximum(own[:2], box[:2]), np.minimum(own[2:], box[2:])
    inside = np.prod(np.maximum(high - low, 0))
    union = np.prod(own[2:] - own[:2]) + np.prod(box[2:] - box[:2]) - inside
    return bool(union > 0 and inside / union >= 1 - MOST_FRACTION)
