"""Host memory by address: NumPy views over it, and exact rounding into each type."""

import ctypes
import functools
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.spec import TensorSpec

# bfloat16 has no NumPy type of its own: it travels as the bits of a uint16.
STORAGE: "dict[str, np.dtype[Any]]" = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint8": np.dtype(np.uint8),
}

ALIGNMENT = 64  # of scratch memory, in bytes: a cache line
# From here on huge pages pay: 134 MB of fresh memory take 80 ms to touch without, 20 with them.
HUGE = 4 << 20
_PAGE = 4096
_MADV_HUGEPAGE = 14


def ask_huge_pages(address: int, nbytes: int) -> None:
    """Advice to Linux about memory that nobody has touched yet; elsewhere nothing."""
    madvise = _madvise()
    if madvise is not None:
        start = -(-address // _PAGE) * _PAGE
        madvise(start, (address + nbytes) // _PAGE * _PAGE - start, _MADV_HUGEPAGE)


@functools.cache
def _madvise() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def aligned_bytes(nbytes: int) -> tuple[NDArray[np.uint8], int]:
    """New memory: what owns it, and an address in it from which on so many bytes are there."""
    owner = np.empty(nbytes + ALIGNMENT, np.uint8)
    return owner, aligned(owner.__array_interface__["data"][0])


def aligned(place: int) -> int:
    """The first cache line that begins at a place or behind it."""
    return -(-place // ALIGNMENT) * ALIGNMENT


@functools.lru_cache(maxsize=4096)
def element_range(tensor: TensorSpec) -> tuple[int, int]:
    """The elements a view covers, first and one past the last, relative to its first element."""
    if tensor.size == 0:
        return (0, 0)
    spans = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)]
    return sum(span for span in spans if span < 0), sum(span for span in spans if span > 0) + 1


@functools.lru_cache(maxsize=4096)
def byte_range(tensor: TensorSpec) -> tuple[int, int]:
    """The same in bytes."""
    low, high = element_range(tensor)
    itemsize = ITEMSIZE[tensor.dtype]
    return (low * itemsize, high * itemsize)


def view(address: int | None, tensor: TensorSpec) -> NDArray[np.generic]:
    """The tensor at an address as a NumPy array, without a copy (bfloat16 as its bits)."""
    storage = STORAGE[tensor.dtype]
    if tensor.size == 0:
        return np.empty(tensor.shape, storage)
    assert address is not None
    low, high = byte_range(tensor)
    memory: Any = (ctypes.c_char * (high - low)).from_address(address + low)
    strides = tuple(stride * storage.itemsize for stride in tensor.strides)
    return np.ndarray(tensor.shape, storage, memory, offset=-low, strides=strides)


def widen(array: NDArray[np.generic], dtype: str) -> NDArray[np.float64]:
    """The values as float64: exact from every type."""
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        if dtype == "bfloat16":
            return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return array.astype(np.float64)


def narrow(values: NDArray[np.float64], dtype: str) -> NDArray[np.generic]:
    """Values rounded once, to nearest even, into a type (bfloat16 as its bits)."""
    if dtype == "bfloat16":
        return _bfloat16_bits(values)
    with np.errstate(over="ignore"):  # too large becomes inf, as the type says
        rounded: NDArray[np.generic] = np.asarray(values).astype(STORAGE[dtype])
    return rounded


def _bfloat16_bits(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    # Float64 to float32 and on to bfloat16 would round twice. The first step rounds to odd
    # instead: an inexact float32 whose last bit is 0 moves one step towards the value, so
    # that the second rounding sees on which side of a tie the value lies.
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.asarray(values, np.float64).astype(np.float32)
        error = np.where(np.isfinite(single), values - single.astype(np.float64), 0.0)
    bits = single.view(np.uint32)
    fix = (error != 0) & ((bits & 1) == 0)
    away = (error > 0) == ~np.signbit(single)  # the value lies further from 0 than `single`
    odd = np.where(fix, np.where(away, bits + 1, bits - 1), bits).astype(np.uint32)
    # A zero that was rounded from a tiny value steps to the smallest subnormal of its sign.
    odd = np.where(fix & (single == 0), (bits & 0x80000000) | 1, odd).astype(np.uint32)
    rounded = ((odd + (0x7FFF + ((odd >> 16) & 1))) >> 16).astype(np.uint16)
    quiet = ((bits >> 16) | 0x40).astype(np.uint16)
    return np.where(np.isnan(single), quiet, rounded).astype(np.uint16)
