"""Atomic writing: a kill, a full disk or a power failure leaves the old content or the new, never a part of it.

The content is written to a hidden temporary file in the same folder, flushed to the disk, and renamed. A temporary file
is locked by its writer; one without a lock was left by a killed process, and the next write to the same path reuses it.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

from yolov7fast.core.errors import UserError
from yolov7fast.core.files.locks import NoLocks, try_lock

REMEDY = "free some space, or choose a folder that exists and can be written"
LONGEST = 60  # characters of a name kept in a temporary one: a file name has at most 255 bytes, a character 4
ABANDONED = re.compile(r"\..+\.tmp(\.\w+)?")  # names of temporary files


class Replacement:
    """A temporary file that `commit` puts in the place of `path`, or `discard` removes. See `atomic_path`.

    As a context manager it is discarded at the end unless it was committed.
    """

    def __init__(self, path: str | Path, suffix: str = "", durable: bool = True, remedy: str = REMEDY):
        self.path, self.durable, self.remedy = path, durable, remedy
        self._target = Path(os.path.realpath(path))
        with as_user_error(path, remedy):
            self.temporary, self._lock = _claim(self._target, suffix)
        self._open = True

    def __enter__(self) -> "Replacement":
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def fill(self, write: Callable[[Path], Any]) -> None:
        """Call `write` with the temporary path, and wait until the content is on the disk."""
        try:
            with as_user_error(self.path, self.remedy):
                write(self.temporary)
                self.flush()
        except BaseException:
            self.discard()
            raise

    def flush(self) -> None:
        if self.durable:
            _flush(self.temporary)

    def commit(self) -> None:
        """Rename the temporary file to `path`."""
        try:
            with as_user_error(self.path, self.remedy):
                same = self._target.exists() and os.path.samefile(self.temporary, self._target)
                os.replace(self.temporary, self._target)
                self._open = same  # two names of one file: then rename does nothing
                if self.durable:
                    _flush(self._target.parent)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the temporary file if it still exists, and release its lock."""
        if self._open:
            with suppress(OSError):
                self.temporary.unlink()
        self._open = False
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


@contextmanager
def atomic_path(path: str | Path, *, suffix: str = "", durable: bool = True, remedy: str = REMEDY) -> Iterator[Path]:
    """A temporary path that is renamed to `path` when the block ends without error, and removed otherwise.

    suffix: of the temporary name, for writers that choose a format by it. durable: wait until the content is on the
    disk; False for many small files that can be recreated. The target of a symbolic link is replaced, not the link.
    An OSError becomes a `UserError` with `remedy`, so the block should only write.
    """
    with Replacement(path, suffix, durable, remedy) as replacement:
        with as_user_error(path, remedy):
            yield replacement.temporary
            replacement.flush()
        replacement.commit()


@contextmanager
def atomic_file(path: str | Path, mode: str = "wb", **options: Any) -> Iterator[IO]:
    """An open file that replaces `path` when the block ends without error; options: see `atomic_path`.

    mode: `wb`, or `w` for UTF-8 text without conversion of line ends.
    """
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "")
    with atomic_path(path, **options) as temporary, open(temporary, mode, encoding=encoding, newline=newline) as file:
        yield file


def write_atomically(path: str | Path, content: str | bytes, **options: Any) -> None:
    """Replace the content of a file atomically; options: see `atomic_path`."""
    with atomic_path(path, **options) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def link_or_copy(source: Path, path: Path) -> None:
    """Make `path` a hard link to `source`, or a copy if the file system has no hard links."""
    with atomic_path(path) as temporary:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)


@contextmanager
def atomic_folder(path: str | Path, remedy: str = REMEDY) -> Iterator[Path]:
    """An empty folder that replaces `path` when the block ends without error."""
    target = Path(os.path.realpath(path))
    with as_user_error(path, remedy):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary, handle = _claim(target, is_folder=True)
        try:
            yield temporary
            old = temporary.with_suffix(".old")
            if target.exists():
                shutil.rmtree(old, ignore_errors=True)
                os.replace(target, old)
            os.replace(temporary, target)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            if handle is not None:
                os.close(handle)


@contextmanager
def as_user_error(path: str | Path, remedy: str = REMEDY) -> Iterator[None]:
    """Convert an OSError in the block into a UserError: `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; {remedy}") from error


def _claim(target: Path, suffix: str = "", is_folder: bool = False) -> tuple[Path, int | None]:
    """An empty temporary file or folder next to the target that no other writer has locked, and its lock."""
    stem = f".{target.name[:LONGEST]}"
    attempts = count(2)
    temporary = target.with_name(f"{stem}.tmp{suffix}")
    try:
        while (handle := _try_unshared(temporary, is_folder)) is None:
            temporary = target.with_name(f"{stem}.{next(attempts)}.tmp{suffix}")
    except NoLocks:  # other writers cannot be detected: use a unique name, which a kill leaves behind
        with suppress(OSError):
            temporary.rmdir() if is_folder else temporary.unlink()
        temporary, handle = target.with_name(f"{stem}.{os.getpid()}.tmp{suffix}"), None
    if is_folder:
        temporary.mkdir(exist_ok=True)
        for left in temporary.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    else:
        temporary.write_bytes(b"")
    return temporary, handle


def _try_unshared(temporary: Path, is_folder: bool) -> int | None:
    """Lock a temporary file, after replacing one that is a hard link to another file."""
    handle = try_lock(temporary, is_folder)
    if handle is not None and not is_folder and os.fstat(handle).st_nlink > 1:
        # left by a killed `link_or_copy`: a link to a complete file, which must not be written to
        temporary.unlink()
        os.close(handle)
        handle = try_lock(temporary)
    return handle


def clear_abandoned(folder: Path) -> None:
    """Remove the temporary files of killed writers from a folder."""
    for path in folder.glob(".*") if folder.is_dir() else ():
        if not ABANDONED.fullmatch(path.name) or not path.is_file():
            continue
        with suppress(OSError, NoLocks):
            handle = try_lock(path)
            if handle is not None:
                path.unlink()
                os.close(handle)


def _flush(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
