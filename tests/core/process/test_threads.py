"""Work done by threads: the order of results, how far ahead items are taken, errors, no thread left."""

import ctypes
import multiprocessing
import os
import sys
import threading

import pytest

from yolov7fast.core.process import threads
from yolov7fast.core.process.threads import SideThread, ThreadPool, in_order


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("in order")]


def test_work_of_several_threads_comes_in_the_order_of_its_items():
    both, begun = threading.Barrier(2, timeout=60), []

    def work(number: int) -> int:
        both.wait()  # two threads are at work, or this fails
        return number * number

    assert list(in_order(work, range(20), 2, lambda: begun.append(1))) == [n * n for n in range(20)]
    assert begun == [1, 1] and own_threads() == []


def test_an_error_of_the_work_is_raised_in_its_place():
    def work(number: int) -> int:
        if number == 2:
            raise ValueError("bad batch")
        return number

    results = in_order(work, range(9), 2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="bad batch"):
        next(results)
    assert own_threads() == []


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for its threads")
def test_threads_of_a_pool_are_gone_for_the_kernel_too_when_it_is_left():
    """A library's destructor that takes its time, as OpenCV's may: `join` alone does not wait for it."""
    library, key = ctypes.CDLL(None), ctypes.c_uint()
    library.pthread_setspecific.argtypes = [ctypes.c_uint, ctypes.c_void_p]
    assert library.pthread_key_create(ctypes.byref(key), ctypes.cast(library.usleep, ctypes.c_void_p)) == 0

    def use_the_library(_: int) -> int:
        library.pthread_setspecific(key, 50_000)  # what the destructor is called with: microseconds
        return threading.get_native_id()

    with ThreadPool(4) as pool:
        threads = {*pool.map(use_the_library, range(8))}
    assert threads and not threads & {*map(int, os.listdir("/proc/self/task"))}
    library.pthread_key_delete(key)


def test_a_process_is_forked_between_two_tasks_of_a_side_thread_alone(monkeypatch):
    events, began, forking = [], threading.Event(), threading.Event()

    class Lock(type(threading.RLock())):
        def acquire(self, *args):  # by a fork; tasks enter it
            forking.set()
            return super().acquire(*args)

    def draw():
        began.set()
        assert forking.wait(60), "the fork takes no lock"
        events.append("drawn")

    monkeypatch.setattr(threads, "_side_work", Lock())
    with SideThread("a") as side:
        first = side.submit(draw)
        assert began.wait(60)
        child = multiprocessing.get_context("fork").Process(target=_draws_in_a_child)
        child.start()
        events.append("forked")
        child.join()
        assert child.exitcode == 0, "the child can use side threads"
        first.result(60)
        assert side.submit(lambda: "again").result(60) == "again"
    assert events == ["drawn", "forked"]


def _draws_in_a_child() -> None:
    with SideThread("child") as side:
        side.submit(int).result(60)
