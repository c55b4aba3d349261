"""pyproject.toml and the requirements files name the same packages; every pin lies in its range."""

import tomllib

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GROUPS = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}


def pinned(group: str) -> dict[str, Requirement]:
    lines = (ROOT / f"requirements{group and '-' + group}.txt").read_text().splitlines()
    stripped = (line.split("#")[0].strip() for line in lines)
    found = [Requirement(line) for line in stripped if line and not line.startswith("-r ")]
    return {requirement.name: requirement for requirement in found}


def test_every_requirements_file_is_a_group():
    files = {path.stem.removeprefix("requirements").lstrip("-") for path in ROOT.glob("requirements*.txt")}
    assert files == set(GROUPS) and {"", "detr", "search", "dev"} <= files


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_and_its_file_agree(group):
    ranges = {requirement.name: requirement for requirement in map(Requirement, GROUPS[group])}
    pins = pinned(group)
    assert pins.keys() == ranges.keys()
    for name, pin in pins.items():
        (version,) = (part for part in pin.specifier if part.operator == "==")
        assert ranges[name].specifier.contains(version.version), name
        assert ranges[name].extras == pin.extras, name
