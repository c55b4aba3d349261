"""A background thread that processes the newest item only, and commands with a time limit."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Generic, TypeVar

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds before an item that failed is tried again; doubled each time
LOOK_SECONDS = 0.1
T = TypeVar("T")


class NewestFirst(Generic[T]):
    """A thread that calls `work(item)` for the newest item, one at a time. An older item that is still waiting is
    dropped.

    work: returns False to be called again after a pause, with a newer item if there is one. dropped: called with each
    item that is done or replaced.
    """

    def __init__(self, work: Callable[[T], bool], dropped: Callable[[T], object] = lambda item: None, name: str = ""):
        self.work, self.dropped = work, dropped
        self.stopped = threading.Event()  # `work` ends early
        self._changed = threading.Condition()
        self._item: T | None = None
        self._running: T | None = None
        self._failed = False  # the newest item has failed: it is tried again after a pause
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: T) -> None:
        with self._changed:
            waiting, self._item, self._failed = self._item, item, False
            self._changed.notify_all()
        if waiting is not None and waiting is not self._running:
            self.dropped(waiting)

    def finish(self, seconds: float) -> bool:
        """Wait until the newest item is done, then end the thread; False: the time limit was exceeded."""
        with self._changed:
            try:
                return self._changed.wait_for(lambda: self._item is None, max(seconds, 0.0))
            finally:
                self.stopped.set()
                self._changed.notify_all()

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with self._changed:
                if self._failed:
                    self._changed.wait_for(lambda: self.stopped.is_set() or not self._failed, pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                else:
                    self._changed.wait_for(lambda: self.stopped.is_set() or self._item is not None)
                    pause = FIRST_PAUSE
                if self.stopped.is_set() or self._item is None:
                    return
                item = self._running = self._item
            done = self.work(item)
            with self._changed:
                self._running = None
                is_newest = self._item is item
                self._failed = is_newest and not done
                if is_newest and done:
                    self._item = None
                self._changed.notify_all()
            if done or not is_newest:
                self.dropped(item)


def run_limited(
    command: str | Sequence[str],
    seconds: float,
    output: int | IO,
    stopped: threading.Event | None = None,
    environment: Mapping[str, str] | None = None,
) -> int | None:
    """Run a command (text: by the shell) in its own session; its exit code, or None if it was killed after the time
    limit.

    output: of stdout and stderr. stopped: ends it early.
    """
    process = subprocess.Popen(
        command,
        shell=isinstance(command, str),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(environment or {})},
        start_new_session=True,  # Ctrl-C in the terminal is for the training
    )
    last = time.monotonic() + seconds
    try:
        while time.monotonic() < last and not (stopped is not None and stopped.is_set()):
            try:
                return process.wait(timeout=LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
