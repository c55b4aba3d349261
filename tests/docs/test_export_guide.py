"""docs/export.md: its commands run, its figures and names are those of the code."""

import json
import re
from pathlib import Path

import onnx
import pytest

from benchmarks.inference import own_formats
from tests.docs.guide import ROOT, command_lines, run_line, write_workplace
from yolov7fast.inference.export.export_proof import BOUNDS, HALF_BOUNDS, ROUNDING_LIMIT
from yolov7fast.predictors.export_metadata import DETECTIONS, QUERIES
from yolov7fast.predictors.nms import MAX_DETECTIONS

TEXT = (ROOT / "docs" / "export.md").read_text()
ELSEWHERE = ("pip", "scripts/build_engine.sh", "benchmark", "benchmarks.")  # not for a test of seconds


def test_its_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_workplace(tmp_path)
    ran = []
    for words in command_lines("export.md"):
        if any(word.startswith(ELSEWHERE) for word in words):
            continue
        script = Path(words[1]).stem
        small = {"export": ("--img-size", "64"), "test": ("--workers", "0"), "detect": ("--conf-thres", "0.05")}
        run_line(words, monkeypatch, *small.get(script, ()))
        ran.append(script)
    assert ran == ["export", "detect_onnx", "test", "detect", "export"]
    assert "verified with onnxruntime" in capsys.readouterr().out
    assert (tmp_path / "result.jpg").is_file()
    model = onnx.load(tmp_path / "best.onnx")
    keys = {entry.key: entry.value for entry in model.metadata_props}
    listed = re.search(r"## Metadata\n(.*?)\n\n", TEXT, re.S)
    assert listed and set(re.findall(r"`([a-z_]+)`", listed[1].split("as JSON:")[1])) <= set(keys)
    assert json.loads(keys["names"])


@pytest.mark.slow
def test_its_benchmark_of_formats_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_workplace(tmp_path)
    (words,) = [words for words in command_lines("export.md") if own_formats.__name__ in words]
    own_formats.main([*words[3:], "--img-size", "64", "--runs", "1", "--threads", "1"])
    heads = "| format | MB | mAP@.5:.95 | ms, batch 1 | ms, batch 8 | largest difference |"
    assert heads in capsys.readouterr().out and heads in TEXT


def test_its_outputs_and_bounds_are_those_of_the_code():
    assert all(f"`{name}`" in TEXT for name in (*DETECTIONS, *QUERIES))
    assert f"by default {MAX_DETECTIONS}" in TEXT
    assert BOUNDS == (1e-3, 1e-4) and "**1e-3 px or 1e-4 of score**" in TEXT
    assert HALF_BOUNDS == (2.0, 0.05) and "allowed 2 px and 0.05" in TEXT
    assert ROUNDING_LIMIT == (0.05, 5e-4) and "up to 0.1 px\nand 1e-3" in TEXT
