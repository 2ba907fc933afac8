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

from normgrad.arrays import host_memory
from normgrad.core.errors import OptionError

LEAST = 16 << 20  # bytes of a result from which on it pays
_HUGE_PAGE = 2 << 20
_MOST = "256"  # megabytes that are kept for later
_Memory = tuple[int, int, mmap.mmap]  # bytes, address, what owns them
_idle: list[_Memory] = []  # the oldest first; lists need no lock for what is done here


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
    return type("Block", (ctypes.c_char * nbytes,), {"__del__": _release})


def acquire(nbytes: int) -> Any:
    """A buffer of at least so many bytes that nobody else uses, with any content.

    Of whole huge pages: a type for each number of bytes would be kept for ever, 6 KB each.
    """
    entry = _fitting(nbytes) if _room() and _idle else None
    if entry is None:
        entry = _map(-(-nbytes // _HUGE_PAGE) * _HUGE_PAGE)
    # By address: a buffer of the mapping's own would not let it go.
    block = _blocks(entry[0]).from_address(entry[1])
    block.entry = entry
    return block


def _map(nbytes: int) -> _Memory:
    # Private: a forked child has its own from its first write on.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    try:
        memory = mmap.mmap(-1, nbytes, **private)
    except OSError as error:
        if _idle:  # it may be just what is missing
            _idle.clear()
            return _map(nbytes)
        raise MemoryError(f"no memory for a result of {nbytes} bytes") from error
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    host_memory.ask_huge_pages(address, nbytes)
    return nbytes, address, memory


def _fitting(nbytes: int) -> _Memory | None:
    """Kept memory with at most a quarter to spare."""
    most = nbytes + max(nbytes // 4, _HUGE_PAGE)
    for entry in sorted(_idle) if len(_idle) > 1 else _idle[:]:  # their addresses differ
        if nbytes <= entry[0] <= most:
            try:
                _idle.remove(entry)
            except ValueError:  # another thread was faster
                continue
            return entry
    return None


def _release(block: Any) -> None:
    entry = getattr(block, "entry", None)
    if entry is None or _room() < entry[0]:
        return
    _idle.append(entry)
    while sum([size for size, _, _ in _idle]) > _room():
        try:
            _idle.pop(0)  # nobody knows its address: the mapping goes
        except IndexError:
            break
