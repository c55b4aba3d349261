"""Locks that processes share through a file or folder. A process that dies loses its locks at once.

Not the library filelock: it truncates the file that it locks (temporary files of `core.files.atomic` are locked
themselves), and a forked worker would keep the lock of a killed process.
"""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from yolov7fast.core.errors import UserError
from yolov7fast.core.text import printable

NAME = ".lock"  # of the lock file in a folder
MOST_BYTES = 200  # read of another process's note
_held: set[int] = set()  # file descriptors of this process's folder locks


class NoLocks(Exception):
    """The file system of the path has no locks."""


def try_lock(path: Path, is_folder: bool = False, wait: bool = False) -> int | None:
    """Create the file or folder `path` if needed and lock it; the lock is held until the returned handle is closed.

    None if another process or thread has the lock, unless `wait`. Raises `NoLocks`.
    """
    while True:
        if is_folder:
            path.mkdir(exist_ok=True)
        handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            with contextlib.suppress(FileNotFoundError):
                # the previous holder may have renamed or removed the file meanwhile: then lock the new one
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError as error:
            os.close(handle)
            raise NoLocks from error
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


@contextlib.contextmanager
def exclusive(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock file `path`; print `waiting` once if another process has it. The file is removed afterwards.

    Without locks the block runs at once: writers rename complete files into place, so only work is repeated.
    """
    try:
        handle = try_lock(path)
        if handle is None:
            print(waiting, flush=True)
            handle = try_lock(path, wait=True)
    except NoLocks:
        handle = None
        path.unlink(missing_ok=True)
    try:
        yield
    finally:
        if handle is not None:
            path.unlink(missing_ok=True)  # while still held, so that processes waiting for this file notice
            os.close(handle)


def _close_inherited() -> None:
    """Close the folder locks in a forked process, which would otherwise keep them when their owner is killed."""
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited)


class FolderLock:
    """The lock of a run's folder. As a context manager it is taken at once if the folder exists.

    wanted: False disables it, for processes that write nothing. Without locks in the file system it has no effect.
    """

    def __init__(self, folder: Path, wanted: bool = True):
        self.folder, self.path, self.wanted = folder, folder / NAME, wanted
        self._handle: int | None = None

    def __enter__(self) -> "FolderLock":
        if self.wanted and self.folder.is_dir():
            self.take()
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()  # while still held
            self._release()

    def _release(self) -> None:
        if self._handle is not None:
            _held.discard(self._handle)
            os.close(self._handle)
        self._handle = None

    def take(self) -> None:
        """Create the folder if needed and take its lock; the error names the process that has it."""
        if not self.wanted or self._handle is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._handle = try_lock(self.path)
        except (NoLocks, OSError):  # no locks, or a full or read-only disk, which the next write reports
            return
        if self._handle is None:
            raise UserError(
                f"{self.folder} is in use: {self._holder()} is training in it. Wait for it, stop it, or choose another "
                "folder with --name"
            )
        _held.add(self._handle)
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, 0)
            now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
            os.write(self._handle, f"process {os.getpid()} on {socket.gethostname()}, since {now}\n".encode())

    def renew(self) -> None:
        """Take the lock again if its file was removed, for example with its folder."""
        if self._handle is not None and os.fstat(self._handle).st_nlink == 0:
            self._release()
            self.take()

    def _holder(self) -> str:
        try:
            with self.path.open("rb") as file:
                text = file.read(MOST_BYTES).decode(errors="replace").strip()
        except OSError:
            text = ""
        return printable(text) or "another process"
