"""The densest batch of a data set."""

import numpy as np
import pytest
import torch

from yolov7fast.training.memory_plan import dense_targets

MOSAIC = {"mosaic": 1.0, "mixup": 0.0}


def rows(count: int, cls: int = 0) -> np.ndarray:
    return np.tile(np.array([[cls, 0.5, 0.5, 0.2, 0.4]], np.float32), (count, 1))


def counts(targets: torch.Tensor, batch: int) -> list[int]:
    return torch.bincount(targets[:, 0].long(), minlength=batch).tolist()


def test_the_first_sample_holds_the_four_densest_images_and_the_others_the_mean():
    labels = [rows(n) for n in (1, 9, 4, 8, 5, 7, 1)]  # mean 5
    assert counts(dense_targets(labels, MOSAIC, 3), 3) == [9 + 8 + 7 + 5, 20, 20]
    assert counts(dense_targets(labels, MOSAIC | {"mixup": 0.1}, 2), 2) == [2 * 29, 20]
    assert counts(dense_targets(labels, {"mosaic": 0.0, "mixup": 0.1}, 2), 2) == [9, 5]


def test_boxes_of_a_mosaic_have_half_their_size():
    found = dense_targets([rows(1)], MOSAIC, 1)
    torch.testing.assert_close(found[:, 4:], torch.tensor([[0.1, 0.2]] * 4))
    assert dense_targets([rows(1)], {"mosaic": 0.0, "mixup": 0.0}, 1)[0, 4:].tolist() == pytest.approx([0.2, 0.4])
