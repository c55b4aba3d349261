"""One side of a comparison, and sides that run in separate processes."""

import multiprocessing
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.op_counter import OpCounter


class Side(NamedTuple):
    """One side's implementation of a task; `run` returns the result that is compared."""

    run: Callable[[], Any]
    counted: bool = False
    seconds: Callable[[], float] | None = None  # measures a run by itself; None: the clock around `run`

    def count(self) -> dict[str, int]:
        """The number of operators that reach the dispatcher, and of calls that make the host wait for device data."""
        with OpCounter() as counter:
            self.run()
        return {"operators": counter.total, "host_reads": counter.host_reads}


def in_a_process(run: Callable[[], Any], prepare: Callable[[], object]) -> Side:
    """A side that runs in a process forked here, which calls `prepare` first; measured by its CPU time."""
    ours, its = multiprocessing.get_context("fork").Pipe()
    worker = multiprocessing.get_context("fork").Process(target=_serve, args=(its, run, prepare), daemon=True)
    worker.start()
    its.close()

    def ask(wish: str) -> Any:
        ours.send(wish)
        answer = ours.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Side(lambda: ask("result"), seconds=lambda: ask("seconds"))


def _serve(connection, run: Callable[[], Any], prepare: Callable[[], object]) -> None:
    prepare()
    while True:
        try:
            wish = connection.recv()
        except EOFError:
            return
        start = time.process_time()
        try:
            result = run()
        except Exception as error:  # the other process reports it
            connection.send(RuntimeError(f"{type(error).__name__}: {error}"))
            continue
        connection.send(result if wish == "result" else time.process_time() - start)
