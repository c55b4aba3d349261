"""A detector of a few layers, for which a whole step on the stand-in device takes a moment."""

from pathlib import Path

import pytest
import torch
import yaml

from yolov7fast.diagnostics import correctness
from yolov7fast.diagnostics.setting import Setting
from yolov7fast.diagnostics.steps import Kind

FEW_LAYERS = {
    "nc": 4,
    "depth_multiple": 1.0,
    "width_multiple": 1.0,
    "anchors": [[10, 13, 16, 30, 33, 23], [30, 61, 62, 45, 59, 119], [116, 90, 156, 198, 373, 326]],
    "backbone": [
        [-1, 1, "Conv", [16, 3, 8]],
        [-1, 1, "Conv", [16, 3, 2]],
        [-1, 1, "Conv", [16, 3, 2]],
    ],
    "head": [[[0, 1, 2], 1, "IDetect", ["nc", "anchors"]]],
}


@pytest.fixture
def setting(tmp_path) -> Setting:
    return Setting(torch.device("cpu"), tmp_path, tmp_path)


@pytest.fixture
def few_layers(tmp_path, monkeypatch) -> Kind:
    """The kind of step that the checks run instead of yolov7-tiny."""
    path = Path(tmp_path) / "few.yaml"
    path.write_text(yaml.safe_dump(FEW_LAYERS))
    kind = Kind("YOLO", str(path), ("plain", "OTA"))
    monkeypatch.setattr(correctness, "KINDS", (kind,))
    return kind
