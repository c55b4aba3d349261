"""The stage timer: which clock, what belongs to which iteration, and stages that add up."""

from types import SimpleNamespace

import pytest
import torch

from yolov7fast.training import timing
from yolov7fast.training.timing import StageTimer


class Clock:
    """Stands in for both clocks: a number of milliseconds that the test moves, and events that remember it."""

    def __init__(self):
        self.now = 0.0
        self.events = self.waits = 0

    def perf_counter(self) -> float:
        return self.now / 1e3

    def Event(self, enable_timing: bool):
        assert enable_timing
        self.events += 1
        return Event(self)

    def synchronize(self) -> None:
        self.waits += 1


class Event:
    """A CUDA event: the device's time at which the stream reached it, known only after the device was waited for."""

    def __init__(self, clock: Clock):
        self.clock, self.at = clock, None

    def record(self) -> None:
        self.at = self.clock.now

    def elapsed_time(self, end: "Event") -> float:
        assert self.clock.waits, "asked before the device was done"
        return end.at - self.at


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", clock.perf_counter)
    monkeypatch.setattr(torch.cuda, "Event", clock.Event)
    monkeypatch.setattr(torch.cuda, "synchronize", clock.synchronize)
    return clock


def iterate(timer: StageTimer, clock: Clock, wait: float, *stages: tuple[str, float]) -> None:
    clock.now += wait
    timer.begin()
    for name, milliseconds in stages:
        clock.now += milliseconds
        timer.mark(name)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_stages_of_a_followed_loop_add_up_to_the_time_that_passed(clock, device):
    timer = StageTimer(torch.device(device))
    clock.now = 1000.0  # what happened before counts nowhere
    timer.follow()
    iterate(timer, clock, 7.0, ("forward", 20.0), ("loss", 2.0), ("assignment", 3.0), ("loss", 1.0))
    iterate(timer, clock, 0.5, ("forward", 21.0), ("loss", 4.0))
    times = timer.totals()
    assert {name: pytest.approx(values) for name, values in times.items()} == {
        "data": [7.0, 0.5],
        "forward": [20.0, 21.0],
        "loss": [3.0, 4.0],
        "assignment": [3.0],
    }
    assert sum(map(sum, times.values())) == pytest.approx(clock.now - 1000.0)


def test_a_device_is_waited_for_once_and_only_when_asked_for_the_totals(clock):
    timer = StageTimer(torch.device("cuda"))
    timer.follow()
    for _ in range(3):
        iterate(timer, clock, 1.0, ("forward", 2.0))
    assert clock.events == 7 and clock.waits == 0
    assert timer.totals() == timer.totals() == {"data": [1.0] * 3, "forward": [2.0] * 3}
    assert clock.waits == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_without_following_the_time_between_iterations_is_the_hosts_to_tell(clock, device):
    timer = StageTimer(torch.device(device))
    iterate(timer, clock, 50.0, ("forward", 2.0))
    timer.add("data", SimpleNamespace(elapsed_time=lambda end: 4.0), None)
    iterate(timer, clock, 50.0, ("forward", 3.0))
    assert timer.totals() == {"forward": pytest.approx([2.0, 3.0]), "data": [4.0]}
