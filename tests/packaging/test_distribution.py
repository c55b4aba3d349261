"""What leaves the checkout: image, workflow, templates, and the files that package indexes check."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml

import yolov7fast
from tests.conftest import ROOT
from tests.scripts.test_vast_setup import shellcheck


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def test_the_image_is_pinned_small_and_not_roots(tmp_path):
    found = instructions()
    assert found[0][0] == "FROM" and re.search(r":\d+[\w.-]*$", found[0][1])
    known = {"FROM", "ARG", "ENV", "RUN", "COPY", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in found} == known
    users = [rest for word, rest in found if word == "USER"]
    assert users and users[-1] not in ("root", "0")
    for word, rest in found:
        if word in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list)  # no shell between docker and the program: signals reach it
        if word == "COPY":
            owner, *sources, _ = rest.split()
            assert owner == f"--chown={users[-1]}" and all((ROOT / source).exists() for source in sources)
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists/*" in rest
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\n" + "\n".join(rest for word, rest in found if word == "RUN"))
    if program := shellcheck():
        assert subprocess.run([program, "-e", "SC2154", script]).returncode == 0


def test_torch_is_chosen_from_what_is_copied_before_it(tmp_path):
    """The layer with torch stays when code changes: it sees only the files copied so far."""
    at = next(i for i, (_, rest) in enumerate(instructions()) if "choose_torch.py --venv" in rest)
    for _, rest in (line for line in instructions()[:at] if line[0] == "COPY"):
        *sources, target = rest.split()[1:]
        for source in sources:
            (tmp_path / target).mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, tmp_path / target)
    done = subprocess.run([sys.executable, "scripts/choose_torch.py", "--help"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_the_workflow_runs_what_must_pass():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    steps = {name: [step.get("run", "") for step in job["steps"]] for name, job in jobs.items()}
    assert ".ci/run" in steps["checks"] and (ROOT / ".ci/run").stat().st_mode & 0o111
    assert steps["package"][-2:] == ["python -m build", "twine check --strict dist/*"]
    asked = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/gpu_check.yml").read_text())["body"]
    page = next(field for field in asked if field.get("id") == "page")
    assert page["attributes"]["label"] == "runs/check/check.md" and page["validations"]["required"]


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["version"] == yolov7fast.__version__


@pytest.mark.slow
def test_twine_accepts_wheel_and_sdist(tmp_path):
    """With the environment of `build` and `twine`, which are not among the tests' packages; CI installs them."""
    programs = [shutil.which(name) for name in ("pyproject-build", "twine")]
    if None in programs:
        pytest.skip("needs build and twine on PATH: pip install build twine")
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    subprocess.run([programs[0], "-q", "-o", str(tmp_path / "dist"), str(source)], check=True)
    files = sorted((tmp_path / "dist").iterdir())
    assert [path.suffix for path in files] == [".whl", ".gz"] or [path.suffix for path in files] == [".gz", ".whl"]
    subprocess.run([programs[1], "check", "--strict", *map(str, files)], check=True)
