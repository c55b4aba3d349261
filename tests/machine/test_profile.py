"""The profiler's command: stages, ratio, files and a last line of advice; checked on one random batch."""

import json
from types import SimpleNamespace

import pytest

from yolov7fast.cli.commands import profile as profiler
from yolov7fast.core.errors import UserError
from yolov7fast.nn.heads import IAuxDetect
from yolov7fast.training.timing import STAGES

SMALL = ["--img", "64", "--batch-size", "2", "--targets", "3", "--iters", "2", "--warm-iters", "1"]
CPU = [*SMALL, "--device", "cpu"]


def test_it_measures_both_losses_and_names_the_network_and_the_bottleneck(tmp_path, capsys):
    arguments = [*CPU, "--compare-loss", "--output", str(tmp_path / "out")]
    assert profiler.main(arguments) == 0
    text = capsys.readouterr().out
    profile = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert set(profile["by_loss"]) == {"plain", "ota"}
    for kind in profile["by_loss"].values():
        assert set(kind["stages"]) == set(STAGES) - {"assignment"}
        assert sum(stage["fraction"] for stage in kind["stages"].values()) == pytest.approx(1.0)
        assert kind["total_ms"] > 0 and kind["images_per_s"] > 0 and 0 < kind["gpu_busy"] < 1
    assert "times one with the plain loss; the loss alone" in text
    assert text.strip().splitlines()[-1].startswith("The bottleneck is")
    assert text.count("yolov7-tiny, batch 2, 64 pixels, cpu, ") == 2 and profile["network"] == "yolov7-tiny"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["profile.json"]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--iters", "0"], "--iters is 0; it must be at least 1"),
        (["--output", "FILE/below"], "--output: folder .* cannot be made"),
    ],
)
def test_mistakes_are_reported_before_anything_is_built(options, message, tmp_path, monkeypatch):
    monkeypatch.setattr(profiler, "load_data_yaml", lambda *_: pytest.fail("a data set was asked for"))
    monkeypatch.setattr(profiler, "build_step", lambda *_: pytest.fail("a network was built"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=message):
        profiler.main([option.replace("FILE", str(tmp_path / "file")) for option in options])


def test_a_network_without_a_plain_loss_cannot_be_compared(tmp_path, monkeypatch):
    family = SimpleNamespace(model=SimpleNamespace(model=[IAuxDetect.__new__(IAuxDetect)]))
    monkeypatch.setattr(profiler, "build_step", lambda *_: (family, None))
    with pytest.raises(UserError, match=r"--compare-loss: w6\.yaml has auxiliary heads"):
        profiler.main([*CPU, "--cfg", "w6.yaml", "--compare-loss", "--output", str(tmp_path)])


def test_advice_follows_the_largest_avoidable_fraction():
    def profile(**fractions):
        return {"stages": {name: {"fraction": value} for name, value in fractions.items()}}

    assert "--cache-images disk" in profiler.advice(profile(data=0.5, forward=0.4, loss=0.1))
    assert "the loss" in profiler.advice(profile(data=0.1, forward=0.4, loss=0.5))
    assert "USE_COMPILE" in profiler.advice(profile(data=0.1, forward=0.8, loss=0.1))
