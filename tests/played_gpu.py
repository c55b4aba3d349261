"""A GPU that is played: streams with clocks instead of kernels, so that a test can say what waits for what."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


class PlayedGpu:
    """Stands where `torch.cuda` has its streams and events. All times in milliseconds."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.now = 0.0  # the host's clock
        self.main = self.current = PlayedStream(self)
        patch.setattr(torch.cuda, "Stream", lambda device, priority: PlayedStream(self, priority))
        patch.setattr(torch.cuda, "Event", lambda enable_timing: PlayedEvent(self))
        patch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        patch.setattr(torch.cuda, "stream", self.chosen)

    @contextmanager
    def chosen(self, stream: "PlayedStream") -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def queue(self, ms: float) -> None:
        """Work for the device: it begins when the stream's earlier work is done."""
        self.current.free = max(self.current.free, self.now) + ms

    def read(self) -> None:
        """The host waits for the stream."""
        self.now = max(self.now, self.current.free)

    def compute(self, ms: float) -> None:
        """The host's own work."""
        self.now += ms


class PlayedStream:
    def __init__(self, gpu: PlayedGpu, priority: int = 0):
        self.gpu, self.priority = gpu, priority
        self.free = 0.0  # when its work is done

    def synchronize(self) -> None:
        self.gpu.now = max(self.gpu.now, self.free)


class PlayedEvent:
    def __init__(self, gpu: PlayedGpu):
        self.gpu = gpu

    def record(self, stream: PlayedStream) -> None:
        self.at = max(stream.free, self.gpu.now)

    def synchronize(self) -> None:
        self.gpu.now = max(self.gpu.now, self.at)

    def elapsed_time(self, end: "PlayedEvent") -> float:
        return end.at - self.at
