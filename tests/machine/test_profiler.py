"""The timed loop: losses take turns batch by batch, the bar ends complete, losses stay as they were."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch

from yolov7fast.profiling import measure as profiling
from yolov7fast.profiling.synthetic import FixedLoader


class Loss:
    def plan(self):
        return "planned"

    match = plan


def fake_family(loader) -> SimpleNamespace:
    rates = SimpleNamespace(_replace=lambda **_: "rates")
    schedule = SimpleNamespace(rates=lambda *_: rates)
    return SimpleNamespace(loader=loader, losses={"plain": Loss(), "ota": Loss()}, schedule=schedule, assigner="")


class FakeStep:
    """Notes the loss and batch of each iteration; spends no time."""

    def __init__(self, family):
        self.family, self.seen = family, []

    def __call__(self, batch, global_step, rates, *timer):
        self.seen.append((self.family.assigner, len(timer), batch[0][0]))
        for t in timer:
            t.begin()
            self.family.losses[self.family.assigner].match()
            t.mark("backward")

    def sync_metrics(self):
        pass


def test_losses_take_turns_batch_by_batch_and_the_order_alternates(capsys):
    family = fake_family(FixedLoader([([number], None) for number in range(3)]))
    step = FakeStep(family)
    opt = Namespace(warm_iters=1, iters=3)
    profiles = profiling.measure(family, step, ("plain", "ota"), opt, torch.device("cpu"))
    kinds = [kind for kind, _, _ in step.seen]
    assert kinds == ["plain", "ota", *["plain", "ota", "ota", "plain", "plain", "ota"], "plain", "ota"]
    assert [timed for _, timed, _ in step.seen] == [0] * 2 + [1] * 6 + [0] * 2
    assert [batch for _, _, batch in step.seen] == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]  # one loader serves both
    for profile in profiles.values():
        assert profile["iterations"] == 3 and set(profile["stages"]) == {"data", "assignment", "loss", "backward"}
    assert "10/10" in capsys.readouterr().err.splitlines()[-1]  # the bar ends complete


def test_one_iteration_of_the_other_loss_is_not_charged_as_waiting_for_data(monkeypatch):
    now = iter(range(10_000))
    monkeypatch.setattr("yolov7fast.training.timing.time.perf_counter", lambda: next(now))
    family = fake_family(FixedLoader([([0], None)]))
    profiles = profiling.measure(
        family, FakeStep(family), ("plain", "ota"), Namespace(warm_iters=0, iters=4), torch.device("cpu")
    )
    for profile in profiles.values():  # one tick of the clock for each stage of the loss's own iterations
        assert profile["stages"]["data"]["mean_ms"] == pytest.approx(1e3)


def test_the_losses_are_as_they_were_after_the_measurement():
    marks, losses = [], [Loss(), Loss()]
    with profiling.timed_assignment(losses, [SimpleNamespace(mark=marks.append)] * 2):
        assert losses[1].match() == "planned"
    assert marks == ["loss", "assignment"]
    assert losses[1].plan() == "planned" and len(marks) == 2
    assert not vars(losses[0]) and not vars(losses[1])
