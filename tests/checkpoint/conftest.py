"""Checkpoint files that upstream wrote, unpacked once."""

import tarfile
from pathlib import Path

import pytest

from tests.conftest import GOLDEN


@pytest.fixture(scope="session")
def reference_files(tmp_path_factory) -> dict[str, Path]:
    """Name (`training_yolov7_tiny__full` and so on) -> .pt file. Not to be changed by a test."""
    folder = tmp_path_factory.mktemp("reference")
    with tarfile.open(GOLDEN / "models_ckpt_files.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return {path.stem: path for path in sorted(folder.iterdir())}
