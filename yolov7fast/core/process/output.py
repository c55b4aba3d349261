"""Output of a run: copied to a log in its folder, and never a reason for the run to fail.

A closed pipe (`| head`), a full disk under a redirected output or a closed terminal ends the stream, not the run.
"""

import contextlib
import logging
import os
import re
import select
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from yolov7fast.core.text import styled

BAR_SECONDS = 60.0  # a progress bar's state becomes a line of the log this often, and at its end
MOST_PENDING = 1_000_000  # characters kept for a log that cannot be written yet
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # what moves the cursor or colours a terminal
_LOCK = threading.RLock()
_STDERR_LOCK = threading.RLock()


class _Coloured(logging.Formatter):
    """Formats warnings in colour on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return styled(text, "warning", sys.stderr) if record.levelno == logging.WARNING else text


def log_to_stderr(level: int = logging.INFO) -> None:
    """Show log messages of this level and above, unless logging is set up already."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Coloured())
    logging.basicConfig(level=level, handlers=[handler])


@contextlib.contextmanager
def logging_at(level: int, *loggers: str) -> Iterator[None]:
    """Set the level of these loggers inside the block."""
    found = [logging.getLogger(name) for name in loggers]
    levels = [logger.level for logger in found]
    try:
        for logger in found:
            logger.setLevel(level)
        yield
    finally:
        for logger, before in zip(found, levels):
            logger.setLevel(before)


def _renew_locks() -> None:
    """In a forked process: a thread of the parent may have held the locks."""
    global _LOCK, _STDERR_LOCK
    _LOCK, _STDERR_LOCK = threading.RLock(), threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)


def open_closed_streams() -> None:
    """Open the null device for closed descriptors 0, 1 and 2 (`command >&-`).

    Otherwise the next file that is opened would take the descriptor and receive the output.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free


def give_up(stream: TextIO | None) -> None:
    """Redirect a stream that cannot be written to the null device, so that flushing its buffer does not fail."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # pyright: ignore[reportOptionalMemberAccess]
        os.close(null)


def output_is_lost() -> bool:
    """Whether stdout or stderr can no longer be written; such a stream is redirected to the null device."""
    lost = False
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is None:
                continue
            stream.flush()
            if not _has_no_reader(stream.fileno()):
                continue
        except (OSError, ValueError):
            pass
        give_up(stream)
        lost = True
    return lost


