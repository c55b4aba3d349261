"""A stub checkout for each test, and the overlay installed in it and removed again."""

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml

from yolov7fast.cli.commands import overlay as command
from yolov7fast.overlay.checkout import Checkout
from yolov7fast.overlay.parts import KNOWN, OverlaySettings, put_in

STUB = Path(__file__).parent / "stub_checkout"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    from tests.conftest import shapes_folder

    return shapes_folder(tmp_path_factory, 12, 8)


@pytest.fixture
def repo(tmp_path, shapes) -> Path:
    """The stub checkout under version control, with a copy of the data set next to it."""
    folder = tmp_path / "checkout"
    shutil.copytree(STUB, folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(shapes, tmp_path / "shapes")
    data = {split: str(tmp_path / "shapes" / "images" / split) for split in ("train", "val")}
    names = yaml.safe_load((shapes / "shapes.yaml").read_text())["names"]
    (folder / "data.yaml").write_text(yaml.safe_dump({**data, "nc": len(names), "names": names}))
    (folder / "data").mkdir()
    shutil.copy(ROOT / "data/hyp.scratch.tiny.yaml", folder / "data")
    (folder / ".gitignore").write_text("__pycache__/\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "theirs"]):
        subprocess.run([*git, *arguments], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def known_repo(repo, monkeypatch) -> Path:
    """The same, whose code counts as upstream's."""
    checkout = Checkout(repo)
    for part, places in KNOWN.items():
        digests = {place: checkout.digest(place) for place in places}
        monkeypatch.setitem(KNOWN, part, {place: digest for place, digest in digests.items() if digest})
    return repo


class Inside:
    """The overlay in this test process: put in, and taken out again with all that came with it."""

    def __init__(self):
        self.put: list = []
        self.kept = _take_modules()
        self.path, self.argv, self.folder = list(sys.path), list(sys.argv), os.getcwd()

    def __call__(self, repo: Path, **switches):
        """Put it in for the rest of the test."""
        return self.enter(Checkout(repo), OverlaySettings(**switches))

    def enter(self, *arguments):
        self.put.append(put_in(*arguments))
        return self.put[-1]

    def run(self, repo: Path, *arguments: str) -> None:
        """The command, from beginning to end."""
        try:
            command.main(["--repo", str(repo), *arguments])
        finally:
            self.leave()

    def leave(self) -> None:
        while self.put:
            self.put.pop().close()
        _take_modules()
        sys.modules.update(self.kept)
        sys.path[:], sys.argv[:] = self.path, self.argv
        os.chdir(self.folder)
        self.kept = _take_modules()


@pytest.fixture
def inside(monkeypatch):
    entered = Inside()
    monkeypatch.setattr(command, "put_in", entered.enter)
    with warnings.catch_warnings():
        yield entered
    entered.leave()
    sys.modules.update(entered.kept)


def _take_modules() -> dict:
    names = [name for name in sys.modules if name.partition(".")[0] in ("models", "utils", "test")]
    return {name: sys.modules.pop(name) for name in names}


def git_status(repo: Path) -> list[str]:
    """What version control sees in a checkout beyond what was committed."""
    done = subprocess.run(["git", "status", "--porcelain"], cwd=repo, check=True, capture_output=True, text=True)
    return sorted(line[3:] for line in done.stdout.splitlines())
