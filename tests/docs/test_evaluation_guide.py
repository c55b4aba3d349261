"""docs/evaluation.md: its Python runs, its lines are those that the commands print."""

import re
from pathlib import Path

import torch

from tests.mini_network import write_mini_weights
from yolov7fast.evaluation.eval_config import EvalConfig
from yolov7fast.evaluation.eval_loop import HEADER
from yolov7fast.evaluation.eval_outputs import SIZE_HEADER, print_thresholds
from yolov7fast.inference.detection_loop import describe

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "evaluation.md").read_text()


def test_the_python_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_mini_weights(tmp_path / "best.pt")
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    names: dict = {}
    exec(code, names)
    assert names["boxes"].shape[1] == 6


def test_the_lines_shown_are_those_printed(capsys):
    assert HEADER in TEXT and SIZE_HEADER in TEXT
    print_thresholds(EvalConfig(iou_thres=0.65), uses_nms=True)
    assert capsys.readouterr().out in TEXT
    assert describe(torch.zeros(0, 6), ["a"], 0.25) in TEXT
