"""Channels-first batch and group norm with every slab read once.

A slab is what shares statistics: a block of channels of all images (batch norm) or a group of one
image (group norm). It consists of planes, contiguous runs of elements, cut into rows of a piece.
A team of blocks holds a slab in shared memory, in CHUNKS tiles each: a block adds up its tiles as
they arrive, publishes the sums, waits for its partners', and writes dx tile by tile. Each tile
that is done makes room for one of the next slab, whose copy starts at once. Three trips to memory
instead of five.
"""

import triton.language as tl

from normgrad.backends.cuda.kernels.common import (
    arrive,
    await_step_before,
    await_words,
    clear_stale,
    coefficients,
    fresh,
    load_or,
    load_rstd,
    pack_pair,
    publish,
    quotient,
    store_as,
    sum_pairs,
    unpack_pair,
    widen,
    widen_again,
)
from normgrad.backends.cuda.kernels.gluon import async_copy, gl, jit
from normgrad.backends.cuda.kernels.joins import join_groups


@jit
def _rows(part, chunk, ROWS: tl.constexpr):
    """The rows of a tile in their slab, their planes, and whether they are this block's."""
    first, share, rows, _, magic, _, _, _, local, _ = part
    inside = chunk * ROWS + local
    row = first + inside
    return row, quotient(row, magic), (inside < share) & (row < rows)


@jit
def _elements(part, chunk, ROWS: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr):
    """Offsets of a tile's elements from the slab's first, and the mask."""
    _, _, _, pieces, _, piece, run, plane_step, _, cols = part
    index: tl.constexpr = tl.int64 if WIDE else tl.int32
    row, plane, ok = _rows(part, chunk, ROWS)
    inside = ((row - plane * pieces) * piece * ALIGN)[:, None] + cols[None, :]
    mask = ok[:, None] & (cols < piece * ALIGN)[None, :] & (inside < run * ALIGN)
    return (plane.to(index) * plane_step * ALIGN)[:, None] + inside, mask


