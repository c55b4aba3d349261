"""Reading ahead and writing behind: order, errors, limits; nothing is left running."""

import threading

import pytest

from yolov7fast.inference.pipeline import Writer, read_ahead


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "read ahead"]


def test_items_come_in_order_and_are_made_by_another_thread():
    makers = []

    def items():
        for number in range(20):
            makers.append(threading.current_thread().name)
            yield number

    assert list(read_ahead(items())) == list(range(20))
    assert set(makers) == {"read ahead"} and reading_threads() == []


def test_no_more_is_read_ahead_than_asked_for():
    made, second_taken = [], threading.Event()

    def items():
        for number in range(10):
            made.append(number)
            if number == 4:
                second_taken.wait(10)  # with two taken, one in hand and two waiting, the reader is at number 4
            yield number

    reader = read_ahead(items(), depth=2)
    assert next(reader) == 0 and next(reader) == 1
    second_taken.set()
    assert next(reader) == 2
    reader.close()
    assert len(made) <= 7 and reading_threads() == []


def test_an_error_of_the_reader_is_raised_where_its_item_was_expected():
    def items():
        yield 1
        raise OSError("disk gone")

    reader = read_ahead(items())
    assert next(reader) == 1
    with pytest.raises(OSError, match="disk gone"):
        next(reader)
    assert reading_threads() == []


def test_closing_early_stops_the_reader_and_closes_its_items():
    closed = []

    def items():
        try:
            while True:
                yield 0
        finally:
            closed.append(True)

    reader = read_ahead(items())
    next(reader)
    reader.close()
    assert reading_threads() == [] and closed == [True]


def test_results_of_the_writer_come_in_order_and_all_at_the_end():
    writer, done = Writer(), []
    for number in range(30):
        done += writer.submit(number, lambda n=number: n * n)
    done += writer.finished()
    writer.close()
    assert done == [(number, number * number) for number in range(30)]


def test_the_writer_makes_the_caller_wait_when_too_much_is_unwritten():
    writer, started, gate = Writer(most=2), [], threading.Event()

    def job(number):
        started.append(number)
        gate.wait(10)

    for number in range(2):
        assert list(writer.submit(number, job, number)) == []
    gate.set()
    assert [about for about, _ in writer.submit(2, job, 2)][:1] == [0]  # waits for the first
    list(writer.finished())
    writer.close()
    assert started == [0, 1, 2]


def test_an_error_of_a_job_is_raised_where_its_result_is_taken():
    writer = Writer()

    def fail():
        raise ValueError("no space")

    with pytest.raises(ValueError, match="no space"):
        for _ in (*writer.submit(0, fail), *writer.finished()):
            pass
    writer.close()
