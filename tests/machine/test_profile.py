"""The profiler: losses take turns batch by batch; stages, ratios, recorded times, files and a last line of advice."""

import json
from types import SimpleNamespace

import pytest
import torch

from yolov7fast.cli.commands import profile as profiler
from yolov7fast.core.errors import UserError
from yolov7fast.machine.profiler import FixedLoader, kernel_ms, measure, summarise
from yolov7fast.nn.heads import IAuxDetect
from yolov7fast.training.timing import STAGES

SMALL = ["--img", "64", "--batch-size", "2", "--targets", "3", "--iters", "2", "--warm-iters", "1"]
CPU = [*SMALL, "--device", "cpu"]


# --- the measured loop ------------------------------------------------------------------------------------------------


def fake_family(loader) -> SimpleNamespace:
    rates = SimpleNamespace(_replace=lambda **_: "rates")
    schedule = SimpleNamespace(rates=lambda *_: rates)
    return SimpleNamespace(loader=loader, schedule=schedule, assigner="")


class FakeStep:
    """Notes the loss and batch of each iteration; spends no time."""

    def __init__(self, family):
        self.family, self.seen = family, []

    def __call__(self, batch, global_step, rates, *timer):
        self.seen.append((self.family.assigner, len(timer), batch[0][0]))
        for t in timer:
            t.begin()
            t.mark("backward")

    def sync_metrics(self):
        pass


def test_losses_take_turns_and_one_is_not_charged_for_the_other(capsys, monkeypatch):
    now = iter(range(10_000))
    monkeypatch.setattr("yolov7fast.training.timing.time.perf_counter", lambda: next(now))
    family = fake_family(FixedLoader([([number], None) for number in range(3)]))
    step = FakeStep(family)
    profiles = measure(family, step, ("plain", "ota"), 3, 1, torch.device("cpu"))
    kinds = [kind for kind, _, _ in step.seen]
    assert kinds == ["plain", "ota", *["plain", "ota", "ota", "plain", "plain", "ota"]]
    assert [timed for _, timed, _ in step.seen] == [0] * 2 + [1] * 6
    assert [batch for _, _, batch in step.seen] == [0, 1, 2, 0, 1, 2, 0, 1]  # one loader serves both
    for profile in profiles.values():  # one tick of the clock for each stage of the loss's own iterations
        assert profile["iterations"] == 3 and set(profile["stages"]) == {"data", "backward"}
        assert profile["stages"]["data"]["mean_ms"] == pytest.approx(1e3)
    assert "8/8" in capsys.readouterr().err.splitlines()[-1]  # the bar ends complete


def test_a_profile_has_means_fractions_host_time_and_the_rate_of_images():
    times = {"data": [1.0, 3.0], "forward": [10.0, 10.0], "backward": [8.0, 8.0]}
    host = {"data": [5.0, 5.0], "forward": [2.0, 4.0], "backward": [1.0, 1.0]}
    profile = summarise(times, host, [4, 4])
    data = {"mean_ms": 2.0, "std_ms": 1.0, "fraction": pytest.approx(0.1), "host_ms": 5.0}
    assert profile["stages"]["data"] == data
    assert profile["total_ms"] == 20.0 and profile["host_ms"] == 4.0 and profile["iterations"] == 2
    assert profile["images_per_s"] == pytest.approx(200.0) and profile["gpu_busy"] == pytest.approx(0.9)


def test_the_gpu_time_counts_overlapping_kernels_once_and_no_annotations(monkeypatch):
    def event(start, end, kind="CUDA", note=False):
        span = SimpleNamespace(start=start, end=end)
        return SimpleNamespace(device_type=SimpleNamespace(name=kind), time_range=span, is_user_annotation=note)

    class Traced:
        def __init__(self, activities): ...
        def __enter__(self):
            return self

        def __exit__(self, *_): ...
        def events(self):
            return [event(0, 9000, "CPU"), event(0, 9000, note=True), event(1000, 3000), event(2000, 5000)]

    monkeypatch.setattr(torch.profiler, "profile", Traced)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert kernel_ms(lambda: None, 2) == 2.0


# --- the command ------------------------------------------------------------------------------------------------------


def test_it_measures_both_losses_next_to_the_recorded_times_and_names_the_bottleneck(tmp_path, capsys):
    assert profiler.main([*CPU, "--compare-loss", "--output", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    profile = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert set(profile["by_loss"]) == {"plain", "ota"}
    for kind in profile["by_loss"].values():
        assert set(kind["stages"]) == set(STAGES) - {"assignment"}
        assert sum(stage["fraction"] for stage in kind["stages"].values()) == pytest.approx(1.0)
        assert kind["total_ms"] > 0 and kind["images_per_s"] > 0 and 0 < kind["gpu_busy"] < 1
    assert "times one with the plain loss; the loss alone" in text and "on an RTX 5090" in text
    rows = [line.split() for line in text.splitlines() if len(line.split()) == 5]
    assert {(row[0], row[2], row[4]) for row in rows} >= {("loss", "11.2", "1016.0"), ("iteration", "170.9", "1174.1")}
    assert text.strip().splitlines()[-1].startswith("The bottleneck is")
    assert text.count("yolov7-tiny, batch 2, 64 pixels, cpu, ") == 2 and profile["network"] == "yolov7-tiny"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["profile.json"]


@pytest.mark.parametrize(("host", "limit"), [(25.0, "the host's launches limit"), (5.0, "the GPU's work limits")])
def test_host_time_and_gpu_time_are_shown_separately(host, limit):
    profile = summarise({"forward": [30.0]}, {"forward": [host]}, [4]) | {"kernel_ms": 15.0}
    text = profiler.table(profile, "title")
    assert f"{host:.2f}" in text.splitlines()[3] and "host ms" in text
    assert f"host time {host:.2f} ms, GPU time (kernels and copies) 15.00 ms" in text and limit in text
    assert "not known" in profiler.table(profile | {"kernel_ms": 0.0}, "title")


def test_a_folder_that_cannot_be_made_is_reported_before_anything_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(profiler, "build_step", lambda *_: pytest.fail("a network was built"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*below: Not a directory"):
        profiler.main(["--output", str(tmp_path / "file/below")])


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
