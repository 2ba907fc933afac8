"""Bits of a mask, as tiles have them: eight neighbours in a byte, the first one lowest.

A thread has the byte of each vector of its tile (of two threads' in float32), so that neither a
byte is loaded nor a bit moved for each element.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.pieces.common import INTERPRETED, widen
from normgrad.backends.cuda.pieces.gluon import gl, jit


@triton.constexpr_function
def _in_eights(tile):
    """The layout of a tile as rows of bytes of eight elements."""
    if INTERPRETED:
        return None
    each = tile.size_per_thread[1]
    down, lanes = tile.threads_per_warp
    of_byte = 8 // each
    return gl.BlockedLayout(
        [1, 1, each], [down, lanes // of_byte, of_byte], [*tile.warps_per_cta, 1], [2, 1, 0]
    )


@triton.constexpr_function
def bytes_of(tile):
    """Where a tile's bytes are."""
    return gl.SliceLayout(2, _in_eights(tile))


@jit
def packed(values, there, tile: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """A byte of eight values: the bits of those that are there and not 0."""
    place = gl.arange(0, COLS, gl.SliceLayout(0, tile)) % 8
    opened = ((values != 0) & there).to(gl.int32) << place[None, :]
    byte = gl.sum(gl.reshape(opened, [ROWS, COLS // 8, 8]), 2)
    return gl.convert_layout(byte, bytes_of(tile)).to(gl.uint8)


@jit
def through_bits(values, byte, tile: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Values times 1 where their bit is set, else times 0, in their own type."""
    eights: tl.constexpr = _in_eights(tile)
    place = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(1, eights)))
    place = gl.expand_dims(gl.expand_dims(place, 0), 1)
    opened = gl.expand_dims(byte.to(gl.int32), 2) >> place & 1
    opened = gl.convert_layout(gl.reshape(opened, [ROWS, COLS]), tile)
    return (widen(values) * opened.to(gl.float32)).to(values.dtype)