def _has_no_reader(descriptor: int) -> bool:
    """Whether it is a pipe whose other end is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def print_if_possible(text: str, stream: TextIO | None) -> None:
    """Print the final message if the stream is still open."""
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError):
        give_up(stream)


class Log:
    """A file to which lines are appended. Text that cannot be written is kept for the next attempt."""

    def __init__(self):
        self.path: Path | None = None
        self._pending = ""

    def add(self, line: str) -> None:
        self._pending = (self._pending + line)[-MOST_PENDING:]
        if self.path is not None:
            with contextlib.suppress(OSError), open(self.path, "ab", buffering=0) as file:
                written = file.write(self._pending.encode(errors="replace"))
                self._pending = self._pending.encode(errors="replace")[written:].decode(errors="replace")


class Stream:
    """Writes to a stream while that works, and to the log, without the text that a terminal would overwrite."""

    def __init__(self, original: TextIO | None, log: Log, prefix: str):
        self._original, self._log, self._prefix = original, log, prefix
        self._lost = original is None
        self._line = ""
        self._bar_at = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def isatty(self) -> bool:
        return not self._lost and getattr(self._original, "isatty", bool)()

    def write(self, text: str) -> int:
        with _LOCK:
            self._keep(text)
            self._try("write", text)
        return len(text)

    def flush(self) -> None:
        with _LOCK:
            self._try("flush")

    def _try(self, action: str, *arguments: str) -> None:
        if self._lost:
            return
        try:
            getattr(self._original, action)(*arguments)
        except BlockingIOError:
            pass  # the reader is too slow: this text is dropped
        except (OSError, ValueError) as error:
            self._lost = True
            give_up(self._original)
            reason = error.strerror if isinstance(error, OSError) else error
            self._log.add(f"{self._prefix}the output is lost ({reason}): the run continues, this log has everything\n")

    def _keep(self, text: str) -> None:
        """Log complete lines, and the state of a line that is overwritten (a progress bar) every BAR_SECONDS."""
        for part in re.split(r"(\r\n|\r|\n)", CONTROL.sub("", text)):
            if part in ("\n", "\r\n"):
                self.end_line()
            elif part == "\r":
                if self._line.strip() and time.monotonic() - self._bar_at >= BAR_SECONDS:
                    self.end_line()
                self._line = ""
            else:
                self._line += part

    def end_line(self) -> None:
        self._log.add(f"{self._prefix}{self._line.rstrip()}\n")
        self._line, self._bar_at = "", time.monotonic()

    def finish(self) -> None:
        if self._line.strip():
            self.end_line()


class RunOutput:
    """stdout and stderr of a run; `keep_log` names the log once the run has a folder. prefix: of its lines there."""

    def __init__(self, prefix: str = ""):
        self.log, self.prefix = Log(), prefix
        self.before: tuple[Any, Any] = (sys.stdout, sys.stderr)
        self.streams: tuple[Any, ...] = tuple(Stream(original, self.log, prefix) for original in self.before)

    def keep_log(self, path: Path, heading: str = "") -> None:
        """Append all output to a file from now on, beginning with what was printed before."""
        if self.log.path == path:
            return
        self.log.path = path
        with _LOCK:
            pending, self.log._pending = self.log._pending, ""
            self.log.add(f"{self.prefix}{heading}\n{pending}" if heading else pending)

    def note(self, text: str) -> None:
        """Write lines to the log only."""
        with _LOCK:
            self.log.add("".join(f"{self.prefix}{line}\n" for line in text.splitlines()))


@contextlib.contextmanager
def run_output(prefix: str = "") -> Iterator[RunOutput]:
    """Inside the block prints, logging and progress bars also go to the run's log, and a lost stream is no error."""
    output = RunOutput(prefix)
    sys.stdout, sys.stderr = output.streams
    _redirect_logging(output.before[1], output.streams[1])
    try:
        yield output
    finally:
        for stream in output.streams:
            stream.finish()
        sys.stdout, sys.stderr = output.before
        _redirect_logging(output.streams[1], output.before[1])
        output.log.path = None


def _redirect_logging(old: Any, new: Any) -> None:
    """Replace the stream in handlers of the logging module, which keep the one they were created with."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old and new is not None:
            handler.setStream(new)


@contextlib.contextmanager
def stderr_lines_caught(wanted: Callable[[str], bool]) -> Iterator[list[str]]:
    """Collect the lines that C libraries print to stderr and for which `wanted` is true, instead of printing them.

    Works on the file descriptor, since C code does not use `sys.stderr`. Other lines that any thread writes meanwhile
    are printed when the block ends.
    """
    lines: list[str] = []
    with _STDERR_LOCK:
        try:
            terminal = os.dup(2)
        except OSError:  # no stderr, as in a service
            yield lines
            return
        with tempfile.TemporaryFile() as caught:
            _flush_stderr()
            os.dup2(caught.fileno(), 2)
            try:
                yield lines
            finally:
                _flush_stderr()
                os.dup2(terminal, 2)
                os.close(terminal)
                caught.seek(0)
                for line in caught.read().decode(errors="replace").splitlines(keepends=True):
                    if wanted(line):
                        lines.append(line.strip())
                    else:
                        with contextlib.suppress(OSError):  # stderr is lost
                            os.write(2, line.encode())


def _flush_stderr() -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is lost or missing
        sys.stderr.flush()
