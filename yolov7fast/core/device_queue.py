"""The work that a host hands to a device: how long its parts take, and results read while further work is done.

CUDA does what it is handed later, in order. Whoever reads a result waits for all that was handed over before the read:
with one stream, for the next batch too. So results are read in a second stream, which waits for their own batch alone.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch


class DeviceQueue(Protocol):
    """What a device has been handed, from its user's side."""

    runs_ahead: bool  # whether a call may return before its work is done

    def mark(self) -> Any:
        """A place behind all that was handed over so far; `mark.elapsed_time(later)` in milliseconds once passed."""
        ...

    def beside(self, mark: Any) -> AbstractContextManager[None]:
        """Wait for what was handed over before the mark; the block's own work does not wait for what came after it.

        All of the block's work is done when it is left, however that is: tensors from outside that it reads may be
        freed then. Its own results must be brought to the host inside.
        """
        ...


class Moment:
    """The mark of a device that is waited for anyway; called as `torch.cuda.Event` is."""

    def __init__(self):
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: "Moment") -> float:
        """Milliseconds."""
        return (end.seconds - self.seconds) * 1e3


class HostQueue:
    """The CPU's: a call returns when its work is done, so there is nothing to run ahead of."""

    runs_ahead = False

    def mark(self) -> Moment:
        return Moment()

    @contextmanager
    def beside(self, mark: Moment) -> Iterator[None]:
        yield


class CudaQueue:
    """The current stream of a GPU, and a second one for reading results."""

    runs_ahead = True

    def __init__(self, device: torch.device):
        self.device = device
        # its small kernels go first: the host waits for them, while those of the main stream have been queued
        self.side = torch.cuda.Stream(device, priority=-1)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextmanager
    def beside(self, mark: torch.cuda.Event) -> Iterator[None]:
        mark.synchronize()
        try:
            with torch.cuda.stream(self.side):
                yield
        finally:
            self.side.synchronize()


def queue_of(device: torch.device) -> DeviceQueue:
    return CudaQueue(device) if device.type == "cuda" else HostQueue()
