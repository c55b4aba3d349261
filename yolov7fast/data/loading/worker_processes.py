"""Errors of loader workers as messages that say what the user can do."""

import signal
from typing import NamedTuple

from yolov7fast.core.errors import UserError

MEMORY = "use fewer --workers, a smaller --batch-size, or --cache-images disk instead of ram"
SHARED_MEMORY = (
    "start the container with a larger --shm-size (for example --shm-size 8g), use fewer --workers, or pass "
    "--worker-tensor, whose buffers do not live in /dev/shm"
)
OPEN_FILES = "raise the limit with `ulimit -n 65536`, use fewer --workers, or pass --worker-tensor, which opens none"


class Failure(NamedTuple):
    """What a worker sends instead of a batch when the user must act."""

    message: str


def failure_of(error: BaseException) -> Failure | None:
    """The failure to report for an error raised in a worker; None if it is nothing the user can fix."""
    if isinstance(error, UserError):
        return Failure(str(error))
    text = str(error)
    if isinstance(error, MemoryError) or "Insufficient memory" in text or "can't allocate memory" in text:
        return Failure(f"a data worker ran out of memory; {MEMORY}")
    if isinstance(error, OSError | RuntimeError):
        if "Too many open files" in text:
            return Failure(f"a data worker has too many open files; {OPEN_FILES}")
        if "shared memory" in text or "/torch_" in text or "No space left on device" in text:
            return Failure(f"a data worker found /dev/shm full; {SHARED_MEMORY}")
    return None


def death_of(processes: list) -> UserError:
    """The error for worker processes that have ended by themselves."""
    for process in processes:
        process.join()
    pids = ", ".join(str(p.pid) for p in processes)
    how = ", ".join(sorted({how_it_ended(p.exitcode) for p in processes}))
    if "SIGBUS" in how:
        return UserError(f"data worker {pids} died for lack of shared memory ({how}); {SHARED_MEMORY}")
    return UserError(
        f"data worker {pids} died ({how}), as a rule because memory ran out: {MEMORY}; "
        "in a container, also raise its memory limit and --shm-size"
    )


def how_it_ended(exitcode: int | None) -> str:
    """A process's exit code as text; negative codes are signals."""
    if exitcode is not None and exitcode < 0:
        return f"killed by {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"
