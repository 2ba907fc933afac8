"""Channels-last batch and group norm with as much as possible read once.

A slab is what shares statistics and is worked on together: a block of columns of all rows (batch
norm) or of one image (group norm). A team of blocks has it, each a run of rows and a piece of the
columns, cut into tiles of x and dy. Tiles come into shared memory by asynchronous copies and are
added up. FIXED tiles stay; the others share a ring, in which the last ones are still there when
all have been added up. Then the sums go round, and dx is written: of the tiles in the ring, of
the others backwards (the latest come from the L2 cache), of those that stayed. A tile that is done
makes room for the next one wanted, of this slab or the next.

Sums go round in two steps. Each block publishes the sums of its columns. An owner adds up all
parts of a bin (a column, or a group of them with gamma inside) in order and publishes the total.
"""

import triton.language as tl

from normgrad.backends.cuda.kernels.common import (
    await_words,
    load_or,
    load_rstd,
    pack_pair,
    publish,
    store_as,
    unpack_pair,
)
from normgrad.backends.cuda.kernels.gluon import async_copy, gl, jit


@jit
def _place(slab, part, ALIGN: tl.constexpr):
    """The first element of a block's part of a slab, and how many columns it has there."""
    _, split, width, channels, start, first, _, outer_step, row_step = part
    outer = (slab // split).to(tl.int64)
    column = (slab % split) * width * ALIGN + start
    origin = (outer * outer_step + first.to(tl.int64) * row_step) * ALIGN + column
    columns = gl.minimum(width - start // ALIGN, channels - column // ALIGN) * ALIGN
    return origin, columns


@jit
def _tile(slab, number, part, local, cols, ROWS: tl.constexpr, ALIGN: tl.constexpr):
    """The elements of a tile: where the first is, where the others are from there, which exist."""
    slabs, _, _, _, _, _, limit, _, row_step = part
    origin, columns = _place(slab, part, ALIGN)
    origin += number.to(tl.int64) * ROWS * row_step * ALIGN
    at = local[:, None] * row_step * ALIGN + cols[None, :]
    ok = (number * ROWS + local < limit) & (slab < slabs)
    return origin, at, ok[:, None] & (cols < columns)[None, :]


@jit
def _copy(data, slot, slab, number, part, local, cols, ROWS: tl.constexpr, ALIGN: tl.constexpr):
    """Ask for a tile."""
    x, dy, tiles_x, tiles_dy = data
    origin, at, mask = _tile(slab, number, part, local, cols, ROWS, ALIGN)
    async_copy.async_copy_global_to_shared(tiles_x.index(slot), x + origin + at, mask)
    async_copy.async_copy_global_to_shared(tiles_dy.index(slot), dy + origin + at, mask)
    async_copy.commit_group()


@jit
def _turned(load, stream, loads, fixed):
    """The tile of a ring's load: forwards to be added up, then backwards to be read again."""
    return fixed + gl.where(load < stream, load, loads - 1 - load)


@jit
def _own_sums(
    words,  # of this slab
    first_bin,
    parts,
    length,
    present,  # columns of this slab
    group_size,
    OWN: tl.constexpr,
    GROUP_TILE: tl.constexpr,
    PARTS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The columns of an owner's bins, which of them exist, and their sums over all parts."""
    BOX: tl.constexpr = OWN * GROUP_TILE
    LANES: tl.constexpr = min(32, BOX)
    ACROSS: tl.constexpr = min(WARPS, BOX // LANES)
    box: tl.constexpr = gl.BlockedLayout(
        [1, 1], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0]
    )
    part = gl.arange(0, PARTS, gl.SliceLayout(1, box))
    side = gl.arange(0, BOX, gl.SliceLayout(0, box))
    column = (first_bin + side // GROUP_TILE) * group_size + side % GROUP_TILE
    ok = (side % GROUP_TILE < group_size) & (column < present)
    mail = words + part[:, None] * length + column[None, :]
    wanted = (part < parts)[:, None] & ok[None, :]
    EACH: tl.constexpr = PARTS * BOX // (32 * WARPS)
    s1, s2 = unpack_pair(await_words(mail, wanted, min(8, EACH)))
    return column, ok, gl.sum(s1, 0), gl.sum(s2, 0)


@jit
def _await_totals(
    totals,  # of this slab
    start,
    columns,
    group_size,
    COLS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The totals of the bins that a block's columns belong to."""
    # One row, and as many of nothing as it takes to give every thread one word.
    TALL: tl.constexpr = max(1, 32 * WARPS // COLS)
    LANES: tl.constexpr = min(32, COLS)
    ACROSS: tl.constexpr = min(WARPS, COLS // LANES)
    box: tl.constexpr = gl.BlockedLayout(
        [1, 1], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0]
    )
    cols = gl.arange(0, COLS, gl.SliceLayout(0, box))
    down = gl.arange(0, TALL, gl.SliceLayout(1, box))
    mail = totals + ((start + cols) // group_size)[None, :] + down[:, None]
    wanted = (down == 0)[:, None] & (cols < columns)[None, :]
    EACH: tl.constexpr = TALL * COLS // (32 * WARPS)
    t1, t2 = unpack_pair(await_words(mail, wanted, EACH))
    return gl.sum(t1, 0), gl.sum(t2, 0)


@jit
def column_slabs(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    dgamma,
    dbeta,
    partials,  # group norm: sums of each image and channel, of dy, then of dy * (x - mean)
    words,  # [slabs, parts, width]
    totals,  # [slabs, bins]
    slabs,
    rows,  # rows of a slab
    share,  # rows of a block
    stream,  # tiles of a block that go through the ring
    kept,  # of these, how many are still there at the end
    parts,  # blocks one below the other
    pieces,  # blocks side by side
    width,  # columns of a slab, over ALIGN
    bins,  # of a slab
    group_size,  # columns of a bin
    team,  # parts * pieces
    teams,
    split,  # slabs side by side
    images,
    channels,  # over ALIGN
    row_step,
    outer_step,
    count,
    eps,
    GROUP: tl.constexpr,
    VARIANCE: tl.constexpr,
    FIXED: tl.constexpr,  # tiles that stay: none, or at least DEPTH
    DEPTH: tl.constexpr,  # tiles of the ring
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    PARTS: tl.constexpr,  # at least parts; a power of two, so that every thread has a word
    OWN: tl.constexpr,  # bins of an owner
    GROUP_TILE: tl.constexpr,  # group_size, up to a power of two
    VECTOR: tl.constexpr,  # elements of 16 bytes
    WARPS: tl.constexpr,
    ALIGN: tl.constexpr,
    EVICT: tl.constexpr,  # what the cache does with dx
    PHASE: tl.constexpr,  # 0; in the interpreter 1: sums, 2: totals, 3: gradient
):
    """See the module. The three tensors have the same strides, which come divided by ALIGN."""
    LANES: tl.constexpr = min(32, COLS // VECTOR)
    DOWN: tl.constexpr = min(WARPS, max(1, ROWS // (32 // LANES)))  # warps one below the other
    tile: tl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [DOWN, WARPS // DOWN], [1, 0]
    )
    by_col: tl.constexpr = gl.SliceLayout(0, tile)
    line: tl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    flat: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    tiles_x = gl.allocate_shared_memory(x.dtype.element_ty, [DEPTH + FIXED, ROWS, COLS], flat)
    tiles_dy = gl.allocate_shared_memory(dy.dtype.element_ty, [DEPTH + FIXED, ROWS, COLS], flat)
    member = gl.program_id(0) % team
    first_slab = gl.program_id(0) // team
    above = member // pieces
    start = (member % pieces) * COLS
    first = above * share
    limit = gl.minimum(share, rows - first)
    local = gl.arange(0, ROWS, gl.SliceLayout(1, tile))
    cols = gl.arange(0, COLS, by_col)
    part = (slabs, split, width, channels, start, first, limit, outer_step, row_step)
    data = (x, dy, tiles_x, tiles_dy)
    length = width * ALIGN
    loads = 2 * stream - kept  # of the ring, for a slab
    zero = slabs * 0
    if PHASE != 2:
        for ahead in tl.range(0, DEPTH):
            slab = first_slab + (zero + ahead) // loads * teams
            number = _turned((zero + ahead) % loads, stream, loads, FIXED)
            _copy(data, ahead, slab, number, part, local, cols, ROWS, ALIGN)
        for ahead in tl.range(0, FIXED):
            _copy(data, DEPTH + ahead, first_slab, zero + ahead, part, local, cols, ROWS, ALIGN)
    turn = zero
    for slab in tl.range(first_slab, slabs, teams):
        columns = _place(slab, part, ALIGN)[1]
        image = slab // split
        left = (slab % split) * length
        col_ok = cols < columns
        channel = left + start + cols
        statistic = image * (channels * ALIGN // group_size) + channel // group_size
        centre = load_or(mean, statistic, col_ok, 0.0, tl.float32)[None, :]
        rs = load_rstd(rstd, statistic, col_ok, eps, VARIANCE, tl.float32)
        weight = load_or(gamma, channel, col_ok, 1.0, tl.float32)
        mail = words + parts.to(tl.int64) * slab * length
        post = totals + bins.to(tl.int64) * slab
        if PHASE != 2:
            s1 = gl.zeros([ROWS, COLS], tl.float32, tile)
            s2 = gl.zeros([ROWS, COLS], tl.float32, tile)
            for visit in tl.range(0, gl.maximum(stream, FIXED)):
                async_copy.wait_group(DEPTH - 1)
                # Masked elements of dy are 0, so their x does not matter.
                if visit < stream:
                    slot = (turn + visit) % DEPTH
                    wide = tiles_dy.index(slot).load(tile).to(tl.float32)
                    narrow = tiles_x.index(slot).load(tile)
                    if visit < stream - kept:
                        number = _turned(zero + visit + DEPTH, stream, loads, FIXED)
                        _copy(data, slot, slab, number, part, local, cols, ROWS, ALIGN)
                    else:
                        async_copy.commit_group()
                    s1 += wide
                    s2 += wide * (narrow.to(tl.float32) - centre)
                if visit < FIXED:
                    slot = zero + DEPTH + visit
                    wide = tiles_dy.index(slot).load(tile).to(tl.float32)
                    narrow = tiles_x.index(slot).load(tile)
                    s1 += wide
                    s2 += wide * (narrow.to(tl.float32) - centre)
            s1 = gl.sum(s1, 0)
            s2 = gl.sum(s2, 0)
            if PHASE != 3:
                publish(mail + above * length + start + cols, pack_pair(s1, s2), col_ok)
        if PHASE % 2 == 0:
            first_bin = member * OWN
            if first_bin < bins:
                present = gl.minimum(width, channels - left // ALIGN) * ALIGN
                column, ok, p1, p2 = _own_sums(
                    mail, first_bin, parts, length, present, group_size,
                    OWN, GROUP_TILE, PARTS, WARPS,
                )  # fmt: skip
                owned = left + column
                if GROUP:
                    if partials is not None:
                        unit = partials + image.to(tl.int64) * channels * ALIGN + owned
                        gl.store(unit, p1, mask=ok)
                        gl.store(unit + images.to(tl.int64) * channels * ALIGN, p2, mask=ok)
                    inside = load_or(gamma, owned, ok, 1.0, tl.float32)
                    g1 = gl.sum(gl.reshape(p1 * inside, [OWN, GROUP_TILE]), 1)
                    g2 = gl.sum(gl.reshape(p2 * inside, [OWN, GROUP_TILE]), 1)
                    pair = gl.convert_layout(pack_pair(g1, g2), line)
                    own = first_bin + gl.arange(0, OWN, line)
                    publish(post + own, pair, own < bins)
                else:
                    publish(post + column, pack_pair(p1, p2), ok)
                    store_as(dbeta, owned, p1, ok)
                    if dgamma is not None:
                        scale = load_rstd(rstd, owned, ok, eps, VARIANCE, tl.float32)
                        store_as(dgamma, owned, p2 * scale, ok)
        if PHASE % 3 == 0:
            t1, t2 = _await_totals(post, start, columns, group_size, COLS, WARPS)
            t1 = gl.convert_layout(t1, by_col)
            t2 = gl.convert_layout(t2, by_col)
            outside = rs if GROUP else weight * rs  # the sums of group norm have gamma inside
            offset = (t1 / count * outside)[None, :]
            slope = (t2 * rs / count * rs * outside)[None, :]
            factor = (weight * rs)[None, :]
        if PHASE != 2:
            for visit in tl.range(0, stream):
                async_copy.wait_group(DEPTH - 1)
                load = stream - kept + visit
                slot = (turn + load) % DEPTH
                wide = tiles_dy.index(slot).load(tile).to(tl.float32)
                narrow = tiles_x.index(slot).load(tile)
                later = load + DEPTH
                number = _turned(later % loads, stream, loads, FIXED)
                _copy(
                    data, slot, slab + later // loads * teams, number, part, local, cols,
                    ROWS, ALIGN,
                )  # fmt: skip
                if PHASE != 1:
                    number = _turned(load, stream, loads, FIXED)
                    result = wide * factor - offset - (narrow.to(tl.float32) - centre) * slope
                    origin, at, mask = _tile(slab, number, part, local, cols, ROWS, ALIGN)
                    gl.store(
                        dx + origin + at,
                        result.to(dx.dtype.element_ty),
                        mask=mask,
                        eviction_policy=EVICT,
                    )
            for visit in tl.range(0, FIXED):
                slot = zero + DEPTH + visit
                wide = tiles_dy.index(slot).load(tile).to(tl.float32)
                narrow = tiles_x.index(slot).load(tile)
                number = zero + visit
                _copy(data, slot, slab + teams, number, part, local, cols, ROWS, ALIGN)
                if PHASE != 1:
                    result = wide * factor - offset - (narrow.to(tl.float32) - centre) * slope
                    origin, at, mask = _tile(slab, number, part, local, cols, ROWS, ALIGN)
                    gl.store(
                        dx + origin + at,
                        result.to(dx.dtype.element_ty),
                        mask=mask,
                        eviction_policy=EVICT,
                    )
            turn = (turn + loads) % DEPTH
    async_copy.wait_group(0)
