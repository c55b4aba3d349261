"""docs/extending_flag.md: the example, applied to a copy as it is written, does what the document says."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.docs.worked_example import copy_package
from tests.small_network import small_network
from yolov7fast.checkpoint.checkpoint_reader import save_checkpoint

TEXT = (ROOT / "docs" / "extending_flag.md").read_text()


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A copy of the program with the document's diffs applied."""
    copy = tmp_path_factory.mktemp("copy")
    copy_package(copy)
    for name in ("test.py", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    diffs = re.findall(r"```diff\n(.*?)```", TEXT, re.DOTALL)
    assert len(diffs) == 2
    for diff in diffs:
        done = subprocess.run(["git", "apply", "-"], input=diff, cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return copy


# test.py several times in one process: [exit code, standard output, standard error] of each
SEVERAL = """
import contextlib, io, json, runpy, sys
found = []
for flags in json.loads(sys.argv[1]):
    sys.argv = ["test.py", *flags]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path("test.py", run_name="__main__")
        except SystemExit as left:
            code = left.code or 0
    found.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def runs(changed, tmp_path_factory, shapes_small) -> dict[str, list]:
    """What test.py of the copy says to --help, to a value beyond the limit, without the flag and with it."""
    folder = tmp_path_factory.mktemp("runs")
    save_checkpoint({"epoch": -1, "model": small_network(4, list("abcd"))}, folder / "untrained.pt")
    flags = ["--weights", str(folder / "untrained.pt"), "--data", str(shapes_small / "shapes.yaml"), "--img", "64"]
    flags += ["--workers", "0", "--device", "cpu", "--project", str(folder)]
    asked = {"help": ["--help"], "refused": ["--fail-under", "1.5"], "without": flags}
    asked["with"] = [*flags, "--fail-under", "0.9"]
    command = [sys.executable, "-c", SEVERAL, json.dumps(list(asked.values()))]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(changed)}
    done = subprocess.run(command, cwd=changed, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(asked, json.loads(done.stdout.splitlines()[-1])))


def test_the_row_alone_gives_help_and_limits(runs):
    expected = re.search(r"--help +# (.*)", TEXT)[1]
    code, out, _ = runs["help"]
    assert code == 0 and " ".join(expected.split()) in " ".join(out.split())
    code, _, err = runs["refused"]
    assert code == 2 and err.strip() == re.search(r"1\.5 +# (error: .*)", TEXT)[1]


def test_its_use_decides_the_exit_code(runs):
    assert runs["without"][0] == 0, runs["without"][2]
    code, out, _ = runs["with"]
    assert code == 1 and "below --fail-under 0.9" in out


@pytest.mark.parametrize("name", ["--output-dir", "--search", "register", "changed", "upstream", "fixed"])
def test_the_fields_it_names_exist(name):
    source = "".join(path.read_text() for path in (ROOT / "yolov7fast" / "cli" / "flags").glob("*.py"))
    assert name in TEXT and name in source
