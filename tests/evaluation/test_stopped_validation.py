"""Ctrl-C in a validation: it stops after the batch, and the resumed run ends as if nothing had happened."""

import csv
import math
import os
import signal

import pytest

from tests.training.commands import assert_same_weights, small_run
from yolov7fast.checkpoint.checkpoint_reader import load_checkpoint
from yolov7fast.cli.commands.train import run
from yolov7fast.cli.parser import parser_for
from yolov7fast.evaluation import eval_loop as loop
from yolov7fast.evaluation.eval_result import FURTHER


class Interrupting:
    """Not a metric at all: presses Ctrl-C when a validation begins, once."""

    left = 1

    def __init__(self, nc: int):
        if Interrupting.left:
            Interrupting.left -= 1
            os.kill(os.getpid(), signal.SIGINT)

    def update(self, batch) -> None:
        pass

    def figure(self) -> float:
        return math.nan


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("yolov7fast.evaluation.eval_outputs.draw_curves", lambda *_: None)
    monkeypatch.setattr("yolov7fast.training.logging.reporter.plot_results", lambda **_: None)


def start(*arguments: str) -> int:
    return run(parser_for("train").parse_args(arguments))


def test_a_run_stopped_in_validation_ends_with_the_same_weights_and_figures(tmp_path, shapes_small, monkeypatch):
    monkeypatch.setitem(FURTHER, "metrics/none", Interrupting)
    predicted = []  # batches that went through the network
    monkeypatch.setattr(loop, "_on_host", lambda *args, then=loop._on_host: predicted.append(args) or then(*args))
    folders = [tmp_path / "stopped", tmp_path / "whole"]
    for folder in folders:
        folder.mkdir()
    common = ("--epochs", "2", "--seed", "3", "--test-batch-size", "2")  # 8 images: 4 batches in a validation
    assert start(*small_run(folders[0], shapes_small, *common)) == 130
    assert len(predicted) == 1, "the other three batches were not waited for"
    runs = [folder / "runs" / "run" for folder in folders]
    progress = load_checkpoint(runs[0] / "weights" / "last.pt")["resume"]["progress"]
    assert (progress["epoch"], progress["batch_index"]) == (0, 4)
    assert start("--resume", str(runs[0])) == 0
    assert start(*small_run(folders[1], shapes_small, *common)) == 0
    assert_same_weights(*(run / "weights" / "epoch_001.pt" for run in runs))
    tables = [list(csv.DictReader((run / "results.csv").open())) for run in runs]
    for one, other in zip(*tables, strict=True):
        same = [name for name in one if name.startswith(("train/", "metrics/", "val/")) or name == "epoch"]
        assert {name: one[name] for name in same} == {name: other[name] for name in same}
        assert one["metrics/none"] == "", "what a validation could not measure stays empty"
