"""Work in the background: the newest item last, failures again, commands within their time."""

import threading
from subprocess import DEVNULL

import pytest

from yolov7fast.core.process import background
from yolov7fast.core.process.background import NewestFirst, run_limited


def test_only_the_newest_waiting_item_is_worked_on():
    begun, go, done, dropped = threading.Event(), threading.Event(), [], []

    def work(item: int) -> bool:
        begun.set()
        go.wait()
        done.append(item)
        return True

    thread = NewestFirst(work, dropped.append)
    thread.submit(1)
    begun.wait()
    for item in (2, 3, 4):
        thread.submit(item)
    go.set()
    assert thread.finish(60)
    assert done == [1, 4] and sorted(dropped) == [1, 2, 3, 4]


def test_what_failed_is_tried_again_until_a_newer_item_replaces_it(monkeypatch):
    monkeypatch.setattr(background, "FIRST_PAUSE", 0.0)
    tries: list[str] = []
    third = threading.Event()

    def work(item: str) -> bool:
        tries.append(item)
        if tries.count("bad") == 3:
            third.set()
        return item == "good"

    thread = NewestFirst(work)
    thread.submit("bad")
    third.wait()
    thread.submit("good")
    assert thread.finish(60)
    assert tries[-1] == "good" and tries.count("good") == 1


def test_the_end_waits_no_longer_than_it_is_told():
    thread = NewestFirst(lambda item: thread.stopped.wait() and False)
    thread.submit(1)
    assert not thread.finish(0.0)
    assert thread.stopped.is_set()


@pytest.mark.parametrize(
    ("command", "seconds", "code"), [("exit 3", 60, 3), (["true"], 60, 0), ("sleep 1000", 0, None)]
)
def test_a_command_has_its_time(command, seconds, code):
    assert run_limited(command, seconds, DEVNULL) == code


def test_a_command_ends_when_its_thread_is_stopped():
    stopped = threading.Event()
    stopped.set()
    assert run_limited("sleep 1000", 1000, DEVNULL, stopped) is None
