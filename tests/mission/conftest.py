"""A working folder as the documents have it: the scripts, the shipped files, COCO in its layout; only smaller."""

import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.drawing import draw_nothing
from tests.training.families.detr_commands import NETWORKS

SCRIPTS = ("train.py", "test.py", "tools", "tests", "scripts")
SETS = {"coco": "2017", "coco320": "2017", "coco640": "2017", "data/shapes": ""}  # folder -> what `train` ends with
# What makes a command smaller, not different. Ten epochs: the document resumes from the file of the tenth.
SMALLER = {
    "train.py": ["--epochs", "1", "--img", "64", "--noautoanchor"],
    "test.py": ["--img", "64"],
    "tests/profile_training_loop.py": ["--iters", "2", "--warm-iters", "1", "--img", "64", "--batch-size", "2"],
    "tools/train_detr.py": ["--img-size", "64", "--workers", "0"],
}


class Place:
    """Runs commands in the folder, each in this process."""

    def __init__(self, folder: Path):
        self.folder = folder

    def words(self, command: str) -> tuple[dict[str, str], list[str]]:
        """(environment, words from the script on) of a command line; `time` before it is the shell's."""
        words = shlex.split(command)
        start = words.index("python")
        return dict(word.split("=") for word in words[:start] if "=" in word), words[start + 1 :]

    def run(self, command: str, *smaller: str) -> int:
        """The exit code of a command, made smaller by the flags behind it."""
        environment, (script, *arguments) = self.words(command)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.setattr(sys, "path", [*sys.path])
            draw_nothing(patch)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", [script, *arguments, *SMALLER.get(script, []), *smaller])
            with pytest.raises(SystemExit) as end:
                runpy.run_path(script, run_name="__main__")
                sys.exit(0)
        return int(end.value.code or 0)


@pytest.fixture
def place(working_folder) -> Place:
    """Without what other tests trained there."""
    for name in ("runs", "outputs"):
        shutil.rmtree(working_folder / name, ignore_errors=True)
    return Place(working_folder)


@pytest.fixture(scope="package")
def working_folder(tmp_path_factory, shapes_small) -> Path:
    folder = tmp_path_factory.mktemp("mission")
    for name in SCRIPTS:
        (folder / name).symlink_to(ROOT / name)
    for name in ("cfg", "configs", "experiments"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copytree(ROOT / "data", folder / "data", ignore=shutil.ignore_patterns("shapes", "*.cache"))
    for name, year in SETS.items():
        for kind in ("images", "labels"):
            for split in ("train", "val"):
                shutil.copytree(shapes_small / kind / split, folder / name / kind / f"{split}{year}")
    for name in ("yolov7", "yolov7-tiny"):
        make_narrow(folder / "cfg" / "training" / f"{name}.yaml")
    make_small(folder / "configs" / "detr_baseline.yaml")
    return folder


def make_narrow(path: Path) -> None:
    """The same layers with an eighth of the channels."""
    path.write_text(path.read_text().replace("width_multiple: 1.0", "width_multiple: 0.125"))


def make_small(path: Path) -> None:
    """DETR with the backbone and the layers of a test, for 12 epochs of 50; all else as it is shipped."""
    values = yaml.safe_load(path.read_text())
    values["model"]["network"] = NETWORKS["detr"]
    values["training"]["max_epochs"] = 12
    path.write_text(yaml.safe_dump(values, sort_keys=False))
