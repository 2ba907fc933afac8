"""What `vectors` names, in plain Python on checked memory: for NUMBA_DISABLE_JIT=1.

Every access must lie inside a range that the running call may touch; an access outside is an
IndexError with its address. Slow, and meant for tests.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from normgrad.arrays import host_memory
from normgrad.backends.cpu.vectors.formats import I16, Format

FLUSHES_BF16 = False
_readable: list[tuple[int, int]] = []
_writable: list[tuple[int, int]] = []
_STORAGE = {**host_memory.STORAGE, "int16": np.dtype(np.int16)}


@contextmanager
def memory(readable: list[tuple[int, int]], writable: list[tuple[int, int]]) -> Iterator[None]:
    """Allow these ranges of bytes for a while."""
    _readable[:] = readable
    _writable[:] = writable
    try:
        yield
    finally:
        _readable.clear()
        _writable.clear()


def _checked(ranges: list[tuple[int, int]], address: int, nbytes: int, verb: str) -> None:
    if not any(low <= address and address + nbytes <= high for low, high in ranges):
        msg = f"a kernel {verb} {nbytes} bytes at {address:#x}, outside of what it was given"
        raise IndexError(msg)


def _view(fmt: Format, address: int, count: int, writing: bool) -> Any:
    nbytes = count * fmt.itemsize
    if nbytes == 0:
        return np.empty(0, _STORAGE[fmt.name])
    ranges, verb = (_writable, "writes") if writing else (_readable, "reads")
    _checked(ranges, address, nbytes, verb)
    return _bytes_at(address, nbytes).view(_STORAGE[fmt.name])


def _bytes_at(address: int, nbytes: int) -> Any:
    """Memory as an array of bytes."""
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.frombuffer(memory, np.uint8)


def _compute_type(fmt: Format) -> Any:
    return np.float64 if fmt.wide else np.float32


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """As in `traced`."""
    return function


def lanes(fmt: Format) -> int:
    """As in `arithmetic`."""
    return fmt.lanes


def size_of(fmt: Format) -> int:
    """As in `arithmetic`."""
    return fmt.itemsize


def hidden_constant(value: Any) -> Any:
    """As in `arithmetic`."""
    return value


def fills_line(fmt: Format) -> bool:
    """As in `arithmetic`."""
    return fmt.fills_line


def load(fmt: Format, address: int) -> Any:
    """As in `lowering`."""
    return load_part(fmt, address, fmt.lanes)


def load_part(fmt: Format, address: int, count: int) -> Any:
    """As in `lowering`."""
    values = np.zeros(fmt.lanes, _compute_type(fmt))
    count = max(0, min(count, fmt.lanes))
    values[:count] = host_memory.widen(_view(fmt, address, count, False), fmt.name)
    return values


def store(fmt: Format, address: int, values: Any) -> None:
    """As in `lowering`."""
    store_part(fmt, address, values, fmt.lanes)


def stream(fmt: Format, address: int, first: Any, second: Any) -> None:
    """As in `lowering`: alignment is part of the bargain."""
    if address % 64:
        msg = f"a streamed store at {address:#x} is not aligned"
        raise IndexError(msg)
    store(fmt, address, first)
    store(fmt, address + fmt.lanes * fmt.itemsize, second)


def stream_line(fmt: Format, address: int, values: Any) -> None:
    """As in `lowering`: alignment is part of the bargain."""
    if address % 64:
        msg = f"a streamed store at {address:#x} is not aligned"
        raise IndexError(msg)
    store(fmt, address, values)


def splat_pair(fmt: Format, first: float, second: float, count: int) -> tuple[Any, Any]:
    """As in `arithmetic`, in memory's order."""
    places = np.arange(2 * fmt.lanes)
    one, other = splat(fmt, first)[0], splat(fmt, second)[0]
    both = np.where(places < count, one, other)
    return both[: fmt.lanes], both[fmt.lanes :]


def load_pair(fmt: Format, address: int) -> tuple[Any, Any]:
    """As in `lowering`, in memory's order."""
    return load(fmt, address), load(fmt, address + fmt.lanes * fmt.itemsize)


def store_pair(fmt: Format, address: int, first: Any, second: Any) -> None:
    """As in `lowering`."""
    store(fmt, address, first)
    store(fmt, address + fmt.lanes * fmt.itemsize, second)


def stream_pair(fmt: Format, address: int, first: Any, second: Any) -> None:
    """As in `lowering`."""
    stream(fmt, address, first, second)


def store_part(fmt: Format, address: int, values: Any, count: int) -> None:
    """As in `lowering`."""
    count = max(0, min(count, fmt.lanes))
    narrow = host_memory.narrow(values[:count].astype(np.float64), fmt.name)
    _view(fmt, address, count, True)[:] = narrow


def store_rounded(fmt: Format, address: int, values: Any, count: int) -> None:
    """As in `lowering`."""
    _view(fmt, address, count, True)[:] = host_memory.narrow(values[:count], fmt.name)


def splat(fmt: Format, value: float) -> Any:
    """As in `arithmetic`."""
    return np.full(fmt.lanes, value, _compute_type(fmt))


def zero(fmt: Format) -> Any:
    """As in `arithmetic`."""
    return np.zeros(fmt.lanes, _compute_type(fmt))


