"""Tests on the fake CUDA runtime. They are collected only where it is preloaded: `make test-cuda-host`."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

if "fake_cuda" not in os.environ.get("LD_PRELOAD", ""):
    collect_ignore_glob = ["test_*.py"]

    class Elsewhere(pytest.Module):
        """A file that is named on pytest's command line all the same."""

        def collect(self):
            pytest.skip("these tests need the fake CUDA runtime: make test-cuda-host")

    def pytest_pycollect_makemodule(module_path, parent):
        return Elsewhere.from_parent(parent, path=module_path)


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run() -> Callable[..., subprocess.CompletedProcess]:
    """`run("train.py", *arguments, code=0, **environment)`: a command of the checkout on the fake runtime."""

    def start(*arguments: str, code: int = 0, timeout: float = 280, **environment: str) -> subprocess.CompletedProcess:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return done

    return start


@pytest.fixture(scope="module", autouse=True)
def same_process_state():
    """Not compared here: the first use of CUDA changes the process for good."""
