"""Fixtures of the tests of detect.py: a trained small network and a folder to work in."""

from pathlib import Path

import cv2
import pytest

from tests.inference.detect_runs import cells
from tests.mini_network import write_mini_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    return write_mini_weights(tmp_path_factory.mktemp("weights") / "mini.pt")


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def made(workplace) -> Path:
    folder = workplace / "made"
    folder.mkdir()
    for i in range(3):
        cv2.imwrite(str(folder / f"{i}.png"), cells(i))
    return folder
