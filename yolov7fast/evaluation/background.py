"""Work of an evaluation that need not be waited for: done in order by one thread, beside the network and the loader."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType

from yolov7fast.core.process.threads import ThreadPool

AHEAD = 4  # pieces of work that may wait: more would only hold memory


class Background:
    """`put` hands work over and returns; what a piece of work raises is raised by a later `put` or `wait`.

    Pieces are done one after another in the order they came in, so that results do not depend on the thread.
    """

    def __init__(self):
        self.pool = ThreadPool(1, thread_name_prefix="evaluation")
        self.waiting: deque[Future] = deque()

    def __enter__(self) -> "Background":
        return self

    def put(self, work: Callable[[], None]) -> None:
        while self.waiting and (len(self.waiting) >= AHEAD or self.waiting[0].done()):
            self.waiting.popleft().result()
        self.waiting.append(self.pool.submit(work))

    def wait(self) -> None:
        """Until all work is done."""
        while self.waiting:
            self.waiting.popleft().result()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Work not yet begun is dropped where an error ends the evaluation; else all of it is waited for."""
        try:
            if kind is None:
                self.wait()
        finally:
            self.pool.shutdown(cancel_futures=True)
