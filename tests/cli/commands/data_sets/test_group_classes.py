"""The command that makes a head configuration from a data set."""

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from yolov7fast.cli.commands.group_classes import main, read_annotations
from yolov7fast.core.errors import UserError
from yolov7fast.nn.head_config import HeadConfig

ROOT = Path(__file__).resolve().parents[4]


def run(monkeypatch, capsys, *words) -> str:
    monkeypatch.setattr(sys, "argv", ["group_classes.py", *map(str, words)])
    main()
    return capsys.readouterr().out


def test_table_file_and_image_for_a_data_set(shapes_small, tmp_path):
    output = tmp_path / "heads.yaml"
    words = ["--data", shapes_small / "shapes.yaml", "--heads", "2", "--img-size", "320", "--output", output]
    done = subprocess.run([sys.executable, "tools/group_classes.py", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    config = HeadConfig.load(output)
    assert (config.nc, config.heads) == (4, 2)
    assert "head_0" in done.stdout and "cone (2)" in done.stdout and f"--head-config {output}" in done.stdout
    assert "  # cone" in output.read_text()
    image = cv2.imread(str(output.with_suffix(".png")))
    assert image.shape == (840, 1200, 3) and image.std() > 10


def test_heads_are_ordered_from_tall_to_wide_on_the_projects_own_data(shapes, tmp_path, monkeypatch, capsys):
    words = ("--data", shapes / "shapes.yaml", "--heads", 3, "--img-size", 320, "--ratio-only")
    run(monkeypatch, capsys, *words, "--output", tmp_path / "ratio.yaml")
    assert HeadConfig.load(tmp_path / "ratio.yaml").classes == ((2,), (0, 3), (1,))  # cones, balls and stars, boxes
    assert HeadConfig.load(tmp_path / "ratio.yaml").names == ("tall", "square", "wide")


def test_balanced_gives_every_head_as_many_classes(shapes, tmp_path, monkeypatch, capsys):
    words = ("--data", shapes / "shapes.yaml", "--heads", 2, "--balanced")
    run(monkeypatch, capsys, *words, "--output", tmp_path / "balanced.yaml")
    assert HeadConfig.load(tmp_path / "balanced.yaml").sizes == (2, 2)


def test_default_file_stands_beside_the_data_file(shapes_small, tmp_path, monkeypatch, capsys):
    data = tmp_path / "mine.yaml"
    data.write_text((shapes_small / "shapes.yaml").read_text())
    run(monkeypatch, capsys, "--data", data, "--heads", 4)
    assert HeadConfig.load(tmp_path / "mine_4heads_geometry.yaml").sizes == (1, 1, 1, 1)
    assert (tmp_path / "mine_4heads_geometry.png").is_file()


def test_boxes_can_come_from_coco_annotations(tmp_path, shapes_small, monkeypatch, capsys):
    content = {
        "categories": [{"id": i, "name": str(i)} for i in (7, 1, 3, 5)],
        "annotations": [{"category_id": c, "bbox": [0, 0, 10 * i, 40]} for i, c in enumerate((1, 3, 5, 7), 1)],
    }
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(content))
    assert np.exp(read_annotations(path, 4).log_ratio) == pytest.approx([0.25, 0.5, 0.75, 1.0])
    words = ("--data", shapes_small / "shapes.yaml", "--heads", 2, "--annotations", path, "--ratio-only")
    run(monkeypatch, capsys, *words, "--output", tmp_path / "coco.yaml")
    assert HeadConfig.load(tmp_path / "coco.yaml").classes == ((0,), (1, 2, 3))
    with pytest.raises(UserError, match="4 categories, the data yaml 80"):
        read_annotations(path, 80)
    path.write_text("{}")
    with pytest.raises(UserError, match="not a readable COCO"):
        read_annotations(path, 4)


def test_too_many_heads_end_in_one_line(shapes_small, tmp_path):
    words = ["--data", shapes_small / "shapes.yaml", "--heads", "9", "--output", tmp_path / "x.yaml"]
    done = subprocess.run([sys.executable, "tools/group_classes.py", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: 4 classes cannot be distributed over 9 heads: ask for 1 to 4"


# --- where it may write -----------------------------------------------------------------------------------------------


def test_nothing_is_written_where_something_could_be_lost(shapes_small, tmp_path, monkeypatch, capsys):
    data, folder = tmp_path / "mine.yaml", tmp_path / "folder.yaml"
    data.write_text((shapes_small / "shapes.yaml").read_text())
    folder.mkdir()
    before = data.read_bytes()
    for output, message in (
        (data, "is what the classes are read from"),
        (folder, "is a folder"),
        (tmp_path / "image.png", "ends in .yaml"),
        (tmp_path / "nowhere" / "x.yaml", "there is no folder"),
    ):
        with pytest.raises(UserError, match=message):
            run(monkeypatch, capsys, "--data", data, "--heads", 2, "--output", output)
    assert data.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["folder.yaml", "mine.yaml"]


def test_a_file_that_was_edited_is_replaced_only_on_request(shapes_small, tmp_path, monkeypatch, capsys):
    output = tmp_path / "heads.yaml"
    words = ("--data", shapes_small / "shapes.yaml", "--heads", 2, "--output", output)
    run(monkeypatch, capsys, *words)
    written = output.read_text()
    run(monkeypatch, capsys, *words)  # the same again
    output.write_text(written.replace("weight: 1.0", "weight: 2.0", 1))
    with pytest.raises(UserError, match=r"exists and differs: .* --exist-ok"):
        run(monkeypatch, capsys, *words)
    assert "weight: 2.0" in output.read_text()
    run(monkeypatch, capsys, *words, "--exist-ok")
    assert output.read_text() == written


def test_labels_beyond_the_classes_are_reported_with_file_and_line(shapes_small, tmp_path, monkeypatch, capsys):
    data = tmp_path / "two.yaml"
    data.write_text(f"train: {shapes_small}/images/train\nval: {shapes_small}/images/val\nnc: 2\nnames: [a, b]\n")
    with pytest.raises(UserError, match=r"labels/train/\d+\.txt:\d+: class [23], but .*two.yaml has nc: 2"):
        run(monkeypatch, capsys, "--data", data, "--heads", 2)


def test_class_names_with_line_breaks_leave_the_file_readable(shapes_small, tmp_path, monkeypatch, capsys):
    data = tmp_path / "odd.yaml"
    names = '["a\\nb", "#", "c: d", "e"]'
    data.write_text(f"train: {shapes_small}/images/train\nval: {shapes_small}/images/val\nnc: 4\nnames: {names}\n")
    run(monkeypatch, capsys, "--data", data, "--heads", 2)
    assert HeadConfig.load(tmp_path / "odd_2heads_geometry.yaml").nc == 4


def test_annotations_with_half_a_box_are_reported(tmp_path):
    path = tmp_path / "short.json"
    path.write_text(json.dumps({"categories": [{"id": 1}], "annotations": [{"category_id": 1, "bbox": [1, 2]}]}))
    with pytest.raises(UserError, match=r"short\.json is not a readable COCO"):
        read_annotations(path, 1)
