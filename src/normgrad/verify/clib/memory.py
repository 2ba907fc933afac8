"""Arrays in a library's memory, with guard bytes around them."""

import ctypes
from typing import Any, Protocol

import numpy as np

from normgrad.arrays import host_memory
from normgrad.core.spec import TensorSpec
from normgrad.verify.problem import HostArray

# A multiple of every alignment that a library may ask for.
GUARD = 512
_PATTERN = 0xA5


class Runtime(Protocol):
    """A library's own allocation and copies."""

    def malloc(self, nbytes: int) -> int:
        """Device memory."""
        ...

    def free(self, address: int) -> None:
        """Give it back."""

    def upload(self, address: int, data: bytes) -> None:
        """Host to device."""

    def download(self, address: int, nbytes: int) -> bytes:
        """Device to host, after all work is done."""
        ...


class HostRuntime:
    """Plain host memory, for libraries that bring no runtime."""

    def __init__(self) -> None:
        self.blocks: dict[int, object] = {}

    def malloc(self, nbytes: int) -> int:
        """A buffer that starts at a multiple of 64."""
        block = ctypes.create_string_buffer(nbytes + host_memory.ALIGNMENT)
        address = host_memory.aligned(ctypes.addressof(block))
        self.blocks[address] = block
        return address

    def free(self, address: int) -> None:
        """Forget it."""
        del self.blocks[address]

    def upload(self, address: int, data: bytes) -> None:
        """A copy."""
        ctypes.memmove(address, data, len(data))

    def download(self, address: int, nbytes: int) -> bytes:
        """A copy."""
        return ctypes.string_at(address, nbytes)


class Placed:
    """A strided array in the library's memory. ``address`` is that of its first element."""

    def __init__(self, runtime: Runtime, host: HostArray) -> None:
        self.runtime, self.host, self.tensor = runtime, host, host.tensor
        self.low, high = host_memory.byte_range(self.tensor)
        self.size = high - self.low
        self.total = self.size + 2 * GUARD
        self.base = runtime.malloc(self.total)
        self.address = self.base + GUARD - self.low
        self.image = np.full(self.total, _PATTERN, np.uint8)
        self._view(self.image)[...] = host.array
        runtime.upload(self.base, self.image.tobytes())

    def _view(self, image: Any) -> Any:
        """The array inside an image of the whole allocation."""
        if self.tensor.size == 0:
            return np.empty(self.tensor.shape, host_memory.STORAGE[self.tensor.dtype])
        first = image.__array_interface__["data"][0] + GUARD - self.low
        return host_memory.view(first, self.tensor)

    def read(self) -> Any:
        """The present elements (bfloat16 as its bits), laid out as before."""
        image = self._download()  # a view knows the address alone: the image must stay
        return self._view(image).copy()

    def refill(self) -> None:
        """The first elements again; what was written around them stays, for ``stray`` to see."""
        image = self._download()
        self._view(image)[...] = self.host.array
        self.runtime.upload(self.base, image.tobytes())

    def stray(self) -> bool:
        """Whether anything outside the elements changed."""
        now, before = self._download(), self.image.copy()
        self._view(now)[...] = 0
        self._view(before)[...] = 0
        return not np.array_equal(now, before)

    def touched(self) -> bool:
        """Whether any byte changed."""
        return not np.array_equal(self._download(), self.image)

    def _download(self) -> Any:
        return np.frombuffer(self.runtime.download(self.base, self.total), np.uint8).copy()

    def free(self) -> None:
        """Give the memory back."""
        self.runtime.free(self.base)


def strided(host: HostArray, step: int) -> HostArray:
    """The same array with gaps between the elements of its last axis."""
    *rows, columns = host.array.shape
    view = np.zeros((*rows, columns * step), host.array.dtype)[..., ::step]
    view[...] = host.array
    return HostArray(view, host.dtype)


def nan_like(tensor: TensorSpec) -> HostArray:
    """An array full of NaN for a result."""
    array = np.empty(tensor.shape, host_memory.STORAGE[tensor.dtype])
    array[...] = host_memory.narrow(np.full(tensor.shape, np.nan), tensor.dtype)
    return HostArray(array, tensor.dtype)
