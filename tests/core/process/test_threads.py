"""Work done by threads: the order of results, how far ahead items are taken, errors, no thread left."""

import threading

import pytest

from yolov7fast.core.process.threads import in_order


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("in order")]


def test_work_of_several_threads_comes_in_the_order_of_its_items():
    both, begun = threading.Barrier(2, timeout=10), []

    def work(number: int) -> int:
        both.wait()  # two threads are at work, or this fails
        return number * number

    assert list(in_order(work, range(20), 2, lambda: begun.append(1))) == [n * n for n in range(20)]
    assert begun == [1, 1] and own_threads() == []


@pytest.mark.parametrize("ahead", [1, 4])
def test_no_more_items_are_taken_than_the_threads_need(ahead):
    taken = []

    def items():
        for number in range(100):
            taken.append(number)
            yield number

    results = in_order(lambda number: number, items(), 2, ahead=ahead)
    assert next(results) == 0 and len(taken) == 2 * ahead + 1
    results.close()
    assert len(taken) == 2 * ahead + 1 and own_threads() == []


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
