"""The data benchmark runs, and its stage table accounts for the whole sample."""

import json

import pytest
import yaml

import benchmarks.data.__main__ as command
from benchmarks.data.stages import STAGES, stage_table
from benchmarks.measure import in_turn
from benchmarks.photographs import ROOT
from yolov7fast.data.dataset import LoadImagesAndLabels


def test_stages_add_up_and_leave_the_functions_as_they_were(shapes_small, tmp_path):
    hyp = yaml.safe_load((ROOT / "data" / "hyp.scratch.p5.yaml").read_text())
    before = [getattr(module, name) for module, name, _ in STAGES]
    dataset = LoadImagesAndLabels(str(shapes_small / "images" / "train"), 96, augment=True, hyp=hyp, cache_dir=tmp_path)
    table = stage_table(lambda: [dataset[i] for i in range(16)], 16)
    total = table.pop("total")
    assert sum(table.values()) == pytest.approx(total)
    assert min(table[stage] for stage in ("decode", "warp", "colour", "labels", "rest")) > 0
    assert [getattr(module, name) for module, name, _ in STAGES] == before


def test_sides_run_in_turn_and_give_medians():
    calls = []
    values = iter([1.0, 10.0, 3.0, 30.0, 2.0, 20.0])

    def side(name):
        return lambda: calls.append(name) or next(values)

    assert in_turn({"a": side("a"), "b": side("b")}, 3) == {"a": 2.0, "b": 20.0}
    assert calls == ["a", "b"] * 3


def test_figures_are_written_as_json(tmp_path, capsys):
    only = ["--only", "first_epoch", "--only", "beside_upstream", "--images", "30"]
    assert command.main(["--quick", *only, "--json", str(tmp_path / "out.json")]) == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["runs"] == 3 and figures["first_epoch_images"] == 30 and "torch" in figures["machine"]
    assert all(row["value"] > 0 for row in figures["ratios"]) and len(figures["ratios"]) == 1
    assert "no --upstream DIR" in capsys.readouterr().out
