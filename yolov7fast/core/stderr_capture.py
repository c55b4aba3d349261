"""What libraries in C print to stderr by themselves, caught, so that it can be reported in one line by name."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def stderr_captured() -> Iterator[list[str]]:
    """While open, nothing reaches the terminal's stderr; afterwards the list holds the lines that were printed.

    It works on the file descriptor, since decoders know nothing of `sys.stderr`. All threads share it: keep it short.
    """
    lines: list[str] = []
    try:
        terminal = os.dup(2)
    except OSError:  # no stderr at all, as in a service: nothing to catch
        yield lines
        return
    with tempfile.TemporaryFile() as caught:
        try:
            sys.stderr.flush()
            os.dup2(caught.fileno(), 2)
            yield lines
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            caught.seek(0)
            lines += caught.read().decode(errors="replace").splitlines()
