"""One number in a device's memory: what stands for a vector that nobody gave."""

import ctypes
import functools

from normgrad.core.spec import TensorSpec
from normgrad.device import memory_of
from normgrad.device.launch import Span

_HOST_TO_DEVICE = 1


def repeated(count: int) -> TensorSpec:
    """A vector of one number, as often as wanted."""
    return TensorSpec((count,), (0,), "float32")


@functools.cache
def place_of(device: str, value: float) -> Span:
    """Where the number lies, for as long as the process."""
    owner, address = memory_of(device).allocate(4)
    _OWNERS.append(owner)
    number = ctypes.c_float(value)
    memory_of(device).copy(address, ctypes.addressof(number), 4, _HOST_TO_DEVICE, 0)
    return Span(address, address, address + 4)


_OWNERS: list[object] = []
