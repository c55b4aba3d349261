"""Locks that several processes share through a file. A holder that dies, however it dies, loses its lock at once."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None


class NoLocks(Exception):
    """This system, or the file system of the path, has no locks."""


@contextlib.contextmanager
def exclusive(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock file `path`; print `waiting` once if another process has it. The file is gone afterwards.

    Where there are no locks the block runs at once: writers rename whole files into place, so only work is done twice.
    """
    try:
        handle = try_lock(path)
        if handle is None:
            print(waiting, flush=True)
            handle = _lock(path, wait=True)
    except NoLocks:
        handle = None
        path.unlink(missing_ok=True)
    try:
        yield
    finally:
        if handle is not None:
            path.unlink(missing_ok=True)  # while still held: whoever waits on this file sees that it is gone
            os.close(handle)


def try_lock(path: Path, is_folder: bool = False) -> int | None:
    """Make the file or folder `path` if need be and lock it; None: another process, or thread, has the lock.

    The lock is held until the returned handle is closed.
    """
    try:
        return _lock(path, is_folder)
    except BlockingIOError:
        return None


def _lock(path: Path, is_folder: bool = False, wait: bool = False) -> int:
    """An open, locked file that is still the one called `path`: whoever had it before may have moved it away."""
    while True:
        if is_folder:
            path.mkdir(exist_ok=True)
        handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _flock(handle, wait)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _flock(handle: int, wait: bool) -> None:
    if fcntl is None:
        raise NoLocks
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError as error:
        raise NoLocks from error
