"""Thread pools: results in the order of the items, and tasks during which the process is not forked."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

LOOK_SECONDS, END_SECONDS = 0.0002, 5.0
T = TypeVar("T")
R = TypeVar("R")


def in_order(
    work: Callable[[T], R],
    items: Iterable[T],
    workers: int,
    begin: Callable[[], object] | None = None,
    ahead: int = 1,
    name: str = "in order",
) -> Generator[R, None, None]:
    """Yield `work(item)` of every item in the order of the items; an error is raised when its item is due.

    begin: called once by each thread. ahead: items per thread that are submitted in advance, which limits memory.
    """
    waiting: deque[Future[R]] = deque()
    with ThreadPool(workers, name, begin) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > ahead * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class ThreadPool(ThreadPoolExecutor):
    """A pool whose threads have exited, destructors included, after `shutdown`, so that the process can be forked.

    Python's `join` returns before a thread has run the destructors of C libraries. OpenCV's takes a lock, which a
    process that is forked in that moment would inherit locked (see `SideThread`).
    """

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            for thread in self._threads:
                _wait_until_gone(thread)


def _wait_until_gone(thread: threading.Thread) -> None:
    """Wait until the thread is gone from /proc, at most END_SECONDS; returns at once without /proc."""
    last = time.monotonic() + END_SECONDS
    while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < last:
        time.sleep(LOOK_SECONDS)


class SideThread(ThreadPool):
    """One background thread that draws or writes. The process is forked only between two of its tasks.

    A forked process, such as a loader's worker, has only the thread that forked it: a lock that another thread held,
    such as those inside OpenCV, stays locked, and the first call that needs it deadlocks.
    """

    def __init__(self, name: str):
        super().__init__(1, name)

    def submit(self, fn, /, *args, **kwargs) -> Future:
        return super().submit(_unforked, fn, *args, **kwargs)


class _Turns:
    """Lets tasks of side threads run in parallel, but not while the process is forked."""

    def __init__(self):
        self.changed = threading.Condition()
        self.at_work: set[int] = set()  # threads
        self.is_forking = False

    def work(self, fn, /, *args, **kwargs):
        me = threading.get_ident()
        with self.changed:
            self.changed.wait_for(lambda: not self.is_forking)
            self.at_work.add(me)
        try:
            return fn(*args, **kwargs)
        finally:
            with self.changed:
                self.at_work.discard(me)
                self.changed.notify_all()

    def begin_fork(self) -> None:
        """Wait for running tasks; no task starts until `end_fork` is called by the same thread."""
        self.changed.acquire()
        self.is_forking = True
        self.changed.wait_for(lambda: not self.at_work - {threading.get_ident()})

    def end_fork(self) -> None:
        self.is_forking = False
        self.changed.notify_all()
        self.changed.release()


_turns = _Turns()


def _unforked(fn, /, *args, **kwargs):
    return _turns.work(fn, *args, **kwargs)


def _reset_after_fork() -> None:
    global _turns
    _turns = _Turns()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _turns.begin_fork(), after_in_parent=lambda: _turns.end_fork(), after_in_child=_reset_after_fork
    )
