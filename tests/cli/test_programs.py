"""The table of commands: every row can be run, as `yolov7fast NAME` and as its script; mistakes are answered."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from yolov7fast import __main__ as entry
from yolov7fast.cli.parser import parse_inference
from yolov7fast.core.errors import UserError
from yolov7fast.core.programs import PROGRAMS, program, program_of


@pytest.mark.parametrize("row", PROGRAMS, ids=lambda row: row.name)
def test_every_row_has_its_module_and_script(row):
    spec = importlib.util.find_spec(f"yolov7fast.cli.commands.{row.module}")
    assert spec and spec.origin and "def main(" in Path(spec.origin).read_text()
    assert not row.script or (ROOT / row.script).is_file()
    assert row.summary.endswith((".", "?")) and len(row.summary) < 60


def test_every_script_is_in_the_table():
    scripts = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tools").glob("*.py") if path.stem != "__init__"}
    assert scripts <= {row.script for row in PROGRAMS}


def test_a_command_gets_the_words_behind_its_name(monkeypatch):
    seen = []
    module = importlib.import_module("yolov7fast.cli.commands.data")
    monkeypatch.setattr(module, "main", lambda: seen.append(list(sys.argv)) or 5)
    monkeypatch.setattr(sys, "argv", ["yolov7fast"])
    assert entry.run(["data", "shapes", "--val", "3"]) == 5
    assert seen == [["yolov7fast data", "shapes", "--val", "3"]]


@pytest.mark.parametrize(
    ("name", "answer"), [("trian", "did you mean 'train'"), ("xyz", r"\(yolov7fast --help lists them\)")]
)
def test_an_unknown_command_is_answered_in_one_line(name, answer):
    with pytest.raises(UserError, match=f"unknown command '{name}'.*{answer}"):
        entry.run([name])


def test_the_overview_lists_all_commands(capsys):
    assert entry.run([]) == entry.run(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {row.name} " in printed and row.summary in printed for row in PROGRAMS)


def test_messages_name_a_command_as_the_user_started_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert program("train").invocation == "python train.py"
    assert program_of("train", "detr").invocation == "python tools/train_detr.py"
    assert program_of("test", "detr").invocation == "python test.py"  # opens checkpoints of every family
    assert program("data").invocation == "python -m yolov7fast data"  # it has no script
    monkeypatch.setattr(sys, "argv", ["yolov7fast train"])
    assert program("train").invocation == "yolov7fast train"


@pytest.mark.parametrize("row", PROGRAMS, ids=lambda row: row.name)
def test_usage_names_the_program_as_messages_do(row, monkeypatch, capsys):
    """`python tools/X.py` in a checkout, `yolov7fast X` where that was typed."""
    monkeypatch.setattr(sys, "argv", [row.script or f"yolov7fast {row.name}", "--help"])
    with pytest.raises(SystemExit) as stop:
        row.run()
    assert stop.value.code == 0
    expected = f"python {row.script}" if row.script else f"yolov7fast {row.name}"
    assert row.invocation == expected
    assert capsys.readouterr().out.startswith(f"usage: {expected}")


def test_children_are_started_by_the_script_or_by_the_package(monkeypatch):
    assert program("train").child() == [sys.executable, str(ROOT / "train.py")]
    monkeypatch.setattr("yolov7fast.core.programs.CHECKOUT", None)
    assert program("train").child() == [sys.executable, "-m", "yolov7fast", "train"]


def test_importing_the_package_loads_nothing_heavy():
    words = "import sys, yolov7fast, yolov7fast.__main__, yolov7fast.cli.parser; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "cv2", "matplotlib"} & set(done.stdout.split())


def test_the_package_has_no_other_names():
    import yolov7fast

    assert callable(yolov7fast.load)
    with pytest.raises(AttributeError, match="has no attribute 'laod'"):
        _ = yolov7fast.laod


def test_detr_checkpoints_have_their_own_defaults():
    yolo, detr = (parse_inference("detect", ["--weights", name]) for name in ("best.pt", "best.pth"))
    assert (yolo.img_size, yolo.conf_thres) == (640, 0.25) and (detr.img_size, detr.conf_thres) == (0, 0.5)
    given = parse_inference("test", ["--weights", "a.pth", "b.pth", "--img", "320"])
    assert (given.img_size, given.batch_size) == (320, 8)
    assert parse_inference("test", ["--weights", "a.pth", "b.pt"]).batch_size == 32
