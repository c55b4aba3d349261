"""pyproject.toml, requirements.txt and tests/requirements.txt name the same packages; every pin is in its range."""

import tomllib

from packaging.requirements import Requirement
from packaging.version import Version

from tests.conftest import ROOT
from yolov7fast.core import torch_build

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(text: str) -> dict[str, Requirement]:
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return {found.name: found for found in map(Requirement, filter(None, lines))}


def check(pins: dict[str, Requirement], groups: list[list[str]]) -> None:
    ranges = read("\n".join(line for group in groups for line in group))
    assert pins.keys() == ranges.keys()
    for name, pin in pins.items():
        assert ranges[name].extras == pin.extras, name
        (version,) = (part.version for part in pin.specifier if part.operator == "==")
        assert ranges[name].specifier.contains(version), name


def test_requirements_of_the_program():
    """torch and torchvision are ranges, so that an installed build is kept."""
    pins = read((ROOT / "requirements.txt").read_text())
    assert str(pins["torch"]) == str(Requirement(torch_build.SUPPORTED))
    tested = read("\n".join(torch_build.PINNED))
    for name, pin in tested.items():
        (version,) = (part.version for part in pin.specifier)
        assert pins[name].specifier.contains(version), name
    check(pins | tested, [PROJECT["dependencies"]])


def test_requirements_of_the_tests():
    check(read((ROOT / "tests/requirements.txt").read_text()), list(PROJECT["optional-dependencies"].values()))


def test_the_supported_versions_are_those_of_the_range():
    accepted = Requirement(torch_build.SUPPORTED).specifier
    for text in ("1.13.1", "2.5.1", "2.6.0", "2.8.0+cu128", "2.13.0", "2.14.0"):
        assert torch_build.is_supported(text) == accepted.contains(Version(text).base_version), text
