"""What several tests share: golden figures, the real data set where it is present, the project's own data set."""

import gzip
import json
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test processes on two cores must not fight over threads

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"
BCCD = ROOT.parent / "shared" / "bccd"


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
def bccd() -> Path:
    """The BCCD photographs; tests that need them are skipped where they are absent."""
    if not BCCD.is_dir():
        pytest.skip("needs the BCCD data set at ../shared/bccd, which is not on this machine")
    return BCCD
