"""hubconf.py as torch.hub runs it."""

import importlib

import pytest
import torch

from tests.mini_network import NAMES, ROOT, mini_model
from yolov7fast.core.errors import UserError
from yolov7fast.inference.api.detector import Detector


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
    assert isinstance(model, Detector) and len(model.names) == 5
    with pytest.raises(UserError, match=r"yolov7-tiny\.pt could not be fetched"):
        hub("yolov7_tiny")
    entries = set(dir(importlib.import_module("hubconf")))
    assert {"custom", "yolov7", "yolov7x", "yolov7_w6", "yolov7_e6", "yolov7_d6", "yolov7_e6e"} <= entries
