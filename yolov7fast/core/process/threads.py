"""Work done by threads whose results come in the order of the items."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

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
    with ThreadPoolExecutor(workers, name, begin) as pool:
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
