"""A further metric is one row: its figure is printed, written and reaches the tables of training."""

import csv
import json
import math

import pytest

from tests.evaluation.test_loop import NAMES, perfect, stub_loader
from tests.training.commands import small_run
from yolov7fast.cli.commands.train import run as train
from yolov7fast.cli.parser import parser_for
from yolov7fast.evaluation.eval_loop import evaluate
from yolov7fast.evaluation.eval_outputs import print_table, write_files
from yolov7fast.evaluation.eval_result import FURTHER

__all__ = ["stub_loader"]  # a fixture
NAME = "metrics/boxes_per_label"


class BoxesPerLabel:
    def __init__(self, nc: int):
        self.boxes, self.labels = 0, 0

    def update(self, batch) -> None:
        self.boxes, self.labels = self.boxes + len(batch.detections), self.labels + len(batch.labels)

    def figure(self) -> float:
        return self.boxes / self.labels if self.boxes else math.nan


@pytest.fixture(autouse=True)
def metric(monkeypatch):
    monkeypatch.setitem(FURTHER, NAME, BoxesPerLabel)


def test_an_evaluation_prints_and_writes_it(stub_loader, tmp_path, capsys):
    result = evaluate(perfect, stub_loader, nc=3)
    assert result.metrics[NAME] == 1.0
    print_table(result, NAMES, per_class=False)
    assert capsys.readouterr().out.splitlines()[1].split() == ["boxes_per_label", "1"]
    write_files(result, NAMES, tmp_path, {})
    assert json.loads((tmp_path / "metrics.json").read_text())["further"] == {NAME: 1.0}


def test_training_has_a_column_for_it(shapes_small, tmp_path, monkeypatch):
    monkeypatch.setattr("yolov7fast.evaluation.eval_outputs.draw_curves", lambda *_: None)  # seconds, and not asked for
    monkeypatch.setattr("yolov7fast.training.logging.reporter.plot_results", lambda **_: None)
    arguments = small_run(tmp_path, shapes_small, "--epochs", "1", "--max-iter", "1", "--nosave", "--seed", "1")
    assert train(parser_for("train").parse_args(arguments)) == 0
    (row,) = csv.DictReader((tmp_path / "runs" / "run" / "results.csv").open())
    assert float(row[NAME]) > 1, "an untrained network finds more boxes than there are"
