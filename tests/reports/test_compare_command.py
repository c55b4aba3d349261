"""The command compare_runs.py: where it writes, what it prints, and mistakes."""

import sys

import pytest

from yolov7fast.cli.commands.compare_runs import main
from yolov7fast.core.errors import UserError
from yolov7fast.reports.run_results import read_run, read_runs


def test_an_output_below_a_file_is_a_user_error(study, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["compare_runs.py", str(study[0]), "--output", str(tmp_path / "file/below")])
    with pytest.raises(UserError, match="cannot write"):
        main()
    assert (tmp_path / "file").read_text() == "mine"


def test_mistakes_are_user_errors(tmp_path, study, monkeypatch):
    with pytest.raises(UserError, match="does not exist"):
        read_run(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="neither results"):
        read_run(tmp_path / "empty")
    with pytest.raises(UserError, match="twice"):
        read_runs([study[0], study[0]])
    monkeypatch.setattr(sys, "argv", ["compare_runs.py", str(study[0]), "--rate", "-1"])
    with pytest.raises(UserError, match="--rate"):
        main()


def test_command_writes_to_a_folder_of_its_own_and_prints_the_advice(study, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["compare_runs.py", *map(str, study)])
        assert main() == 0
    assert sorted(p.name for p in (tmp_path / "runs/compare").iterdir()) == ["exp", "exp2"]
    assert "Final model, accuracy first: ota" in capsys.readouterr().out
    assert not list((tmp_path / "runs/compare").rglob(".*"))
