"""docs/extending_flag.md: the example, applied to a copy as it is written, does what the document says."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.small_network import small_network
from yolov7fast.checkpoint.api import save_checkpoint

TEXT = (ROOT / "docs" / "extending_flag.md").read_text()


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A copy of the program with the document's diffs applied."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "yolov7fast", copy / "yolov7fast", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("test.py", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    diffs = re.findall(r"```diff\n(.*?)```", TEXT, re.DOTALL)
    assert len(diffs) == 2
    for diff in diffs:
        done = subprocess.run(["git", "apply", "-"], input=diff, cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return copy


def run(copy, *flags: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "test.py", *flags], cwd=copy, env=environment, capture_output=True, text=True
    )


def test_the_row_alone_gives_help_and_limits(changed):
    expected = re.search(r"--help +# (.*)", TEXT)[1]
    assert " ".join(expected.split()) in " ".join(run(changed, "--help").stdout.split())
    refused = run(changed, "--fail-under", "1.5")
    assert refused.returncode == 2 and refused.stderr.strip() == re.search(r"1\.5 +# (error: .*)", TEXT)[1]


def test_its_use_decides_the_exit_code(changed, tmp_path, shapes_small):
    save_checkpoint({"epoch": -1, "model": small_network(4, list("abcd"))}, tmp_path / "untrained.pt")
    flags = ["--weights", str(tmp_path / "untrained.pt"), "--data", str(shapes_small / "shapes.yaml"), "--img", "64"]
    flags += ["--workers", "0", "--device", "cpu", "--project", str(tmp_path)]
    enough = run(changed, *flags)
    assert enough.returncode == 0, enough.stderr
    failed = run(changed, *flags, "--fail-under", "0.9")
    assert failed.returncode == 1 and "below --fail-under 0.9" in failed.stdout


@pytest.mark.parametrize("name", ["--output-dir", "--search", "register", "changed", "upstream", "fixed"])
def test_the_fields_it_names_exist(name):
    source = "".join(path.read_text() for path in (ROOT / "yolov7fast" / "cli" / "flags").glob("*.py"))
    assert name in TEXT and name in source
