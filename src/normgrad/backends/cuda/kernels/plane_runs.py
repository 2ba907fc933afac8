"""Tiles of `planes` by bulk copies: one run of bytes for each plane that a tile touches.

A tile of the ring has its rows one after another, so that those of a plane lie as in memory. Behind
the rows are 16 bytes of zeros: whoever has no element reads these, as if it had been filled in.
"""

import triton.language as tl

from normgrad.backends.cuda.kernels.bulk import copy_runs
from normgrad.backends.cuda.kernels.common import quotient
from normgrad.backends.cuda.kernels.gluon import jit


@jit
def _before(row, magic, pieces, piece, run):
    """Elements of a slab before a row, over ALIGN."""
    plane = quotient(row, magic)
    return plane * run + (row - plane * pieces) * piece


@jit
def ask_runs(
    data,
    come,
    slot,
    part,
    chunk,
    ROWS: tl.constexpr,
    PLANE: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Start copying a tile of x and one of dy: a thread for each plane, the first arrives."""
    x, dy, base, policy, thread, SPANS, EXACT, HEAD, TILE = data
    origin, ok = come  # whether there is such a slab
    first, share, rows, pieces, magic, piece, run, plane_step, _, cols = part
    LINES: tl.constexpr = cols.shape[0] // PLANE if PLANE else ROWS
    index: tl.constexpr = tl.int64 if WIDE else tl.int32
    ITEM: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    start = first + chunk * LINES
    count = tl.maximum(tl.minimum(tl.minimum(share - chunk * LINES, rows - start), LINES), 0)
    count = tl.where(ok, count, 0)
    total = count * piece
    if SPANS == 0:
        at = start.to(index) * piece + thread * 0
        size = tl.where(thread == 0, total, 0)
        to = thread * 0
    else:
        if not EXACT:
            total = _before(start + count, magic, pieces, piece, run)
            total -= _before(start, magic, pieces, piece, run)
        plane = quotient(start, magic) + thread
        above = start - plane * pieces  # rows of the plane before the tile
        low = tl.maximum(above, 0)
        high = tl.minimum(above + count, pieces)
        size = tl.minimum(high * piece, run) - low * piece
        at = plane.to(index) * plane_step + low * piece
        to = (low - above) * piece
    size = size * (ALIGN * ITEM)
    to = base + (HEAD + slot * (2 * TILE)) + to * (ALIGN * ITEM)
    promise = tl.where(thread == 0, total * (2 * ALIGN * ITEM), -1)
    from_x = tl.where(size > 0, (x + origin + at * ALIGN).to(tl.uint64), 0)
    from_dy = (dy + origin + at * ALIGN).to(tl.uint64)
    barrier = base + slot * 8 + thread * 0
    copy_runs(barrier, promise, (to, to + TILE), (from_x, from_dy), (size, size), policy)
