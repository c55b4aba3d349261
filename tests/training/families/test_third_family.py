"""A further family of detectors, as docs/extending.md shows it whole: it trains, is killed, resumes, detects."""

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

import yolov7fast.training
from tests.training.commands import assert_same_weights
from yolov7fast.__main__ import run
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.checkpoint.families import FAMILIES, FamilyEntry
from yolov7fast.core.errors import UserError
from yolov7fast.training.family import Family, family_class
from yolov7fast.training.step import TrainStep

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "extending.md").read_text().partition("## A family of detectors")[2]
FILES = dict(re.findall(r"```python\n# yolov7fast/training/(\S+\.py)\n(.*?)```", TEXT, re.S))
ROW = re.search(r"```python\n# yolov7fast/checkpoint/families\.py, in FAMILIES\n(.*?)```", TEXT, re.S)
COMMANDS = re.search(r"```bash\n(.*?)```", TEXT, re.S)


@pytest.fixture
def spots(tmp_path, monkeypatch) -> None:
    """The document's family, as if its files lay in the package and its row in the table."""
    for name, code in FILES.items():
        path = tmp_path / "training" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    monkeypatch.setattr(yolov7fast.training, "__path__", [*yolov7fast.training.__path__, str(tmp_path / "training")])
    row = eval(f"{{{ROW[1]}}}", {"FamilyEntry": FamilyEntry})
    monkeypatch.setitem(FAMILIES, "spots", row["spots"])
    monkeypatch.setattr(sys, "argv", sys.argv)  # which a command changes
    yield
    for name in [name for name in sys.modules if name.startswith("yolov7fast.training.spots_")]:
        del sys.modules[name]


def command(number: int, folder: Path, data: Path, *more: str) -> int | None:
    """Run a command of the document in this process, on small data and in `folder`."""
    words = shlex.split(COMMANDS[1].splitlines()[number])[1:]
    replaced = {"data/shapes.yaml": data / "shapes.yaml", "data/shapes/images/val": data / "images" / "val"}
    words = [str(replaced.get(word, word)) for word in words]
    words = [word.replace("runs/train", str(folder)) for word in words]
    return run([*words, "--device", "cpu", *more])


def training(folder: Path) -> list[str]:
    return ["--project", str(folder), "--workers", "0", "--batch-size", "8"]


def test_the_example_is_at_most_five_files_and_one_row():
    assert 1 <= len(FILES) <= 5 and len(ROW[1].splitlines()) == 1


def test_it_trains_resumes_is_measured_and_detects(spots, tmp_path, shapes_small, capsys):
    assert command(0, tmp_path, shapes_small, *training(tmp_path)) == 0
    weights = tmp_path / "spots" / "weights"
    checkpoint = load_checkpoint(weights / "last.pt")
    assert (checkpoint["family"], checkpoint["epoch"]) == ("spots", 1)
    assert "family: spots" in (tmp_path / "spots" / "opt.yaml").read_text()
    assert command(1, tmp_path, shapes_small) == 0
    lines = (tmp_path / "spots" / "results.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["0/1", "1/1", "2/2"]
    assert (tmp_path / "spots" / "results.png").is_file()
    assert command(2, tmp_path, shapes_small, "--project", str(tmp_path), "--workers", "0") == 0
    assert command(3, tmp_path, shapes_small, "--project", str(tmp_path), "--conf-thres", "0.01") == 0
    assert "8 images" in capsys.readouterr().out


def test_stopped_after_two_steps_it_resumes_to_the_same_weights(spots, tmp_path, shapes_small, monkeypatch):
    """The base and the loop remember everything: the family adds nothing for it."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    flags = ["--batch-size", "4", "--workers", "0"]
    assert command(0, whole, shapes_small, "--project", str(whole), *flags) == 0
    step, calls = TrainStep.__call__, []

    def stopping(self, *args):
        calls.append(args)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(TrainStep, "__call__", stopping)
        assert command(0, broken, shapes_small, "--project", str(broken), *flags) == 143
    progress = load_checkpoint(broken / "spots" / "weights" / "last.pt")["resume"]["progress"]
    assert (progress["epoch"], progress["batch_index"]) == (0, 2)
    assert run(["train-spots", "--resume", str(broken / "spots")]) == 0
    assert_same_weights(whole / "spots/weights/last.pt", broken / "spots/weights/last.pt")


def test_a_family_that_leaves_something_out_cannot_be_built():
    class Incomplete(Family):
        name = "incomplete"

    with pytest.raises(TypeError, match=r"abstract method.*forward_loss"):
        Incomplete(None, None, None, None, None)


def test_an_unknown_family_is_named_with_those_there_are():
    with pytest.raises(UserError, match=r"'yollo': one of yolo, detr; did you mean 'yolo'"):
        family_class("yollo")
