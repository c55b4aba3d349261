"""The two random sources."""

import random

import numpy as np

from yolov7fast.data.augment.random_source import GLOBAL, KeyedRandom


def test_the_global_source_is_the_libraries_own_stream():
    random.seed(3)
    np.random.seed(3)
    drawn = [
        GLOBAL.random(),
        GLOBAL.uniform(2, 5),
        GLOBAL.randint(0, 9),
        GLOBAL.choices(range(100), k=3),
        GLOBAL.sample(range(100), k=3),
        GLOBAL.np_uniform(-1, 1, 3).tolist(),
        GLOBAL.np_beta(8.0, 8.0),
    ]
    random.seed(3)
    np.random.seed(3)
    assert drawn == [
        random.random(),
        random.uniform(2, 5),
        random.randint(0, 9),
        random.choices(range(100), k=3),
        random.sample(range(100), k=3),
        np.random.uniform(-1, 1, 3).tolist(),
        np.random.beta(8.0, 8.0),
    ]


def numbers(*key):
    rng = KeyedRandom(*key)
    return rng.random(), rng.choices(range(1000), k=4), rng.np_uniform(-1, 1, 3).tolist(), rng.np_beta(8.0, 8.0)


def test_the_same_key_gives_the_same_numbers_whatever_was_drawn_before():
    first = numbers(1, 2, 3)
    random.seed(99)
    np.random.seed(99)
    assert numbers(1, 2, 3) == first
    assert numbers(np.int64(1), 2, np.int64(3)) == first


def test_the_keyed_source_leaves_the_global_generators_alone():
    random.seed(5)
    np.random.seed(5)
    numbers(7, 7, 7)
    assert (random.random(), np.random.random()) == (random.Random(5).random(), np.random.RandomState(5).random())
