"""The small network of the tests as a kind of step, for which a whole step on the stand-in device takes a moment."""

from pathlib import Path

import pytest
import torch
import yaml

from tests.small_network import NETWORK
from yolov7fast.diagnostics import correctness
from yolov7fast.diagnostics.setting import Setting
from yolov7fast.diagnostics.steps import Kind


@pytest.fixture
def setting(tmp_path) -> Setting:
    return Setting(torch.device("cpu"), tmp_path, tmp_path)


@pytest.fixture
def few_layers(tmp_path, monkeypatch) -> Kind:
    """The kind of step that the checks run instead of yolov7-tiny."""
    path = Path(tmp_path) / "few.yaml"
    path.write_text(yaml.safe_dump(NETWORK))
    kind = Kind("YOLO", str(path), ("plain", "OTA"))
    monkeypatch.setattr(correctness, "KINDS", (kind,))
    return kind
