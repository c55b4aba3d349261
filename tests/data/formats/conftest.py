"""A separate cache folder for every test."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("YOLOV7FAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
