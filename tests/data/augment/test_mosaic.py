"""Mosaic layouts, checked by hand on tiles of plain colours."""

import numpy as np
import pytest

from yolov7fast.core.boxes import xywhn2xyxy
from yolov7fast.data.augment.mosaic import (
    MosaicLayout,
    MosaicPlan,
    draw_canvas,
    draw_four,
    draw_nine,
    layout,
    mosaic_labels,
    mosaic_segments,
)
from yolov7fast.data.augment.random_source import KeyedRandom


def tiles(shapes):
    return [np.full((h, w, 3), 10 * i + 1, np.uint8) for i, (h, w) in enumerate(shapes)]


def test_four_tiles_meet_at_the_drawn_point_and_are_cut_at_the_canvas():
    shapes = [(64, 48), (32, 64), (64, 64), (40, 20)]
    where = layout(MosaicPlan([0, 1, 2, 3], (50, 40)), shapes, 64)
    assert where == MosaicLayout([(2, -24), (50, 8), (-14, 40), (50, 40)], (0, 0), 128)
    canvas = draw_canvas(tiles(shapes), where.on_canvas, (128, 128))[..., 0]
    assert (canvas[0:40, 2:50] == 1).all()
    assert (canvas[8:40, 50:114] == 11).all()
    assert (canvas[40:104, 0:50] == 21).all()
    assert (canvas[40:80, 50:70] == 31).all()
    rendered = np.isin(canvas, (1, 11, 21, 31)).sum()
    assert rendered == 40 * 48 + 32 * 64 + 64 * 50 + 40 * 20
    assert (canvas[~np.isin(canvas, (1, 11, 21, 31))] == 114).all()


def test_nine_tiles_of_full_size_fill_the_plane_around_the_centre():
    s = 32
    where = layout(MosaicPlan(list(range(9)), (0, 0)), [(s, s)] * 9, s)
    ring = [(1, 0), (2, 0), (2, 1), (2, 2), (1, 2), (0, 2), (0, 1), (0, 0)]
    assert where.origins == [(s, s), *((x * s, y * s) for x, y in ring)]


def test_nine_tiles_of_other_sizes_hang_on_to_each_other():
    shapes = [(20, 30), (10, 12), (14, 16), (18, 22), (24, 26), (28, 6), (8, 32), (4, 2), (32, 31)]
    where = layout(MosaicPlan(list(range(9)), (5, 7)), shapes, 32)
    assert where.origins == [
        (32, 32),
        (32, 22),  # top: its height above the centre
        (44, 18),  # top right: right of the top tile
        (62, 32),  # right of the centre
        (62, 50),  # below the right tile
        (56, 52),  # bottom: flush right with the centre
        (24, 52),  # left of the bottom tile
        (30, 48),  # left: flush with the centre's bottom
        (1, 16),  # above the left tile
    ]
    assert where.on_canvas[0] == (27, 25)


def test_plans_draw_partners_from_the_given_indices_and_stay_in_range():
    for seed in range(50):
        plan = draw_four(KeyedRandom(seed), 7, [3, 5], 64)
        assert plan.tiles[0] == 7 and set(plan.tiles[1:]) <= {3, 5} and len(plan.tiles) == 4
        assert all(32 <= v < 96 for v in plan.at)
        plan = draw_nine(KeyedRandom(seed), 7, [3, 5], 64)
        assert plan.tiles[0] == 7 and set(plan.tiles[1:]) <= {3, 5} and len(plan.tiles) == 9
        assert all(0 <= v < 64 for v in plan.at)


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
