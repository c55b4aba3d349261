"""Boxes read from every format are those that `supervision` reads, and those that were drawn."""

from pathlib import Path

import numpy as np
import pytest
import supervision as sv

from tests.data.formats.drawn_sets import (
    NAMES,
    SIZES,
    boxes_of,
    splits,
    write_coco,
    write_csv,
    write_voc,
    write_yolo,
)
from yolov7fast.data.formats.annotated_set import AnnotatedSet
from yolov7fast.data.formats.recognise import recognise

TOLERANCE = 1e-6  # of the image's side


def ours(annotated: AnnotatedSet) -> dict[str, list[tuple]]:
    """Sorted (class name, box as fractions) of every image, by file name."""
    return {
        Path(s.image).name: sorted((annotated.names[c], *box) for c, box in zip(s.classes, s.fractions.tolist()))
        for s in annotated.samples
    }


def theirs(*read: sv.DetectionDataset) -> dict[str, list[tuple]]:
    found = {}
    for data in read:
        for path, image, detections in data:
            h, w = image.shape[:2]
            boxes = np.asarray(detections.xyxy, np.float64) / (w, h, w, h)
            names = [data.classes[c] for c in detections.class_id]
            found[Path(path).name] = sorted((n, *box) for n, box in zip(names, boxes.tolist()))
    return found


def assert_equal(a: dict[str, list[tuple]], b: dict[str, list[tuple]]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert [row[0] for row in a[name]] == [row[0] for row in b[name]], name
        np.testing.assert_allclose(
            np.array([row[1:] for row in a[name]]), np.array([row[1:] for row in b[name]]), rtol=0, atol=TOLERANCE
        )


def drawn() -> dict[str, list[tuple]]:
    found = {}
    for i in (i for indices in splits().values() for i in indices):
        w, h = SIZES[i % len(SIZES)]
        found[f"{i:03}.png"] = sorted((NAMES[c], x1 / w, y1 / h, x2 / w, y2 / h) for c, x1, y1, x2, y2 in boxes_of(i))
    return found


@pytest.mark.parametrize("layout", ["roboflow", "ultralytics"])
def test_yolo_boxes_are_those_of_supervision(tmp_path, layout):
    root = write_yolo(tmp_path / "set", layout)
    places = [(f"{root}/{s}/images", f"{root}/{s}/labels") for s in ("train", "valid")]
    if layout == "ultralytics":
        places = [(f"{root}/images/{s}", f"{root}/labels/{s}") for s in ("train", "val")]
    read = [sv.DetectionDataset.from_yolo(images, labels, str(root / "data.yaml")) for images, labels in places]
    annotated = recognise(root).read()
    assert_equal(ours(annotated), theirs(*read))
    assert_equal(ours(annotated), drawn())


@pytest.mark.parametrize("layout", ["coco", "roboflow"])
def test_coco_boxes_are_those_of_supervision(tmp_path, layout):
    root = write_coco(tmp_path / "set", layout)
    places = [(root / f"{s}2017", root / f"annotations/instances_{s}2017.json") for s in ("train", "val")]
    if layout == "roboflow":
        places = [(root / s, root / s / "_annotations.coco.json") for s in ("train", "valid")]
    read = [sv.DetectionDataset.from_coco(str(images), str(file)) for images, file in places]
    annotated = recognise(root).read()
    assert annotated.names == NAMES  # by category id, not by their order in the file
    assert_equal(ours(annotated), theirs(*read))
    assert_equal(ours(annotated), drawn())


@pytest.mark.parametrize("layout", ["voc", "roboflow"])
def test_voc_boxes_are_those_of_supervision(tmp_path, layout):
    root = write_voc(tmp_path / "set", layout)
    places = [(root / s, root / s) for s in ("train", "valid")]
    if layout == "voc":
        places = [(root / "JPEGImages", root / "Annotations")]
    read = [sv.DetectionDataset.from_pascal_voc(str(images), str(labels)) for images, labels in places]
    annotated = recognise(root).read()
    assert_equal(ours(annotated), theirs(*read))
    assert_equal(ours(annotated), drawn())


def test_csv_boxes_are_those_that_supervision_reads_from_the_same_set_in_yolo(tmp_path):
    root = write_yolo(tmp_path / "yolo")
    read = [
        sv.DetectionDataset.from_yolo(f"{root}/{s}/images", f"{root}/{s}/labels", str(root / "data.yaml"))
        for s in ("train", "valid")
    ]
    annotated = recognise(write_csv(tmp_path / "csv")).read()
    assert_equal(ours(annotated), theirs(*read))
