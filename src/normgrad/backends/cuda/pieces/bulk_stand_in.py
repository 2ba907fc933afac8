"""Copies in PTX, in Triton's interpreter: bytes of host memory.

Blocks run one after another, so one ring is enough. It starts as NaN: what is read without having
been copied shows. A bulk copy is done as soon as it is asked for, and must come after `all_read`.
A thread's own copies are NaN from then on until they are waited for.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

_MOST = 1 << 18  # bytes of a ring
_ring = np.empty(_MOST, np.uint8)
_reading = np.zeros(_MOST, bool)  # bytes that were read since all were said to have been
_groups: list[list[Callable[[], None]]] = [[]]  # own copies that nobody has waited for yet


def _array(value: Any, shape: tuple[int, ...] = ()) -> Any:
    """The numbers of a tensor of the interpreter."""
    found = value.handle.data if isinstance(value, tl.tensor) else np.asarray(value)
    return np.broadcast_to(found, shape) if shape else found


def ring_at(offset: Any, BYTES: Any) -> Any:
    """The ring starts at 0."""
    return offset


def keep_last(thread: Any) -> Any:
    """No cache, no policy."""
    return thread


def start_ring(base: Any) -> None:
    """A block starts."""
    _ring.fill(0xFF)
    _reading.fill(False)
    _groups[:] = [[]]


def start_barriers(base: Any, COUNT: Any) -> None:
    """A block starts."""
    start_ring(base)


def clear_place(address: Any) -> None:
    """16 bytes of zeros."""
    at = int(_array(address).item())
    assert not at & 15
    _ring[at : at + 16] = 0


def is_warp(number: Any, like: Any) -> bool:
    """All threads are of one, whose turn it is."""
    return True


def lane_of(thread: Any) -> Any:
    """All threads are of one."""
    return thread


def await_turn(barrier: Any, turn: Any) -> None:
    """Everything is there."""


def all_read(like: Any) -> None:
    """One block, one thread."""
    _reading.fill(False)


def copy_runs(barrier: Any, promise: Any, to: Any, come: Any, sizes: Any, policy: Any) -> None:
    """Copy, and compare with what was promised."""
    shape = _array(barrier).shape
    promised, copied = _array(promise, shape), 0
    asks = _array(come[0], shape) != 0
    for place, start, size in zip(to, come, sizes, strict=True):
        places, starts, counts = (_array(one, shape) for one in (place, start, size))
        for at, source, count in zip(places[asks], starts[asks], counts[asks], strict=True):
            _copy(int(at), int(source), int(count))
            copied += int(count)
    assert copied == promised[promised > 0].sum(), "bytes that nobody promised, or that never come"


def copy_run(barrier: Any, promise: Any, to: Any, come: Any, size: Any, policy: Any) -> None:
    """The same of x alone."""
    copy_runs(barrier, promise, (to,), (come,), (size,), policy)


def _copy(to: int, source: int, count: int) -> None:
    assert not (to | source | count) & 15, "a bulk copy of what is no multiple of 16 bytes"
    assert 0 <= to <= _MOST - count
    assert not _reading[to : to + count].any(), "a copy to what others may not have read yet"
    ctypes.memmove(_ring.ctypes.data + to, source, count)


def copy_both(to_x: Any, to_dy: Any, x: Any, dy: Any, mask: Any, EACH: Any, BEHIND: Any) -> None:
    """Some elements for each address; zeros where there are none."""
    each, behind = (int(getattr(one, "value", one)) for one in (EACH, BEHIND))
    _copy_own(_array(to_x), x, mask, each)
    _copy_own(_array(to_dy) + behind, dy, mask, each)


def copy_one(to: Any, x: Any, mask: Any, EACH: Any) -> None:
    """The same of x alone."""
    _copy_own(_array(to), x, mask, int(getattr(EACH, "value", EACH)))


def _copy_own(places: Any, pointers: Any, mask: Any, each: int) -> None:
    count = each * pointers.dtype.element_ty.primitive_bitwidth // 8
    assert count in (4, 8, 16)
    assert not (places % count).any(), "a copy to what is no multiple of its size"
    assert (places >= 0).all()
    assert (places <= _MOST - count).all()
    there = np.copy(_array(mask, places.shape) != 0)
    to = places[..., None] + np.arange(count)
    sources = _array(pointers, places.shape)[there].astype(np.int64)
    assert not (sources % count).any(), "a copy of what is no multiple of its size"
    _ring[to] = 0xFF

    def done() -> None:
        _ring[to[~there]] = 0
        if sources.size:
            low, high = int(sources.min()), int(sources.max()) + count
            memory: Any = (ctypes.c_uint8 * (high - low)).from_address(low)
            at = (sources - low)[:, None] + np.arange(count)
            _ring[to[there]] = np.frombuffer(memory, np.uint8)[at]

    _groups[-1].append(done)


def commit(like: Any) -> None:
    """A group ends."""
    _groups.append([])


def wait(like: Any, OUTSTANDING: Any) -> None:
    """All groups come but for the last so many."""
    while len(_groups) > 1 + int(getattr(OUTSTANDING, "value", OUTSTANDING)):
        for copy in _groups.pop(0):
            copy()


def write(address: Any, number: Any) -> None:
    """Numbers to the ring."""
    places = _array(address)
    _ring.view(np.float32)[places // 4] = _array(number, places.shape)


def write_some(address: Any, element: Any) -> None:
    """Elements to the ring, where an address is not negative."""
    places, values = _array(address), np.ascontiguousarray(_array(element))
    there = places >= 0
    bits = values.view(np.uint8).reshape(len(values), -1)
    for at, one in zip(places[there], bits[there], strict=True):
        assert not _reading[at : at + len(one)].any(), "others may not have read it yet"
        _ring[at : at + len(one)] = one


def write_vector(address: Any, values: Any, VECTOR: Any, BEHIND: Any = 0) -> None:
    """Vectors to the ring."""
    each, behind = (int(getattr(one, "value", one)) for one in (VECTOR, BEHIND))
    data = np.ascontiguousarray(_array(values))
    rows = data.view(np.uint8).reshape(-1, each * data.itemsize)
    places = np.ascontiguousarray(_array(address, data.shape)).reshape(-1, each)
    assert (places == places[:, :1]).all(), "neighbours with different addresses"
    _ring[places[:, :1] + behind + np.arange(rows.shape[1])] = rows


def read(address: Any, like: Any, VECTOR: Any, BEHIND: Any = 0) -> Any:
    """Elements of the ring."""
    return _read(address + BEHIND, like.dtype.element_ty, int(getattr(VECTOR, "value", VECTOR)))


def read_number(address: Any) -> Any:
    """Numbers of the ring."""
    return _read(address, tl.float32, 1)


def _read(address: Any, element: Any, vector: int) -> Any:
    itemsize = element.primitive_bitwidth // 8
    shape = address.shape
    flat = _array(address).reshape(-1, vector)
    assert (flat == flat[:, :1]).all(), "neighbours with different addresses"
    inside = np.arange(vector) * itemsize
    at = (flat + inside)[..., None] + np.arange(itemsize)
    _reading[at] = True
    kind = {2: np.uint16, 4: np.uint32}[itemsize]
    bits = np.ascontiguousarray(_ring[at]).view(kind).reshape(tuple(int(n) for n in shape))
    integer = {2: tl.uint16, 4: tl.uint32}[itemsize]
    made = tl.core.tensor(type(address.handle)(bits, integer), tl.block_type(integer, shape))
    return made.to(element, bitcast=True)
