"""Shrinking a data set: sizes, labels and annotations, resuming after a stop."""

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from yolov7fast.cli.commands.resize_dataset import resize_dataset
from yolov7fast.core.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
SHAPES = {"wide": (30, 100), "tall": (120, 60), "thin": (100, 1), "small": (20, 40), "exact": (40, 48)}  # height, width


@pytest.fixture
def source(tmp_path) -> Path:
    """A COCO-like folder of four images."""
    folder = tmp_path / "coco"
    for part in ("images/val", "labels/val", "annotations"):
        (folder / part).mkdir(parents=True)
    for name, (height, width) in SHAPES.items():
        ramp = np.linspace(0, 255, height * width * 3).reshape(height, width, 3).astype(np.uint8)
        cv2.imwrite(str(folder / f"images/val/{name}.jpg"), ramp)
        (folder / f"labels/val/{name}.txt").write_text("0 0.5 0.5 0.2 0.3\n")
    (folder / "labels/val.cache").write_bytes(b"paths of the old folder")
    (folder / "labels/val.problems.txt").write_text("kept  empty label")
    (folder / "val.txt").write_text("./images/val/wide.jpg\n")
    (folder / "elsewhere.txt").write_text("/data/images/wide.jpg\n")
    content = {
        "images": [{"id": 1, "file_name": "wide.jpg", "height": 30, "width": 100}],
        "categories": [{"id": 1, "name": "thing"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 5, 40, 20], "area": 700, "iscrowd": 0,
             "segmentation": [[10, 5, 50, 5, 50, 25]]},
            {"id": 2, "image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10], "area": 100, "iscrowd": 1,
             "segmentation": {"counts": [0, 9], "size": [30, 100]}},
        ],
    }  # fmt: skip
    (folder / "annotations/instances_val.json").write_text(json.dumps(content))
    return folder


def sizes(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.stem: cv2.imread(str(path)).shape[:2] for path in sorted((folder / "images/val").iterdir())}


def test_images_labels_annotations_and_lists_are_brought_over(source, tmp_path):
    target = tmp_path / "coco48"
    counts = resize_dataset(source, target, 48)
    assert sizes(target) == {"wide": (14, 48), "tall": (48, 24), "thin": (48, 1), "small": (20, 40), "exact": (40, 48)}
    assert (counts["shrunk"], counts["copied"], counts["failed"]) == (3, 9, 0)
    for name in ("small", "exact"):  # not larger: byte for byte
        path = f"images/val/{name}.jpg"
        assert (target / path).read_bytes() == (source / path).read_bytes()
    for path in (*(f"labels/val/{name}.txt" for name in SHAPES), "annotations/instances_val.json", "val.txt"):
        assert (target / path).read_bytes() == (source / path).read_bytes()
    assert [p.name for p in (target / "labels").iterdir()] == ["val"]  # no cache, no report: they are of the source
    assert not (target / "elsewhere.txt").exists()  # still points at the source


def test_a_stopped_run_goes_on_and_writes_nothing_twice(source, tmp_path):
    target = tmp_path / "coco48"
    resize_dataset(source, target, 48)
    whole = {p: p.read_bytes() for p in target.rglob("*") if p.is_file()}
    (target / "images/val/wide.jpg").unlink()
    (target / "images/val/.wide.jpg.tmp").write_bytes(b"half a file")
    counts = resize_dataset(source, target, 48)
    assert (counts["shrunk"], counts["present"]) == (1, 11)
    assert {p: p.read_bytes() for p in target.rglob("*") if p.is_file()} == whole


def test_an_unreadable_image_is_named_and_the_rest_goes_on(source, tmp_path):
    (source / "images/val/broken.jpg").write_bytes(b"not an image")
    words = ["data", "resize", source, tmp_path / "out", "--size", "48", "--workers", "2"]
    command = [sys.executable, "-m", "yolov7fast", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "broken.jpg cannot be decoded" in done.stderr and "Traceback" not in done.stderr
    assert "3 images shrunk, 9 files copied" in done.stdout and "1 failed" in done.stdout


def test_two_sizes_never_mix_in_one_folder(source, tmp_path):
    resize_dataset(source, tmp_path / "out", 48)
    with pytest.raises(UserError, match="was made with"):
        resize_dataset(source, tmp_path / "out", 32)


def test_foreign_and_nested_targets_and_wrong_sources_are_refused(source, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("keep")
    for target, message in ((tmp_path / "mine", "not made by"), (source / "in", "inside each other")):
        with pytest.raises(UserError, match=message):
            resize_dataset(source, target, 48)
    with pytest.raises(UserError, match="no folder images/"):
        resize_dataset(tmp_path / "mine", tmp_path / "out", 48)
