"""The project's own data set: the same on every machine, honest labels, enough variety."""

import hashlib
import json
from functools import partial
from pathlib import Path
from threading import Thread

import cv2
import numpy as np
import pytest
import yaml

from yolov7fast.core.errors import UserError
from yolov7fast.data import shapes as module
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.shapes import MARKER, NAMES, draw_scene, make_shapes

ROOT = Path(__file__).resolve().parent.parent.parent


def read_label_file(path: Path) -> np.ndarray:
    return np.array([line.split() for line in path.read_text().splitlines()], float).reshape(-1, 5)


def read_labels(folder: Path, split: str) -> list[np.ndarray]:
    return [read_label_file(path) for path in sorted((folder / "labels" / split).glob("*.txt"))]


def test_drawn_pixels_and_boxes_are_the_recorded_ones():
    digest = hashlib.sha256()
    for index in range(8):
        image, boxes = draw_scene(0, index, 400)
        digest.update(image.tobytes())
        digest.update(json.dumps([image.shape, boxes]).encode())
    assert digest.hexdigest() == "df4ebd1a2909265b8d5b0430eea72016ce252e95c9c59c81b397be94ea673722"


def test_files_hold_the_recorded_labels_and_decoded_pixels(shapes_small):
    digest = hashlib.sha256()
    for split in ("train", "val"):
        for path in sorted((shapes_small / "images" / split).iterdir()):
            digest.update(cv2.imread(str(path)).tobytes())
            digest.update((shapes_small / "labels" / split / f"{path.stem}.txt").read_bytes())
    assert digest.hexdigest() == "c527c630c6537637ef25dc5782564e89e8dc64dd3d2a5d38521ab153aeba567e"


def test_a_small_set_is_the_beginning_of_a_large_one(shapes_small, shapes):
    for split in ("train", "val"):
        for path in sorted((shapes_small / "images" / split).iterdir()):
            assert path.read_bytes() == (shapes / "images" / split / path.name).read_bytes()


def test_every_image_has_valid_labels(shapes):
    for split, count in (("train", 200), ("val", 60)):
        assert len(list((shapes / "images" / split).iterdir())) == count
        labels = read_labels(shapes, split)
        assert len(labels) == count
        rows = np.concatenate(labels)
        assert set(rows[:, 0]) == set(range(len(NAMES)))
        assert (rows[:, 3:] > 0).all()
        low, high = rows[:, 1:3] - rows[:, 3:] / 2, rows[:, 1:3] + rows[:, 3:] / 2
        assert low.min() > -1e-5 and high.max() < 1 + 1e-5


def test_labels_are_tight_on_what_shows():
    for seed in range(60):
        (shape,), (box,) = module.choose_shapes(np.random.RandomState(seed), 200, 150, 1)
        black = np.zeros((150, 200, 3), np.int32)  # no shadow on it: only the object and its soft edge show
        module.draw_shape(black, shape, (100, -200))
        rows, columns = np.nonzero(black.max(2))
        cls, left, top, right, bottom = box
        assert cls == shape.cls
        for found, labelled in ((columns.min(), left), (rows.min(), top), (columns.max() + 1, right)):
            assert abs(found - labelled) <= 1  # the edge is blurred over one pixel
        assert abs(rows.max() + 1 - bottom) <= 1


def test_images_and_objects_vary(shapes):
    sizes, sides, counts = set(), [], []
    for path in sorted((shapes / "images" / "train").iterdir()):
        height, width = cv2.imread(str(path)).shape[:2]
        sizes.add((width, height))
        rows = read_label_file(shapes / "labels" / "train" / f"{path.stem}.txt")
        counts.append(len(rows))
        sides += list(np.sqrt(rows[:, 3] * width * rows[:, 4] * height))
    ratios = {round(w / h, 1) for w, h in sizes}
    assert len(sizes) > 40 and len(ratios) >= 5 and max(max(s) for s in sizes) == 400
    assert min(sides) < 20 and max(sides) > 150
    assert 0.05 < np.mean(np.array(counts) == 0) < 0.1 and max(counts) >= 6


def test_objects_overlap_but_remain_recognisable():
    overlapping = 0
    for index in range(40):
        shapes, boxes = module.choose_shapes(np.random.RandomState(index), 400, 300, 6)
        assert len(shapes) == len(boxes)
        full = [module.outline(shape) for shape in shapes]
        overlapping += any(
            (b[3] - b[1]) * 10 < (np.ptp(f[:, 0]) + 1) * 9 or (b[4] - b[2]) * 10 < (np.ptp(f[:, 1]) + 1) * 9
            for b, f in zip(boxes, full)
        )
    assert overlapping >= 10  # partly hidden or cut by the edge: its box is smaller than its outline


def test_a_complete_folder_is_left_alone_and_another_size_replaces_it(tmp_path):
    folder = make_shapes(tmp_path / "shapes", train=2, val=1, size=96)
    stamps = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    make_shapes(folder, train=2, val=1, size=96)
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == stamps
    make_shapes(folder, train=3, val=1, size=96)
    assert len(list((folder / "images" / "train").iterdir())) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["shapes"]


def test_a_killed_build_leaves_no_folder(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "label_line", stop)
    with pytest.raises(KeyboardInterrupt):
        make_shapes(tmp_path / "shapes", train=2, val=1, size=96)
    assert list(tmp_path.iterdir()) == []


def test_of_two_processes_at_once_one_draws_and_the_other_waits(tmp_path, monkeypatch):
    folder, drawn = tmp_path / "shapes", []
    draw = module.write_images
    other = Thread(target=make_shapes, args=(folder, 1, 1, 96))

    def counted(build, *args):
        drawn.append(build)
        if len(drawn) == 1:
            other.start()
        draw(build, *args)

    monkeypatch.setattr(module, "write_images", counted)
    make_shapes(folder, train=1, val=1, size=96)
    other.join()
    assert len(drawn) == 1
    assert (folder / MARKER).is_file()
    assert [p.name for p in tmp_path.iterdir()] == ["shapes"]


def test_a_folder_of_other_files_is_not_touched(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match="not this data set"):
        make_shapes(tmp_path, train=1, val=1)
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_data_file_agrees_with_the_code():
    data = yaml.safe_load((ROOT / "data" / "shapes.yaml").read_text())
    assert data["nc"] == len(NAMES) and tuple(data["names"]) == NAMES
    assert (data["train"], data["val"]) == ("data/shapes/images/train", "data/shapes/images/val")
    assert data["generate"] == "shapes" and "download" not in data


def test_a_missing_data_set_is_drawn_where_its_yaml_says(tmp_path, monkeypatch):
    monkeypatch.setattr("yolov7fast.data.download.make_shapes", partial(make_shapes, train=2, val=1, size=96))
    val = tmp_path / "shapes" / "images" / "val"
    data = load_data_yaml({"val": str(val), "names": list(NAMES), "generate": "shapes"})
    assert [p.name for p in Path(data.val).iterdir()] == ["000000.jpg"]
