"""The confusion matrix: its pairs are those recorded of upstream, every image counts."""

import numpy as np
import pytest

from tests.evaluation.test_detection_matching import bccd_batch, stub_batches
from yolov7fast.evaluation.confusion_matrix import ConfusionMatrix


def pairs_equal(matrix: ConfusionMatrix, recorded) -> None:
    """Upstream counts the pairs of the same boxes, transposed, and other false positives."""
    np.testing.assert_array_equal(matrix.matrix[:-1, :-1].T, np.array(recorded)[:-1, :-1])


def test_recorded_cases(golden):
    for figures in golden("eval_metrics.json")["confusion"].values():
        matrix = ConfusionMatrix(len(figures["matrix"]) - 1)
        for image in figures["images"]:
            matrix.process_batch(np.array(image["det"], np.float32), np.array(image["lab"], np.float32))
        pairs_equal(matrix, figures["matrix"])


def test_recorded_random_images_and_bccd(golden):
    g, bccd = golden("eval_metrics.npz"), golden("eval_bccd.npz")
    matrix = ConfusionMatrix(4)
    for i in range(12):
        matrix.process_batch(g[f"cm_det{i}"], g[f"cm_lab{i}"])
    pairs_equal(matrix, g["cm_matrix_nc4"])
    matrix = ConfusionMatrix(3)
    matrix.update(bccd_batch(bccd))
    pairs_equal(matrix, bccd["confusion"])
    np.testing.assert_array_equal(matrix.matrix[-1], bccd["confusion"][-1])  # missed labels


@pytest.mark.parametrize("case, iou", [("train_defaults", 0.6), ("iou65", 0.65)])
def test_recorded_stub_run_apart_from_ties(golden, case, iou):
    """There one box stands under several classes. Which of them is paired hung on an unstable sort when it was
    recorded, so only what does not depend on it is compared: pairs of each true class, missed labels."""
    g = golden("eval_match.npz")
    matrix = ConfusionMatrix(3)
    for batch in stub_batches(g, iou):
        matrix.update(batch)
    want, got = g[f"{case}_cm"], matrix.matrix
    np.testing.assert_array_equal(got[:3, :3].sum(0), want[:3, :3].sum(1))
    assert (got[3] >= want[3]).all(), "missed labels, here also of images without a detection"


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
