"""docs/resume.md, docs/gpus.md: commands parse as they stand; the first one runs, resumes and leaves alone."""

import re
import shlex
from pathlib import Path

import pytest

from tests.training.commands import ROOT
from yolov7fast.cli.checks import check_train
from yolov7fast.cli.commands.train import run
from yolov7fast.cli.parser import parser_for
from yolov7fast.training.config import SAVE_MINUTES
from yolov7fast.training.distributed import MINUTES

TEXT = "".join((ROOT / "docs" / name).read_text() for name in ("resume.md", "gpus.md"))
BLOCKS = [block.replace("\\\n", " ").strip() for block in re.findall(r"```bash\n(.*?)```", TEXT, re.S)]
COMMANDS = [block for block in BLOCKS if "--seed 0" in block]


def flags_of(command: str) -> list[str]:
    """What train.py gets of a command line."""
    words = shlex.split(command.removeprefix("until ").split(";")[0])
    start = next(i for i, word in enumerate(words) if Path(word).name in ("train.py", "vast_onstart.sh"))
    assert (ROOT / words[start]).is_file()
    return words[start + 1 :]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    opt = parser_for("train").parse_args(flags_of(command))
    check_train(opt)
    assert opt.resume == "auto" or "vast_onstart" in command
    for name in (opt.cfg, opt.hyp):
        assert Path(name).is_file()


def test_figures_are_those_of_the_program():
    assert SAVE_MINUTES == MINUTES == 10
    assert "At most ten minutes" in TEXT and "`--dist-timeout` minutes (10)" in TEXT


@pytest.mark.slow
def test_the_first_command_starts_a_run_and_then_leaves_it_alone(tmp_path, shapes_small, monkeypatch, caplog):
    monkeypatch.chdir(ROOT)
    caplog.set_level("INFO")
    flags = [*flags_of(COMMANDS[0]), "--data", str(shapes_small / "shapes.yaml"), "--project", str(tmp_path)]
    assert run(parser_for("train").parse_args(flags)) == 0
    assert "nothing to do" not in caplog.text
    assert run(parser_for("train").parse_args(flags)) == 0
    assert "nothing to do, the run has 3 epochs of 3" in caplog.text
