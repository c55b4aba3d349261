"""Random sources of augmentations, which are pure functions of their inputs and a source.

* `GlobalRandom`, the default: Python's module-level `random` and NumPy's global generator, drawn in upstream's order.
* `KeyedRandom(seed, epoch, index)`: a separate generator for each sample. A sample depends neither on the number of
  workers nor on earlier draws, and a run can resume in the middle of an epoch.
"""

import hashlib
import random as python_random

import numpy as np


class GlobalRandom:
    """The process-wide generators. Each call is exactly one call of the library, as upstream's are."""

    random = staticmethod(python_random.random)
    uniform = staticmethod(python_random.uniform)
    randint = staticmethod(python_random.randint)
    choices = staticmethod(python_random.choices)
    sample = staticmethod(python_random.sample)
    np_beta = staticmethod(np.random.beta)

    @staticmethod
    def np_uniform(low: float, high: float, size: int) -> np.ndarray:
        return np.random.uniform(low, high, size)


GLOBAL = GlobalRandom()


class KeyedRandom(python_random.Random):
    """The random numbers of one sample: the same for the same (seed, epoch, index), in any process."""

    def __new__(cls, *key: int):
        return super().__new__(cls)

    def __init__(self, *key: int):
        digest = hashlib.blake2b(repr(tuple(int(k) for k in key)).encode(), digest_size=16).digest()
        super().__init__(int.from_bytes(digest, "little"))

    def np_uniform(self, low: float, high: float, size: int) -> np.ndarray:
        return np.array([self.uniform(low, high) for _ in range(size)])

    def np_beta(self, a: float, b: float) -> float:
        return self.betavariate(a, b)


RandomSource = GlobalRandom | KeyedRandom
