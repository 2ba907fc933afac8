"""Tiles of `planes` by bulk copies: one run of bytes for each plane that a tile touches.

A tile of the ring has its rows one after another, so that those of a plane lie as in memory.
"""

import triton.language as tl

from normgrad.backends.cuda.pieces.bulk import copy_runs, keep_last
from normgrad.backends.cuda.pieces.common import divide_by_magic, opaque_copy
from normgrad.backends.cuda.pieces.gluon import jit


@jit
def elements_before(row, magic, pieces, piece, run):
    """Elements of a slab before a row, over ALIGN."""
    plane = divide_by_magic(row, magic)
    return plane * run + (row - plane * pieces) * piece


@jit
def ask_runs(
    data,
    come,
    slot,
    part,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    SPANS: tl.constexpr,
    EQUAL_ROWS: tl.constexpr,
    FULL_TILES: tl.constexpr,
    HEAD: tl.constexpr,
    TILE: tl.constexpr,
):
    """Start copying a tile of x and one of dy: a thread for each plane, the first arrives."""
    x, dy, base, thread = data
    origin, ok = come  # whether there is such a slab
    first, share, rows, pieces, magic, piece, run, plane_step, _, _ = part
    index: tl.constexpr = tl.int64 if WIDE else tl.int32
    ITEM: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    before = opaque_copy(first * 0 + CHUNK * ROWS)  # else some of each tile is kept for all rounds
    start = first + before
    count = ROWS
    if CHUNK >= FULL_TILES:
        count = tl.maximum(tl.minimum(tl.minimum(share - before, rows - start), ROWS), 0)
    count = tl.where(ok, count, 0)
    total = count * piece
    if SPANS > 1:
        if not EQUAL_ROWS:
            total = elements_before(start + count, magic, pieces, piece, run)
            total -= elements_before(start, magic, pieces, piece, run)
        plane = divide_by_magic(start, magic) + thread
        above = start - plane * pieces  # rows of the plane before the tile
        low = tl.maximum(above, 0)
        high = tl.minimum(above + count, pieces)
        size = tl.minimum(high * piece, run) - low * piece
        at = plane.to(index) * plane_step + low * piece
        to = (low - above) * piece * (ALIGN * ITEM)
    else:
        at = start.to(index) * piece
        if SPANS == 1:
            plane = divide_by_magic(start, magic)
            at = plane.to(index) * plane_step + (start - plane * pieces) * piece
            if not EQUAL_ROWS:
                total = tl.minimum((start - plane * pieces + count) * piece, run)
                total = tl.maximum(total - (start - plane * pieces) * piece, 0)
        size = tl.where(thread == 0, total, 0)
        to = thread * 0
    size = size * (ALIGN * ITEM)
    to += base + (HEAD + slot * (2 * TILE))
    promise = tl.where(thread == 0, total * (2 * ALIGN * ITEM), -1)
    from_x = tl.where(size > 0, (x + origin + at * ALIGN).to(tl.uint64), 0)
    from_dy = (dy + origin + at * ALIGN).to(tl.uint64) + thread.to(tl.uint64) * 0
    barrier = base + slot * 8 + thread * 0
    policy = keep_last(thread)
    copy_runs(barrier, promise, (to, to + TILE), (from_x, from_dy), (size, size), policy)
