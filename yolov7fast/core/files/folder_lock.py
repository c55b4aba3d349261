"""One process at a time in a folder: whoever comes second learns who is there. A dead process's lock is taken over."""

import contextlib
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.file_lock import NoLocks, try_lock
from yolov7fast.core.text import printable

NAME = ".lock"
MOST = 200  # bytes read of another process's note
_held: set[int] = set()  # handles of this process


def _forget() -> None:
    """In a forked process, which would else keep the lock when the one that took it is killed."""
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class FolderLock:
    """The lock of a folder; as a context manager it is taken at once where the folder is there already.

    wanted: False makes it do nothing, for processes that write nothing. Where there are no locks it does nothing but
    leave its note.
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
                self.path.unlink()  # while still held: nobody has taken it yet
            _held.discard(self._handle)
            os.close(self._handle)
        self._handle = None

    def take(self) -> None:
        """Make the folder if need be and hold its lock, or name the process that does."""
        if not self.wanted or self._handle is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._handle = try_lock(self.path)
        except (NoLocks, OSError):  # a file system without locks, or one that is full or read-only: see what it says
            return
        if self._handle is None:
            raise UserError(
                f"{self.folder} is in use: {self._holder()} is training in it. Wait for it, stop it, or choose another "
                "folder with --name"
            )
        _held.add(self._handle)
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, 0)
            os.write(self._handle, f"process {os.getpid()} on {socket.gethostname()}, since {_now()}\n".encode())

    def renew(self) -> None:
        """Take the lock again if its file was removed, as with its folder."""
        if self._handle is not None and os.fstat(self._handle).st_nlink == 0:
            _held.discard(self._handle)
            os.close(self._handle)
            self._handle = None
            self.take()

    def _holder(self) -> str:
        try:
            with self.path.open("rb") as file:
                text = file.read(MOST).decode(errors="replace").strip()
        except OSError:
            text = ""
        return printable(text) or "another process"


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
