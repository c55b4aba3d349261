"""Batches that are read ahead by a thread, and tiles of large images."""

import threading

import numpy as np
import pytest
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.inference.detection_loop import read_ahead
from yolov7fast.inference.slicing import Slicing, merge, tile_frames
from yolov7fast.inference.sources import Frame


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("read ahead")]


def test_items_come_in_order_and_are_made_by_another_thread():
    makers = []

    def items():
        for number in range(20):
            makers.append(threading.current_thread().name)
            yield number

    assert list(read_ahead(items())) == list(range(20))
    assert set(makers) == {"read ahead_0"} and reading_threads() == []


def test_errors_of_the_reader_are_raised_in_place_and_closing_early_ends_its_thread():
    def items():
        yield from (1, 2)
        raise OSError("disk gone")

    reader = read_ahead(items())
    assert (next(reader), next(reader)) == (1, 2)
    with pytest.raises(OSError, match="disk gone"):
        next(reader)
    closed = read_ahead(iter(range(1000)))
    assert next(closed) == 0
    closed.close()
    assert reading_threads() == []


@pytest.mark.parametrize(
    ("height", "width", "overlap"), [(1000, 1500, 0.25), (640, 641, 0.5), (2000, 300, 0.0), (64, 64, 0.0)]
)
def test_tiles_cover_the_image_and_share_the_overlap(height, width, overlap):
    slicing = Slicing(320, overlap)
    seen = np.zeros((height, width), int)
    for x1, y1, x2, y2 in slicing.tiles(height, width):
        assert 0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height
        assert (x2 - x1, y2 - y1) == (min(320, width), min(320, height))
        seen[y1:y2, x1:x2] += 1
    assert seen.min() == 1 or (height > 320 or width > 320)
    assert seen.min() >= 1
    for starts, length in ((slicing.starts(height), height), (slicing.starts(width), width)):
        steps = np.diff(starts)
        assert len(starts) == 1 or ((steps > 0).all() and steps.max() <= round(320 * (1 - overlap)) and length > 320)


def test_an_image_of_one_tile_is_not_cut():
    frame = Frame("a.jpg", np.zeros((3, 64, 64), np.uint8), np.zeros((100, 90, 3), np.uint8), "image")
    assert tile_frames(frame, Slicing(100), 64, 32, False) == []
    tiles = tile_frames(frame, Slicing(60, 0.0), 64, 32, False)
    assert [tile.original.shape for tile in tiles] == [(60, 60, 3)] * 4
    assert [tile.image.shape for tile in tiles] == [(3, 64, 64)] * 4


def rows(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).reshape(-1, 6)


TILES = [(0, 0, 100, 100), (75, 0, 175, 100)]
SHAPE = (100, 175)


def test_what_tiles_find_is_moved_to_its_place():
    found = merge(rows(), [rows((10, 20, 30, 40, 0.9, 1)), rows((50, 60, 70, 80, 0.8, 0))], TILES, SHAPE, 0.45)
    assert found.tolist() == rows((10, 20, 30, 40, 0.9, 1), (125, 60, 145, 80, 0.8, 0)).tolist()


def test_an_object_seen_twice_counts_once_with_its_best_score():
    twice = [rows((80, 10, 95, 30, 0.6, 1)), rows((5, 10, 20, 30, 0.9, 1))]
    found = merge(rows((80, 10, 95, 31, 0.7, 1)), twice, TILES, SHAPE, 0.45)
    assert found.tolist() == rows((80, 10, 95, 30, 0.9, 1)).tolist()


def test_a_part_cut_by_a_tiles_edge_falls_where_the_whole_is_known():
    whole, part = rows((60, 10, 120, 50, 0.5, 1)), rows((60, 10, 100, 50, 0.9, 1))
    assert merge(whole, [part, rows()], TILES, SHAPE, 0.9).tolist() == whole.tolist()
    # without the whole the part stays; so does a small object within a larger one that no edge cuts
    assert merge(rows(), [part, rows()], TILES, SHAPE, 0.9).tolist() == part.tolist()
    inside = rows((65, 15, 90, 40, 0.9, 1))
    assert len(merge(whole, [inside, rows()], TILES, SHAPE, 0.9)) == 2


def test_the_edge_of_the_image_cuts_nothing():
    at_edge = rows((0, 0, 30, 30, 0.9, 1))
    assert len(merge(rows((0, 0, 60, 60, 0.5, 1)), [at_edge, rows()], TILES, SHAPE, 0.45)) == 2


def test_classes_suppress_one_another_only_if_asked():
    both = [rows((10, 10, 40, 40, 0.9, 0), (10, 10, 40, 41, 0.8, 1)), rows()]
    assert len(merge(rows(), both, TILES, SHAPE, 0.45)) == 2
    assert len(merge(rows(), both, TILES, SHAPE, 0.45, agnostic=True)) == 1


def test_impossible_tiles_are_refused():
    with pytest.raises(UserError, match="--slice 8: tiles must be at least 32 pixels wide"):
        Slicing(8)
    with pytest.raises(UserError, match=r"--slice-overlap 0\.95 is out of range"):
        Slicing(320, 0.95)
