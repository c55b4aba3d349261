"""`python -m models.yolo`: the table of layers, and the count of operations."""

import subprocess
import sys

from tests.nn.parity import CFG
from yolov7fast.nn.model import Model
from yolov7fast.nn.summary import count_gflops, main


def test_table_of_layers(monkeypatch, capsys):
    cfg = CFG / "training" / "yolov7-tiny.yaml"
    monkeypatch.setattr(sys, "argv", ["yolo", "--cfg", str(cfg), "--img-size", "320"])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 78 + 1
    assert lines[0].split() == ["layer", "from", "module", "parameters", "GFLOPs", "output"]
    assert lines[1].split() == ["0", "-1", "models.common.Conv", "928", "0.044", "32x160x160"]
    assert lines[78].endswith("3x40x40x85 3x20x20x85 3x10x10x85")
    assert lines[-1] == f"{cfg}: 78 layers, 6,228,762 parameters, 3.4 GFLOPs at 320x320"


def test_command_tells_a_mistake_in_one_line():
    command = [sys.executable, "-m", "models.yolo", "--cfg", "nowhere.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CFG.parent, timeout=200)
    assert done.returncode == 2
    assert done.stderr.startswith("error: nowhere.yaml cannot be read")
    assert len(done.stderr.splitlines()) == 1


def test_operations_as_counted_by_hand():
    head = [[[0], 1, "Detect", ["nc", "anchors"]]]
    model = Model({"nc": 1, "anchors": [[1, 2]], "backbone": [[-1, 1, "Conv", [8, 3, 2]]], "head": head})
    # 3x3 from 3 to 8 channels and 1x1 from 8 to 6, on 32 x 32 cells, two operations each
    assert count_gflops(model, 64) * 1e9 == 2 * 32 * 32 * (8 * 3 * 9 + 6 * 8)
