"""The confusion matrix in both forms: the corrected one, and the one the recorded figures hold."""

import numpy as np
import pytest

from tests.evaluation.test_detection_matching import bccd_batch, stub_batches
from yolov7fast.evaluation.confusion_matrix import ConfusionMatrix

CASES = ["all_right", "wrong_class_is_transposed", "missed_and_false", "no_match_drops_false_positives"]
CASES += ["low_conf_is_ignored", "two_dets_one_label", "one_det_two_labels", "iou_below_0p45"]


def test_every_recorded_case_is_tested(golden):
    assert set(golden("eval_metrics.json")["confusion"]) == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_recorded_case(golden, case):
    figures = golden("eval_metrics.json")["confusion"][case]
    matrix = ConfusionMatrix(len(figures["matrix"]) - 1, upstream=True)
    for image in figures["images"]:
        matrix.process_batch(np.array(image["det"], np.float32), np.array(image["lab"], np.float32))
    np.testing.assert_array_equal(matrix.matrix, figures["matrix"])


def test_recorded_random_images(golden):
    g = golden("eval_metrics.npz")
    matrix = ConfusionMatrix(4, upstream=True)
    for i in range(12):
        matrix.process_batch(g[f"cm_det{i}"], g[f"cm_lab{i}"])
    np.testing.assert_array_equal(matrix.matrix, g["cm_matrix_nc4"])


def test_recorded_bccd(golden):
    g = golden("eval_bccd.npz")
    matrix = ConfusionMatrix(3, upstream=True)
    matrix.update(bccd_batch(g))
    np.testing.assert_array_equal(matrix.matrix, g["confusion"])


@pytest.mark.parametrize("case, iou", [("train_defaults", 0.6), ("iou65", 0.65)])
def test_recorded_stub_run_apart_from_ties(golden, case, iou):
    """There one box stands under several classes. Which of them is paired hung on an unstable sort when it was
    recorded, so only what does not depend on it is compared: pairs of each true class, missed labels, false alarms."""
    g = golden("eval_match.npz")
    matrix = ConfusionMatrix(3, upstream=True)
    for batch in stub_batches(g, iou):
        matrix.update(batch)
    want, got = g[f"{case}_cm"], matrix.matrix
    np.testing.assert_array_equal(got[:3, :3].sum(1), want[:3, :3].sum(1))
    np.testing.assert_array_equal(got[3], want[3])
    assert got[:, 3].sum() == want[:, 3].sum()


def corrected(*images):
    matrix = ConfusionMatrix(3)
    for dets, labels in images:
        matrix.process_batch(np.array(dets, np.float32), np.array(labels, np.float32))
    return matrix.matrix


def test_a_wrong_class_stands_in_the_row_of_the_prediction():
    matrix = corrected(([[10, 10, 50, 50, 0.9, 2]], [[0, 10, 10, 50, 50]]))
    assert matrix[2, 0] == 1 and matrix.sum() == 1


def test_every_image_counts():
    missed = ([], [[1, 10, 10, 50, 50]])
    false_alarm = ([[10, 10, 50, 50, 0.9, 2]], [])
    apart = ([[100, 100, 150, 150, 0.9, 0]], [[1, 10, 10, 50, 50]])
    matrix = corrected(missed, false_alarm, apart)
    assert matrix[3, 1] == 2 and matrix[2, 3] == 1 and matrix[0, 3] == 1 and matrix.sum() == 4


def test_of_one_box_under_several_classes_the_best_score_is_paired():
    box = [10, 10, 50, 50]
    matrix = corrected(([[*box, 0.9, 1], [*box, 0.5, 0]], [[1, *box]]))
    assert matrix[1, 1] == 1 and matrix[0, 3] == 1 and matrix.sum() == 2


def test_a_batch_counts_as_its_images_one_by_one(golden):
    batch = next(stub_batches(golden("eval_match.npz")))
    whole, single = ConfusionMatrix(3), ConfusionMatrix(3)
    whole.update(batch)
    for i in range(4):
        single.process_batch(batch.split(4)[i], batch.labels[batch.label_image == i])
    np.testing.assert_array_equal(whole.matrix, single.matrix)
