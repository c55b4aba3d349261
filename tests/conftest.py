"""What several tests share: golden figures, the real data set where it is present, the project's own data set."""

import gc
import gzip
import json
import os
import shutil
import signal
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test processes on two cores must not fight over threads

import cv2
import numpy as np
import pytest
import yaml

from tests.browser import NO_BROWSER
from tests.process_state import changes, loaded_modules, process_state
from yolov7fast.data.shapes import NAMES, make_shapes

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"
os.environ.setdefault("YOLOV7FAST_CACHE", str(ROOT / ".pytest_cache" / "cache"))  # not the user's own
BCCD = ROOT.parent / "shared" / "bccd"
VISIBLE = {name: value for name, value in os.environ.items() if name == "CUDA_VISIBLE_DEVICES"}
LONGEST = ("training", "search", "overlay", "docs", "inference", "data", "cli", "evaluation", "nn")

cv2.setNumThreads(0)  # as `data.dataset` sets it when it is imported
# a shell starts background jobs, and nohup starts programs, with these ignored, and child processes would inherit that
for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, default)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders with the longest files first: a test process that takes one last would leave the others idle."""
    place = {name: i for i, name in enumerate(LONGEST)}
    tests = Path(__file__).parent
    items.sort(key=lambda item: place.get(item.path.relative_to(tests).parts[0], len(LONGEST)))


def pytest_terminal_summary(terminalreporter) -> None:
    """One line for the reason of all skipped tests that lack a browser."""
    lacking = [report for report in terminalreporter.stats.get("skipped", []) if NO_BROWSER in str(report.longrepr)]
    if lacking:
        terminalreporter.write_line(f"{len(lacking)} of the skipped tests: {NO_BROWSER}")


def pytest_collection_finish() -> None:
    """What was imported until here stays: the collector need not look at it again, nor forked workers copy it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def same_process_state():
    """A test file leaves the process as it found it, so that files pass in any order."""
    state, modules = process_state(), loaded_modules()
    yield
    found = changes(state, modules)
    assert not found, "the tests of this file have changed, and left so:\n" + "\n".join(found)


@pytest.fixture(autouse=True)
def same_gpus():
    """`--device` sets a variable for the rest of the process, which is a test's here."""
    yield
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ.update(VISIBLE)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Published weights cannot be fetched: a test that wants some serves them itself."""
    monkeypatch.setattr("yolov7fast.checkpoint.released_weights.RELEASE", "file:///nowhere")


@pytest.fixture(scope="session")
def golden():
    """`golden("name.json" | "name.json.gz" | "name.npz")`: the recorded figures in tests/golden."""

    def load(name: str):
        path = GOLDEN / name
        if name.endswith(".npz"):
            return np.load(path, allow_pickle=False)
        opener = gzip.open if name.endswith(".gz") else open
        with opener(path, "rt") as f:
            return json.load(f)

    return load


@pytest.fixture(scope="session")
def data(golden):
    """Recorded scalars and hashes of the data path."""
    return golden("data.json.gz")


@pytest.fixture(scope="session")
def arrays(golden):
    """Recorded label arrays, matrices and polygons of the data path, by name."""
    with golden("data_labels.npz") as archive:
        return dict(archive)


@pytest.fixture(scope="session")
def bccd() -> Path:
    """The BCCD photographs; tests that need them are skipped where they are absent."""
    if not BCCD.is_dir():
        pytest.skip("needs the BCCD data set at ../shared/bccd, which is not on this machine")
    return BCCD


def shapes_folder(tmp_path_factory, train: int, val: int) -> Path:
    """A copy of the project's own data set for this test process, with `shapes.yaml` of absolute paths beside it.

    It is drawn once per machine into .pytest_cache; the copy keeps label caches of two test processes apart.
    """
    drawn = make_shapes(ROOT / ".pytest_cache" / f"shapes_{train}_{val}", train=train, val=val)
    folder = tmp_path_factory.mktemp("shapes", numbered=True) / "shapes"
    shutil.copytree(drawn, folder)
    data = {split: str(folder / "images" / split) for split in ("train", "val")}
    (folder / "shapes.yaml").write_text(yaml.safe_dump({**data, "nc": len(NAMES), "names": list(NAMES)}))
    return folder


@pytest.fixture(scope="session")
def shapes(tmp_path_factory) -> Path:
    """The project's own data set: 200 training and 60 validation images, 4 classes. Read only."""
    return shapes_folder(tmp_path_factory, 200, 60)


@pytest.fixture(scope="session")
def shapes_small(tmp_path_factory) -> Path:
    """Its first 16 training and 8 validation images. Read only."""
    return shapes_folder(tmp_path_factory, 16, 8)
