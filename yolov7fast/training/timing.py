"""Times of the stages of an iteration, measured by CUDA events on a GPU and by a monotonic clock elsewhere."""

import time
from collections import defaultdict
from typing import Any

import torch

STAGES = ("data", "transfer", "forward", "assignment", "loss", "backward", "optimizer", "ema")


class NoTimer:
    """A timer that measures nothing."""

    def begin(self) -> None:
        """Start an iteration."""

    def mark(self, stage: str) -> None:
        """Close `stage`, which ran since the previous mark."""

    def add(self, stage: str, start: Any, end: Any) -> None:
        """A stage of the iteration to come, between two marks of `core.device.DeviceQueue`."""


NO_TIMER = NoTimer()


class StageTimer(NoTimer):
    """Collects milliseconds by stage and iteration. On CUDA the host does not wait before `totals` is called.

    `begin` opens an iteration; each `mark(stage)` closes the stage that ran since the previous mark. A stage marked
    more than once in an iteration is summed. After `follow`, the stages of all iterations add up to the time passed.
    """

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        self._host: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self._times = defaultdict(lambda: defaultdict(float)) if self.cuda else self._host
        self._pending: list[tuple[str, int, Any, Any]] = []  # stage, iteration, CUDA events of its begin and end
        self._iteration = 0
        self._last: tuple[float, Any] = 0.0, None  # host time and, with CUDA, event of the last mark
        self._following = False

    def _now(self) -> tuple[float, Any]:
        event = torch.cuda.Event(enable_timing=True) if self.cuda else None
        if event is not None:
            event.record()
        return time.perf_counter(), event

    def follow(self) -> None:
        """From now on the time from one iteration's last mark to the next `begin` is that iteration's stage `data`.

        Measured by the same clock as the other stages: on CUDA it is the gap in the device's work, which is zero while
        the host runs ahead, even if it waited for the loader. Only for a timer that sees every iteration.
        """
        self._following = True
        self._last = self._now()

    def begin(self) -> None:
        self._iteration += 1
        if self._following:
            self.mark("data")
        else:
            self._last = self._now()

    def mark(self, stage: str) -> None:
        now = self._now()
        self._host[stage][self._iteration] += (now[0] - self._last[0]) * 1e3
        if self.cuda:
            self._pending.append((stage, self._iteration, self._last[1], now[1]))
        self._last = now

    def add(self, stage: str, start: Any, end: Any) -> None:
        if self.cuda:
            self._pending.append((stage, self._iteration + 1, start, end))
        else:
            self._times[stage][self._iteration + 1] += start.elapsed_time(end)

    def totals(self) -> dict[str, list[float]]:
        """Milliseconds of every iteration, by stage; waits for the device once."""
        if self._pending:
            torch.cuda.synchronize()  # the only wait: after the loop
            for stage, iteration, start, end in self._pending:
                self._times[stage][iteration] += start.elapsed_time(end)
            self._pending.clear()
        return {stage: list(times.values()) for stage, times in self._times.items()}

    def host_totals(self) -> dict[str, list[float]]:
        """The same by the host's clock: on CUDA, how long the host needs to launch a stage."""
        return {stage: list(times.values()) for stage, times in self._host.items()}
