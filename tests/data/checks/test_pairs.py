"""Boxes that nearly cover each other, found for all images at once, are those that a plain loop over images finds."""

import numpy as np
import pytest

from yolov7fast.data.checks import label_checks
from yolov7fast.data.checks.label_checks import Objects


def drawn(counts: list[int]) -> Objects:
    """Images with these numbers of boxes, in few places, so that many are close."""
    rng = np.random.default_rng(3)
    m = sum(counts)
    low = rng.integers(0, 3, (m, 2)) / 4
    box = np.concatenate((low, low + 0.25 + rng.integers(-1, 2, (m, 2)) * 0.01), 1)
    box[rng.random(m) < 0.1] = 0  # without area
    number = np.array(counts, np.int64)
    image, zeros = np.repeat(np.arange(len(counts)), number), np.zeros(m, np.int64)
    return Objects(image, zeros, box, np.arange(m), zeros.astype(bool), number, np.zeros_like(number))


def plain_loop(objects: Objects) -> list[list[int]]:
    found, start = [], 0
    for n in objects.counts.tolist():
        for a in range(start, start + n if n <= label_checks.MOST_PAIRED else start):
            for b in range(a + 1, start + n):
                first, second = objects.box[a], objects.box[b]
                sides = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
                inside = np.maximum(sides, 0).prod()
                union = (first[2:] - first[:2]).prod() + (second[2:] - second[:2]).prod() - inside
                if inside > label_checks.NEARLY * union:
                    found.append([a, b])
        start += n
    return found


@pytest.mark.parametrize("at_once", [1, 7, 1 << 17])
def test_pairs_are_those_of_a_plain_loop(monkeypatch, at_once):
    monkeypatch.setattr(label_checks, "PAIRS", at_once)
    monkeypatch.setattr(label_checks, "MOST_PAIRED", 20)
    objects = drawn([0, 12, 1, 21, 2, 0, 20, 3])
    pairs = label_checks._close_pairs(objects).tolist()
    assert len(pairs) > 10 and pairs == plain_loop(objects)


@pytest.mark.parametrize("counts", [[], [0, 0], [1, 1]])
def test_without_two_boxes_in_an_image_there_is_no_pair(counts):
    assert label_checks._close_pairs(drawn(counts)).shape == (0, 2)