@jit
def _origin(slab, steps, ALIGN: tl.constexpr):
    """The first element of a slab."""
    _, split, outer_step, inner_step = steps
    outer = (slab // split).to(tl.int64)
    inner = (slab % split).to(tl.int64)
    return (outer * outer_step + inner * inner_step) * ALIGN


@jit
def _ask(
    data,
    slot,
    slab,
    steps,
    part,
    chunk,
    ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Ask for a tile."""
    x, dy, tiles_x, tiles_dy = data
    at, mask = _elements(part, chunk, ROWS, ALIGN, WIDE)
    origin = _origin(slab, steps, ALIGN)
    mask = mask & (slab < steps[0])
    async_copy.async_copy_global_to_shared(tiles_x.index(slot), x + origin + at, mask)
    async_copy.async_copy_global_to_shared(tiles_dy.index(slot), dy + origin + at, mask)
    async_copy.commit_group()


@jit
def _write(dx, result, part, chunk, ROWS: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr):
    """Dx of a tile."""
    at, mask = _elements(part, chunk, ROWS, ALIGN, WIDE)
    gl.store(dx + at, result.to(dx.dtype.element_ty), mask=mask)


@jit
def _statistics(mean, rstd, gamma, slab, slabs, eps, GROUP: tl.constexpr, VARIANCE: tl.constexpr):
    """What a slab has one of: mean, reciprocal deviation and, if no group norm, gamma."""
    ok = slab < slabs
    centre = load_or(mean, slab, ok, 0.0, tl.float32)
    rs = load_rstd(rstd, slab, ok, eps, VARIANCE, tl.float32)
    weight = load_or(None if GROUP else gamma, slab, ok, 1.0, tl.float32)
    return centre, rs, weight


@jit
def plane_slabs(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    dgamma,
    dbeta,
    partials,  # group norm: sum of dy of each row, then sum of dy * (x - mean)
    words,  # [slabs, COPIES, team, CHANNEL_TILE]
    stale,  # words of the call before, to be cleared for the next
    stale_words,
    tally,  # the word that counts arrivals
    slabs,
    rows,  # rows of a slab
    share,  # rows of a block
    pieces,  # rows of a plane
    magic,  # to divide by them
    piece,  # elements of a row, over ALIGN
    run,  # elements of a plane, over ALIGN
    team,  # blocks that share a slab
    teams,
    split,  # slabs of one image (group norm), 1 for batch norm
    plane_step,
    outer_step,
    inner_step,
    count,
    eps,
    GROUP: tl.constexpr,
    VARIANCE: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,  # channels of a plane (batch norm of small images)
    CHANNEL_TILE: tl.constexpr,  # the same, up to a power of two
    PIXELS: tl.constexpr,  # elements of a channel in a plane, if BLOCK_CHANNELS > 1
    CHUNKS: tl.constexpr,  # tiles of a block's share
    DEPTH: tl.constexpr,  # tiles that there is room for in shared memory
    HELD: tl.constexpr,  # tiles that move on to registers; CHUNKS <= DEPTH + HELD
    AHEAD: tl.constexpr,  # statistics are loaded a round ahead
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    VECTOR: tl.constexpr,  # elements of 16 bytes
    WARPS: tl.constexpr,
    COPIES: tl.constexpr,  # of each word, so that fewer blocks read the same
    TEAM: tl.constexpr,  # a power of two, so that every thread has a word
    SOLO: tl.constexpr,  # a team of one
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    MEETS: tl.constexpr,  # the blocks wait for each other and join group norm's partials
    CHANNELS: tl.constexpr,  # in tiles of so many channels
    PARTS: tl.constexpr,  # and parts
    TIMES: tl.constexpr,  # so often
    EARLY: tl.constexpr,  # the words are cleared meanwhile
    PHASE: tl.constexpr,  # 0; in the interpreter 1: sums, 2: gradient, 3: all of SOLO, 4: the end
):
    """See the module. The three tensors have the same strides, which come divided by ALIGN."""
    LANES: tl.constexpr = min(32, COLS // VECTOR)
    # Warps one below the other; side by side where columns are added up by themselves.
    ACROSS: tl.constexpr = 1 if BLOCK_CHANNELS == 1 else min(WARPS, max(1, COLS // (32 * VECTOR)))
    DOWN: tl.constexpr = min(WARPS // ACROSS, max(1, ROWS // (32 // LANES)))
    tile: tl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [DOWN, WARPS // DOWN], [1, 0]
    )
    ONCE: tl.constexpr = DOWN * (32 // LANES)  # rows that the block holds one of in each thread
    cube: tl.constexpr = gl.BlockedLayout(
        [1, VECTOR, CHANNEL_TILE], [32 // LANES, LANES, 1], [DOWN, WARPS // DOWN, 1], [2, 1, 0]
    )
    line: tl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    box: tl.constexpr = gl.BlockedLayout(
        [1, 1], [32 // CHANNEL_TILE, CHANNEL_TILE], [WARPS, 1], [1, 0]
    )
    hot: tl.constexpr = gl.BlockedLayout([1, CHANNEL_TILE], [32, 1], [WARPS, 1], [1, 0])
    flat: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    tiles_x = gl.allocate_shared_memory(x.dtype.element_ty, [DEPTH, ROWS, COLS], flat)
    tiles_dy = gl.allocate_shared_memory(dy.dtype.element_ty, [DEPTH, ROWS, COLS], flat)
    member = gl.program_id(0) % team
    first = member * share
    first_slab = gl.program_id(0) // team
    local = gl.arange(0, ROWS, gl.SliceLayout(1, tile))
    cols = gl.arange(0, COLS, gl.SliceLayout(0, tile))
    col_chan = cols // PIXELS
    chan = gl.arange(0, CHANNEL_TILE, gl.SliceLayout(0, hot))
    own = (gl.arange(0, COLS, gl.SliceLayout(1, hot)) // PIXELS)[:, None] == chan[None, :]
    data = (x, dy, tiles_x, tiles_dy)
    steps = (slabs, split, outer_step, inner_step)
    part = (first, share, rows, pieces, magic, piece, run, plane_step, local, cols)
    for ahead in gl.static_range(DEPTH):
        slab = first_slab + ahead // CHUNKS * teams
        _ask(data, ahead, slab, steps, part, ahead % CHUNKS, ROWS, ALIGN, WIDE)
    await_step_before(EARLY)  # it cleared the words
    if AHEAD:
        next_one = _statistics(mean, rstd, gamma, first_slab, slabs, eps, GROUP, VARIANCE)
    thread = gl.arange(0, 32 * WARPS, line)
    turn = slabs * 0
    zero = share >> 30
    for slab in tl.range(first_slab if PHASE != 4 else slabs, slabs, teams):
        now = (fresh(first), share, rows, pieces, magic, piece, run, plane_step, local, cols)
        weights = ()
        held_x = ()
        held_dy = ()
        if BLOCK_CHANNELS > 1:
            column = slab * BLOCK_CHANNELS + col_chan
            col_ok = col_chan < BLOCK_CHANNELS
            centre = load_or(mean, column, col_ok, 0.0, tl.float32)[None, :]
        elif AHEAD:
            centre, rs, factor = next_one
            next_one = _statistics(mean, rstd, gamma, slab + teams, slabs, eps, GROUP, VARIANCE)
        else:
            centre, rs, factor = _statistics(mean, rstd, gamma, slab, slabs, eps, GROUP, VARIANCE)
        if GROUP:
            group_start = (slab % split) * (rows // pieces)
            for chunk in gl.static_range(CHUNKS):
                _, plane, ok = _rows(now, chunk, ROWS)
                weights = weights + (load_or(gamma, group_start + plane, ok, 1.0, tl.float32),)
            s1 = gl.zeros([ROWS], tl.float32, gl.SliceLayout(1, tile))
            s2 = gl.zeros([ROWS], tl.float32, gl.SliceLayout(1, tile))
        else:
            s1 = gl.zeros([ROWS, COLS], tl.float32, tile)
            s2 = gl.zeros([ROWS, COLS], tl.float32, tile)
        for chunk in gl.static_range(CHUNKS):
            async_copy.wait_group(DEPTH - 1 - chunk + min(chunk, HELD))
            slot = chunk if DEPTH == CHUNKS else (turn + chunk) % DEPTH
            tile_dy = tiles_dy.index(slot).load(tile)
            tile_x = tiles_x.index(slot).load(tile)
            if chunk < HELD:
                held_dy = held_dy + (tile_dy,)
                held_x = held_x + (tile_x,)
                later = slab + (chunk + DEPTH) // CHUNKS * teams
                number = (chunk + DEPTH) % CHUNKS
                _ask(data, slot, later, steps, now, number, ROWS, ALIGN, WIDE)
            if PHASE != 2:
                # Masked elements of dy are 0, so their x does not matter.
                wide = widen(tile_dy)
                product = wide * (widen(tile_x) - centre)
                if GROUP:
                    r1, r2 = sum_pairs(wide, product, 1)
                    if partials is not None:
                        row, _, ok = _rows(now, chunk, ROWS)
                        to = rows.to(tl.int64) * slab + row
                        gl.store(partials + to, r1, mask=ok)
                        gl.store(partials + slabs.to(tl.int64) * rows + to, r2, mask=ok)
                    s1 += weights[chunk] * r1
                    s2 += weights[chunk] * r2
                else:
                    s1 += wide
                    s2 += product
        mail = words
        if words is not None:
            mail += team.to(tl.int64) * slab * (COPIES * CHANNEL_TILE)
        if PHASE != 2:
            if GROUP:
                s1, s2 = sum_pairs(s1, s2, 0)
            elif BLOCK_CHANNELS == 1:
                s1, s2 = sum_pairs(gl.reshape(s1, [ROWS * COLS]), gl.reshape(s2, [ROWS * COLS]), 0)
            else:
                # A thread adds up its rows, then the columns of each channel; lanes and warps last.
                s1, s2 = sum_pairs(
                    gl.reshape(s1, [ROWS // ONCE, ONCE, COLS]),
                    gl.reshape(s2, [ROWS // ONCE, ONCE, COLS]),
                    0,
                )
                s1 = gl.convert_layout(s1, gl.SliceLayout(2, cube))[:, :, None]
                s2 = gl.convert_layout(s2, gl.SliceLayout(2, cube))[:, :, None]
                theirs = gl.arange(0, CHANNEL_TILE, gl.SliceLayout(0, gl.SliceLayout(1, cube)))
                mine = gl.arange(0, COLS, gl.SliceLayout(0, gl.SliceLayout(2, cube))) // PIXELS
                both = mine[None, :, None] == theirs[None, None, :]
                s1, s2 = sum_pairs(gl.where(both, s1, 0.0), gl.where(both, s2, 0.0), 1)
                s1, s2 = sum_pairs(s1, s2, 0)
                s1 = gl.convert_layout(s1, gl.SliceLayout(0, hot))
                s2 = gl.convert_layout(s2, gl.SliceLayout(0, hot))
            if not SOLO:
                if BLOCK_CHANNELS == 1:
                    copies = gl.arange(0, COPIES, line)
                    pair = pack_pair(s1, s2) + copies.to(tl.uint64) * 0
                    publish(mail + copies * team + member, pair, copies < COPIES)
                else:
                    box_of = mail + member * CHANNEL_TILE + chan
                    publish(box_of, pack_pair(s1, s2), chan < BLOCK_CHANNELS)
            if MEETS:  # noqa: SIM102
                if slab + teams >= slabs:  # dx follows, but all sums are there
                    arrive(words + tally)
        if PHASE != 1:
            if SOLO:
                t1, t2 = s1, s2
            elif BLOCK_CHANNELS == 1:
                partner = gl.arange(0, TEAM, line)
                mail += member % COPIES * team
                got = await_words(mail + partner, partner < team, TEAM // (32 * WARPS))
                t1, t2 = unpack_pair(got)
                t1, t2 = sum_pairs(t1, t2, 0)
            else:
                partner = gl.arange(0, TEAM, gl.SliceLayout(1, box))[:, None]
                theirs = gl.arange(0, CHANNEL_TILE, gl.SliceLayout(0, box))[None, :]
                wanted = (partner < team) & (theirs < BLOCK_CHANNELS)
                each: tl.constexpr = TEAM * CHANNEL_TILE // (32 * WARPS)
                got = await_words(mail + partner * CHANNEL_TILE + theirs, wanted, each)
                t1, t2 = unpack_pair(got)
                t1, t2 = sum_pairs(t1, t2, 0)
                t1 = gl.convert_layout(t1, gl.SliceLayout(0, hot))
                t2 = gl.convert_layout(t2, gl.SliceLayout(0, hot))
            if BLOCK_CHANNELS == 1:
                if not GROUP and member == 0:
                    store_as(dbeta, slab, t1, None)
                    store_as(dgamma, slab, t2 * rs, None)
                factor *= rs
            else:
                if member == 0:
                    channel = slab * BLOCK_CHANNELS + chan
                    chan_ok = chan < BLOCK_CHANNELS
                    chan_rs = load_rstd(rstd, channel, chan_ok, eps, VARIANCE, tl.float32)
                    store_as(dbeta, channel, t1, chan_ok)
                    store_as(dgamma, channel, t2 * chan_rs, chan_ok)
                t1, t2 = sum_pairs(
                    gl.where(own, t1[None, :], 0.0), gl.where(own, t2[None, :], 0.0), 1
                )
                t1 = gl.convert_layout(t1, gl.SliceLayout(0, tile))[None, :]
                t2 = gl.convert_layout(t2, gl.SliceLayout(0, tile))[None, :]
                rs = load_rstd(rstd, column, col_ok, eps, VARIANCE, tl.float32)[None, :]
                factor = load_or(gamma, column, col_ok, 1.0, tl.float32)[None, :] * rs
            tilt, shift = coefficients(rs, factor, t1, t2, count)
        now = (fresh(first), share, rows, pieces, magic, piece, run, plane_step, local, cols)
        target = dx + _origin(slab, steps, ALIGN)
        for rest in gl.static_range(CHUNKS - HELD):  # first those that make room
            slot = rest + HELD if DEPTH == CHUNKS else (turn + rest + HELD) % DEPTH
            if PHASE != 1:
                scale = weights[rest + HELD][:, None] * factor if GROUP else factor
                wide = widen(tiles_dy.index(slot).load(tile))
                centred = widen(tiles_x.index(slot).load(tile)) - centre
                result = wide * scale + (centred * tilt + shift)
                _write(target, result, now, rest + HELD, ROWS, ALIGN, WIDE)
            later = slab + (rest + HELD + DEPTH) // CHUNKS * teams
            number = (rest + HELD + DEPTH) % CHUNKS
            _ask(data, slot, later, steps, now, number, ROWS, ALIGN, WIDE)
        for chunk in gl.static_range(HELD):
            if PHASE != 1:
                scale = weights[chunk][:, None] * factor if GROUP else factor
                wide = widen_again(held_dy[chunk], zero)
                centred = widen_again(held_x[chunk], zero) - centre
                result = wide * scale + (centred * tilt + shift)
                _write(target, result, now, chunk, ROWS, ALIGN, WIDE)
        turn = (turn + CHUNKS) % DEPTH
    async_copy.wait_group(0)
    clear_stale(stale, stale_words, thread, 32 * WARPS)
    if MEETS and PHASE % 4 == 0:
        size = rows // pieces
        join_groups(
            words + tally, partials, (rstd, dgamma, dbeta),
            (slabs // split, split * size, pieces, size), CHANNELS, PARTS, TIMES, WARPS,
        )  # fmt: skip
