"""Signals that ask a run to stop: it finishes the step it is in and writes a checkpoint.

SIGTERM and SIGINT, a lost terminal (SIGHUP), Ctrl-\\ (SIGQUIT), and SIGUSR1, by which batch systems warn before the end
of an allotted time. A second SIGINT stops at once.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

ASKING = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1")
    if hasattr(signal, name)  # some systems have but the first two
)


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def leave_at_once() -> None:
    """End the process as a kill would, without a traceback from wherever it is."""
    with contextlib.suppress(OSError):
        os.write(2, b"\ninterrupted\n")
    os._exit(128 + signal.SIGINT)


second_interrupt: Callable[[], None] = raise_interrupt  # in a command `leave_at_once`, for there is no caller


class StopRequest:
    """Set by a signal; the training loop looks at it after every step.

    at_once: what the second Ctrl-C does; by default `KeyboardInterrupt`, which a caller can clean up after.
    """

    def __init__(self, at_once: Callable[[], None] = raise_interrupt):
        self.signal: int | None = None
        self._before: dict[int, Any] = {}
        self._at_once = at_once

    def __enter__(self) -> "StopRequest":
        for number in ASKING:
            if number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup: the run is to outlive its terminal
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, _frame) -> None:
        if self.signal is not None and number == signal.SIGINT:
            self._at_once()
        self.signal = number
        name = signal.Signals(number).name
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # no terminal left, or in the middle of a print
            print(f"\n{name}: finishing this step, then writing a checkpoint", flush=True)

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal is not None else 0
