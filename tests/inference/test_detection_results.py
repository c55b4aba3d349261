"""What a detector answers with, as upstream's hub results are used."""

import os
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tests.inference.detect_runs import cells
from yolov7fast.core.errors import UserError
from yolov7fast.inference.detection_results import InputImage, Results

BOXES = torch.tensor([[10.0, 20, 50, 40, 0.9, 1], [0, 0, 100, 80, 0.5, 0]])


@pytest.fixture
def results() -> Results:
    inputs = [InputImage("a.jpg", cells(0, 80, 100)), InputImage("b.bmp", cells(1, 60, 50))]
    return Results(inputs, [BOXES.clone(), torch.zeros(0, 6)], ["cat", "dog"], (1.0, 2.0, 3.0))


def test_boxes_come_in_four_forms(results):
    assert torch.equal(results.xyxy[0], BOXES) and len(results) == results.n == 2
    assert [single.files for single in results.tolist()] == [["a.jpg"], ["b.bmp"]] and len(results[1].xyxy[0]) == 0
    assert results.xywh[0][0].tolist() == pytest.approx([30, 30, 40, 20, 0.9, 1])
    assert results.xyxyn[0][0].tolist() == pytest.approx([0.1, 0.25, 0.5, 0.5, 0.9, 1])
    assert results.xywhn[0][1].tolist() == pytest.approx([0.5, 0.5, 1, 1, 0.5, 0])
    assert all(boxes[1].shape == (0, 6) for boxes in (results.xyxy, results.xywh, results.xyxyn, results.xywhn))


def test_print_counts_by_class(results, capsys):
    results.print()
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "image 1/2: 80x100 1 cat, 1 dog"
    assert printed[1] == "image 2/2: 60x50 (no detections)"
    assert printed[2] == "Speed: 1.0/2.0/3.0 ms pre-process/inference/NMS per image"


def test_render_draws_on_the_rgb_images(results):
    before = [image.copy() for image in results.imgs]
    drawn = results.render()
    assert drawn is results.imgs and drawn[0].shape == (80, 100, 3)
    assert not np.array_equal(before[0], drawn[0]) and np.array_equal(before[1], drawn[1])


def test_every_image_is_saved_under_a_name_that_can_be_written(results, tmp_path):
    assert results.save(tmp_path / "out") == tmp_path / "out"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.jpg", "b.bmp"]
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out" / "b.bmp")), results.imgs[1])
    names = ["a.png", "a.png", "a.dng", os.fsdecode(b"caf\xe9.png")]
    inputs = [InputImage(name, cells(seed, 40, 50)) for seed, name in enumerate(names)]
    folder = Results(inputs, [torch.zeros(0, 6)] * 4, ["cat"]).save(tmp_path / os.fsdecode(b"\xff"))
    assert sorted(path.name for path in folder.iterdir()) == ["a.jpg", "a.png", "a_1.png", "caf\ufffd.png"]


def test_pandas_has_upstreams_columns(results):
    tables = results.pandas()
    assert list(tables.xyxy[0].columns) == ["xmin", "ymin", "xmax", "ymax", "confidence", "class", "name"]
    *numbers, name = tables.xyxy[0].iloc[0].tolist()
    assert numbers == pytest.approx([10, 20, 50, 40, 0.9, 1]) and name == "dog"
    assert list(tables.xywhn[0].columns)[:4] == ["xcenter", "ycenter", "width", "height"]
    assert len(tables.xyxy[1]) == 0 and list(tables.xyxy[1].columns) == list(tables.xyxy[0].columns)


def test_to_supervision(results):
    first, second = results.to_supervision()
    assert first.xyxy.tolist() == BOXES[:, :4].tolist() and first.class_id.tolist() == [1, 0]
    assert first.confidence.tolist() == pytest.approx([0.9, 0.5])
    assert first.data["class_name"].tolist() == ["dog", "cat"] and len(second) == 0


def test_a_missing_package_is_named(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"results.pandas\(\) needs the package pandas, .*python -m pip install pandas"):
        results.pandas()
