"""A cache folder of its own for every test, so that none writes into the user's."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("YOLOV7FAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
