"""Large results on the host, in memory that earlier ones left behind.

From 32 MB on malloc asks the system anew each time, and fresh pages must be cleared: 7 of 12 ms
for a gradient of 50 MB. A result's memory is kept when the last array over it is gone, and serves
the next one of about its size.
"""

import ctypes
import functools
import mmap
import os
from typing import Any

from normgrad import hostmem
from normgrad.errors import OptionError

LEAST = 16 << 20  # bytes of a result from which on it pays
_HUGE_PAGE = 2 << 20
_MOST = "256"  # megabytes that are kept for later
_kept: list[mmap.mmap] = []  # the oldest first; lists need no lock for what is done here


@functools.cache
def _room() -> int:
    """Bytes that may be kept."""
    wish = os.environ.get("NORMGRAD_KEEP_MB") or _MOST
    if not wish.isdecimal():
        rule = "must be a number of megabytes, 0 to keep nothing"
        raise OptionError("NORMGRAD_KEEP_MB", rule, wish)
    return int(wish) << 20


@functools.cache
def _blocks(nbytes: int) -> Any:
    """A ctypes array of bytes that gives its memory back."""
    return type("Block", (ctypes.c_char * nbytes,), {"__del__": _give_back})


def take(nbytes: int) -> Any:
    """A buffer of so many bytes that nobody else uses, with any content."""
    memory = _fitting(nbytes) if _room() else None
    fresh = memory is None
    if memory is None:
        memory = _map(-(-nbytes // _HUGE_PAGE) * _HUGE_PAGE)
    # By address: a buffer of the mapping's own would not let it go.
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if fresh:
        hostmem.ask_huge_pages(address, len(memory))
    block = _blocks(nbytes).from_address(address)
    block.memory = memory
    return block


def _map(nbytes: int) -> mmap.mmap:
    if os.name != "posix":
        return mmap.mmap(-1, nbytes)
    # Private: a forked child has its own from its first write on.
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _fitting(nbytes: int) -> mmap.mmap | None:
    """Kept memory with at most a quarter to spare."""
    for memory in sorted(_kept, key=len):
        if nbytes <= len(memory) <= nbytes + max(nbytes // 4, _HUGE_PAGE):
            try:
                _kept.remove(memory)
            except ValueError:  # another thread was faster
                continue
            return memory
    return None


def _give_back(block: Any) -> None:
    memory = getattr(block, "memory", None)
    if memory is None or _room() < len(memory):
        return
    _kept.append(memory)
    while sum(map(len, _kept)) > _room():
        try:
            _kept.pop(0)  # nobody knows its address: the mapping goes
        except IndexError:
            break
