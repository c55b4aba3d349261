"""Processes that make samples keep their memory: the next image does not cost page faults."""

import ctypes
import json
import statistics

import cv2
import numpy as np
import pytest

from tests.processes import run_script
from yolov7fast.core.process import memory


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight images of 960 x 720: two megabytes each, above what glibc keeps by itself."""
    root = tmp_path_factory.mktemp("large")
    for part in ("images", "labels"):
        (root / part).mkdir()
    for k in range(8):
        noise = np.random.default_rng(k).integers(0, 255, (9, 12, 3), np.uint8)
        cv2.imwrite(str(root / f"images/{k}.jpg"), cv2.resize(noise, (960, 720)))
        (root / f"labels/{k}.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    return root / "images"


def faults(folder, loader: str, kind: str) -> list[float]:
    done = run_script("tests/data/loading/page_faults.py", str(folder), loader, kind)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="glibc alone takes such an option")
@pytest.mark.parametrize("loader", ["main", "torch", "shared"])
def test_samples_need_no_new_pages(loader, folder):
    default, kept = (statistics.median(faults(folder, loader, kind)) for kind in ("default", "kept"))
    assert default > 500  # pages of four kilobytes
    assert kept < 20


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    assert not memory.keep_freed_memory()


def test_another_c_library_is_left_alone(monkeypatch):
    for name in memory.CHOSEN_BY_USER:
        monkeypatch.delenv(name, raising=False)

    class Library:
        def mallopt(self, *_):
            raise AssertionError("not glibc's")

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: Library())
    assert not memory.keep_freed_memory()
