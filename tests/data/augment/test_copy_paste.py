"""Cut-outs: what is taken, where it may go, and that draws do not depend on success."""

import numpy as np

from yolov7fast.data.augment.copy_paste import (
    CutOut,
    _fill,
    _filled_crop,
    copy_paste,
    cut_out,
    gather_cutouts,
    overlap,
    paste_in,
)
from yolov7fast.data.augment.random_source import KeyedRandom

SQUARE = np.array([[10, 10], [20, 10], [20, 20], [10, 20]], np.float32)


class Scripted(KeyedRandom):
    """Every gate open; places as given."""

    def __init__(self, *places):
        super().__init__(0)
        self.places = list(places)
        self.calls = 0

    def random(self):
        self.calls += 1
        return 0.5

    def randint(self, a, b):
        self.calls += 1
        return self.places.pop(0) if self.places else a


def test_overlap_is_the_fraction_of_each_existing_box():
    boxes = np.array([[0, 0, 10, 10], [5, 5, 25, 25], [50, 50, 60, 60]], np.float32)
    assert overlap(np.array([0, 0, 10, 10]), boxes).tolist() == [1.0, 25 / 400, 0.0]


def test_copy_paste_mirrors_an_object_and_its_outline():
    img = np.full((64, 100, 3), 114, np.uint8)
    img[10:21, 10:21] = (1, 2, 3)
    labels = np.array([[4, 10, 10, 20, 20]], np.float32)
    img, labels, segments = copy_paste(img, labels, [SQUARE], 1.0, KeyedRandom(0))
    assert labels.tolist() == [[4, 10, 10, 20, 20], [4, 80, 10, 90, 20]]
    assert segments[1].tolist() == [[90, 10], [80, 10], [80, 20], [90, 20]]
    assert (img[10:21, 79:90] == (1, 2, 3)).all()


def test_copy_paste_leaves_an_object_whose_mirror_image_covers_another():
    img = np.full((64, 40, 3), 114, np.uint8)  # the square mirrors onto 20..30, next to it; the other lies there
    labels = np.array([[0, 10, 10, 20, 20], [1, 22, 12, 28, 18]], np.float32)
    before = img.copy()
    img, after, segments = copy_paste(img, labels, [SQUARE], 1.0, KeyedRandom(0))
    assert (len(after), len(segments)) == (2, 1)
    assert (img == before).all()


def test_copy_paste_without_polygons_or_probability_draws_nothing():
    rng = KeyedRandom(1)
    labels = np.zeros((2, 5), np.float32)
    copy_paste(np.zeros((8, 8, 3), np.uint8), labels, [], 0.5, rng)
    copy_paste(np.zeros((8, 8, 3), np.uint8), labels, [SQUARE], 0.0, rng)
    assert rng.random() == KeyedRandom(1).random()


def test_a_cut_out_is_black_outside_its_outline_and_never_inside():
    img = np.zeros((64, 64, 3), np.uint8)
    img[..., 1] = 7
    triangle = np.array([[10, 10], [30, 10], [10, 30]], np.float32)
    labels = np.array([[3, 10, 10, 30, 30]], np.float32)
    [found] = cut_out(img, labels, [triangle], KeyedRandom(0), fraction=1.0)
    assert (found.label, found.img.shape) == (3, (20, 20, 3))
    assert (found.img[1, 1] == (255, 7, 255)).all()  # value 0 turned 255, as recorded figures need
    assert (found.img[19, 19] == 0).all()


def test_filling_a_crop_equals_cropping_a_filled_canvas():
    rng = np.random.default_rng(0)
    for _ in range(500):
        polygon = (rng.random((rng.integers(1, 12), 2)) * 160 - 30).clip(0, 100).astype(np.float32)
        box = np.concatenate((polygon.min(0), polygon.max(0))) + rng.uniform(-1, 1, 4)  # labels differ by rounding
        x1, y1, x2, y2 = box = box.astype(int).clip(0, 99).tolist()
        canvas = np.zeros((100, 100, 3), np.uint8)
        _fill(canvas, polygon)
        np.testing.assert_array_equal(_filled_crop(polygon, box, (100, 100)), canvas[y1:y2, x1:x2])


def test_an_object_outside_the_canvas_gives_no_cut_out():
    labels = np.array([[3, 64, 10, 64, 30]], np.float32)
    assert cut_out(np.ones((64, 64, 3), np.uint8), labels, [SQUARE], KeyedRandom(0), fraction=1.0) == []


def test_gathering_stops_when_there_are_enough_or_none():
    rounds = []
    some = [CutOut(0, np.ones((4, 4, 3), np.uint8))] * 12
    assert len(gather_cutouts(lambda: rounds.append(1) or some)) == 36
    assert len(rounds) == 3
    assert gather_cutouts(lambda: rounds.append(1) or []) == []
    assert len(rounds) == 4


def test_pasting_finds_a_free_place_and_appends_a_label():
    img = np.zeros((100, 100, 3), np.uint8)
    cutouts = [CutOut(5, np.full((20, 40, 3), 9, np.uint8))]
    rng = Scripted(50, 60, 40, 30, 0)  # height and width of the mask, centre x and y, which cut-out
    labels = paste_in(img, np.zeros((0, 5), np.float32), cutouts, rng)
    assert labels[0].tolist() == [5, 10, 5, 70, 35]
    assert (img[5:35, 10:70] == 9).all()
    assert img[5:35, 10:70].sum() == img.sum()


def test_pasting_spares_existing_objects():
    img = np.zeros((100, 100, 3), np.uint8)
    labels = np.array([[0, 10, 5, 70, 55]], np.float32)
    cutouts = [CutOut(5, np.full((20, 40, 3), 9, np.uint8))]
    assert len(paste_in(img, labels, cutouts, Scripted(50, 60, 40, 30, 0))) == 1
    assert not img.any()


def test_without_cut_outs_the_same_numbers_are_drawn():
    rng = Scripted()
    paste_in(np.zeros((100, 100, 3), np.uint8), np.zeros((0, 5), np.float32), [], rng)
    assert rng.calls == 20 * 5
