"""Grouping classes by box geometry: the recorded grouping, exactness on one axis, balance, odd inputs."""

import itertools

import numpy as np
import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.data.class_groups import (
    class_geometry,
    geometry_config,
    group_classes,
    group_ratio,
    k_means,
    label_geometry,
)


def test_recorded_boxes_give_the_recorded_groups(golden):
    boxes, expected = golden("geometry_boxes.npz"), golden("head_config.json")["geometry"]
    geometry = class_geometry(boxes["cls"], boxes["w"], boxes["h"], 80)
    assert geometry.count[78] == 0 and geometry.log_ratio[78] == 0  # no box: taken as square
    assert geometry.count.sum() == 1495  # five are too thin
    config = geometry_config(geometry, 4)
    for h, ids in enumerate(config.classes):
        section = expected["head_assignments"][f"head_{h}"]
        assert list(ids) == section["classes"]
        assert f"Avg Ratio: {group_ratio(geometry, ids):.2f}" == section["comment"]
        assert section["name"].lower().startswith(config.names[h])
    assert config.weights == (1.0,) * 4


def cost(values: np.ndarray, groups: np.ndarray) -> float:
    return sum(((values[groups == g] - values[groups == g].mean()) ** 2).sum() for g in set(groups.tolist()))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_groups_are_the_best_of_all(k):
    values = np.random.RandomState(k).randn(6)
    every = (np.array(g) for g in itertools.product(range(k), repeat=6) if len(set(g)) == k)
    groups = k_means(values[:, None], k)
    assert len(set(groups.tolist())) == k
    assert cost(values, groups) == pytest.approx(min(cost(values, g) for g in every))


def test_area_separates_classes_of_one_shape():
    side = np.array([10, 11, 100, 110.0])
    geometry = class_geometry(np.arange(4), side, side, 4)
    groups = group_classes(geometry, 2, use_area=True)
    assert groups[0] == groups[1] != groups[2] == groups[3]


def test_boxes_are_measured_at_training_size():
    labels = [np.array([[0, 0.5, 0.5, 0.5, 0.5]]), np.zeros((0, 5)), np.array([[1, 0.5, 0.5, 0.1, 0.2]])]
    geometry = label_geometry(labels, np.array([[1280, 640], [10, 10], [100, 200]]), 2, 320)
    assert np.exp(geometry.log_ratio) == pytest.approx([2, 0.25])
    assert np.exp(geometry.log_side) == pytest.approx([np.sqrt(160 * 80), np.sqrt(16 * 64)])


def test_impossible_requests_are_reported():
    geometry = class_geometry(np.array([0, 1]), np.array([9, 9]), np.array([9, 9]), 2)
    with pytest.raises(UserError, match="2 classes cannot be distributed over 3 heads"):
        group_classes(geometry, 3)
    with pytest.raises(ValueError, match="boxes of class 5, but nc is 2"):
        class_geometry(np.array([0, 5]), np.ones(2), np.ones(2), 2)
    with pytest.raises(UserError, match="no box is larger"):
        class_geometry(np.array([0]), np.ones(1), np.ones(1), 2)
