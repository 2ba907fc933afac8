"""Channels-first batch and group norm with every slab read once.

A slab is what shares statistics: a block of channels of all images (batch norm) or a group of one
image (group norm). It consists of planes, contiguous runs of elements, cut into rows of a piece;
or, if they are short, several of them make one line of a tile.
A team of blocks holds a slab in shared memory, in CHUNKS tiles each: a block adds up its tiles as
they arrive, publishes the sums, waits for its partners', and writes dx tile by tile. Each tile
that is done makes room for one of the next slab, whose copy starts at once. Three trips to memory
instead of five.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.kernels.bulk import (
    all_read,
    await_turn,
    clear_place,
    lane_of,
    read,
    ring_at,
    start_barriers,
)
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
    store_as,
    sum_pairs,
    take_seat,
    unpack_pair,
    widen,
    widen_again,
)
from normgrad.backends.cuda.kernels.gluon import async_copy, gl, jit
from normgrad.backends.cuda.kernels.joins import join_groups
from normgrad.backends.cuda.kernels.plane_tiles import (
    ask,
    cut_origin,
    elements_of,
    origin_of,
    rows_of,
    slot_of,
    window_of,
    write_tile,
)
from normgrad.backends.cuda.kernels.windows import keep_inside


@jit
def _statistics(mean, rstd, gamma, which, count, eps, GROUP: tl.constexpr, VARIANCE: tl.constexpr):
    """What a channel or a group has one of: mean, reciprocal deviation, gamma if no group norm."""
    ok = which < count
    centre = load_or(mean, which, ok, 0.0, tl.float32)
    rs = load_rstd(rstd, which, ok, eps, VARIANCE, tl.float32)
    weight = load_or(None if GROUP else gamma, which, ok, 1.0, tl.float32)
    return centre, rs, weight


@jit
def _sum_channels(
    s1,
    s2,
    layout: tl.constexpr,
    PLANE: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Sums of each channel from those of each element of a line.

    Elements change places so that a warp has those of one channel. (A thread would else need a
    mask for each channel: in 16 bits 300 instructions beside 100 for a tile.)
    """
    COLS: tl.constexpr = s1.shape[0]
    EACH: tl.constexpr = COLS // PLANE * PIXELS  # elements of a channel
    SIZE: tl.constexpr = triton.next_power_of_2(EACH)
    chan = gl.arange(0, CHANNELS, gl.SliceLayout(1, layout))[:, None]
    number = gl.arange(0, SIZE, gl.SliceLayout(0, layout))[None, :]
    ok = (number < EACH) & (chan < CHANNELS)
    at = number + number // PIXELS * (PLANE - PIXELS) + chan * PIXELS
    at = gl.reshape(gl.where(ok, at, 0), [CHANNELS * SIZE])
    s1 = gl.reshape(gl.gather(s1, at, 0), [CHANNELS, SIZE])
    s2 = gl.reshape(gl.gather(s2, at, 0), [CHANNELS, SIZE])
    s1 = gl.where(ok, gl.convert_layout(s1, layout), 0.0)
    s2 = gl.where(ok, gl.convert_layout(s2, layout), 0.0)
    return sum_pairs(s1, s2, 1)


