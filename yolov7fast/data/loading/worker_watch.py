"""Noticing the death of torch's loader workers when a batch is awaited, and only then.

Torch's handler of SIGCHLD raises wherever the main process happens to be: in the middle of a training step, of a
checkpoint, of another loader. Here it may raise while a batch is awaited, where it ends a wait that could be endless.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import wait

from torch.utils.data._utils import signal_handling

_awaiting = False
_gated = False  # torch's handler is installed, behind the gate


def tame_torch_handler() -> None:
    """Install torch's handler, which it does once in a process, behind a gate. To be called before workers start."""
    global _gated
    if threading.current_thread() is not threading.main_thread() or _gated:
        return
    signal_handling._set_SIGCHLD_handler()
    handler = signal.getsignal(signal.SIGCHLD)
    if callable(handler):
        signal.signal(signal.SIGCHLD, lambda *args: handler(*args) if _awaiting else None)
    _gated = True


@contextlib.contextmanager
def awaiting_workers() -> Iterator[None]:
    """Within the block a worker's death is a `RuntimeError`."""
    global _awaiting
    _awaiting = True
    try:
        yield
    finally:
        _awaiting = False


def dead_workers(iterator, seconds: float = 0) -> list:
    """The worker processes of a torch iterator that have ended, given so many seconds to do so."""
    workers = getattr(iterator, "_workers", [])  # absent without workers
    ended = wait([w.sentinel for w in workers], timeout=seconds) if workers and seconds else []
    return [w for w in workers if w.sentinel in ended or not w.is_alive()]
