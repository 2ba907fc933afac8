"""Words on the host for kernels in Triton's interpreter, looked at before each call."""

import ctypes

import numpy as np

from normgrad.backends.cuda.run.exchange_areas import ExchangeAreas


def _words(count):
    memory = np.full(count, -1, np.int64)
    return memory, memory.ctypes.data


class HostAreas(ExchangeAreas):
    """Every call must find all bits of its words set: the one before cleared them."""

    def __init__(self):
        super().__init__(_words)
        self.taken = 0

    def next_area(self, count):
        words, previous, left = super().next_area(count)
        view = (ctypes.c_int64 * count).from_address(words)
        assert (np.frombuffer(view, np.int64) == -1).all(), self.taken
        self.taken += 1
        return words, previous, left
