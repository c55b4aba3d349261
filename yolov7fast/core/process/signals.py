"""Signals that ask a run to stop: it finishes the current step and writes a checkpoint.

SIGTERM, SIGINT, SIGHUP (lost terminal), SIGQUIT (Ctrl-\\) and SIGUSR1 (warning of a batch system before a time limit).
A second SIGINT stops at once. Outside a `StopRequest`, for example during imports, each signal ends a command with one
line (`end_on_signals`).
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def leave_at_once() -> None:
    """End the process at once, without a traceback."""
    with contextlib.suppress(OSError):
        os.write(2, b"\ninterrupted\n")
    os._exit(128 + signal.SIGINT)


class Ended(KeyboardInterrupt):
    """A signal asks the process to end; handled wherever Ctrl-C is."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


_default = {number: signal.SIG_DFL for number in ASKING} | {signal.SIGINT: signal.default_int_handler}
_owner = 0  # the process that `end_on_signals` was called in
_ending = False


def end_on_signals() -> None:
    """Raise `Ended` for signals that ask for a stop, unless they are ignored or handled already.

    Call it before importing torch: without it they kill the process without a message.
    """
    global _owner, _ending
    if threading.current_thread() is threading.main_thread():
        _owner, _ending = os.getpid(), False
        for number, default in _default.items():
            if signal.getsignal(number) == default:
                signal.signal(number, _end)


def restore_signals() -> None:
    """Undo `end_on_signals`."""
    global _owner
    _owner = 0
    for number, default in _default.items():
        if signal.getsignal(number) is _end:
            signal.signal(number, default)


def _end(number: int, frame: FrameType | None) -> None:
    """Raise `Ended`. Exit at once for a second signal, and inside an import, where Python can lose the exception."""
    global _ending
    if os.getpid() != _owner:  # a forked worker: the main process prints the message
        os._exit(128 + number)
    while not _ending and frame is not None:
        _ending = frame.f_code.co_filename.startswith("<frozen importlib")
        frame = frame.f_back
    if _ending:
        with contextlib.suppress(OSError):
            os.write(2, f"{words(number)}\n".encode())
        os._exit(128 + number)
    _ending = True
    raise Ended(number)


def words(number: int) -> str:
    """The line that a command ends with when a signal stops it."""
    return "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"


second_interrupt: Callable[[], None] = raise_interrupt  # in a command `leave_at_once`


class StopRequest:
    """True after a signal; the training loop checks it after every step.

    at_once: called at the second Ctrl-C. launcher: the parent process, whose end counts as SIGTERM; 0: ignored.
    """

    def __init__(self, at_once: Callable[[], None] = raise_interrupt, launcher: int = 0):
        self.signal: int | None = None
        self._launcher = launcher
        self._before: dict[int, Any] = {}
        self._at_once = at_once

    def __enter__(self) -> "StopRequest":
        for number in ASKING:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, _frame) -> None:
        if self.signal is not None and number == signal.SIGINT:
            self._at_once()
        self._ask(number, signal.Signals(number).name)

    def _ask(self, number: int, cause: str) -> None:
        self.signal = number
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # no terminal, or during a print
            print(f"\n{cause}: finishing this step, then writing a checkpoint", flush=True)

    def __bool__(self) -> bool:
        if self.signal is None and self._launcher and os.getppid() != self._launcher:
            self._ask(signal.SIGTERM, "the process that started this one has ended")
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal is not None else 0
