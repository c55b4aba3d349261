"""Heartbeats of the processes of a training: one that is stopped (SIGSTOP, a hanging driver) ends the others.

A process that dies closes its connections, which its peers notice at once. One that is stopped does not: the others
would wait in NCCL or, while rank 0 validates alone, for hours.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

BEATS = 10  # within the time after which a process counts as stopped
LAST_CALL = 5.0  # seconds
DONE = 1 << 40  # added to the count of a process that has left the run normally


class Heartbeat:
    """Two threads: one increments a counter in the processes' store and reads the others', one watches the first.

    The store is in rank 0 (or in torchrun): a call waits without a limit if that process is stopped.
    """

    def __init__(self, rank: int, size: int, start: str, seconds: float):
        """start: a name that all processes share and that differs for each start of the run: torchrun keeps its
        store."""
        self.rank, self.size, self.start, self.seconds = rank, size, start, seconds
        self.ended = threading.Event()
        self.last = time.monotonic()  # when the counts were read
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._beat, self._watch)]
        for thread in self.threads:
            thread.start()

    def _beat(self) -> None:
        seconds, own = timedelta(seconds=self.seconds), self.rank
        others = [rank for rank in range(self.size) if rank != own]
        counts, changed = dict.fromkeys(others, 0), dict.fromkeys(others, self.last)
        with contextlib.suppress(dist.DistStoreError, RuntimeError):  # rank 0 has ended: collectives fail, too
            library: Any = dist  # whose type stubs lack the public store classes
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = library.TCPStore(address, port, None, False, seconds, wait_for_workers=False)
            store = library.PrefixStore(f"alive/{self.start}", store)
            while not self.ended.wait(self.seconds / BEATS):
                store.add(str(own), 1)
                found, now = {rank: store.add(str(rank), 0) for rank in others}, time.monotonic()
                was_stopped = now - self.last > self.seconds / 2  # this process, or the one with the store
                for rank, count in found.items():
                    if count != counts[rank] or count >= DONE or was_stopped:
                        counts[rank], changed[rank] = count, now
                    elif now - changed[rank] > self.seconds:
                        self.leave(f"rank {rank} has not run")
                self.last = now
            store.add(str(own), DONE)

    def _watch(self) -> None:
        before = time.monotonic()
        while not self.ended.wait(self.seconds / BEATS):
            now = time.monotonic()
            if now - before > self.seconds / 2:  # this process was stopped itself
                self.last = now
            before = now
            if now - self.last > self.seconds:
                self.leave("rank 0 cannot be reached")

    def leave(self, reason: str) -> None:
        """End the process, whose main thread cannot be interrupted in a collective."""
        if self.ended.is_set():
            return
        line = f"error: rank {self.rank}: {reason} for {self.seconds / 60:g} minutes (--dist-timeout); read its "
        with contextlib.suppress(OSError):
            os.write(2, f"{line}own message, then resume with --resume\n".encode())
        os._exit(2)


@contextlib.contextmanager
def peers_watched(rank: int, size: int, start: str, minutes: float) -> Iterator[None]:
    """In the block, end this process with one line if one of `size` has not run for so many minutes."""
    heartbeat = Heartbeat(rank, size, start, 60 * minutes) if size > 1 else None
    try:
        yield
    finally:
        if heartbeat is not None:
            heartbeat.ended.set()
            heartbeat.threads[0].join(timeout=LAST_CALL)  # tells the others that this process leaves
