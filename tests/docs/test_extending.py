"""docs/extending.md: every section's change works as written down.

The family of detectors is tested in tests/training/families/test_third_family.py.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest

from tests.docs.worked_example import ROOT, SECTIONS, carry_out, copy_package, lint, patched, run_shown_tests
from tests.small_network import small_network
from yolov7fast.checkpoint.checkpoint_reader import save_checkpoint

# section -> files that it touches, and how many tests it shows
EXAMPLES = {
    "A block": (3, 3),
    "A loss term": (3, 13),
    "An assigner": (3, 4),
    "An augmentation": (4, 2),
    "A flag": (2, 0),
    "A metric": (3, 3),
    "An output format": (5, 2),
}
FLAG = SECTIONS["A flag"]


class Changed(NamedTuple):
    """One copy of the package with all examples carried out: they touch different lines."""

    folder: str
    touched: dict[str, list[str]]  # by section
    lint: str
    output: str  # of the tests they show


@pytest.fixture(scope="module")
def changed(tmp_path_factory) -> Changed:
    folder = tmp_path_factory.mktemp("copy")
    copy_package(folder)
    touched = {section: carry_out(section, folder) for section in EXAMPLES}
    files = [file for listed in touched.values() for file in listed]
    output = run_shown_tests(folder, [file for file in files if file.startswith("tests/")])
    return Changed(str(folder), touched, lint(folder, files), output)


@pytest.mark.parametrize("section", EXAMPLES)
def test_the_change_is_shown_whole(changed, section):
    files, tests = EXAMPLES[section]
    touched = changed.touched[section]
    assert len(touched) == files
    assert not [line for line in changed.lint.splitlines() if any(file in line for file in touched)], changed.lint
    shown = [file for file in touched if file.startswith("tests/")]
    passed = [line for line in changed.output.splitlines() if any(f"PASSED {file}::" in line for file in shown)]
    assert len(passed) == tests, changed.output


def test_the_table_names_every_section_and_its_files(changed):
    text = (ROOT / "docs" / "extending.md").read_text()
    listed = dict(re.findall(r"^\| \[([^\]]+)\]\(#.*\| (\d) \|$", text, re.M))
    assert [name.capitalize() for name in listed] == [name.capitalize() for name in SECTIONS]
    assert [int(count) for count in listed.values()][:-1] == [files for files, _ in EXAMPLES.values()]


def test_a_document_that_no_longer_fits_the_code_is_noticed():
    with pytest.raises(AssertionError, match="not there exactly once"):
        patched("a = 1\n", "-a = 2\n+a = 3\n", "x.py")


# --- the flag ---------------------------------------------------------------------------------------------------------

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
    shutil.copy(ROOT / "test.py", changed.folder)
    save_checkpoint({"epoch": -1, "model": small_network(4, list("abcd"))}, folder / "untrained.pt")
    flags = ["--weights", str(folder / "untrained.pt"), "--data", str(shapes_small / "shapes.yaml"), "--img", "64"]
    flags += ["--workers", "0", "--device", "cpu", "--project", str(folder)]
    asked = {"help": ["--help"], "refused": ["--fail-under", "1.5"], "without": flags}
    asked["with"] = [*flags, "--fail-under", "0.9"]
    command = [sys.executable, "-c", SEVERAL, json.dumps(list(asked.values()))]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": changed.folder}
    done = subprocess.run(command, cwd=changed.folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(asked, json.loads(done.stdout.splitlines()[-1])))


def test_the_row_alone_gives_help_and_limits(runs):
    expected = re.search(r"--help +# (.*)", FLAG)[1]
    code, out, _ = runs["help"]
    assert code == 0 and " ".join(expected.split()) in " ".join(out.split())
    code, _, err = runs["refused"]
    assert code == 2 and err.strip() == re.search(r"1\.5 +# (error: .*)", FLAG)[1]


def test_its_use_decides_the_exit_code(runs):
    assert runs["without"][0] == 0, runs["without"][2]
    code, out, _ = runs["with"]
    assert code == 1 and "below --fail-under 0.9" in out
