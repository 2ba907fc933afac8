"""Device memory with owners, streams and launches: what the aclnn and infiniop interfaces share."""

import os
from typing import Any, Protocol

from normgrad.core.spec import TensorSpec

__all__ = [
    "HOST_SOURCE",
    "HOST_TARGET",
    "Event",
    "Memory",
    "default_device",
    "first_gpu",
    "gpu_count",
    "memory_of",
    "no_room",
]

# Kinds of copies from, and to, host memory. Both interfaces number them alike: from host to host,
# to device, then from device to host, to device.
HOST_SOURCE, HOST_TARGET = (0, 1), (0, 2)


class Event(Protocol):
    """A point in the order of a stream's work, and the time when it was reached."""

    def record(self, stream: int) -> None:
        """Be what the stream has reached when all its work so far is done."""

    def finished(self) -> bool:
        """Whether that point was reached; without waiting."""

    def wait(self) -> None:
        """Wait until it is."""

    def hold(self, stream: int) -> None:
        """Let another stream's coming work wait for it."""

    def milliseconds_since(self, start: Any) -> float:
        """How long after another event of this device it was reached; both were."""


class Memory(Protocol):
    """The memory of one device, and the order of work on it. Addresses are plain integers."""

    device: str

    def allocate(self, nbytes: int) -> tuple[object, int]:
        """New memory at a multiple of 64 bytes: what owns it, and its address."""

    def copy(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        """Copy bytes; ``kind`` says which side is host memory."""

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """Set every byte."""

    def copy_view(
        self,
        target: int,
        target_tensor: TensorSpec,
        source: int,
        source_tensor: TensorSpec,
        stream: int,
    ) -> None:
        """Copy one view onto another of the same shape and type."""

    def new_stream(self) -> tuple[object, int]:
        """A stream: what owns it, and its number."""

    def new_event(self) -> Event:
        """An event that no stream has recorded yet."""

    def room(self) -> tuple[int, int]:
        """Bytes that are free, and all that there are."""

    def synchronize(self, stream: int | None) -> None:
        """Wait for one stream, or for the whole device."""

    def finished(self, stream: int) -> bool:
        """Whether a stream has nothing left to do; without waiting."""


def no_room(nbytes: int, device: str) -> MemoryError:
    """The error for memory that cannot be had, in our own words."""
    return MemoryError(f"{nbytes} bytes cannot be had on {device}")


def default_device() -> str:
    """``NORMGRAD_DEVICE``: the host by default; ``cuda`` is the first GPU."""
    device = os.environ.get("NORMGRAD_DEVICE", "") or "cpu"
    return "cuda:0" if device == "cuda" else device


def first_gpu() -> int | None:
    """The GPU that ``NORMGRAD_DEVICE`` names, where numbering begins; None if it names none."""
    return _gpu(default_device())


def gpu_count() -> int:
    """How many GPUs torch sees; none without torch."""
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count()


def _gpu(device: str) -> int | None:
    kind, _, index = device.partition(":")
    return int(index) if kind == "cuda" and index.isdecimal() else None


_MEMORIES: dict[str, Memory] = {}


def memory_of(device: str) -> Memory:
    """The memory of a device: ``cpu`` or ``cuda:0`` and on. CUDA's needs torch."""
    memory = _MEMORIES.get(device)
    if memory is None:
        # Two threads may both make one: they hold nothing, the last one stays.
        if device == "cpu":
            from normgrad.device.host import HostMemory

            memory = HostMemory()
        elif _gpu(device) is not None:
            from normgrad.device.cuda import CudaMemory

            memory = CudaMemory(device)
        else:
            msg = f"NORMGRAD_DEVICE must be cpu, cuda or cuda:N, got {device!r}"
            raise ValueError(msg)
        _MEMORIES[device] = memory
    return memory
