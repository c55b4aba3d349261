"""Working memory that is used again."""

import threading

import numpy as np

from yolov7fast.data.augment.transforms import scratch


def test_a_name_keeps_its_memory_while_it_suffices():
    first = scratch("a test", (6, 4))
    first[:] = np.arange(24).reshape(6, 4)
    assert np.shares_memory(scratch("a test", (6, 4)), first)
    smaller = scratch("a test", (2, 3, 2))
    assert smaller.shape == (2, 3, 2) and smaller.dtype == np.uint8 and np.shares_memory(smaller, first)
    again = scratch("a test", (6, 4))
    assert again.shape == (6, 4) and np.shares_memory(again, first)
    larger = scratch("a test", (7, 4))
    assert larger.shape == (7, 4) and not np.shares_memory(larger, first)
    assert not np.shares_memory(scratch("another test", (6, 4)), larger)


def test_threads_do_not_share():
    mine, theirs = scratch("a test", (8,)), []
    thread = threading.Thread(target=lambda: theirs.append(scratch("a test", (8,))))
    thread.start()
    thread.join()
    assert not np.shares_memory(mine, theirs[0])
