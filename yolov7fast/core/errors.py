"""How a user's mistake is reported: one line, no traceback, exit code 2; and how values are shown in such a line."""

import errno
import io
import os
import reprlib
import signal
import sys
from collections.abc import Callable
from typing import Any

from yolov7fast.core.process import signals
from yolov7fast.core.process.output import open_closed_streams, output_is_lost, print_if_possible
from yolov7fast.core.text import printable, styled

LONGEST = 500  # characters of a reported line
MORE_MEMORY = "use a smaller --batch-size or --img-size, end other programs, or raise the limit (ulimit -v)"
SIGNS_OF_LITTLE_MEMORY = (
    *("an't allocate memory", "annot allocate memory", "Insufficient memory", "out of memory", "std::bad_alloc"),
    *("can't start new thread", "failed to map segment", "Failed to allocate"),
)
OF_THE_MACHINE = (errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


class UserError(Exception):
    """Something the user can fix. The message names the file, line, key or flag, and the remedy."""


class CheckpointError(UserError):
    """A file that is no checkpoint, is damaged, or asks for more than one may."""


def run_command(main: Callable[[], int | None]) -> None:
    """Run a command's `main` and exit with its code; a `UserError` becomes one line on stderr and exit code 2.

    So does a disk that is full or cannot be written, wherever that shows. Ctrl-C, SIGTERM and the other signals of
    `process.signals`, where nothing else takes care of them, end with 128 + their number, a second one at once. Printed
    lines show at once, also through a pipe or in a log; a reader who has gone (`| head`) ends the command quietly.
    """
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    signals.second_interrupt = signals.leave_at_once
    signals.end_on_signals()
    try:
        sys.exit(main() or 0)
    except UserError as error:
        print_if_possible(f"{_error_word()} {one_line(error)}", sys.stderr)
        sys.exit(2)
    except Exception as error:
        if output_is_lost() and isinstance(error, BrokenPipeError):
            sys.exit(128 + signal.SIGPIPE)
        text = failure_of_the_machine(error)
        if not text:
            raise
        print_if_possible(f"{_error_word()} {text}", sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as error:
        number = getattr(error, "number", signal.SIGINT)
        signal.signal(number, signal.SIG_DFL)
        print_if_possible(signals.words(number), sys.stderr)
        sys.exit(128 + number)
    finally:
        signals.restore_signals()
        signals.second_interrupt = signals.raise_interrupt


def failure_of_the_machine(error: Exception) -> str:
    """The line that reports memory that ran out, or a disk that is full or cannot be written; empty for others."""
    if is_out_of_memory(error):
        return f"out of memory ({one_line(error, 200)}); {MORE_MEMORY}"
    if not isinstance(error, OSError) or error.errno not in OF_THE_MACHINE:
        return ""
    where = f"{printable(error.filename, 300)}: " if error.filename else ""
    return f"{where}{error.strerror}; free some space, or choose another place"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, or a limit of it was reached (`ulimit -v`), in Python, PyTorch, OpenCV or a thread."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in SIGNS_OF_LITTLE_MEMORY)


def _error_word() -> str:
    try:
        return styled("error:", "error", sys.stderr)
    except ValueError:  # the stream is closed
        return "error:"


def one_line(error: Exception, limit: int = LONGEST - len("error: ...")) -> str:
    """Its message on one line of bounded length; its type where it has none."""
    return printable(" ".join(str(error).split()) or type(error).__name__, limit)


class _Repr(reprlib.Repr):
    """Python's shortened repr, which takes a bounded time whatever the value is."""

    def __init__(self):
        super().__init__()
        self.maxlevel, self.maxdict, self.maxstring, self.maxother = 3, 3, 60, 60
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 4

    def repr_int(self, x: int, level: int) -> str:
        """Python itself refuses to print an integer of more than 4,300 digits."""
        return repr(x) if x.bit_length() <= 128 else f"<integer of about {int(x.bit_length() * 0.30103) + 1} digits>"

    def repr_instance(self, x: Any, level: int) -> str:
        """Of other types only what prints itself in a few characters: a repr may be endless."""
        if isinstance(x, bool | float | complex | type(None) | bytes | os.PathLike):
            return super().repr_instance(x, level)
        return f"<{type(x).__name__}>"


def shown(value: Any, limit: int = 80) -> str:
    """A value as an error message shows it: shortened like `repr`, on one line, printable, in a bounded time."""
    return printable(_Repr().repr(value), limit)
