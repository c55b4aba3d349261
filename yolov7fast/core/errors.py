"""Errors of users and commands: reported in one line, without a traceback, with exit code 2."""

import errno
import importlib
import io
import os
import reprlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from yolov7fast.core.process import signals
from yolov7fast.core.process.output import open_closed_streams, output_is_lost, print_if_possible
from yolov7fast.core.text import printable, styled
from yolov7fast.core.torch_build import nvidia_gpus, reinstall_command

LONGEST = 500  # characters of a reported line
MORE_MEMORY = "use a smaller --batch-size or --img-size, end other programs, or raise the limit (ulimit -v)"
OUT_OF_MEMORY = (  # parts of messages of Python, PyTorch, OpenCV and the system
    *("an't allocate memory", "annot allocate memory", "Insufficient memory", "out of memory", "std::bad_alloc"),
    *("can't start new thread", "failed to map segment", "Failed to allocate"),
)
NO_CODE = "no kernel image is available"  # such as of CUDA 12.6 for Blackwell (sm_120)
DISK_ERRORS = (errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


class UserError(Exception):
    """Something the user can fix. The message names the file, line, key or flag, and the remedy."""


class CheckpointError(UserError):
    """A file that is not a checkpoint, is damaged, or contains what a checkpoint must not contain."""


@contextmanager
def source_named(source: str) -> Iterator[None]:
    """Add to a UserError of the block where the values come from; empty: nothing."""
    try:
        yield
    except UserError as error:
        if not source:
            raise
        raise UserError(f"{error} ({source})") from None


def run_command(main: Callable[[], int | None]) -> None:
    """Run a command's `main` and exit with its code; a `UserError` becomes one line on stderr and exit code 2.

    Full disks, disks that cannot be written and exhausted memory are reported in the same way. Ctrl-C, SIGTERM and the
    other signals of `process.signals` end the command with 128 + their number unless they are handled; a second one
    ends it at once. Output is line-buffered; a closed pipe (`| head`) ends the command without a message.
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
    """The message for exhausted memory, a disk that is full or cannot be written, and a build of torch that does not
    fit the GPU; empty for other errors."""
    if NO_CODE in str(error):
        return f"this build of torch holds no code for this GPU; install another: {reinstall_command(nvidia_gpus())}"
    if is_out_of_memory(error):
        return f"out of memory ({one_line(error, 200)}); {MORE_MEMORY}"
    if not isinstance(error, OSError) or error.errno not in DISK_ERRORS:
        return ""
    where = f"{printable(error.filename, 300)}: " if error.filename else ""
    return f"{where}{error.strerror}; free some space, or choose another place"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error means that memory, or a limit of it (`ulimit -v`), is exhausted."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in OUT_OF_MEMORY)


def _error_word() -> str:
    try:
        return styled("error:", "error", sys.stderr)
    except ValueError:  # the stream is closed
        return "error:"


def one_line(error: Exception, limit: int = LONGEST - len("error: ...")) -> str:
    """The error's message on one line of bounded length; its type if it has no message."""
    return printable(" ".join(str(error).split()) or type(error).__name__, limit)


class _Repr(reprlib.Repr):
    """`reprlib.Repr` that takes a bounded time for every value."""

    def __init__(self):
        super().__init__()
        self.maxlevel, self.maxdict, self.maxstring, self.maxother = 3, 3, 60, 60
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 4

    def repr_int(self, x: int, level: int) -> str:
        """Python itself refuses to print an integer of more than 4,300 digits."""
        return repr(x) if x.bit_length() <= 128 else f"<integer of about {int(x.bit_length() * 0.30103) + 1} digits>"

    def repr_instance(self, x: Any, level: int) -> str:
        """The repr of types that are known to have a short one; the type's name for others."""
        if isinstance(x, bool | float | complex | type(None) | bytes | os.PathLike):
            return super().repr_instance(x, level)
        return f"<{type(x).__name__}>"


def shown(value: Any, limit: int = 80) -> str:
    """The value for an error message: its `repr`, shortened, printable, on one line."""
    return printable(_Repr().repr(value), limit)


def need(package: str, why: str, install: str = "onnx onnxruntime onnxscript openvino") -> ModuleType:
    """Import an optional package. why: what needs it, beginning the message; install: arguments of pip."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.split(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == name
        state = "is not installed" if missing else f"cannot be imported ({' '.join(str(error).split())[:120]})"
        raise UserError(f"{why} needs the package {name}, which {state}: python -m pip install {install}") from None
