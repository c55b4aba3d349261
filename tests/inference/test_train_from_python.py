"""Training from Python: flags as keywords; folder and metrics of the run as the result."""

import pytest

import yolov7fast
from yolov7fast.cli.python_api import best_and_last, options_of
from yolov7fast.core.errors import UserError


def test_keywords_become_the_options_of_a_command_line(tmp_path):
    opt = options_of("yolo", {"epochs": 3, "img_size": (64, 96), "data": tmp_path / "d.yaml", "adam": True, "heads": 2})
    assert (opt.epochs, opt.img_size, opt.data, opt.adam) == (3, [64, 96], str(tmp_path / "d.yaml"), True)
    assert opt.given == ["adam", "data", "epochs", "heads", "img_size"] and opt.batch_size == 16
    run_file = tmp_path / "run.yaml"
    run_file.write_text("epochs: 7\nbatch_size: 2\n")
    opt = options_of("yolo", {"config": run_file, "epochs": 8})
    assert (opt.epochs, opt.batch_size) == (8, 2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"epoch": 3}, r"train\(\): unknown flag 'epoch'; did you mean 'epochs'\?"),
        ({"epochs": "many"}, r"train\(\): epochs must be int, not 'many'"),
        ({"adam": "yes"}, r"train\(\): adam is a switch"),
        ({"epochs": 0, "data": "data/shapes.yaml"}, "--epochs is 0; it must be at least 1"),
    ],
)
def test_mistakes_are_named_in_one_line(flags, message):
    with pytest.raises(UserError, match=message):
        yolov7fast.train(**flags)


def test_unknown_families_are_named():
    with pytest.raises(UserError, match="no family of detectors is called 'rcnn'"):
        yolov7fast.train(family="rcnn")


def test_metrics_are_those_of_the_best_and_the_last_epoch(tmp_path):
    names = "epoch,train/box,metrics/precision,metrics/recall,metrics/mAP_0.5,metrics/mAP_0.5:0.95"
    (tmp_path / "results.csv").write_text(f"{names}\r\n0,.5,.1,.1,.3,.2\r\n1,.4,.1,.1,.6,.4\r\n2,.3,,,,\r\n")
    best, last = best_and_last(tmp_path / "results.csv")
    assert best["epoch"] == 1 and best["metrics/mAP_0.5:0.95"] == 0.4
    assert last == {"epoch": 2.0, "train/box": 0.3}
    assert best_and_last(tmp_path / "nosuch.csv") == ({}, {})
