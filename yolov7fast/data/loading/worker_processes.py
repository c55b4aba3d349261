"""Loader worker processes: signals, memory, and their errors as messages that name the remedy.

Only the main process decides when a run stops. Ctrl-C, `kill` of a process group, systemd, Slurm and torchrun signal
every process of a run; a worker that obeyed would be gone before the main process has written its checkpoint.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from yolov7fast.core.errors import UserError
from yolov7fast.core.process.memory import keep_freed_memory
from yolov7fast.core.process.signals import ASKING

MEMORY = "use fewer --workers, a smaller --batch-size, or --cache-images disk instead of ram"
SHARED_MEMORY = (
    "start the container with a larger --shm-size (for example --shm-size 8g), use fewer --workers, or pass "
    "--worker-tensor, whose buffers do not live in /dev/shm"
)
OPEN_FILES = "raise the limit with `ulimit -n 65536`, use fewer --workers, or pass --worker-tensor, which opens none"


# --- start and end ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stopping_held_back() -> Iterator[None]:
    """Block stop signals while workers are forked, so that none reaches a worker before its handlers are set.

    Signals that arrive within the block are delivered to this process at its end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def set_up_worker(worker_id: int) -> None:
    """Prepare a new worker: it ignores stop signals, ends soon after its parent, and keeps freed memory."""
    for number in ASKING:
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()  # not getppid(): the parent may have been killed already
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent.pid,), daemon=True).start()
    keep_freed_memory()
    gc.freeze()  # the collector would write to every inherited object, which copies its memory page


def _exit_with(parent: int | None) -> None:
    """End this process soon after its parent has ended, even if the parent was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


# --- errors -----------------------------------------------------------------------------------------------------------


class WorkerFailure(NamedTuple):
    """What a worker sends instead of a batch when the user must act."""

    message: str


def failure_of(error: BaseException) -> WorkerFailure | None:
    """Return the failure to report for an error raised in a worker, None if the user cannot fix it."""
    if isinstance(error, UserError):
        return WorkerFailure(str(error))
    text = str(error)
    if isinstance(error, MemoryError) or "Insufficient memory" in text or "can't allocate memory" in text:
        return WorkerFailure(f"a data worker ran out of memory; {MEMORY}")
    if isinstance(error, OSError | RuntimeError):
        if "Too many open files" in text:
            return WorkerFailure(f"a data worker has too many open files; {OPEN_FILES}")
        if "shared memory" in text or "/torch_" in text or "No space left on device" in text:
            return WorkerFailure(f"a data worker found /dev/shm full; {SHARED_MEMORY}")
    return None


def death_of(processes: list) -> UserError:
    """Return the error for worker processes that ended without being told to."""
    for process in processes:
        process.join()
    pids = ", ".join(str(p.pid) for p in processes)
    codes = sorted({process.exitcode for process in processes})
    how = ", ".join(f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}" for code in codes)
    if "SIGBUS" in how:
        return UserError(f"data worker {pids} died for lack of shared memory ({how}); {SHARED_MEMORY}")
    return UserError(
        f"data worker {pids} died ({how}), usually because memory ran out: {MEMORY}; "
        "in a container, also raise its memory limit and --shm-size"
    )
