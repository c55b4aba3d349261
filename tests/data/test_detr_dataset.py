"""DETR's samples: placements, labels that follow the image, keyed randomness."""

import cv2
import numpy as np
import pytest
import torch

from yolov7fast.data.augment.random_source import KeyedRandom
from yolov7fast.data.detr_dataset import (
    DetrDataset,
    Placement,
    content,
    draw_placement,
    padding_mask,
    place_image,
    place_labels,
)

HYP = {"fliplr": 0.5, "flipud": 0.5, "scale_min": 0.5, "crop": 0.5, "crop_min": 0.5}


def test_placements_keep_their_limits():
    for key in range(200):
        placed = draw_placement(KeyedRandom(0, 0, key), (48, 64), 128, HYP)
        x1, y1, x2, y2 = placed.window
        assert 0 <= x1 < x2 <= 64 and 0 <= y1 < y2 <= 48
        assert x2 - x1 >= 32 and y2 - y1 >= 24
        assert 64 <= max(placed.size) <= 128


@pytest.mark.parametrize("left_right", [False, True])
@pytest.mark.parametrize("up_down", [False, True])
def test_a_box_stays_on_its_object(left_right, up_down):
    """A white rectangle on black is where its label says, after crop, scale and flips."""
    img = np.zeros((60, 80, 3), np.uint8)
    img[20:40, 30:60] = 255
    placed = Placement((10, 10, 70, 50), (120, 80), left_right, up_down)
    sample = place_image(img, placed, 128)
    (row,) = place_labels(np.array([[3, 30, 20, 60, 40]], np.float32), placed)
    ys, xs = np.nonzero(cv2.cvtColor(sample, cv2.COLOR_BGR2GRAY) > 200)
    assert row[0] == 3
    np.testing.assert_allclose(row[1:], [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1], atol=1)
    assert (sample[80:] == 114).all() and (sample[:, 120:] == 114).all()


def test_boxes_outside_the_crop_are_dropped_and_others_clipped():
    placed = Placement((40, 0, 80, 60), (40, 60), False, False)
    rows = place_labels(np.array([[0, 0, 0, 30, 30], [1, 30, 10, 60, 40]], np.float32), placed)
    np.testing.assert_allclose(rows, [[1, 0, 10, 20, 40]])


def test_samples_depend_on_seed_epoch_and_index_alone(shapes_small):
    dataset = DetrDataset(str(shapes_small / "images" / "train"), 64, 4, augment=True, hyp=HYP, seed=7)
    one, again, later = dataset[(1, 3)], dataset[(1, 3)], dataset[(2, 3)]
    assert torch.equal(one[0], again[0]) and torch.equal(one[1], again[1])
    assert not torch.equal(one[0], later[0])
    rows = one[1]
    (height, width), _ = one[3]
    assert (rows[:, 2] + rows[:, 4] / 2 <= width / 64 + 1e-5).all()
    assert (rows[:, 3] + rows[:, 5] / 2 <= height / 64 + 1e-5).all()


def test_content_and_mask_of_a_letterboxed_image():
    frames = content([((60, 80), ((0.5, 0.5), (4.0, 6.0)))])
    assert frames.tolist() == [[4, 6, 40, 30]]
    mask = padding_mask(frames, 48, 64)
    assert mask.sum() == 1200 and mask[0, 6:36, 4:44].all()