@jit
def _spread(first, second, col_chan):
    """Two numbers of each channel for each column of a tile."""
    pair = gl.gather(pack_pair(first, second), col_chan, 0)
    first, second = unpack_pair(pair)
    return first[None, :], second[None, :]


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
    words,  # [slabs, COPIES, team, BLOCK_CHANNELS]
    stale,  # words of the call before, to be cleared for the next
    stale_words,
    tally,  # the word that counts arrivals
    slabs,
    rows,  # rows of a slab
    share,  # rows of a block
    pieces,  # rows of a plane
    magic,  # to divide by them
    piece,  # elements of a row, over ALIGN or WINDOW
    run,  # elements of a plane, over ALIGN
    team,  # blocks that share a slab
    teams,
    split,  # slabs of one image (group norm),
    apart,  # if images do not follow each other as slabs do
    plane_step,
    outer_step,
    inner_step,
    count,
    eps,
    GROUP: tl.constexpr,
    VARIANCE: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,  # of a plane (batch norm of small images): a power of two
    PIXELS: tl.constexpr,  # elements of a channel in a plane, if BLOCK_CHANNELS > 1
    PLANE: tl.constexpr,  # elements of a plane, if planes lie side by side in a tile, else 0
    CHUNKS: tl.constexpr,  # tiles of a block's share
    DEPTH: tl.constexpr,  # tiles that there is room for in shared memory
    HELD: tl.constexpr,  # tiles that move on to registers; CHUNKS <= DEPTH + HELD
    AHEAD: tl.constexpr,  # statistics are loaded a round ahead
    LATE: tl.constexpr,  # tiles of the next slab are asked for when the sums are published
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    VECTOR: tl.constexpr,  # elements of 16 bytes
    WARPS: tl.constexpr,
    COPIES: tl.constexpr,  # of each word, so that fewer blocks read the same
    TEAM: tl.constexpr,  # a power of two, so that every thread has a word
    SOLO: tl.constexpr,  # a team of one
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    SEATS: tl.constexpr,  # counters for multiprocessors, if their blocks go to different teams
    MEETS: tl.constexpr,  # the blocks wait for each other and join group norm's partials
    CHANNELS: tl.constexpr,  # in tiles of so many channels
    PARTS: tl.constexpr,  # and parts
    TIMES: tl.constexpr,  # so often
    MANY: tl.constexpr,
    BULK: tl.constexpr,  # tiles come by bulk copies
    SPANS: tl.constexpr,  # of so many planes a tile, at most; 0: a slab is one run
    EXACT: tl.constexpr,  # all rows of a plane are of one length,
    EVEN: tl.constexpr,  # that of a tile
    FULL: tl.constexpr,  # so many tiles are full in every block
    HEAD: tl.constexpr,  # bytes of the barriers
    TILE: tl.constexpr,  # bytes of a tile in the ring
    WINDOW: tl.constexpr,  # planes start anywhere in vectors of so many elements; else 0
    EARLY: tl.constexpr,  # the words are cleared meanwhile
    PHASE: tl.constexpr,  # 0; in the interpreter 1: sums, 2: gradient, 3: all of SOLO, 4: the end
):
    """See the module. The three tensors have the same strides, which come divided by ALIGN."""
    LANES: tl.constexpr = min(32, COLS // VECTOR)
    # Warps one below the other; side by side where columns are added up by themselves.
    DOWN: tl.constexpr = 1 if PLANE else min(WARPS, max(1, ROWS // (32 // LANES)))
    tile: tl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [DOWN, WARPS // DOWN], [1, 0]
    )
    line: tl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    # Words of the team for each channel, elements of each channel.
    box: tl.constexpr = gl.BlockedLayout(
        [1, 1], [32 // BLOCK_CHANNELS, BLOCK_CHANNELS], [WARPS, 1], [1, 0]
    )
    APART: tl.constexpr = min(WARPS, BLOCK_CHANNELS)
    bins: tl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [APART, WARPS // APART], [1, 0])
    # Held tiles whose place is asked for again at once.
    AT_ONCE: tl.constexpr = min(HELD, max(0, CHUNKS - DEPTH)) if LATE else HELD
    thread = gl.arange(0, 32 * WARPS, line)
    if BULK:
        base = ring_at(slabs * 0, HEAD + 2 * DEPTH * TILE)
        start_barriers(base, DEPTH)
        if FULL < CHUNKS or not EVEN:
            clear_place(base + (HEAD - 16))
        data = (x, dy, base, lane_of(thread))
    else:
        flat: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        tiles_x = gl.allocate_shared_memory(x.dtype.element_ty, [DEPTH, ROWS, COLS], flat)
        tiles_dy = gl.allocate_shared_memory(dy.dtype.element_ty, [DEPTH, ROWS, COLS], flat)
        data = (x, dy, tiles_x, tiles_dy)
    number = gl.program_id(0)
    if SEATS:
        await_step_before(EARLY)
        number = take_seat(words + tally + MEETS, team, teams, SEATS)
    member = number % team
    first = member * share
    first_slab = number // team
    local = gl.arange(0, ROWS, gl.SliceLayout(1, tile))
    cols = gl.arange(0, COLS, gl.SliceLayout(0, tile))
    chan = 0
    if BLOCK_CHANNELS > 1:
        chan = gl.arange(0, BLOCK_CHANNELS, gl.SliceLayout(0, box))
    channels = slabs * BLOCK_CHANNELS
    steps = (slabs, apart, outer_step, inner_step)
    part = (first, share, rows, pieces, magic, piece, run, plane_step, local, cols)
    if BULK:  # where this thread's elements are in the first tile
        vectors = cols // VECTOR * VECTOR
        ITEM: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
        if EVEN:
            place = local[:, None] * COLS + vectors[None, :]
        else:
            length = piece * ALIGN
            columns = (vectors < length)[None, :] & (local >= 0)[:, None]
            place = gl.where(columns, local[:, None] * length + vectors[None, :], 0)
        place = base + HEAD + place * ITEM
    for ahead in gl.static_range(DEPTH):
        slab = first_slab + ahead // CHUNKS * teams
        ask(
            data, ahead, slab, steps, part, ahead % CHUNKS, ROWS, PLANE, ALIGN, WIDE, WARPS,
            BULK, SPANS, EXACT, FULL, HEAD, TILE, WINDOW,
        )  # fmt: skip
    await_step_before(EARLY)  # it cleared the words
    if AHEAD:
        which = first_slab * BLOCK_CHANNELS + chan
        next_one = _statistics(mean, rstd, gamma, which, channels, eps, GROUP, VARIANCE)
    turn = slabs * 0
    odd = slabs * 0  # whether the first slot's turn is
    zero = share >> 30
    for slab in tl.range(first_slab if PHASE != 4 else slabs, slabs, teams):
        now = (fresh(first), share, rows, pieces, magic, piece, run, plane_step, local, cols)
        weights = ()
        held_x = ()
        held_dy = ()
        which = slab * BLOCK_CHANNELS + chan
        if AHEAD:
            centre, rs, factor = next_one
            coming = which + teams * BLOCK_CHANNELS
            next_one = _statistics(mean, rstd, gamma, coming, channels, eps, GROUP, VARIANCE)
        else:
            centre, rs, factor = _statistics(
                mean, rstd, gamma, which, channels, eps, GROUP, VARIANCE
            )
        factor *= rs
        scale = factor
        _, before = cut_origin(origin_of(slab, steps, ALIGN), WINDOW)
        if BLOCK_CHANNELS > 1:
            col_chan = cols % PLANE // PIXELS
            centre, scale = _spread(centre, scale, col_chan)
        if GROUP:
            group_start = (slab % split) * (rows // pieces)
            for chunk in gl.static_range(CHUNKS):
                _, plane, ok = rows_of(now, chunk, ROWS)
                weights = weights + (load_or(gamma, group_start + plane, ok, 1.0, tl.float32),)
            s1 = gl.zeros([ROWS], tl.float32, gl.SliceLayout(1, tile))
            s2 = gl.zeros([ROWS], tl.float32, gl.SliceLayout(1, tile))
        else:
            s1 = gl.zeros([ROWS, COLS], tl.float32, tile)
            s2 = gl.zeros([ROWS, COLS], tl.float32, tile)
        for chunk in gl.static_range(CHUNKS):
            slot, rounds = slot_of(turn, chunk, CHUNKS, DEPTH)
            if BULK:
                await_turn(base + slot * 8, (odd + rounds) & 1)
                at_x = place + slot * (2 * TILE)
                at_dy = at_x + TILE
                if chunk >= FULL or not EVEN:  # whoever has no element reads zeros
                    if chunk >= FULL:
                        seen = (now[0], share, rows, pieces, magic, piece, run, 0, local, vectors)
                        _, mask = elements_of(seen, chunk, ROWS, PLANE, ALIGN, False, EXACT, EVEN)
                    else:
                        mask = columns
                    at_x = gl.where(mask, at_x, base + (HEAD - 16))
                    at_dy = gl.where(mask, at_dy, base + (HEAD - 16))
                tile_dy = read(at_dy, dy, VECTOR)
                tile_x = read(at_x, x, VECTOR)
            else:
                async_copy.wait_group(DEPTH - 1 - chunk + min(chunk, AT_ONCE))
                tile_dy = tiles_dy.index(slot).load(tile)
                tile_x = tiles_x.index(slot).load(tile)
            if chunk < HELD:
                held_dy = held_dy + (tile_dy,)
                held_x = held_x + (tile_x,)
                if chunk < AT_ONCE:
                    if BULK:
                        all_read(slab)
                    later = slab + (chunk + DEPTH) // CHUNKS * teams
                    ask(
                        data, slot, later, steps, now, (chunk + DEPTH) % CHUNKS, ROWS, PLANE,
                        ALIGN, WIDE, WARPS, BULK, SPANS, EXACT, FULL, HEAD, TILE, WINDOW,
                    )  # fmt: skip
            if WINDOW:  # some are of the planes around
                _, _, low, high = window_of(now, chunk, before, ROWS, ALIGN, WIDE, WINDOW)
                tile_x, tile_dy = keep_inside(tile_x, tile_dy, low, high, VECTOR)
            if PHASE != 2:
                # Masked elements of dy are 0, so their x does not matter.
                wide = widen(tile_dy)
                product = wide * (widen(tile_x) - centre)
                if GROUP:
                    r1, r2 = sum_pairs(wide, product, 1)
                    if partials is not None:
                        row, _, ok = rows_of(now, chunk, ROWS)
                        to = rows.to(tl.int64) * slab + row
                        gl.store(partials + to, r1, mask=ok)
                        gl.store(partials + slabs.to(tl.int64) * rows + to, r2, mask=ok)
                    s1 += weights[chunk] * r1
                    s2 += weights[chunk] * r2
                else:
                    s1 += wide
                    s2 += product
                    if BULK or WINDOW:
                        s1 = fresh(s1)
                        s2 = fresh(s2)
        mail = words
        if words is not None:
            mail += team.to(tl.int64) * slab * (COPIES * BLOCK_CHANNELS)
        if PHASE != 2:
            if GROUP:
                s1, s2 = sum_pairs(s1, s2, 0)
            elif BLOCK_CHANNELS == 1:
                s1, s2 = sum_pairs(gl.reshape(s1, [ROWS * COLS]), gl.reshape(s2, [ROWS * COLS]), 0)
            else:
                s1, s2 = sum_pairs(s1, s2, 0)
                s1, s2 = _sum_channels(s1, s2, bins, PLANE, PIXELS, BLOCK_CHANNELS)
                s1 = gl.convert_layout(s1, gl.SliceLayout(0, box))
                s2 = gl.convert_layout(s2, gl.SliceLayout(0, box))
            if not SOLO:
                if BLOCK_CHANNELS == 1:
                    copies = gl.arange(0, COPIES, line)
                    pair = pack_pair(s1, s2) + copies.to(tl.uint64) * 0
                    publish(mail + copies * team + member, pair, copies < COPIES)
                else:
                    box_of = mail + member * BLOCK_CHANNELS + chan
                    publish(box_of, pack_pair(s1, s2), chan < BLOCK_CHANNELS)
            if MEETS:  # noqa: SIM102
                if slab + teams >= slabs:  # dx follows, but all sums are there
                    arrive(words + tally)
        if BULK and AT_ONCE < HELD:
            all_read(slab)
        for chunk in gl.static_range(AT_ONCE, HELD):
            slot, _ = slot_of(turn, chunk, CHUNKS, DEPTH)
            later = slab + (chunk + DEPTH) // CHUNKS * teams
            ask(
                data, slot, later, steps, now, (chunk + DEPTH) % CHUNKS, ROWS, PLANE,
                ALIGN, WIDE, WARPS, BULK, SPANS, EXACT, FULL, HEAD, TILE, WINDOW,
            )  # fmt: skip
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
                each: tl.constexpr = TEAM * BLOCK_CHANNELS // (32 * WARPS)
                theirs = mail + partner * BLOCK_CHANNELS + chan[None, :]
                got = await_words(theirs, (partner < team) & (chan >= 0)[None, :], each)
                t1, t2 = unpack_pair(got)
                t1, t2 = sum_pairs(t1, t2, 0)
            if not GROUP and member == 0:
                store_as(dbeta, which, t1, None)
                store_as(dgamma, which, t2 * rs, None)
            tilt, shift = coefficients(rs, factor, t1, t2, count)
            if BLOCK_CHANNELS > 1:
                tilt, shift = _spread(tilt, shift, col_chan)
        now = (fresh(first), share, rows, pieces, magic, piece, run, plane_step, local, cols)
        origin, before = cut_origin(origin_of(slab, steps, ALIGN), WINDOW)
        target = dx + origin
        for rest in gl.static_range(CHUNKS - HELD):  # first those that make room
            slot, _ = slot_of(turn, rest + HELD, CHUNKS, DEPTH)
            if PHASE != 1:
                if BULK:
                    tile_dy = read(place + (slot * (2 * TILE) + TILE), dy, VECTOR)
                    tile_x = read(place + slot * (2 * TILE), x, VECTOR)
                else:
                    tile_dy = tiles_dy.index(slot).load(tile)
                    tile_x = tiles_x.index(slot).load(tile)
            later = slab + (rest + HELD + DEPTH) // CHUNKS * teams
            if BULK:
                all_read(slab)
                ask(
                    data, slot, later, steps, now, (rest + HELD + DEPTH) % CHUNKS, ROWS, PLANE,
                    ALIGN, WIDE, WARPS, BULK, SPANS, EXACT, FULL, HEAD, TILE, WINDOW,
                )  # fmt: skip
            if PHASE != 1:
                by = weights[rest + HELD][:, None] * scale if GROUP else scale
                wide = widen(tile_dy)
                centred = widen(tile_x) - centre
                result = wide * by + (centred * tilt + shift)
                write_tile(
                    target, result, now, rest + HELD, before, ROWS, PLANE, ALIGN, WIDE, EXACT,
                    EVEN, rest + HELD < FULL, WINDOW,
                )  # fmt: skip
            if not BULK:
                ask(
                    data, slot, later, steps, now, (rest + HELD + DEPTH) % CHUNKS, ROWS, PLANE,
                    ALIGN, WIDE, WARPS, BULK, SPANS, EXACT, FULL, HEAD, TILE, WINDOW,
                )  # fmt: skip
        for chunk in gl.static_range(HELD):
            if PHASE != 1:
                by = weights[chunk][:, None] * scale if GROUP else scale
                wide = widen_again(held_dy[chunk], zero)
                centred = widen_again(held_x[chunk], zero) - centre
                result = wide * by + (centred * tilt + shift)
                write_tile(
                    target, result, now, chunk, before, ROWS, PLANE, ALIGN, WIDE, EXACT, EVEN,
                    chunk < FULL, WINDOW,
                )  # fmt: skip
        turn, rounds = slot_of(turn, CHUNKS, 0, DEPTH)
        odd += rounds
    if not BULK:
        async_copy.wait_group(0)
    clear_stale(stale, stale_words, thread, 32 * WARPS)
    if MEETS and PHASE % 4 == 0:
        size = rows // pieces
        join_groups(
            words + tally, partials, (rstd, dgamma, dbeta),
            (slabs // split, split * size, pieces, size), CHANNELS, PARTS, TIMES, MANY, WARPS,
        )  # fmt: skip
