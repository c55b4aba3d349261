"""Which cells are proposed: the recorded lists, to the order; and the rules at borders, by hand."""

import numpy as np
import pytest

from tests.losses.loss_golden import Case, names
from yolov7fast.losses.candidates import LEAD_REACH, find_candidates, first_on_cell


def rows_of(found, level) -> list[tuple]:
    here = found.level == level
    return list(zip(*(field[here].tolist() for field in found[1:])))


@pytest.mark.parametrize("name", names("plain"))
def test_plain_candidates_are_the_recorded_ones_in_order(name):
    case = Case(name)
    found = find_candidates(
        case.targets.numpy(), case.loss.layout.anchors, case.sizes, case.loss.layout.anchor_t, LEAD_REACH
    )
    for level, recorded in enumerate(case.recorded("targets_idx")):
        assert rows_of(found, level) == recorded


@pytest.mark.parametrize("name", names("ota", "aux"))
def test_pool_candidates_are_the_recorded_ones_in_order(name):
    case = Case(name)
    for kind, reach in case.assignments.items():
        if f"{kind}_cand0" not in case.figures:
            continue
        found = find_candidates(
            case.targets.numpy(), case.loss.layout.anchors, case.sizes, case.loss.layout.anchor_t, reach
        )
        for level, recorded in enumerate(case.recorded(f"{kind}_cand")):
            assert rows_of(found, level) == recorded


def cells(centre_x, centre_y, reach=LEAD_REACH, size=(8, 8)):
    """(row, column) proposed for a one-cell box by an anchor of its own size."""
    targets = np.array([[0, 0, centre_x / size[1], centre_y / size[0], 1 / size[1], 1 / size[0]]], np.float32)
    found = find_candidates(targets, np.ones((1, 1, 2), np.float32), [size], 4.0, reach)
    return list(zip(found.row.tolist(), found.column.tolist()))


def test_centre_and_nearer_neighbours():
    assert cells(3.25, 4.75) == [(4, 3), (4, 2), (5, 3)]
    assert cells(3.5, 4.5) == [(4, 3)]  # exactly half: no neighbour is nearer


def test_centre_on_a_grid_line_proposes_its_cell_again():
    assert cells(3.0, 4.5) == [(4, 3), (4, 2), (4, 3)]
    assert cells(3.0, 4.0).count((4, 3)) == 3


def test_no_neighbour_across_the_border_and_outside_is_clamped():
    assert cells(0.25, 0.25) == [(0, 0)]
    assert cells(8.0, 4.5) == [(4, 7), (4, 7)]
    assert cells(9.5, -1.5) == [(0, 7)]


def test_shape_test_is_strict_and_refuses_empty_boxes():
    anchors = np.full((1, 1, 2), 2.0, np.float32)
    for side, kept in ((8.0, 0), (7.99, 1), (0.5, 0), (0.51, 1), (0.0, 0)):
        targets = np.array([[0, 0, 0.55, 0.55, side / 10, 0.2]], np.float32)
        assert bool(len(find_candidates(targets, anchors, [(10, 10)], 4.0, LEAD_REACH).level)) == bool(kept), side


def test_first_on_cell_names_the_earliest_copy():
    level, cell = np.array([0, 0, 0, 1, 1]), np.array([5, 7, 5, 5, 5])
    assert first_on_cell(level, cell).tolist() == [0, 1, 0, 3, 3]
