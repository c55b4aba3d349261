"""Signals and the processes of a loader: the main process alone decides when a run stops.

Ctrl-C, `kill` of a process group, systemd, Slurm and torchrun signal every process of a run. A worker that obeyed would
be gone before the main process has finished its step and written its checkpoint.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator

from yolov7fast.core.process.signals import ASKING


@contextlib.contextmanager
def stopping_held_back() -> Iterator[None]:
    """While workers are forked: they begin with these signals blocked, so none can meet them unprepared.

    What arrives meanwhile is delivered to this process at the end of the block.
    """
    if not hasattr(signal, "pthread_sigmask"):  # a system that cannot fork
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_stopping_to_main() -> None:
    """In a new worker: stop when the main process says so, or soon after it is gone, and not for a signal."""
    for number in ASKING:
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()  # not getppid(): it may have been killed before we got here
    if parent is not None:
        threading.Thread(target=_leave_with, args=(parent.pid,), daemon=True).start()


def _leave_with(parent: int | None) -> None:
    """End this process soon after its parent has ended, even if the parent was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
