"""The project's own data set: the same on every machine, honest labels, enough variety."""

import hashlib

import cv2
import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.data import shapes as module
from yolov7fast.data.shapes import make_shapes


def test_files_hold_the_recorded_labels_and_decoded_pixels(shapes_small):
    digest = hashlib.sha256()
    for split in ("train", "val"):
        for path in sorted((shapes_small / "images" / split).iterdir()):
            digest.update(cv2.imread(str(path)).tobytes())
            digest.update((shapes_small / "labels" / split / f"{path.stem}.txt").read_bytes())
    assert digest.hexdigest() == "c527c630c6537637ef25dc5782564e89e8dc64dd3d2a5d38521ab153aeba567e"


def test_a_complete_folder_is_left_alone_and_another_size_replaces_it(tmp_path):
    folder = make_shapes(tmp_path / "shapes", train=2, val=1, size=96)
    stamps = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    make_shapes(folder, train=2, val=1, size=96)
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == stamps
    make_shapes(folder, train=3, val=1, size=96)
    assert len(list((folder / "images" / "train").iterdir())) == 3
    with pytest.raises(UserError, match="not this data set"):
        make_shapes(folder / "images", train=1, val=1)
    assert [p.name for p in tmp_path.iterdir()] == ["shapes"]


def test_a_killed_build_leaves_no_folder(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "draw_scene", stop)
    with pytest.raises(KeyboardInterrupt):
        make_shapes(tmp_path / "shapes", train=2, val=1, size=96)
    assert list(tmp_path.iterdir()) == []
