"""A family of detectors is named: in checkpoints, opt.yaml and run files. Older files are recognised all the same."""

import pytest
import yaml

from tests.conftest import ROOT
from yolov7fast.checkpoint.families import FAMILIES, FamilyEntry, family_of
from yolov7fast.cli.parser import parser_for
from yolov7fast.cli.run_file import family_of_run_file
from yolov7fast.core.errors import UserError
from yolov7fast.search.trial_training import Budget, training_for
from yolov7fast.training.family import family_class


def test_checkpoints_name_their_family_and_older_ones_are_recognised():
    assert family_of({"family": "spots", "architecture": "x"}) == "spots"
    assert family_of({"architecture": "detr", "model": {}}) == "detr"
    assert family_of({"model": {}, "epoch": 3}) == family_of([]) == "yolo"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_run_files_name_their_family(path):
    family = family_of_run_file(path)
    assert family == ("detr" if "detr" in path.name else "yolo")
    assert parser_for("train", family).parse_args(["--config", str(path)]).config == str(path)


def test_a_run_file_of_another_family_is_refused_with_the_command_to_use(tmp_path, capsys):
    path = tmp_path / "a.yaml"
    path.write_text("family: detr\nepochs: 2\n")
    with pytest.raises(SystemExit):
        parser_for("train").parse_args(["--config", str(path)])
    assert f"of the detr family; start it with: python tools/train_detr.py --config {path}" in capsys.readouterr().err
    path.write_text("family: dert\n")
    with pytest.raises(UserError, match=r"no family of detectors is called 'dert': .*did you mean 'detr'"):
        family_of_run_file(path)


def test_trials_can_build_on_a_further_family(tmp_path, monkeypatch, shapes_small):
    """All its settings are flags: of every family, and rows of its own."""
    monkeypatch.setitem(FAMILIES, "third", FamilyEntry(FAMILIES["yolo"].training, FAMILIES["yolo"].predictor))
    path = tmp_path / "third.yaml"
    path.write_text(yaml.safe_dump({"family": "third", "data": str(shapes_small / "shapes.yaml"), "epochs": 3}))
    trainer = training_for(str(path))(str(path), Budget(epochs=2))
    assert trainer.name("training.batch_size", "here") == "batch_size"
    assert trainer.epochs({}) == 2
    assert (trainer.weights, trainer.suffix) == ("weights", family_class("yolo").checkpoint_suffix)
    with pytest.raises(UserError, match="unknown setting 'lr0'"):
        trainer.name("lr0", "here")
