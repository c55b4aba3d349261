"""Where the time of an iteration goes: named stages, by CUDA events on a GPU and by a monotonic clock elsewhere."""

import time
from collections import defaultdict

import torch

STAGES = ("data", "transfer", "forward", "loss", "backward", "optimizer", "ema")


class StageTimer:
    """Collects milliseconds by stage. On CUDA nothing is waited for until `totals` is asked for.

    `begin` opens an iteration; each `mark(stage)` closes the stage that ran since the mark before it.
    """

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        self._times: dict[str, list[float]] = defaultdict(list)
        self._pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._last = None

    def _now(self):
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        self._last = self._now()

    def mark(self, stage: str) -> None:
        now = self._now()
        if self.cuda:
            self._pending.append((stage, self._last, now))
        else:
            self._times[stage].append((now - self._last) * 1e3)
        self._last = now

    def add(self, stage: str, milliseconds: float) -> None:
        """A stage that was measured by the host, such as waiting for data."""
        self._times[stage].append(milliseconds)

    def totals(self) -> dict[str, list[float]]:
        """Milliseconds of every iteration, by stage; waits for the device once."""
        if self._pending:
            torch.cuda.synchronize()  # the one wait: after the loop
            for stage, start, end in self._pending:
                self._times[stage].append(start.elapsed_time(end))
            self._pending.clear()
        return dict(self._times)


class NoTimer:
    """Stands in where nothing is to be measured."""

    def begin(self) -> None:
        pass

    def mark(self, stage: str) -> None:
        pass
