"""Fixtures of the tests of inference: a trained small network and folders with images."""

from pathlib import Path

import cv2
import pytest

from tests.inference.detect_runs import cells
from tests.inference.export.networks import mini_source
from tests.mini_network import write_mini_weights
from yolov7fast.inference.export.export_network import ExportSource


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> Path:
    return write_mini_weights(tmp_path_factory.mktemp("weights") / "mini.pt")


@pytest.fixture(scope="session")
def mini(tmp_path_factory) -> ExportSource:
    """The trained small network, to be exported."""
    return mini_source(tmp_path_factory.mktemp("mini"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Four images of two shapes."""
    folder = tmp_path_factory.mktemp("images")
    for i, (height, width) in enumerate(((120, 160), (120, 160), (160, 120), (120, 160))):
        cv2.imwrite(str(folder / f"{i}.png"), cells(i, height, width))
    return folder


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def made(workplace) -> Path:
    """Three images in the folder `made` of the working directory."""
    folder = workplace / "made"
    folder.mkdir()
    for i in range(3):
        cv2.imwrite(str(folder / f"{i}.png"), cells(i))
    return folder
