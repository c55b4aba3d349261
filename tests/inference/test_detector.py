"""`yolov7fast.load` and torch.hub: what they accept, and that the boxes are those of detect.py."""

import csv
import importlib

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

import yolov7fast
from tests.mini_network import NAMES, ROOT, mini_model
from yolov7fast.cli.commands.detect import detect
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.inference.detector import ImageDetector

LOW = 0.05


@pytest.fixture(scope="module")
def model(weights):
    return yolov7fast.load(weights, "cpu", size=160, conf=LOW)


def paths(folder) -> list[str]:
    return sorted(map(str, folder.iterdir()))


def written_by_detect(weights, folder, project, *flags: str) -> dict[str, list[tuple]]:
    """The rows of detect.py's table, by image."""
    arguments = ["--weights", str(weights), "--source", str(folder), "--img-size", "160", "--conf-thres", str(LOW)]
    arguments += ["--project", str(project), "--nosave", "--save-csv", "--device", "cpu", *flags]
    detect(parser_for("detect").parse_args(arguments))
    rows: dict[str, list[tuple]] = {path: [] for path in paths(folder)}
    with next(project.glob("exp*/predictions.csv")).open() as file:
        for row in csv.DictReader(file):
            corners = tuple(int(row[name]) for name in ("x1", "y1", "x2", "y2"))
            rows[row["source"]].append((*corners, row["confidence"], int(row["class"])))
    return rows


def as_rows(boxes: torch.Tensor) -> list[tuple]:
    return [(*map(int, row[:4]), f"{row[4]:.6g}", int(row[5])) for row in boxes.tolist()]


def test_boxes_are_those_of_detect_to_the_last_digit(model, weights, folder, tmp_path):
    wanted = list(written_by_detect(weights, folder, tmp_path / "single").values())
    assert sum(map(len, wanted)) > 8
    assert [as_rows(model(path).xyxy[0]) for path in paths(folder)] == wanted
    batched = list(written_by_detect(weights, folder, tmp_path / "batched", "--batch-size", "2").values())
    assert [as_rows(boxes) for boxes in model(paths(folder)[:2]).xyxy] == batched[:2]
    for boxes, rows in zip(model(paths(folder)).xyxy, wanted, strict=True):  # in one batch scores may round otherwise
        assert [(row[:4], row[5]) for row in as_rows(boxes)] == [(row[:4], row[5]) for row in rows]
        assert boxes[:, 4].tolist() == pytest.approx([float(row[4]) for row in rows], abs=1e-6)


def test_every_kind_of_image_gives_the_same_boxes(model, folder):
    path = paths(folder)[0]
    rgb = cv2.imread(path)[..., ::-1]
    tensor = torch.from_numpy(rgb.copy()).permute(2, 0, 1)
    arrays = [np.ascontiguousarray(rgb), rgb.transpose(2, 0, 1)]
    kinds = [path, folder / "0.png", Image.open(path), *arrays, tensor, tensor.float() / 255]
    found = model(kinds)
    assert len(found) == len(kinds) and len(found.xyxy[0]) > 2
    assert all(torch.equal(boxes, found.xyxy[0]) for boxes in found.xyxy)
    batch = model(torch.stack([tensor, tensor]))
    assert len(batch) == 2 and torch.equal(batch.xyxy[1], found.xyxy[0])


def test_images_of_one_shape_are_one_batch(model, folder, monkeypatch):
    sizes, call = [], type(model.predictor).__call__

    def counting(self, images, *rest):
        sizes.append(len(images))
        return call(self, images, *rest)

    monkeypatch.setattr(type(model.predictor), "__call__", counting)
    model(paths(folder))
    assert sizes == [3, 1]


def test_thresholds_and_classes_are_attributes_and_options_of_a_call(weights, folder):
    model = yolov7fast.load(weights, "cpu", size=160)
    few = model(paths(folder))
    model.conf = LOW
    many = model(paths(folder))
    assert sum(map(len, many.xyxy)) > sum(map(len, few.xyxy))
    model.classes = [0]
    assert {int(c) for boxes in model(paths(folder)).xyxy for c in boxes[:, 5]} == {0}
    sure = model(paths(folder), conf=0.6, classes=None)
    assert all((boxes[:, 4] > 0.6).all() for boxes in sure.xyxy)
    assert model.conf == LOW and model.classes == [0]  # a call's options are its own
    assert list(model.names) == ["RBC", "WBC", "Platelets"] and model.stride == 32


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (3.5, "image 0 is a float; give a path"),
        (np.zeros((4, 4, 3)), "an image array is float64; it must be uint8"),
        (np.zeros((4, 4, 2), np.uint8), r"an image array has the shape \(4, 4, 2\)"),
        (torch.zeros(4, 4), r"an image tensor has the shape \(4, 4\)"),
        ("nosuch.jpg", "image nosuch.jpg does not exist"),
        ([], "no image was given"),
    ],
)
def test_what_is_no_image_is_named(model, image, message):
    with pytest.raises(UserError, match=message):
        model(image)


def test_unknown_options_and_thresholds_out_of_range_are_refused(model, folder):
    with pytest.raises(UserError, match="unknown option confidence: a call takes images, size, conf"):
        model(paths(folder), confidence=0.5)
    with pytest.raises(UserError, match=r"--conf-thres 1\.5 is out of range"):
        model(paths(folder), conf=1.5)
    assert len(model(paths(folder))) == 4  # and the detector still works


def test_a_model_prints_what_it_is(weights):
    assert "load" in dir(yolov7fast) and "train" in dir(yolov7fast)
    model = yolov7fast.load(weights, "cpu", size=96, conf=0.3)
    assert repr(model) == f"ImageDetector(Yolo, {len(model.names)} classes, size=96, conf=0.3)"


def hub(entry: str, *arguments, **options):
    return torch.hub.load(str(ROOT), entry, *arguments, source="local", **options)


def test_custom_weights_become_a_detector_with_upstreams_attributes(weights, folder):
    model = hub("custom", str(weights))
    assert (model.conf, model.iou, model.classes) == (0.25, 0.45, None) and list(model.names) == NAMES
    model.conf = 0.05
    results = model([str(folder / "0.png")], size=160)
    assert len(results) == 1 and results.pandas().xyxy[0]["name"].isin(NAMES).all() and len(results.xyxy[0])


def test_without_autoshape_it_is_the_network(weights):
    network = hub("custom", str(weights), autoshape=False)
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 64, 64))[0].shape == (1, 3 * (64 + 16 + 4), 8)


def test_a_network_in_memory_stays_as_it_is(folder):
    network = mini_model()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    hub("custom", network)(str(folder / "0.png"), size=160)
    after = network.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[name], value) for name, value in before.items())


def test_named_networks_are_fresh_or_published(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = hub("yolov7_tiny", pretrained=False, classes=5)
    assert isinstance(model, ImageDetector) and len(model.names) == 5
    with pytest.raises(UserError, match=r"yolov7-tiny\.pt could not be downloaded"):
        hub("yolov7_tiny")
    entries = set(dir(importlib.import_module("hubconf")))
    assert {"custom", "yolov7", "yolov7x", "yolov7_w6", "yolov7_e6", "yolov7_d6", "yolov7_e6e"} <= entries
