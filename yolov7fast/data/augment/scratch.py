"""Working memory that is used again for every sample.

Fresh arrays of a megabyte cost more in page faults than the work done on them. Each thread has its own arrays; what
`scratch(name, shape)` returns holds undefined values and is good until the same name is asked for again.
"""

import math
import threading

import numpy as np


class _Scratch(threading.local):
    def __init__(self):
        self._held: dict[str, np.ndarray] = {}
        self._last: dict[str, np.ndarray] = {}  # what was returned last: mostly it is asked for again

    def __call__(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A uint8 array of this shape."""
        last = self._last.get(name)
        if last is None or last.shape != shape:
            size = math.prod(shape)
            held = self._held.get(name)
            if held is None or held.size < size:
                held = self._held[name] = np.empty(size, np.uint8)
            last = self._last[name] = held[:size].reshape(shape)
        return last


scratch = _Scratch()
