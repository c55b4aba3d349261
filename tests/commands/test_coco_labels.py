"""Label files from COCO annotations."""

import json

import cv2
import numpy as np
import pytest

from yolov7fast.commands.coco_labels import convert, join_rings, polygon_of
from yolov7fast.core.errors import UserError


@pytest.fixture
def annotations(tmp_path):
    square = [[10, 10, 30, 10, 30, 30, 10, 30]]
    items = [
        {"image_id": 7, "category_id": 3, "bbox": [10, 10, 20, 20], "segmentation": square},
        {"image_id": 7, "category_id": 3, "bbox": [10, 10, 20, 20], "segmentation": square},  # annotated twice
        {"image_id": 7, "category_id": 90, "bbox": [50, 20, 50, 20], "segmentation": [[50, 20, 100, 20, 100, 40]]},
        {"image_id": 7, "category_id": 3, "bbox": [90, 40, 20, 20]},  # no polygon, reaches beyond the edge
        {"image_id": 7, "category_id": 3, "bbox": [5, 5, 0, 9]},  # no area
        {"image_id": 7, "category_id": 3, "bbox": [0, 0, 90, 40], "iscrowd": 1, "segmentation": {"counts": []}},
    ]
    content = {
        "images": [{"id": i, "file_name": f"{i:06}.jpg", "width": 100, "height": 50} for i in (7, 8)],
        "categories": [{"id": 90, "name": "b"}, {"id": 3, "name": "a"}],
        "annotations": items,
    }
    path = tmp_path / "instances_val.json"
    path.write_text(json.dumps(content))
    return path


def test_polygons_by_image_with_classes_in_order_of_category_ids(annotations, tmp_path):
    assert convert(annotations, tmp_path / "labels/val") == (1, 3)
    assert [p.name for p in (tmp_path / "labels/val").iterdir()] == ["000007.txt"]  # image 8 shows nothing
    rows = [line.split() for line in (tmp_path / "labels/val/000007.txt").read_text().splitlines()]
    assert [row[0] for row in rows] == ["0", "1", "0"]
    assert [float(v) for v in rows[0][1:]] == [0.1, 0.2, 0.3, 0.2, 0.3, 0.6, 0.1, 0.6]
    assert all(len(row) >= 9 and len(row) % 2 for row in rows)  # a triangle, too, reads as a polygon
    assert [float(v) for v in rows[2][1:]] == [0.9, 0.8, 1, 0.8, 1, 1, 0.9, 1]  # the box, cut at the edge


def test_boxes_on_request(annotations, tmp_path):
    convert(annotations, tmp_path / "val", boxes=True)
    lines = (tmp_path / "val/000007.txt").read_text().splitlines()
    assert lines[:2] == ["0 0.200000 0.400000 0.200000 0.400000", "1 0.750000 0.600000 0.500000 0.400000"]


def test_joined_parts_fill_the_same_area_as_the_parts():
    rings = [
        np.array([(5, 5), (25, 5), (25, 25), (5, 25)]),
        np.array([(40, 10), (55, 10), (55, 30)]),
        np.array([(10, 40), (30, 40), (30, 55), (10, 55)]),
    ]
    apart, joined = np.zeros((60, 60), np.uint8), np.zeros((60, 60), np.uint8)
    for ring in rings:
        cv2.fillPoly(apart, [ring.astype(np.int32)], 1)
    cv2.fillPoly(joined, [join_rings(rings).astype(np.int32)], 1)
    assert (joined[apart == 1] == 1).all()
    assert (joined != apart).sum() < 40  # only the thin connecting lines
    path = polygon_of({"segmentation": [ring.ravel().tolist() for ring in rings], "bbox": [0, 0, 1, 1]})
    assert path.min(0).tolist() == [5, 5] and path.max(0).tolist() == [55, 55]


def test_existing_labels_are_not_overwritten_and_a_wrong_file_is_named(annotations, tmp_path):
    (tmp_path / "val").mkdir()
    (tmp_path / "val/mine.txt").write_text("0 0.5 0.5 1 1\n")
    with pytest.raises(UserError, match="is not empty"):
        convert(annotations, tmp_path / "val")
    (tmp_path / "wrong.json").write_text("[]")
    with pytest.raises(UserError, match=r"wrong\.json is not a readable COCO"):
        convert(tmp_path / "wrong.json", tmp_path / "new")
