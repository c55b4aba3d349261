"""The order of detections by class and score, against NumPy's sort by several keys."""

import numpy as np
import pytest

from yolov7fast.evaluation.average_precision import rank_by_class


def scores(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    spread = rng.random(n, np.float32)
    if kind == "equal":
        return (rng.integers(1, 20, n) / 20).astype(np.float32)
    if kind == "of any size":  # more bits than have a place beside the class
        return np.float32(10.0) ** (-30 * spread)
    if kind == "apart in the last bits":
        return (np.float32(0.5).view(np.uint32) + rng.integers(0, 4, n).astype(np.uint32)).view(np.float32)
    return spread if kind == "float32" else -spread  # negative ones are sorted otherwise


@pytest.mark.parametrize("classes", [1, 80, 3000])
@pytest.mark.parametrize("kind", ["float32", "equal", "of any size", "apart in the last bits", "negative"])
def test_detections_are_in_the_order_of_class_score_and_row(kind, classes):
    rng = np.random.default_rng(classes)
    n = 40_000  # above the size from which on PyTorch sorts by digits
    score, cls = scores(kind, n, rng), rng.integers(0, classes, n)
    if kind == "apart in the last bits":
        score[:2] = np.float32(1e-30), np.float32(1.0)  # the range is wide all the same
    target = np.unique(cls)[::2]  # every second class has labels
    ranking = rank_by_class(np.zeros((n, 10), bool), score, cls, target)
    order = np.lexsort((np.arange(n), -score, cls))
    wanted = order[np.isin(cls[order], target)]
    assert np.array_equal(ranking.rows, wanted)
    assert np.array_equal(ranking.counts, np.bincount(cls, minlength=classes)[target])
