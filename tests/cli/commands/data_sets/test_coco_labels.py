"""Label files from COCO annotations."""

import json
import tracemalloc

import cv2
import numpy as np
import pytest

from yolov7fast.cli.commands.coco_labels import convert, join_rings, polygon_of
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
    path = polygon_of({"segmentation": [ring.ravel().tolist() for ring in rings], "bbox": [0, 0, 1, 1]}, "here")
    assert path.min(0).tolist() == [5, 5] and path.max(0).tolist() == [55, 55]


def test_existing_labels_are_not_overwritten(annotations, tmp_path):
    (tmp_path / "val").mkdir()
    (tmp_path / "val/mine.txt").write_text("0 0.5 0.5 1 1\n")
    for folder in ("val", "val/mine.txt"):
        with pytest.raises(UserError, match="is not an empty folder"):
            convert(annotations, tmp_path / folder)
    assert (tmp_path / "val/mine.txt").read_text() == "0 0.5 0.5 1 1\n"


def write(path, images, items=None, categories=({"id": 1, "name": "a"},)):
    if items is None:
        items = [{"image_id": image["id"], "category_id": 1, "bbox": [1, 1, 5, 5]} for image in images]
    path.write_text(json.dumps({"images": images, "annotations": items, "categories": list(categories)}))
    return path


def image(number, name, **changes):
    return {"id": number, "file_name": name, "width": 100, "height": 50, **changes}


def test_images_of_one_name_in_two_folders_keep_their_own_labels(tmp_path):
    path = write(tmp_path / "a.json", [image(1, "all/left/1.jpg"), image(2, "all/right/1.jpg")])
    assert convert(path, tmp_path / "labels") == (2, 2)
    found = [str(p.relative_to(tmp_path / "labels")) for p in sorted((tmp_path / "labels").rglob("*.txt"))]
    assert found == ["left/1.txt", "right/1.txt"]  # the folder that all share is that of the labels itself
    convert(write(tmp_path / "b.json", [image(1, "val2017/1.jpg"), image(2, "val2017/2.jpg")]), tmp_path / "flat")
    assert sorted(p.name for p in (tmp_path / "flat").iterdir()) == ["1.txt", "2.txt"]


@pytest.mark.parametrize("other", ["1.png", "1.JPG"])
def test_two_images_with_one_label_file_are_refused(other, tmp_path):
    path = write(tmp_path / "a.json", [image(1, "1.jpg"), image(2, other)])
    with pytest.raises(UserError, match=r"1\.jpg and 1\.\w+ would have one label file, 1\.txt"):
        convert(path, tmp_path / "labels")
    assert not (tmp_path / "labels").exists()


BOX = {"image_id": 1, "category_id": 1, "bbox": [1, 1, 5, 5]}
ODD_VALUES = [None, True, "x", "", [], {}, -1, 0, 1e400, float("nan"), 10**400, [1], [[1, 2]], {"a": 1}]
GOOD_IMAGE = image(1, "1.jpg")


def malformed() -> list:
    """Contents of annotation files with one thing wrong each."""
    good = {"images": [GOOD_IMAGE], "annotations": [BOX], "categories": [{"id": 1, "name": "a"}]}
    found = [None, [], "x", 3, {}, {"images": []}]
    for key in good:
        found += [{**good, key: value} for value in (None, "x", 3, {}, [3], ["x"], [None], [[]], [{}])]
    for key in ("width", "height"):
        found += [{**good, "images": [{**GOOD_IMAGE, key: value}]} for value in ODD_VALUES]
    for value in (None, 3, [], {}, "", "/etc/1.jpg", "../1.jpg", "a/../../1.jpg", "C:\\..\\1.jpg", "a\0.jpg", "."):
        found.append({**good, "images": [{**GOOD_IMAGE, "file_name": value}]})
    found += [{**good, "images": [{**GOOD_IMAGE, "id": value}]} for value in (None, [], {}, 2)]
    found.append({**good, "images": [GOOD_IMAGE, {**GOOD_IMAGE, "file_name": "2.jpg"}]})  # one id twice
    for key in ("image_id", "category_id"):
        found += [{**good, "annotations": [{**BOX, key: value}]} for value in (None, "x", [], {}, -1, 2, 10**400)]
    boxes = [[1, 1, 5], [1, 1, 5, 5, 5], ["a", 1, 5, 5], [1, 1, float("nan"), 5], [1, float("inf"), 5, 5], "1155", None]
    boxes += [[1, 1, 10**400, 5], [None] * 4, [[1], 1, 5, 5], {"x": 1}]
    found += [{**good, "annotations": [{**BOX, "bbox": value}]} for value in boxes]
    rings = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, float("nan")], ["a"] * 6, "123456", 7, {}, [[1, 2, 3, 4, 5, 6]]]
    found += [{**good, "annotations": [{**BOX, "segmentation": [value]}]} for value in rings]
    found += [{**good, "categories": [{"id": value, "name": "a"}]} for value in (None, "x", [], 2)]
    return found


def test_malformed_files_end_in_one_line_and_leave_nothing_behind(tmp_path):
    cases = malformed()
    for number, content in enumerate(cases):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(content))
        with pytest.raises(UserError) as caught:
            assert convert(path, tmp_path / "labels") is None, content
        message = str(caught.value)
        assert path.name in message and len(message.splitlines()) == 1 and len(message) < 500, content
        path.unlink()
    assert list(tmp_path.iterdir()) == []
    assert len(cases) > 100


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\xff", '{"images": 1', "1" * 5000])
def test_a_file_that_is_no_json_is_named(text, tmp_path):
    (tmp_path / "a.json").write_text(text, encoding="latin1")
    with pytest.raises(UserError, match=r"a\.json"):
        convert(tmp_path / "a.json", tmp_path / "labels")
    with pytest.raises(UserError, match=r"none\.json"):
        convert(tmp_path / "none.json", tmp_path / "labels")


def test_outlines_of_many_points_are_joined_in_little_memory():
    angle = np.linspace(0, 2 * np.pi, 20_000)
    ring = np.stack((np.cos(angle), np.sin(angle)), 1)
    tracemalloc.start()
    joined = join_rings([ring, ring + np.array((5, 0))])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(joined) == 40_002 and peak < 100e6
