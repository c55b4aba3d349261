"""The profiler: stages, ratio, files and a last line of advice; checked on one random batch."""

import json

import pytest

from tests import profile_training_loop as profiler

SMALL = ["--synthetic", "--img", "64", "--batch-size", "2", "--targets", "3", "--iters", "2", "--warm-iters", "1"]


def test_it_measures_both_losses_and_says_what_bounds_the_run(tmp_path, capsys):
    trace = tmp_path / "trace.json"
    arguments = [*SMALL, "--device", "cpu", "--compare-loss", "--output", str(tmp_path), "--trace", str(trace)]
    assert profiler.main(arguments) == 0
    text = capsys.readouterr().out
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert set(profile["by_loss"]) == {"plain", "ota"}
    for kind in profile["by_loss"].values():
        assert set(kind["stages"]) == set(profiler.STAGES)
        assert sum(stage["share"] for stage in kind["stages"].values()) == pytest.approx(1.0)
        assert kind["total_ms"] > 0 and kind["images_per_s"] > 0 and 0 < kind["gpu_busy"] < 1
        assert kind["operators"] > 1000
        assert kind["host_reads"] == 1  # a CPU may look at its loss at once; a GPU's step has none (test_step.py)
    assert "times one with the plain loss" in text
    assert text.strip().splitlines()[-1].startswith("This run is bound by")
    assert (tmp_path / "profile.png").stat().st_size > 5000
    assert json.loads(trace.read_text())["traceEvents"]


def test_advice_follows_the_largest_avoidable_share():
    def profile(**share):
        return {"stages": {name: {"share": value} for name, value in share.items()}}

    assert "--cache-images disk" in profiler.advice(profile(data=0.5, forward=0.4, loss=0.1))
    assert "the loss" in profiler.advice(profile(data=0.1, forward=0.4, loss=0.2, assignment=0.3))
    assert "USE_COMPILE" in profiler.advice(profile(data=0.1, forward=0.8, loss=0.1))
