"""Threads: work whose results come in the order of the items, and work that no fork may interrupt."""

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
    """`work(item)` of every item, in the order of the items; an error is raised in its item's place.

    begin: called once by each thread. ahead: items taken for each thread before a result is waited for, which bounds
    memory. name: of the threads.
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
    """Threads that are gone once the pool is shut down: this process may be forked then.

    Python's `join` returns before a thread has run the destructors of the libraries that it used. OpenCV's takes a lock
    there, and a process that is forked in that moment inherits it locked for ever (see `SideThread`).
    """

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            for thread in self._threads:
                _wait_until_gone(thread)


def _wait_until_gone(thread: threading.Thread) -> None:
    """Until the kernel knows no such thread, but not for ever; at once where the kernel cannot be asked."""
    last = time.monotonic() + END_SECONDS
    while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < last:
        time.sleep(LOOK_SECONDS)


class SideThread(ThreadPool):
    """One thread beside the main one, that draws or writes. This process is forked only between two of its tasks.

    A forked process, such as a loader's worker, has the thread that forked it alone: a lock that another thread held
    at that moment, such as those inside OpenCV, stays locked in it for ever, and the first call that needs it waits.
    """

    def __init__(self, name: str):
        super().__init__(1, name)

    def submit(self, fn, /, *args, **kwargs) -> Future:
        return super().submit(_unforked, fn, *args, **kwargs)


class _Turns:
    """Side threads work at the same time, but not while this process is forked."""

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
        """Wait for those at work; nobody begins until `end_fork`, by the same thread."""
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


def _begin_anew() -> None:
    global _turns
    _turns = _Turns()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _turns.begin_fork(), after_in_parent=lambda: _turns.end_fork(), after_in_child=_begin_anew
    )
