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
    done = run_script("tests/loading/page_faults.py", str(folder), loader, kind)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="glibc alone takes such an option")
@pytest.mark.parametrize("loader", ["main", "torch", "shared"])
def test_samples_need_no_new_pages(loader, folder):
    default, kept = (statistics.median(faults(folder, loader, kind)) for kind in ("default", "kept"))
    assert default > 500  # pages of four kilobytes
    assert kept < 20


STEPS = """
import resource, sys, torch
from yolov7fast.core.process.memory import keep_freed_memory
torch.set_num_threads(1)
if "kept" in sys.argv:
    keep_freed_memory(of_any_size=True)
weight = torch.ones(12_000_000, requires_grad=True)  # 48 MB, beyond what glibc can keep in its heap
for step in range(12):  # the heap grows in the first four or five, until what is freed fits what is needed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    (weight.exp() * 2).sum().backward()
    weight.grad = None
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="glibc alone takes such an option")
def test_blocks_of_any_size_need_no_new_pages(tmp_path):
    """As when a network is trained on a CPU."""
    (tmp_path / "steps.py").write_text(STEPS)
    runs = [run_script(str(tmp_path / "steps.py"), kind) for kind in ("default", "kept")]
    assert not any(done.returncode for done in runs), [done.stderr for done in runs]
    default, kept = (int(done.stdout) for done in runs)
    assert default > 10_000  # pages of four kilobytes
    assert kept < 200


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
