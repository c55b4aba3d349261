"""--class-weights: the effective number of samples, files of weights, and their mistakes."""

import numpy as np
import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.data.loss_weights import effective_number_weights, loss_class_weights, read_weights

NAMES = ["a", "b", "c"]


def labels_with(*counts: int) -> list[np.ndarray]:
    rows = np.zeros((sum(counts), 5), np.float32)
    rows[:, 0] = np.repeat(np.arange(len(counts)), counts)
    return [rows[: len(rows) // 2], rows[len(rows) // 2 :], np.zeros((0, 5), np.float32)]


def test_the_effective_number_by_hand():
    """b = 0.5: one object counts 1, two count 1.5, three 1.75."""
    weights = effective_number_weights(np.array([1, 2, 3, 0]), beta=0.5)
    assert (1 / weights).tolist() == pytest.approx([1, 1.5, 1.75, 1])


def test_auto_weighs_rare_classes_up_and_keeps_the_scale_of_the_loss():
    weights = loss_class_weights("auto", labels_with(2000, 100, 10), NAMES)
    assert weights is not None and weights.dtype == np.float32
    assert weights[0] < weights[1] < weights[2]
    assert (weights * (2000, 100, 10)).sum() / 2110 == pytest.approx(1)
    assert weights[2] / weights[0] == pytest.approx((1 - 0.999**2000) / (1 - 0.999**10), rel=1e-5)


def test_nothing_set_means_no_weights():
    assert loss_class_weights("", labels_with(1, 2, 3), NAMES) is None


@pytest.mark.parametrize(("text", "weights"), [("[1, 2, 4]", [1, 2, 4]), ("{c: 4, b: 2.0}", [1, 2, 4])])
def test_a_file_holds_a_list_or_names(tmp_path, text, weights):
    (tmp_path / "w.yaml").write_text(text)
    assert read_weights(str(tmp_path / "w.yaml"), NAMES).tolist() == weights


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "2 weights; the data set has 3 classes"),
        ("3", "holds 3"),
        ("{d: 1}", "no class 'd'; classes: a, b, c"),
        ("[1, 0, 2]", "0 is no weight"),
        ("[1, -1, 2]", "-1 is no weight"),
        ("[1, .nan, 2]", "nan is no weight"),
        ("[1, x, 2]", "'x' is no weight"),
        ("[1, 2000, 1]", "more than 1000 times"),
    ],
)
def test_mistakes_are_named(tmp_path, text, words):
    (tmp_path / "w.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        read_weights(str(tmp_path / "w.yaml"), NAMES)


def test_a_missing_file_and_a_single_class_are_named(tmp_path):
    with pytest.raises(UserError, match="give auto, or a YAML file"):
        loss_class_weights(str(tmp_path / "no.yaml"), labels_with(1, 1, 1), NAMES)
    with pytest.raises(UserError, match="one class"):
        loss_class_weights("auto", labels_with(5), ["a"])
