"""Where the tiles of a slab lie in memory and on chip, how they are asked for, and dx written."""

import triton.language as tl

from normgrad.backends.cuda.pieces.bulk import is_warp
from normgrad.backends.cuda.pieces.common import divide_by_magic, opaque_copy
from normgrad.backends.cuda.pieces.gluon import async_copy, gl, jit
from normgrad.backends.cuda.pieces.plane_runs import ask_runs
from normgrad.backends.cuda.pieces.windows import is_inside, store_vectors, vectors_inside, window


@jit
def rows_of(part, chunk, ROWS: tl.constexpr):
    """The rows of a tile in their slab, their planes, and whether they are this block's."""
    first, share, rows, _, magic, _, _, _, local, _ = part
    inside = chunk * ROWS + local
    row = first + inside
    return row, divide_by_magic(row, magic), (inside < share) & (row < rows)


@jit
def elements_of(
    part,
    chunk,
    ROWS: tl.constexpr,
    PLANE: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    EQUAL_ROWS: tl.constexpr = False,
    ROWS_FILL_TILE: tl.constexpr = False,
    WINDOW: tl.constexpr = 0,
    rest=0,
):
    """Offsets of a tile's elements from the slab's first, and the mask.

    In windows of whole vectors: from the vector that has the slab's first, ``rest`` before it.
    """
    first, share, rows, pieces, _, piece, run, plane_step, local, cols = part
    index: tl.constexpr = tl.int64 if WIDE else tl.int32
    if PLANE:
        ABREAST: tl.constexpr = cols.shape[0] // PLANE
        place = ((chunk * ROWS + local) * ABREAST)[:, None] + (cols // PLANE)[None, :]
        row = first + place
        mask = (place < share) & (row < rows) & (cols < ABREAST * PLANE)[None, :]
        at = row.to(index) * plane_step * ALIGN + (cols % PLANE)[None, :]
    elif WINDOW:
        at, mask, _, _ = window_of(part, chunk, rest, ROWS, ALIGN, WIDE, WINDOW)
    else:
        row, plane, ok = rows_of(part, chunk, ROWS)
        inside = ((row - plane * pieces) * piece * ALIGN)[:, None] + cols[None, :]
        mask = ok[:, None] & (cols >= 0)[None, :]
        if not ROWS_FILL_TILE:
            mask = mask & (cols < piece * ALIGN)[None, :]
        if not EQUAL_ROWS:
            mask = mask & (inside < run * ALIGN)
        at = (plane.to(index) * plane_step * ALIGN)[:, None] + inside
    return at, mask


@jit
def window_of(
    part,
    chunk,
    rest,
    ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """A tile of planes that start anywhere: offsets and mask of the vectors that have some of it.

    And where the plane starts and ends, from the first element of each vector.
    """
    _, _, _, pieces, _, piece, run, plane_step, _, cols = part
    index: tl.constexpr = tl.int64 if WIDE else tl.int32
    row, plane, ok = rows_of(part, chunk, ROWS)
    at_plane = plane.to(index) * plane_step * ALIGN
    start = at_plane + opaque_copy(rest)  # made here, else it is spilled
    at, low, high = window(start[:, None], run * ALIGN, WINDOW)
    inside = ((row - plane * pieces) * piece * WINDOW)[:, None] + cols[None, :]
    mask = ok[:, None] & (cols < piece * WINDOW)[None, :] & vectors_inside(inside, high, WINDOW)
    first = inside // WINDOW * WINDOW
    return at + inside, mask, low - first, high - first


@jit
def origin_of(slab, steps, ALIGN: tl.constexpr):
    """The first element of a slab."""
    slabs, apart, outer_step, inner_step = steps
    if apart is None:
        at = (slab + slabs * 0).to(tl.int64) * outer_step
    else:
        outer = (slab // apart).to(tl.int64)
        inner = (slab % apart).to(tl.int64)
        at = outer * outer_step + inner * inner_step
    return at * ALIGN


@jit
def cut_origin(origin, WINDOW: tl.constexpr):
    """The vector that has a slab's first element, and what it has before that."""
    rest = 0
    if WINDOW:
        rest = (origin % WINDOW).to(tl.int32)
        origin = origin // WINDOW * WINDOW
    return origin, rest


@jit
def slot_of(turn, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, DEPTH: tl.constexpr):
    """A tile's slot in a round that starts at slot ``turn``, and how often the slots went round."""
    if DEPTH == CHUNKS:
        slot, rounds = turn * 0 + CHUNK, turn * 0
    else:
        slot = turn + CHUNK % DEPTH
        more = slot >= DEPTH
        slot = tl.where(more, slot - DEPTH, slot)
        rounds = more.to(tl.int32) + CHUNK // DEPTH
    return slot, rounds


@jit
def ask(
    data,
    slot,
    slab,
    steps,
    part,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    PLANE: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    WARPS: tl.constexpr,
    BULK: tl.constexpr,
    SPANS: tl.constexpr,
    EQUAL_ROWS: tl.constexpr,
    FULL_TILES: tl.constexpr,
    HEAD: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Ask for a tile."""
    if not BULK:
        x, dy, tiles_x, tiles_dy = data
        origin, rest = cut_origin(origin_of(slab, steps, ALIGN), WINDOW)
        at, mask = elements_of(
            part, CHUNK, ROWS, PLANE, ALIGN, WIDE, WINDOW=WINDOW, rest=rest
        )  # fmt: skip
        mask = mask & (slab < steps[0])
        async_copy.async_copy_global_to_shared(tiles_x.index(slot), x + origin + at, mask)
        if dy is not None:
            async_copy.async_copy_global_to_shared(tiles_dy.index(slot), dy + origin + at, mask)
        async_copy.commit_group()
    elif is_warp(CHUNK % WARPS, slab):
        come = (origin_of(slab, steps, ALIGN), slab < steps[0])
        ask_runs(
            data, come, slot, part, CHUNK, ROWS, ALIGN, WIDE, SPANS, EQUAL_ROWS, FULL_TILES, HEAD,
            TILE
        )  # fmt: skip


@jit
def inside_of(
    part,
    chunk,
    rest,
    ROWS: tl.constexpr,
    PLANE: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    EQUAL_ROWS: tl.constexpr,
    ROWS_FILL_TILE: tl.constexpr,
    FULL_TILES: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Which elements of a tile there are."""
    if WINDOW:
        _, _, _, pieces, _, piece, run, plane_step, _, cols = part
        index: tl.constexpr = tl.int64 if WIDE else tl.int32
        row, plane, ok = rows_of(part, chunk, ROWS)
        start = plane.to(index) * plane_step * ALIGN + opaque_copy(rest)
        _, low, high = window(start[:, None], run * ALIGN, WINDOW)
        inside = ((row - plane * pieces) * piece * WINDOW)[:, None] + cols[None, :]
        there = ok[:, None] & (cols < piece * WINDOW)[None, :] & is_inside(inside, low, high)
    elif ROWS_FILL_TILE and FULL_TILES:
        there = (part[8][:, None] >= 0) & (part[9][None, :] >= 0)
    else:
        _, there = elements_of(part, chunk, ROWS, PLANE, ALIGN, WIDE, EQUAL_ROWS, ROWS_FILL_TILE)
    return there


@jit
def write_tile(
    dx,
    result,
    part,
    chunk,
    rest,
    ROWS: tl.constexpr,
    PLANE: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    EQUAL_ROWS: tl.constexpr,
    ROWS_FILL_TILE: tl.constexpr,
    FULL_TILES: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Dx of a tile, which may be known to be full."""
    result = result.to(dx.dtype.element_ty)
    if WINDOW:
        at, mask, low, high = window_of(part, chunk, rest, ROWS, ALIGN, WIDE, WINDOW)
        place = (part[9] % WINDOW)[None, :]
        store_vectors(dx + (at - place), result, low, gl.where(mask, high, 0), WINDOW)
    else:
        at, mask = elements_of(part, chunk, ROWS, PLANE, ALIGN, WIDE, EQUAL_ROWS, ROWS_FILL_TILE)
        if ROWS_FILL_TILE and FULL_TILES:
            # True, but the compiler does not know: without a mask it mixes tiles, and spills.
            mask = (at * 0 + part[1]) > chunk * ROWS
        gl.store(dx + at, result, mask=mask)