def as_stored(fmt: Format, values: Any) -> Any:
    """As in `lowering`."""
    narrow = host_memory.narrow(np.asarray(values, np.float64).ravel(), fmt.name)
    wide = host_memory.widen(narrow, fmt.name).astype(np.result_type(values))
    return wide if np.ndim(values) else wide[0]


def fma(first: Any, second: Any, third: Any) -> Any:
    """As in `arithmetic`, rounded twice."""
    return first * second + third


def total(values: Any) -> float:
    """As in `arithmetic`."""
    return np.float64(values.astype(np.float64).sum())


def four_totals(*vectors: Any) -> tuple[float, ...]:
    """As in `arithmetic`."""
    return tuple(np.float64(values.sum()) for values in vectors)


def totals_in_lanes(*vectors: Any) -> Any:
    """As in `arithmetic`."""
    return np.array([*four_totals(*vectors), 0, 0, 0, 0], np.float64)


def widen(values: Any) -> Any:
    """As in `arithmetic`."""
    return values.astype(np.float64)


def lane_of(values: Any, lane: int) -> float:
    """As in `arithmetic`."""
    return np.float64(values[lane])


def with_lane(values: Any, lane: int, value: float) -> Any:
    """As in `arithmetic`."""
    changed = values.copy()
    changed[lane] = value
    return changed


def kept(values: Any, count: int) -> Any:
    """As in `arithmetic`."""
    return np.where(np.arange(len(values)) < count, values, values.dtype.type(0))


def any_above(first: Any, second: Any) -> bool:
    """As in `arithmetic`."""
    return bool(np.any(first > second))


def absolute(values: Any) -> Any:
    """As in `arithmetic`."""
    return np.abs(values)


def at_most(first: Any, second: Any, yes: Any, no: Any) -> Any:
    """As in `arithmetic`."""
    chosen = np.where(first <= second, yes, no)
    return chosen.astype(getattr(no, "dtype", first.dtype))


def bits_above(values: Any, bound: Any) -> int:
    """As in `arithmetic`."""
    return sum(1 << lane for lane, above in enumerate(~(values <= bound)) if above)


def kept_where(values: Any, bits: int) -> Any:
    """As in `arithmetic`."""
    chosen = [bits >> lane & 1 for lane in range(len(values))]
    return np.where(chosen, values, values.dtype.type(0))


def take_byte(address: int) -> int:
    """As in `lowering`."""
    _checked(_readable, address, 1, "reads")
    return int(_bytes_at(address, 1)[0])


def put_byte(address: int, bits: int) -> None:
    """As in `lowering`."""
    _checked(_writable, address, 1, "writes")
    _bytes_at(address, 1)[0] = bits


def in_float32(values: Any) -> Any:
    """As in `arithmetic`."""
    return np.float32(values)


def in_type_of(values: Any, like: Any) -> Any:
    """As in `arithmetic`."""
    return like.dtype.type(values)


def times_power(values: Any, whole: Any) -> Any:
    """As in `arithmetic`."""
    return np.ldexp(values, whole.astype(np.int32))


def square_root(values: Any) -> Any:
    """As in `arithmetic`."""
    return np.sqrt(values)


def read(fmt: Format, address: int) -> float:
    """As in `lowering`."""
    view = _view(fmt, address, 1, False)
    return np.float64(
        view[0] if fmt.name.startswith("int") else host_memory.widen(view, fmt.name)[0]
    )


def write(fmt: Format, address: int, value: float) -> None:
    """As in `lowering`."""
    _view(fmt, address, 1, True)[:] = host_memory.narrow(np.array([value], np.float64), fmt.name)


def move(fmt: Format, source: int, target: int) -> None:
    """As in `lowering`."""
    _view(fmt, target, 1, True)[:] = _view(fmt, source, 1, False)


def side(fmt: Format) -> int:
    """As in `moves`."""
    return min(16, 64 // fmt.itemsize)


def move_line(source: int, target: int) -> None:
    """As in `moves`."""
    for offset in range(0, 64, 2):
        move(I16, source + offset, target + offset)


def transpose(fmt: Format, source: int, source_step: int, target: int, target_step: int) -> None:
    """As in `moves`."""
    for row in range(side(fmt)):
        for column in range(side(fmt)):
            there = source + row * source_step + column * fmt.itemsize
            move(fmt, there, target + column * target_step + row * fmt.itemsize)


def float_of(bits: int) -> float:
    """As in `arithmetic`."""
    return float(np.array([bits], np.int64).view(np.float64)[0])


def call_task(
    function: Any,
    params: Any,
    addresses: Any,
    workspace: int,
    argument: int,
    index: int,
    after: int,
) -> int:
    """The function itself stands where its address would be."""
    status: int = function(params, addresses, workspace, argument, index, after)
    return status


def add_atomic(address: int, amount: int) -> int:
    """Without the compiler there is one thread and no shared counters."""
    raise NotImplementedError


def prefetch(address: int) -> None:
    """Nothing to ask for."""


def fence() -> None:
    """Nothing to wait for."""


def pause(give_way: bool) -> None:
    """Nobody to wait for."""


def set_arithmetic(wanted: int) -> int:
    """It stays NumPy's."""
    return wanted
