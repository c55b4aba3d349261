"""A separate cache folder for every test, and a drawn data set with known defects."""

import pytest

from tests.data.checks.seeded import seed_defects
from yolov7fast.data.shapes import make_shapes


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("YOLOV7FAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def clean(tmp_path_factory):
    """The project's own data set, small, with a data.yaml. Read only."""
    folder = make_shapes(tmp_path_factory.mktemp("clean") / "shapes", train=40, val=12, size=160)
    (folder / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [ball, crate, cone, star]\n")
    return folder


@pytest.fixture(scope="session")
def seeded(tmp_path_factory):
    """(folder, defects): the same set with one defect of each kind. Read only."""
    folder = make_shapes(tmp_path_factory.mktemp("seeded") / "shapes", train=60, val=12, size=160)
    return folder, seed_defects(folder)
