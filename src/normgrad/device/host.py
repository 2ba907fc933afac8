"""Host memory as a device: work is done when a call returns, so streams are only names."""

import ctypes

from normgrad import hostmem
from normgrad.spec import TensorSpec


class HostMemory:
    """The CPU's memory."""

    device = "cpu"

    def allocate(self, nbytes: int) -> tuple[object, int]:
        """Bytes of NumPy's, from the first cache line on."""
        try:
            return hostmem.aligned_bytes(nbytes)
        except (ValueError, OverflowError) as error:  # more bytes than an address can count
            raise MemoryError(str(error)) from error

    def copy(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        """Copy at once; the ranges may overlap."""
        ctypes.memmove(target, source, nbytes)

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """Fill at once."""
        ctypes.memset(target, value, nbytes)

    def copy_view(
        self,
        target: int,
        target_tensor: TensorSpec,
        source: int,
        source_tensor: TensorSpec,
        stream: int,
    ) -> None:
        """NumPy's own copy."""
        hostmem.view(target, target_tensor)[...] = hostmem.view(source, source_tensor)

    def new_stream(self) -> tuple[object, int]:
        """The host has one order of work for each thread: stream 0."""
        return None, 0

    def synchronize(self, stream: int | None) -> None:
        """Nothing is ever pending."""
