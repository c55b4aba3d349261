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
        last = time.monotonic() + END_SECONDS
        for thread in self._threads if wait else ():
            while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < last:
                time.sleep(LOOK_SECONDS)


_side_work = threading.RLock()  # held during a task of a side thread, and while the process is forked


class SideThread(ThreadPool):
    """A background thread that draws or writes; one task of all side threads at a time, and none during a fork.

    A forked process, such as a loader's worker, has only the thread that forked it: a lock that another thread held,
    such as those inside OpenCV, stays locked, and the first call that needs it deadlocks.
    """

    def __init__(self, name: str):
        super().__init__(1, name)

    def submit(self, fn, /, *args, **kwargs) -> Future:
        return super().submit(_alone, fn, *args, **kwargs)


def _alone(fn, /, *args, **kwargs):
    with _side_work:
        return fn(*args, **kwargs)


def _reset_after_fork() -> None:
    global _side_work
    _side_work = threading.RLock()


os.register_at_fork(
    before=lambda: _side_work.acquire(),
    after_in_parent=lambda: _side_work.release(),
    after_in_child=_reset_after_fork,
)
