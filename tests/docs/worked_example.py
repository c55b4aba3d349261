"""Carries out what docs/extending.md shows: on a copy of the package, by new files and diffs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = {  # of the page, by heading
    part.partition("\n")[0]: part for part in re.split("^## ", (ROOT / "docs/extending.md").read_text(), flags=re.M)[1:]
}
STEP = re.compile(
    r"^\*\*`(?P<file>[^`]+)`\*\*(?P<new> \(new\))?\n(?P<blocks>(?:\n```(?:python|diff)\n.*?^```\n)+)", re.S | re.M
)
BLOCK = re.compile(r"^```(?P<kind>python|diff)\n(?P<text>.*?)^```\n", re.S | re.M)


def copy_package(folder: Path) -> None:
    """With its compiled modules: they stay valid, since copies keep their times; and what the shown tests use."""
    shutil.copytree(ROOT / "yolov7fast", folder / "yolov7fast")
    for name in ("data", "cfg", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests/small_network.py", folder / "tests")


def carry_out(section: str, folder: Path) -> list[str]:
    """Change the copy in `folder` as a section says; returns the files touched, in its order.

    A new file is a block of Python; a change is a diff whose old lines stand in the file exactly once.
    """
    touched = []
    for step in STEP.finditer(SECTIONS[section]):
        path = folder / step["file"]
        for block in BLOCK.finditer(step["blocks"]):
            if block["kind"] == "python":
                assert step["new"] and not (ROOT / step["file"]).exists(), f"{step['file']} is there already"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block["text"])
            else:
                for hunk in block["text"].split("@@\n"):
                    path.write_text(patched(path.read_text(), hunk, step["file"]))
        touched.append(step["file"])
    return touched


def patched(text: str, diff: str, name: str) -> str:
    """The text with one hunk applied: lines begin with a blank, - or +."""
    lines = diff.splitlines()
    assert all(line[:1] in (" ", "-", "+") for line in lines), f"{name}: not a diff:\n{diff}"
    old = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
    new = "".join(f"{line[1:]}\n" for line in lines if line[0] != "-")
    assert text.count(old) == 1, f"{name}: these lines are not there exactly once:\n{old}"
    return text.replace(old, new)


def run_shown_tests(folder: Path, tests: list[str]) -> str:
    """Run them against the changed package; a line `PASSED FILE::TEST` for each that passes, and all they printed."""
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--rootdir", str(folder), *tests]
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    return done.stdout + done.stderr


def lint(folder: Path, files: list[str]) -> str:
    """What the project's own linter says to these files; nothing if they are clean."""
    command = [sys.executable, "-m", "ruff", "check", "-q", "--config", str(ROOT / "pyproject.toml"), *files]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout
