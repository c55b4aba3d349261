"""Mosaic layouts, checked by hand on tiles of plain colours."""

import numpy as np
import pytest

from yolov7fast.core.boxes import xywhn2xyxy
from yolov7fast.data.augment.mosaic import MosaicLayout, mosaic_labels, mosaic_segments


@pytest.mark.parametrize("window", [(0, 0), (9, 14)])
def test_labels_of_all_tiles_at_once_equal_tile_by_tile(window):
    rng = np.random.default_rng(0)
    labels = [rng.random((n, 5)).astype(np.float32) for n in (3, 0, 7, 1)]
    shapes = [(37, 64), (64, 48), (51, 64), (64, 64)]
    where = MosaicLayout([(-11, 3), (53, -7), (5, 64), (60, 60)], window, 128)
    expected = []
    for rows, (h, w), (x, y) in zip(labels, shapes, where.origins):
        moved = rows.copy()
        moved[:, 1:] = xywhn2xyxy(rows[:, 1:], w, h, x, y)
        moved[:, [1, 3]] -= window[0]
        moved[:, [2, 4]] -= window[1]
        expected.append(moved)
    expected = np.concatenate(expected)
    expected[:, 1:] = expected[:, 1:].clip(0, 128)
    result = mosaic_labels(labels, shapes, where)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected)


def test_polygons_follow_their_tile_and_become_float64_under_a_window():
    polygons = [[np.array([[0, 0], [1, 0.5]], np.float32)], []]
    where = MosaicLayout([(10, 20), (0, 0)], (4, 6), 50)
    [points] = mosaic_segments(polygons, [(30, 40), (10, 10)], where, shift=True)
    assert points.dtype == np.float64
    assert points.tolist() == [[6, 14], [46, 29]]
    [points] = mosaic_segments(polygons, [(30, 40), (10, 10)], where._replace(window=(0, 0)), shift=False)
    assert points.dtype == np.float32
    assert points.tolist() == [[10, 20], [50, 35]]
