"""The timed loop: losses take turns batch by batch, and profiles have means, fractions and rates."""

from types import SimpleNamespace

import pytest
import torch

from yolov7fast.machine.profiler import FixedLoader, measure, summarise


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


def test_losses_take_turns_batch_by_batch_and_the_order_alternates(capsys):
    family = fake_family(FixedLoader([([number], None) for number in range(3)]))
    step = FakeStep(family)
    profiles = measure(family, step, ("plain", "ota"), 3, 1, torch.device("cpu"))
    kinds = [kind for kind, _, _ in step.seen]
    assert kinds == ["plain", "ota", *["plain", "ota", "ota", "plain", "plain", "ota"]]
    assert [timed for _, timed, _ in step.seen] == [0] * 2 + [1] * 6
    assert [batch for _, _, batch in step.seen] == [0, 1, 2, 0, 1, 2, 0, 1]  # one loader serves both
    for profile in profiles.values():
        assert profile["iterations"] == 3 and set(profile["stages"]) == {"data", "backward"}
    assert "8/8" in capsys.readouterr().err.splitlines()[-1]  # the bar ends complete


def test_one_iteration_of_the_other_loss_is_not_charged_as_waiting_for_data(monkeypatch):
    now = iter(range(10_000))
    monkeypatch.setattr("yolov7fast.training.timing.time.perf_counter", lambda: next(now))
    family = fake_family(FixedLoader([([0], None)]))
    profiles = measure(family, FakeStep(family), ("plain", "ota"), 4, 0, torch.device("cpu"))
    for profile in profiles.values():  # one tick of the clock for each stage of the loss's own iterations
        assert profile["stages"]["data"]["mean_ms"] == pytest.approx(1e3)


def test_a_profile_has_means_fractions_and_the_rate_of_images():
    times = {"data": [1.0, 3.0], "forward": [10.0, 10.0], "backward": [8.0, 8.0]}
    profile = summarise(times, [4, 4])
    assert profile["stages"]["data"] == {"mean_ms": 2.0, "std_ms": 1.0, "fraction": pytest.approx(0.1)}
    assert profile["total_ms"] == 20.0 and profile["iterations"] == 2
    assert profile["images_per_s"] == pytest.approx(200.0) and profile["gpu_busy"] == pytest.approx(0.9)
