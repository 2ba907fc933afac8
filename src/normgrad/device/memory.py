"""Who owns which bytes: every allocation of the two runtimes, and what may be done with it.

Both interfaces share these tables, so that a pointer of one is known to the other.
"""

import bisect
import itertools
import os
import threading
from collections import deque
from typing import Any, Final, NamedTuple

import numpy as np

# Whether addresses are looked up before they are used. The C libraries switch it off unless
# NORMGRAD_CHECKED=1: a C program may pass memory that it got elsewhere.
checked = os.environ.get("NORMGRAD_CHECKED", "1") != "0"

# Freed blocks are held back up to this size and number together, so that a freed address is not
# handed out again at once and its use can be told from that of a new allocation.
_QUARANTINE_BYTES: Final = 32 << 20
_REMEMBERED: Final = 1024


class OwnershipError(Exception):
    """An address that must not be used as it was; the sentence says why."""


class Allocation(NamedTuple):
    """One block: where, how large, who asked, and the object that owns it."""

    address: int
    nbytes: int
    number: int
    maker: str
    owner: object
    place: str = "cpu"

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.address + self.nbytes

    def __str__(self) -> str:
        return (
            f"allocation {self.number} of {self.maker} ({self.nbytes} bytes at {self.address:#x})"
        )


class Allocations:
    """The live blocks of one kind of memory, in the order of their addresses."""

    def __init__(self, space: str) -> None:
        self.space = space
        self._lock = threading.Lock()
        self._bases: list[int] = []
        self._blocks: dict[int, Allocation] = {}
        self._numbers = itertools.count(1)
        self._freed: deque[tuple[Allocation, str]] = deque(maxlen=_REMEMBERED)
        self._held: dict[int, tuple[Allocation, str]] = {}  # by address, the oldest first
        self._held_bases: list[int] = []
        self._held_bytes = 0

    def add(
        self, address: int, nbytes: int, owner: object, maker: str, place: str = "cpu"
    ) -> Allocation:
        """Remember a new block, and the device whose memory it is."""
        with self._lock:
            block = Allocation(address, nbytes, next(self._numbers), maker, owner, place)
            bisect.insort(self._bases, address)
            self._blocks[address] = block
        return block

    def release(self, address: int, freer: str) -> None:
        """Forget a block, which frees it; only the pointer that was handed out will do."""
        with self._lock:
            block = self._blocks.pop(address, None)
            if block is not None:
                del self._bases[bisect.bisect_left(self._bases, address)]
                self._bury(block, freer)
                return
        raise OwnershipError(self._why_not_freed(address))

    def find(self, address: int) -> Allocation | None:
        """The live block that an address lies in."""
        with self._lock:
            index = bisect.bisect_right(self._bases, address) - 1
            if index < 0:
                return None
            block = self._blocks[self._bases[index]]
        return block if address < block.end else None

    def require(self, low: int, high: int, place: str, *, foreign: bool = False) -> None:
        """Raise unless the bytes from ``low`` to ``high`` lie in one live block on a device.

        ``foreign`` lets memory pass of which nothing is known.
        """
        # The common case without a lock: reading a dictionary is atomic.
        block = self._blocks.get(low) or self.find(low)
        if block is not None and high <= block.end:
            if block.place != place:  # the CPU would crash over the memory of a GPU
                where = f"is on {block.place}, not on {place}"
                raise OwnershipError(f"address {low:#x} lies in {block}, which {where}")
            return
        if block is not None:
            over = high - block.end
            fault = f"bytes {low:#x} to {high:#x} leave {block} by {over} bytes at its end"
            raise OwnershipError(fault)
        # Memory that left quarantine may be anybody's by now, such as an array of the caller.
        dead = self._held_at(low) if foreign else self._freed_at(low)
        if dead is not None:
            block, freer = dead
            raise OwnershipError(f"address {low:#x} lies in {block}, which {freer} has freed")
        after = self.find(high - 1) if high > low else None
        if after is not None:
            raise OwnershipError(f"bytes from {low:#x} begin {after.address - low} before {after}")
        if not foreign:
            raise OwnershipError(f"address {low:#x} belongs to no {self.space} allocation")

    def live(self) -> tuple[Allocation, ...]:
        """Every block that was not freed, oldest first."""
        with self._lock:
            return tuple(sorted(self._blocks.values(), key=lambda block: block.number))

    def _bury(self, block: Allocation, freer: str) -> None:
        self._freed.append((block._replace(owner=None), freer))
        if not checked or block.nbytes > _QUARANTINE_BYTES:
            return
        self._held[block.address] = block, freer
        bisect.insort(self._held_bases, block.address)
        self._held_bytes += block.nbytes
        while self._held_bytes > _QUARANTINE_BYTES or len(self._held) > _REMEMBERED:
            oldest, _ = self._held.pop(next(iter(self._held)))
            del self._held_bases[bisect.bisect_left(self._held_bases, oldest.address)]
            self._held_bytes -= oldest.nbytes

    def _held_at(self, address: int) -> tuple[Allocation, str] | None:
        """The block in quarantine that an address lies in; asked for each address of a caller."""
        with self._lock:
            index = bisect.bisect_right(self._held_bases, address) - 1
            if index < 0:
                return None
            held = self._held[self._held_bases[index]]
        return held if address < held[0].end else None

    def _freed_at(self, address: int) -> tuple[Allocation, str] | None:
        with self._lock:
            for block, freer in reversed(self._freed):
                if block.address <= address < max(block.end, block.address + 1):
                    return block, freer
        return None

    def _why_not_freed(self, address: int) -> str:
        block = self.find(address)
        if block is not None:
            return f"address {address:#x} is {address - block.address} bytes inside {block}"
        dead = self._freed_at(address)
        if dead is not None:
            block, freer = dead
            return f"address {address:#x} lies in {block}, which {freer} has already freed"
        return f"address {address:#x} belongs to no {self.space} allocation"


def host_address(name: str, buffer: Any, nbytes: int, *, written: bool) -> int:
    """Where a host buffer (bytes, a bytearray, a NumPy array) lies, if it has the bytes."""
    try:
        array = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
    except (TypeError, ValueError, BufferError):
        kind = type(buffer).__name__
        raise OwnershipError(
            f"{name} must be an address or a contiguous buffer, got a {kind}"
        ) from None
    if not array.flags.c_contiguous:
        raise OwnershipError(f"{name} must be contiguous, got strides {array.strides}")
    if written and not array.flags.writeable:
        raise OwnershipError(f"{name} must be writable, got read-only memory")
    if nbytes > array.nbytes:
        raise OwnershipError(f"{name} must have {nbytes} bytes, got {array.nbytes}")
    return int(array.__array_interface__["data"][0])


DEVICE: Final = Allocations("device")
HOST: Final = Allocations("host")
