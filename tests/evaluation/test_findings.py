"""What a run's page shows of a validation: errors by image, the worst images first."""

import numpy as np
import torch

from yolov7fast.evaluation.detection_matching import Batch
from yolov7fast.evaluation.eval_loop import SeenBatch
from yolov7fast.evaluation.validation_findings import FIRST, WORST, FindingsSink

A, B, C = [0, 0, 50, 50], [60, 60, 100, 100], [0, 60, 40, 100]


def rows_and_images(images, width: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.array([row for image in images for row in image], np.float32).reshape(-1, width)
    return rows, np.repeat(np.arange(len(images)), [len(image) for image in images])


def batch(labels, detections, paths=None) -> SeenBatch:
    """labels: per image rows of class and box; detections: of box, score, class. Images are 100 x 100."""
    native = Batch(*rows_and_images(detections, 6), *rows_and_images(labels, 5))
    paths = paths or [f"{i}.jpg" for i in range(len(labels))]
    shapes = [((100, 100), ((1, 1), (0, 0)))] * len(labels)
    return SeenBatch(0, torch.zeros(0), torch.zeros(0), paths, shapes, [], native)


def test_missed_false_and_wrong_boxes_are_counted_by_image():
    sink = FindingsSink(2)
    sink(
        batch(
            labels=[[[0, *A], [1, *B]], [[0, *A]], []],
            detections=[[[*A, 0.9, 0], [*C, 0.8, 1]], [[*A, 0.9, 1]], [[*A, 0.2, 0]]],
        )
    )
    first, second, third = sink.first
    assert (first["missed"], first["false"], first["wrong"]) == (1, 1, 0)
    assert (second["missed"], second["false"], second["wrong"]) == (0, 0, 1)
    assert third["detections"] == []  # below the confidence threshold of the page
    assert first["labels"] == [[0, 0.0, 0.0, 0.5, 0.5, 0, 1.0], [1, 0.6, 0.6, 1.0, 1.0, 1, 1.0]]
    assert first["detections"] == [[0, 0.0, 0.0, 0.5, 0.5, 0, 0.9], [1, 0.0, 0.6, 0.4, 1.0, 1, 0.8]]
    assert sink.matrix.matrix.tolist() == [[1, 0, 0], [1, 0, 1], [0, 1, 0]]


def test_the_worst_images_are_those_with_most_errors_the_earlier_first():
    sink = FindingsSink(1)
    errors = [i % 7 for i in range(60)]
    for start in range(0, 60, 6):
        part = errors[start : start + 6]
        names = [f"{start + i}.jpg" for i in range(6)]
        sink(batch([[[0, *A]] * n for n in part], [[] for _ in part], names))
    worst = [image for *_, image in sorted(sink.worst, key=lambda entry: entry[:2], reverse=True)]
    expected = sorted((i for i in range(60) if errors[i]), key=lambda i: (-errors[i], i))[:WORST]
    assert [image["path"] for image in worst] == [f"{i}.jpg" for i in expected]
    assert [image["path"] for image in sink.first] == [f"{i}.jpg" for i in range(FIRST)]
