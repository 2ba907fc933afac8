"""Random calls, valid and broken, through Python and through the C library: same status, size,
sentence and bits. A program of its own: the library switches look-ups of addresses off for good.

    alike.py LIBRARY ROUNDS
"""

import ctypes
import itertools
import sys

import numpy as np
from aclnn_calls import OPERATORS, PARAMETERS, said, stage_one, stage_two
from test_interfaces_random import ARENA, Arena, plausible

from normgrad import aclnn
from normgrad.device import memory

MARK = 0x5A5A
POINTER, SIZE = ctypes.c_void_p, ctypes.c_uint64


class InsideArena(Arena):
    """Tensors with elements outside of it would be read and written by both."""

    def tensor(self, shape, dtype, format=aclnn.ACL_FORMAT_ND):
        while True:
            made = super().tensor(shape, dtype, format)
            nowhere = made.low == made.high or not made.data
            if nowhere or self.base <= made.low < made.high <= self.base + ARENA:
                return made


class Library:
    """The C side of each argument."""

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.aclGetRecentErrMsg.restype = ctypes.c_char_p
        for name in ("aclCreateTensor", "aclCreateBoolArray", "aclCreateIntArray"):
            getattr(self.c, name).restype = POINTER
        assert self.c.aclrtSetDevice(0) == 0
        self._true = itertools.cycle((1, 2, 255))  # what C takes for true: any byte but 0

    def argument(self, value):
        """What C gets for an argument of Python's, and what ends it."""
        if value is None:
            return POINTER(), None
        if isinstance(value, aclnn.aclTensor):
            shape, strides, _ = value.kind.tensor
            stored = (ctypes.c_int64 * len(shape))(*shape), SIZE(len(shape))
            steps = (ctypes.c_int64 * len(shape))(*strides)
            kind = ctypes.c_int(value.kind.dtype), steps, ctypes.c_int64(value.offset)
            form = ctypes.c_int(value.kind.format)
            made = self.c.aclCreateTensor(*stored, *kind, form, *stored, POINTER(value.data))
            return self._ended(POINTER(made), value.alive, self.c.aclDestroyTensor)
        if isinstance(value, aclnn.aclBoolArray):
            bits = (ctypes.c_uint8 * len(value.values))(*map(self._byte, value.values))
            made = self.c.aclCreateBoolArray(bits, SIZE(len(bits)))
            return self._ended(POINTER(made), value.alive, self.c.aclDestroyBoolArray)
        if isinstance(value, aclnn.aclIntArray):
            sizes = (ctypes.c_int64 * len(value.values))(*value.values)
            made = self.c.aclCreateIntArray(sizes, SIZE(len(sizes)))
            return self._ended(POINTER(made), value.alive, self.c.aclDestroyIntArray)
        if isinstance(value, bool):
            return ctypes.c_uint8(self._byte(value)), None
        kinds = {float: ctypes.c_double, int: ctypes.c_int64}
        return kinds[type(value)](value), None

    def _byte(self, value):
        return next(self._true) if value else 0

    def _ended(self, handle, alive, end):
        assert handle.value, self.said()
        if alive:
            return handle, end
        assert end(handle) == 0
        return handle, None

    def said(self):
        return self.c.aclGetRecentErrMsg().decode()


def compare(library, arena, name, content, given):
    """Both stages of a call on both sides, on the same content of the same memory."""
    seen = np.frombuffer((ctypes.c_uint8 * ARENA).from_address(arena.base), np.uint8)
    seen[:] = content
    status, size, executor = stage_one(name, given)
    words = said() if status else ""
    made = [library.argument(given[key]) for key in PARAMETERS[name]]
    nbytes, handle = SIZE(MARK), POINTER(MARK)
    stage = getattr(library.c, f"{name}GetWorkspaceSize")
    other = stage(*[value for value, _ in made], ctypes.byref(nbytes), ctypes.byref(handle))
    assert other == status, (words, library.said())
    if status:
        assert (nbytes.value, handle.value, library.said()) == (MARK, MARK, words)
    else:
        assert nbytes.value == size
        workspace = np.empty(size, np.uint8)
        place = workspace.ctypes.data if size else None
        results = []
        want = 161001 if executor.launch is None else 0  # a tensor waits for its address
        assert stage_two(name, place, size, executor) == want, said()
        results.append(seen.copy())
        seen[:] = content
        assert getattr(library.c, name)(POINTER(place), SIZE(size), handle, None) == want, said()
        results.append(seen.copy())
        assert np.array_equal(*results), np.flatnonzero(results[0] != results[1])
    for value, end in made:
        assert end is None or end(value) == 0
    return int(status)


def main(path, rounds):
    arena = InsideArena("alike")
    library = Library(path)
    assert not memory.checked
    rng = arena.random
    statuses = dict.fromkeys((0, 161001, 161002, 561003), 0)
    for turn in range(rounds):
        name = OPERATORS[turn % len(OPERATORS)]
        aclnn.set_product(rng.choice((*aclnn.PRODUCTS, *["ascend950"] * 12)))
        given = plausible(name, arena)
        for key in given:
            if rng.random() < 0.02 and key not in ("training", "eps", "N", "C", "HxW", "group"):
                given[key] = None
        # Small numbers of both signs, as all types have them: mostly exponents around 0.
        content = np.random.default_rng(turn).choice([0x3C, 0x3D, 0x3E, 0x3F, 0xBD, 0xBE], ARENA)
        try:
            statuses[compare(library, arena, name, content, given)] += 1
        except AssertionError:
            print(f"turn {turn}: {name} on {aclnn.get_product()}", given, sep="\n")
            raise
    assert all(count > rounds // 200 for count in statuses.values()), statuses
    print("alike")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
