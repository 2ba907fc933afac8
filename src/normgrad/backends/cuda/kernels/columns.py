"""Channels-last batch and group norm with every slab read once.

A slab is what shares statistics and is worked on together: a block of columns of all rows (batch
norm) or of one image (group norm). A team of blocks holds it in shared memory: each block a run of
rows and COLS of the columns, cut into CHUNKS tiles. A block adds up its tiles as they arrive,
publishes the sums, waits for its partners', and writes dx tile by tile. Each tile that is done
makes room for one of the next slab, whose copy starts at once. Three trips to memory instead of
five.

Sums go round in one step. Each block publishes a word for each of its bins: a column, or a group
of columns with gamma inside. Everybody adds up the words of its own bins, part by part in order.
"""

import triton.language as tl

from normgrad.backends.cuda.kernels.common import (
    await_step_before,
    await_words,
    coefficients,
    load_or,
    load_rstd,
    pack_pair,
    publish,
    store_as,
    sum_pairs,
    unpack_pair,
    widen,
)
from normgrad.backends.cuda.kernels.gluon import async_copy, gl, jit


@jit
def place(slab, part, ALIGN: tl.constexpr):
    """The first element of a block's part of a slab, and how many columns it has there."""
    _, split, width, channels, start, first, _, outer_step, row_step = part
    outer = (slab // split).to(tl.int64)
    column = (slab % split) * width * ALIGN + start
    origin = (outer * outer_step + first.to(tl.int64) * row_step) * ALIGN + column
    columns = gl.minimum(width - start // ALIGN, channels - column // ALIGN) * ALIGN
    return origin, columns


@jit
def tile_at(slab, number, part, local, cols, ROWS: tl.constexpr, ALIGN: tl.constexpr):
    """The elements of a tile: where the first is, where the others are from there, which exist."""
    slabs, _, _, _, _, _, limit, _, row_step = part
    origin, columns = place(slab, part, ALIGN)
    origin += (row_step * ALIGN).to(tl.int64) * (number * ROWS)
    at = local[:, None] * row_step * ALIGN + cols[None, :]
    ok = (number * ROWS + local < limit) & (slab < slabs)
    return origin, at, ok[:, None] & (cols < columns)[None, :]


@jit
def copy_tile(
    data, slot, slab, number, part, local, cols, ROWS: tl.constexpr, ALIGN: tl.constexpr
):
    """Ask for a tile."""
    x, dy, tiles_x, tiles_dy = data
    origin, at, mask = tile_at(slab, number, part, local, cols, ROWS, ALIGN)
    async_copy.async_copy_global_to_shared(tiles_x.index(slot), x + origin + at, mask)
    async_copy.async_copy_global_to_shared(tiles_dy.index(slot), dy + origin + at, mask)
    async_copy.commit_group()


@jit
def bin_sums(
    s1,
    s2,
    start,
    group_size,
    GROUP: tl.constexpr,
    COLS: tl.constexpr,
    BINS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The sums of a block's bins from those of its columns."""
    if GROUP:
        LANES: tl.constexpr = min(32, BINS)
        hot: tl.constexpr = gl.BlockedLayout([1, 1], [32 // LANES, LANES], [WARPS, 1], [1, 0])
        side = start + gl.arange(0, COLS, gl.SliceLayout(1, hot))
        own = start // group_size + gl.arange(0, BINS, gl.SliceLayout(0, hot))
        within = (side // group_size)[:, None] == own[None, :]
        s1 = gl.convert_layout(s1, gl.SliceLayout(1, hot))[:, None]
        s2 = gl.convert_layout(s2, gl.SliceLayout(1, hot))[:, None]
        s1, s2 = sum_pairs(gl.where(within, s1, 0.0), gl.where(within, s2, 0.0), 0)
    return s1, s2


@jit
def publish_sums(
    mail,  # words of this slab: [parts, SPANS, bins]
    s1,
    s2,
    member,  # part, first column, columns
    bins,
    group_size,
    COLS: tl.constexpr,
    BINS: tl.constexpr,
    SPANS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Publish the sums of a block's bins."""
    above, start, columns = member
    line: tl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    own = start // group_size + gl.arange(0, BINS, line)
    span = start // COLS - own * group_size // COLS  # how many pieces have columns of it before
    pair = gl.convert_layout(pack_pair(s1, s2), line)
    publish(mail + (above * SPANS + span) * bins + own, pair, own * group_size < start + columns)


@jit
def await_sums(
    mail,
    parts,
    member,
    bins,
    group_size,
    COLS: tl.constexpr,
    BINS: tl.constexpr,  # at least those of a block
    SPANS: tl.constexpr,  # words of a part for one bin: pieces that its columns can lie in
    STEP: tl.constexpr,  # words of a bin to wait for together
    WARPS: tl.constexpr,
):
    """The sums of a block's bins over all parts."""
    _, start, columns = member
    LANES: tl.constexpr = min(32, BINS)
    ACROSS: tl.constexpr = min(WARPS, BINS // LANES)
    box: tl.constexpr = gl.BlockedLayout(
        [1, 1], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0]
    )
    EACH: tl.constexpr = STEP * BINS // (32 * WARPS)
    own = start // group_size + gl.arange(0, BINS, gl.SliceLayout(0, box))
    ok = own * group_size < start + columns
    last = (own * group_size + group_size - 1) // COLS - own * group_size // COLS
    row = gl.arange(0, STEP, gl.SliceLayout(1, box))
    t1 = gl.zeros([STEP, BINS], tl.float32, box)
    t2 = gl.zeros([STEP, BINS], tl.float32, box)
    for base in tl.range(0, parts * SPANS, STEP):
        word = base + row
        wanted = (word < parts * SPANS)[:, None] & ok[None, :]
        if SPANS > 1:
            wanted = wanted & ((word % SPANS)[:, None] <= last[None, :])
        got = await_words(mail + word[:, None] * bins + own[None, :], wanted, EACH)
        u1, u2 = unpack_pair(got)
        t1 += u1
        t2 += u2
    return sum_pairs(t1, t2, 0)


@jit
def spread(
    totals,  # of the block's bins
    start,
    group_size,
    by_col: tl.constexpr,
    GROUP: tl.constexpr,
    COLS: tl.constexpr,
    BINS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The totals of each column's bin."""
    t1, t2 = totals
    if GROUP:
        LANES: tl.constexpr = min(32, BINS)
        hot: tl.constexpr = gl.BlockedLayout([1, 1], [32 // LANES, LANES], [WARPS, 1], [1, 0])
        side = start + gl.arange(0, COLS, gl.SliceLayout(1, hot))
        own = start // group_size + gl.arange(0, BINS, gl.SliceLayout(0, hot))
        within = (side // group_size)[:, None] == own[None, :]
        t1 = gl.convert_layout(t1, gl.SliceLayout(0, hot))[None, :]
        t2 = gl.convert_layout(t2, gl.SliceLayout(0, hot))[None, :]
        t1, t2 = sum_pairs(gl.where(within, t1, 0.0), gl.where(within, t2, 0.0), 1)
    return gl.convert_layout(t1, by_col), gl.convert_layout(t2, by_col)


@jit
def store_partials(partials, s1, s2, image, channel, ok, above, parts, images, channels):
    """Group norm: the sums of a block's columns, for the parameter gradients."""
    if partials is not None:
        to = partials + (image.to(tl.int64) * channels + channel) * parts + above
        gl.store(to, s1, mask=ok)
        gl.store(to + images.to(tl.int64) * channels * parts, s2, mask=ok)


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
    partials,  # group norm: [2, images, channels, parts], sums of dy, then of dy * (x - mean)
    words,  # [slabs, parts, SPANS, bins]
    slabs,
    rows,  # rows of a slab
    share,  # rows of a block
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
    CHUNKS: tl.constexpr,  # tiles of a block's share
    DEPTH: tl.constexpr,  # tiles that there is room for
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    BINS: tl.constexpr,  # of a block, up to a power of two
    SPANS: tl.constexpr,
    STEP: tl.constexpr,
    VECTOR: tl.constexpr,  # elements of 16 bytes
    WARPS: tl.constexpr,
    SOLO: tl.constexpr,  # a team of one
    ALIGN: tl.constexpr,
    EARLY: tl.constexpr,  # the words are cleared meanwhile
    PHASE: tl.constexpr,  # 0; in the interpreter 1: sums only, 2: gradient only, 3: all of SOLO
):
    """See the module. The three tensors have the same strides, which come divided by ALIGN."""
    LANES: tl.constexpr = min(32, COLS // VECTOR)
    DOWN: tl.constexpr = min(WARPS, max(1, ROWS // (32 // LANES)))  # warps one below the other
    ONCE: tl.constexpr = min(ROWS, DOWN * (32 // LANES))  # rows with one element in each thread
    tile: tl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [DOWN, WARPS // DOWN], [1, 0]
    )
    by_col: tl.constexpr = gl.SliceLayout(0, tile)
    flat: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    tiles_x = gl.allocate_shared_memory(x.dtype.element_ty, [DEPTH, ROWS, COLS], flat)
    tiles_dy = gl.allocate_shared_memory(dy.dtype.element_ty, [DEPTH, ROWS, COLS], flat)
    above = gl.program_id(0) % team // pieces
    start = gl.program_id(0) % pieces * COLS
    first_slab = gl.program_id(0) // team
    first = above * share
    limit = gl.minimum(share, rows - first)
    local = gl.arange(0, ROWS, gl.SliceLayout(1, tile))
    cols = gl.arange(0, COLS, by_col)
    part = (slabs, split, width, channels, start, first, limit, outer_step, row_step)
    data = (x, dy, tiles_x, tiles_dy)
    for ahead in gl.static_range(DEPTH):
        slab = first_slab + ahead // CHUNKS * teams
        copy_tile(data, ahead, slab, ahead % CHUNKS, part, local, cols, ROWS, ALIGN)
    await_step_before(EARLY)  # it cleared the words
    turn = slabs * 0
    for slab in tl.range(first_slab, slabs, teams):
        columns = place(slab, part, ALIGN)[1]
        image = slab // split
        col_ok = cols < columns
        channel = (slab % split) * width * ALIGN + start + cols
        statistic = image * (channels * ALIGN // group_size) + channel // group_size
        centre = load_or(mean, statistic, col_ok, 0.0, tl.float32)
        rs = load_rstd(rstd, statistic, col_ok, eps, VARIANCE, tl.float32)
        weight = load_or(gamma, channel, col_ok, 1.0, tl.float32)
        mail = words
        if words is not None:
            mail = words + (parts * SPANS).to(tl.int64) * slab * bins
        member = (above, start, columns)
        s1 = gl.zeros([ROWS, COLS], tl.float32, tile)
        s2 = gl.zeros([ROWS, COLS], tl.float32, tile)
        for chunk in gl.static_range(CHUNKS):
            async_copy.wait_group(DEPTH - 1 - chunk)
            slot = chunk if DEPTH == CHUNKS else (turn + chunk) % DEPTH
            if PHASE != 2:
                # Masked elements of dy are 0, so their x does not matter.
                wide = widen(tiles_dy.index(slot).load(tile))
                s1 += wide
                s2 += wide * (widen(tiles_x.index(slot).load(tile)) - centre[None, :])
        if PHASE != 2:
            # A thread adds up its rows; lanes and warps last.
            c1, c2 = sum_pairs(
                gl.reshape(s1, [ROWS // ONCE, ONCE, COLS]),
                gl.reshape(s2, [ROWS // ONCE, ONCE, COLS]),
                0,
            )
            c1, c2 = sum_pairs(c1, c2, 0)
            c1 = gl.convert_layout(c1, by_col)
            c2 = gl.convert_layout(c2, by_col)
            if GROUP:
                store_partials(
                    partials, c1, c2, image, channel, col_ok, above, parts, images,
                    channels * ALIGN,
                )  # fmt: skip
                c1 *= weight
                c2 *= weight
            totals = bin_sums(c1, c2, start, group_size, GROUP, COLS, BINS, WARPS)
            if not SOLO:
                publish_sums(
                    mail, totals[0], totals[1], member, bins, group_size, COLS, BINS, SPANS, WARPS
                )
        if PHASE != 1:
            if not SOLO:
                totals = await_sums(
                    mail, parts, member, bins, group_size, COLS, BINS, SPANS, STEP, WARPS
                )
            t1, t2 = spread(totals, start, group_size, by_col, GROUP, COLS, BINS, WARPS)
            if not GROUP:
                if above == 0:
                    store_as(dbeta, channel, t1, col_ok)
                    store_as(dgamma, channel, t2 * rs, col_ok)
            # The sums of group norm have gamma inside.
            tilt, shift = coefficients(rs, rs if GROUP else rs * weight, t1, t2, count)
            scale = (rs * weight)[None, :]
        for chunk in gl.static_range(CHUNKS):
            slot = chunk if DEPTH == CHUNKS else (turn + chunk) % DEPTH
            if PHASE != 1:
                wide = widen(tiles_dy.index(slot).load(tile))
                centred = widen(tiles_x.index(slot).load(tile)) - centre[None, :]
                result = wide * scale + (centred * tilt[None, :] + shift[None, :])
                origin, at, mask = tile_at(slab, chunk, part, local, cols, ROWS, ALIGN)
                gl.store(dx + origin + at, result.to(dx.dtype.element_ty), mask=mask)
            later = slab + (chunk + DEPTH) // CHUNKS * teams
            number = (chunk + DEPTH) % CHUNKS
            copy_tile(data, slot, later, number, part, local, cols, ROWS, ALIGN)
        turn = (turn + CHUNKS) % DEPTH
    async_copy.wait_group(0)
