"""The two random sources."""

import random

import numpy as np
import pytest

from yolov7fast.data.augment.random_source import GLOBAL, KeyedRandom


@pytest.fixture(autouse=True)
def seeded():
    random.seed(3)
    np.random.seed(3)


def draws(source) -> list:
    return [source.random(), source.uniform(2, 5), source.randint(0, 9), source.choices(range(100), k=3)]


def test_the_global_source_draws_from_the_global_generators_of_the_libraries():
    drawn = [*draws(GLOBAL), GLOBAL.np_uniform(-1, 1, 3).tolist(), GLOBAL.np_beta(8.0, 8.0)]
    numpy = np.random.RandomState(3)
    assert drawn == [*draws(random.Random(3)), numpy.uniform(-1, 1, 3).tolist(), numpy.beta(8.0, 8.0)]


def test_keyed_numbers_are_as_recorded_and_leave_the_global_generators_alone():
    """Runs of earlier versions are resumed with these numbers."""
    for key in ((3, 1, 7), (np.int64(3), 1, np.int64(7))):
        rng = KeyedRandom(*key)
        assert (rng.random(), rng.randint(0, 10**9)) == (0.35766995270460133, 94682375)
        assert rng.np_uniform(-1, 1, 2).tolist() == [-0.4598454363921165, 0.31821783717077756]
        assert rng.np_beta(8.0, 8.0) == pytest.approx(0.6370316213504599)
    assert (random.random(), np.random.random()) == (random.Random(3).random(), np.random.RandomState(3).random())
