"""Cut-outs: what is taken, where it may go, and that draws do not depend on success."""

import numpy as np

from yolov7fast.data.augment.copy_paste import copy_paste, cut_out, paste_in
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


def test_copy_paste_leaves_an_object_whose_mirror_image_covers_another():
    img = np.full((64, 40, 3), 114, np.uint8)  # the square mirrors onto 20..30, next to it; the other lies there
    labels = np.array([[0, 10, 10, 20, 20], [1, 22, 12, 28, 18]], np.float32)
    before = img.copy()
    img, after, segments = copy_paste(img, labels, [SQUARE], 1.0, KeyedRandom(0))
    assert (len(after), len(segments)) == (2, 1)
    assert (img == before).all()


def test_a_cut_out_is_black_outside_its_outline_and_never_inside():
    img = np.zeros((64, 64, 3), np.uint8)
    img[..., 1] = 7
    triangle = np.array([[10, 10], [30, 10], [10, 30]], np.float32)
    labels = np.array([[3, 10, 10, 30, 30]], np.float32)
    [found] = cut_out(img, labels, [triangle], KeyedRandom(0), fraction=1.0)
    assert (found.label, found.img.shape) == (3, (20, 20, 3))
    assert (found.img[1, 1] == (255, 7, 255)).all()  # value 0 turned 255, as recorded figures need
    assert (found.img[19, 19] == 0).all()


def test_without_cut_outs_the_same_numbers_are_drawn():
    rng = Scripted()
    paste_in(np.zeros((100, 100, 3), np.uint8), np.zeros((0, 5), np.float32), [], rng)
    assert rng.calls == 20 * 5
