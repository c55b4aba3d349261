"""Reading, the network and writing at the same time: batches are read ahead by one thread, detected on by some, results
written by another.

Decoding, resizing and encoding images and the network's layers release Python's lock, so all run beside one another.
Order is kept.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")
READ_AHEAD = 2  # batches
UNWRITTEN = 64  # results that may wait for the writer: bounds memory where writing is the bottleneck


class _End(NamedTuple):
    error: BaseException | None


def read_ahead(items: Iterable[T], depth: int = READ_AHEAD) -> Generator[T, None, None]:
    """The items, of which up to `depth` are made ahead by a thread. Its errors are raised here.

    Closing this generator stops the thread after the item it is making.
    """
    ready: queue.Queue[Any] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        error = None
        try:
            for item in items:
                if not put(item):
                    return
        except BaseException as raised:  # whatever it is, it is the caller's
            error = raised
        put(_End(error))

    thread = threading.Thread(target=read, name="read ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        thread.join()


class Writer(Generic[T]):
    """Runs jobs one after the other in a thread of its own and hands their results back in order.

    `submit` waits when too many are unwritten. An error of a job is raised where its result is taken.
    """

    def __init__(self, most: int = UNWRITTEN):
        self.most = most
        self.pool = ThreadPoolExecutor(1, "writer")
        self.waiting: deque[tuple[T, Future]] = deque()

    def submit(self, about: T, job: Callable[..., Any], *arguments: Any) -> Iterator[tuple[T, Any]]:
        """Give a job; yields what is finished by now, as (about, result)."""
        self.waiting.append((about, self.pool.submit(job, *arguments)))
        return self.finished(all_of_them=False)

    def finished(self, all_of_them: bool = True) -> Iterator[tuple[T, Any]]:
        """Results that are there, in order; all_of_them: wait for the rest."""
        while self.waiting and (all_of_them or len(self.waiting) > self.most or self.waiting[0][1].done()):
            about, future = self.waiting.popleft()
            yield about, future.result()

    def close(self) -> None:
        """Wait for what is being written."""
        self.pool.shutdown()
