"""What libraries in C print to stderr by themselves, caught, so that it can be reported in one line by name."""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator

_LOCK = threading.RLock()  # there is one stderr


@contextlib.contextmanager
def stderr_lines_caught(wanted: Callable[[str], bool]) -> Iterator[list[str]]:
    """Lines for which `wanted` says so are kept off stderr and stand in the list when the block ends.

    It works on the file descriptor, since decoders know nothing of `sys.stderr`. Whatever else any thread writes there
    meanwhile follows when the block ends, so keep it short.
    """
    lines: list[str] = []
    with _LOCK:
        try:
            terminal = os.dup(2)
        except OSError:  # no stderr at all, as in a service: nothing to catch
            yield lines
            return
        with tempfile.TemporaryFile() as caught:
            _flush()
            os.dup2(caught.fileno(), 2)
            try:
                yield lines
            finally:
                _flush()
                os.dup2(terminal, 2)
                os.close(terminal)
                caught.seek(0)
                for line in caught.read().decode(errors="replace").splitlines(keepends=True):
                    if wanted(line):
                        lines.append(line.strip())
                    else:
                        with contextlib.suppress(OSError):  # a lost stderr
                            os.write(2, line.encode())


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a lost stderr, or none
        sys.stderr.flush()
