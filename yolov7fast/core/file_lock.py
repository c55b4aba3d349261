"""A lock that several processes on one machine share through a file."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: writers still rename whole files into place, so only work is done twice
    fcntl = None


@contextlib.contextmanager
def exclusive(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock file `path`; print `waiting` once if another process has it. The file is gone afterwards.

    A holder that dies, however it dies, loses the lock at once: the kernel closes its files.
    """
    handle = _acquire(path, waiting) if fcntl else None
    try:
        yield
    finally:
        if handle is not None:
            path.unlink(missing_ok=True)  # while still held: whoever waits on this file sees below that it is gone
            os.close(handle)


def _acquire(path: Path, waiting: str) -> int | None:
    """An open, locked file that is still the one called `path`; None where the file system has no locks."""
    told = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                print(waiting, flush=True)
            told = True
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            os.close(handle)
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)
