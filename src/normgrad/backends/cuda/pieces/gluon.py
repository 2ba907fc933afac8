"""Gluon for kernels that manage shared memory themselves, and a stand-in for Triton's interpreter.

The interpreter knows no layouts, no shared memory and no asynchronous copies. The stand-in leaves
layouts out and copies at once; the arithmetic, offsets and masks of a kernel are the same.
"""

from typing import Any

import triton
import triton.language as tl

from normgrad.backends.cuda.pieces.common import INTERPRETED


class _Slot:
    """One tile of shared memory."""

    def __init__(self) -> None:
        self.tile: Any = None

    def load(self, layout: Any) -> Any:
        return self.tile

    def store(self, tile: Any) -> None:
        self.tile = tile


class _Shared:
    """Tiles of shared memory, by number."""

    def __init__(self, count: Any) -> None:
        self.slots = [_Slot() for _ in range(_plain(count))]

    def index(self, number: Any) -> _Slot:
        return self.slots[_plain(number)]


def _plain(number: Any) -> int:
    """An int, of whatever the interpreter makes of it."""
    number = getattr(number, "value", number)
    return int(number.handle.data.item()) if isinstance(number, tl.tensor) else int(number)


class _Copies:
    """Copies that are done as soon as they are asked for."""

    @staticmethod
    def async_copy_global_to_shared(slot: _Slot, pointers: Any, mask: Any) -> None:
        slot.tile = tl.load(pointers, mask=mask, other=0.0)

    @staticmethod
    def commit_group() -> None: ...

    @staticmethod
    def wait_group(outstanding: Any) -> None: ...


class _Language:
    """`triton.language` with the names that Gluon adds."""

    def __getattr__(self, name: str) -> Any:
        return getattr(tl, name)

    @staticmethod
    def arange(start: Any, end: Any, layout: Any) -> Any:
        return tl.arange(start, end)

    @staticmethod
    def zeros(shape: Any, dtype: Any, layout: Any) -> Any:
        return tl.zeros(shape, dtype)

    @staticmethod
    def convert_layout(value: Any, layout: Any) -> Any:
        return value

    @staticmethod
    def allocate_shared_memory(dtype: Any, shape: Any, layout: Any) -> _Shared:
        return _Shared(shape[0])

    @staticmethod
    def BlockedLayout(*parts: Any) -> None: ...  # noqa: N802

    SliceLayout = SwizzledSharedLayout = BlockedLayout


if INTERPRETED:
    gl: Any = _Language()
    jit: Any = triton.jit
    async_copy: Any = _Copies()
else:
    import triton.experimental.gluon as _gluon
    from triton.experimental.gluon import language as _language
    from triton.experimental.gluon.language.nvidia import ampere as _ampere

    gl, jit, async_copy = _language, _gluon.jit, _ampere.async_copy
