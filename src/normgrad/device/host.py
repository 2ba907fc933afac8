"""Host memory as a device: work is done when a call returns, so streams are only names."""

import ctypes
import os
import time

from normgrad.arrays import host_memory
from normgrad.core.spec import TensorSpec
from normgrad.device import no_room


class HostEvent:
    """A time: the work before it is done when it is recorded."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def record(self, stream: int) -> None:
        """Now."""
        self.seconds = time.perf_counter()

    def finished(self) -> bool:
        """Always."""
        return True

    def wait(self) -> None:
        """Nothing is ever pending."""

    def hold(self, stream: int) -> None:
        """Nothing is ever pending."""

    def milliseconds_since(self, start: "HostEvent") -> float:
        """By the clock."""
        return 1e3 * (self.seconds - start.seconds)


class HostMemory:
    """The CPU's memory."""

    device = "cpu"

    def allocate(self, nbytes: int) -> tuple[object, int]:
        """Bytes of NumPy's, from the first cache line on."""
        try:
            return host_memory.aligned_bytes(nbytes)
        except (MemoryError, ValueError, OverflowError) as error:  # or more than addresses count
            raise no_room(nbytes, self.device) from error

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
        host_memory.view(target, target_tensor)[...] = host_memory.view(source, source_tensor)

    def new_stream(self) -> tuple[object, int]:
        """The host has one order of work for each thread: stream 0."""
        return None, 0

    def new_event(self) -> HostEvent:
        """A time that is not there yet."""
        return HostEvent()

    def room(self) -> tuple[int, int]:
        """What the system has, of which a container may get less."""
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")

    def synchronize(self, stream: int | None) -> None:
        """Nothing is ever pending."""

    def finished(self, stream: int) -> bool:
        """Always."""
        return True
