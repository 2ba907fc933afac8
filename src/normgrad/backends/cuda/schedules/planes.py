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

from normgrad.backends.cuda.activations import output, through
from normgrad.backends.cuda.pieces.bulk import (
    all_read,
    await_turn,
    clear_place,
    lane_of,
    read,
    ring_at,
    start_barriers,
)
from normgrad.backends.cuda.pieces.common import (
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
    take_seat,
    unpack_pair,
    widen,
    widen_again,
)
from normgrad.backends.cuda.pieces.gluon import async_copy, gl, jit
from normgrad.backends.cuda.pieces.joins import join_groups
from normgrad.backends.cuda.pieces.moments import (
    add_elements,
    merged,
    parts_of,
    store_statistics,
)
from normgrad.backends.cuda.pieces.plane_runs import elements_before
from normgrad.backends.cuda.pieces.plane_tiles import (
    ask,
    cut_origin,
    elements_of,
    inside_of,
    origin_of,
    rows_of,
    slot_of,
    window_of,
    write_tile,
)
from normgrad.backends.cuda.pieces.windows import keep_inside


@jit
def _statistics(mean, rstd, gamma, which, count, eps, GROUP: tl.constexpr, VARIANCE: tl.constexpr):
    """What a channel or a group has one of: mean, reciprocal deviation, gamma if no group norm."""
    ok = which < count
    centre = load_or(mean, which, ok, 0.0, tl.float32)
    rs = load_rstd(rstd, which, ok, eps, VARIANCE, tl.float32)
    weight = load_or(None if GROUP else gamma, which, ok, 1.0, tl.float32)
    return centre, rs, weight


@jit
def _shift(beta, which, count, GROUP: tl.constexpr):
    """Beta of a channel, which an activation is to see."""
    return load_or(None if GROUP else beta, which, which < count, 0.0, tl.float32)


@jit
def _offered(
    x, gamma, beta, slab, chan, steps, count, GROUP: tl.constexpr, PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """The same for a forward formula: the base of the mean, gamma and beta."""
    which = slab * CHANNELS + chan
    ok = which < count
    base = tl.load(x + origin_of(slab, steps, ALIGN) + chan * PIXELS, mask=ok, other=0.0)
    weight = load_or(None if GROUP else gamma, which, ok, 1.0, tl.float32)
    shift = load_or(None if GROUP else beta, which, ok, 0.0, tl.float32)
    return base.to(tl.float32), weight, shift


@jit
def _line_of(parts):
    """Parts of a tile in one row."""
    SIZE: tl.constexpr = parts[0].shape[0] * parts[0].shape[1]
    return (
        gl.reshape(parts[0], [SIZE]), gl.reshape(parts[1], [SIZE]), gl.reshape(parts[2], [SIZE])
    )  # fmt: skip


@jit
def _merge_channels(
    FORMULA: tl.constexpr, parts, layout: tl.constexpr, PLANE: tl.constexpr, PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Parts of each channel from those of each element of a line: see `_sum_channels`."""
    COLS: tl.constexpr = parts[0].shape[0]
    EACH: tl.constexpr = COLS // PLANE * PIXELS
    SIZE: tl.constexpr = triton.next_power_of_2(EACH)
    chan = gl.arange(0, CHANNELS, gl.SliceLayout(1, layout))[:, None]
    number = gl.arange(0, SIZE, gl.SliceLayout(0, layout))[None, :]
    ok = (number < EACH) & (chan < CHANNELS)
    at = number + number // PIXELS * (PLANE - PIXELS) + chan * PIXELS
    at = gl.reshape(gl.where(ok, at, 0), [CHANNELS * SIZE])
    found = ()
    for part in gl.static_range(3):
        one = gl.reshape(gl.gather(parts[part], at, 0), [CHANNELS, SIZE])
        found = found + (gl.where(ok, gl.convert_layout(one, layout), 0.0),)
    return merged(FORMULA, found, 1)


@jit
def _elements_of(
    member, sizes, before, plane_step, ALIGN: tl.constexpr, WIDE: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    """How many elements a block's rows have."""
    share, rows, magic, pieces, piece, run = sizes
    if WIDE:
        piece, run = piece.to(tl.int64), run.to(tl.int64)
    first = gl.minimum(member * share, rows)
    last = gl.minimum(first + share, rows)
    if WINDOW:
        start = _seen_before(first, sizes, before, plane_step, ALIGN, WINDOW)
        count = _seen_before(last, sizes, before, plane_step, ALIGN, WINDOW) - start
    else:
        count = elements_before(last, magic, pieces, piece, run)
        count = (count - elements_before(first, magic, pieces, piece, run)) * ALIGN
    return count.to(tl.float32)


@jit
def _seen_before(row, sizes, before, plane_step, ALIGN: tl.constexpr, WINDOW: tl.constexpr):
    """Elements of a slab before a row of windows."""
    _, _, magic, pieces, piece, run = sizes
    plane = quotient(row, magic)
    far = plane.to(tl.int64)
    low = (before + far * plane_step * ALIGN) % WINDOW
    inside = (row - plane * pieces) * piece * WINDOW - low
    return far * run * ALIGN + gl.minimum(gl.maximum(inside, 0), run * ALIGN)


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
    beta,
    old_mean,  # running statistics before
    old_variance,
    new_mean,  # and after
    new_variance,
    momentum,
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
    FORMULA: tl.constexpr,
    GROUP: tl.constexpr,
    EACH: tl.constexpr,  # each sample has weights of its own
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
        tiles_dy = tiles_x
        if dy is not None:
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
        if FORMULA.forward:
            next_one = _offered(
                x, gamma, beta, first_slab, chan, steps, channels, GROUP, PIXELS, BLOCK_CHANNELS,
                ALIGN,
            )  # fmt: skip
        else:
            next_one = _statistics(mean, rstd, gamma, which, channels, eps, GROUP, VARIANCE)
            if FORMULA.acts:
                next_shift = _shift(beta, which, channels, GROUP)
    turn = slabs * 0
    odd = slabs * 0  # whether the first slot's turn is
    zero = share >> 30
    for slab in tl.range(first_slab if PHASE != 4 else slabs, slabs, teams):
        now = (fresh(first), share, rows, pieces, magic, piece, run, plane_step, local, cols)
        weights = ()
        shifts = ()
        held_x = ()
        held_dy = ()
        which = slab * BLOCK_CHANNELS + chan
        if AHEAD:
            centre, rs, factor = next_one
            coming = which + teams * BLOCK_CHANNELS
            if FORMULA.forward:
                next_one = _offered(
                    x, gamma, beta, slab + teams, chan, steps, channels, GROUP, PIXELS,
                    BLOCK_CHANNELS, ALIGN,
                )  # fmt: skip
            else:
                next_one = _statistics(mean, rstd, gamma, coming, channels, eps, GROUP, VARIANCE)
                if FORMULA.acts:
                    shift = next_shift
                    next_shift = _shift(beta, coming, channels, GROUP)
        elif FORMULA.forward:
            centre, rs, factor = _offered(
                x, gamma, beta, slab, chan, steps, channels, GROUP, PIXELS, BLOCK_CHANNELS, ALIGN
            )  # fmt: skip
        else:
            centre, rs, factor = _statistics(
                mean, rstd, gamma, which, channels, eps, GROUP, VARIANCE
            )
            if FORMULA.acts:
                shift = _shift(beta, which, channels, GROUP)
        if not FORMULA.forward:
            factor *= rs
            scale = factor
        _, before = cut_origin(origin_of(slab, steps, ALIGN), WINDOW)
        if BLOCK_CHANNELS > 1:
            col_chan = cols % PLANE // PIXELS
        if FORMULA.forward:
            near, gain, shift = centre, rs, factor
            if BLOCK_CHANNELS > 1:
                centre, _ = _spread(near, near, col_chan)
        elif BLOCK_CHANNELS > 1:
            centre, scale = _spread(centre, scale, col_chan)
            if FORMULA.acts:
                shift, _ = _spread(shift, shift, col_chan)
        if GROUP:
            group_start = (slab if EACH else slab % split) * (rows // pieces)
            for chunk in gl.static_range(CHUNKS):
                _, plane, ok = rows_of(now, chunk, ROWS)
                weights = weights + (load_or(gamma, group_start + plane, ok, 1.0, tl.float32),)
                if FORMULA.forward or FORMULA.acts:
                    shifts = shifts + (load_or(beta, group_start + plane, ok, 0.0, tl.float32),)
        if FORMULA.forward:
            none = gl.zeros([ROWS, COLS], tl.float32, tile)
            found = (none, none, none, none)
        elif GROUP:
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
                if dy is not None:
                    tile_dy = tiles_dy.index(slot).load(tile)
                tile_x = tiles_x.index(slot).load(tile)
                if dy is None:
                    tile_dy = tile_x
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
            if FORMULA.forward:
                if PHASE != 2:
                    there = inside_of(
                        now, chunk, before, ROWS, PLANE, ALIGN, WIDE, EXACT, EVEN, chunk < FULL,
                        WINDOW,
                    )  # fmt: skip
                    found = add_elements(FORMULA, found, widen(tile_x), there)
                    if WINDOW:  # masks of all tiles would be kept: 384 bytes of spills
                        found = fresh(found[0]), fresh(found[1]), fresh(found[2]), fresh(found[3])
            elif WINDOW:  # some are of the planes around
                _, _, low, high = window_of(now, chunk, before, ROWS, ALIGN, WIDE, WINDOW)
                tile_x, tile_dy = keep_inside(tile_x, tile_dy, low, high, VECTOR)
            if PHASE != 2 and not FORMULA.forward:
                # Masked elements of dy are 0, so their x does not matter.
                d, t = widen(tile_dy), FORMULA.centred(widen(tile_x), centre)
                if FORMULA.acts:
                    by = weights[chunk][:, None] * scale if GROUP else scale
                    d = through(FORMULA, d, t, by, shifts[chunk][:, None] if GROUP else shift)
                d1, d2 = FORMULA.terms(d, t)
                if GROUP:
                    r1, r2 = sum_pairs(d1, d2, 1)
                    if partials is not None:
                        row, _, ok = rows_of(now, chunk, ROWS)
                        to = rows.to(tl.int64) * slab + row
                        gl.store(partials + to, r1, mask=ok)
                        gl.store(partials + slabs.to(tl.int64) * rows + to, r2, mask=ok)
                    s1 += weights[chunk] * r1
                    s2 += weights[chunk] * r2
                else:
                    s1 += d1
                    s2 += d2
                    if BULK or WINDOW:
                        s1 = fresh(s1)
                        s2 = fresh(s2)
        mail = words
        if words is not None:
            mail += team.to(tl.int64) * slab * (COPIES * BLOCK_CHANNELS)
        if PHASE != 2:
            if FORMULA.forward:
                parts = parts_of(FORMULA, found, centre)
                if BLOCK_CHANNELS == 1:
                    whole = merged(FORMULA, _line_of(parts), 0)
                    s1, s2 = whole[1], whole[2]
                else:
                    parts = merged(FORMULA, parts, 0)
                    whole = _merge_channels(FORMULA, parts, bins, PLANE, PIXELS, BLOCK_CHANNELS)
                    s1 = gl.convert_layout(whole[1], gl.SliceLayout(0, box))
                    s2 = gl.convert_layout(whole[2], gl.SliceLayout(0, box))
            elif GROUP:
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
                if FORMULA.forward:
                    sizes = (share, rows, magic, pieces, piece, run)
                    met = _elements_of(partner, sizes, before, plane_step, ALIGN, WIDE, WINDOW)
                    met = gl.where(partner < team, met, 0.0)
                    _, t1, t2 = merged(FORMULA, (met, t1, t2), 0)
                else:
                    t1, t2 = sum_pairs(t1, t2, 0)
            else:
                partner = gl.arange(0, TEAM, gl.SliceLayout(1, box))[:, None]
                each: tl.constexpr = TEAM * BLOCK_CHANNELS // (32 * WARPS)
                theirs = mail + partner * BLOCK_CHANNELS + chan[None, :]
                got = await_words(theirs, (partner < team) & (chan >= 0)[None, :], each)
                t1, t2 = unpack_pair(got)
                if FORMULA.forward:
                    sizes = (share, rows, magic, pieces, piece, run)
                    met = _elements_of(partner, sizes, before, plane_step, ALIGN, WIDE, WINDOW)
                    met *= 1.0 / BLOCK_CHANNELS
                    met = gl.where(partner < team, met, 0.0)
                    _, t1, t2 = merged(FORMULA, (met + t1 * 0.0, t1, t2), 0)
                else:
                    t1, t2 = sum_pairs(t1, t2, 0)
            if FORMULA.forward:
                results = (
                    None, None, mean, rstd, old_mean, old_variance, new_mean, new_variance
                )  # fmt: skip
                rs = 1.0 / tl.sqrt(t2 / count + eps)
                centre, scale = near + t1, rs * gain
                if member == 0:
                    moments = (count + t1 * 0.0, centre, t2)
                    store_statistics(
                        results, which, moments, momentum, eps, None, VARIANCE, FORMULA.biased
                    )
                if BLOCK_CHANNELS > 1:
                    centre, scale = _spread(centre, scale, col_chan)
                    shift, _ = _spread(shift, shift, col_chan)
            else:
                if not GROUP and member == 0:
                    store_as(dbeta, which, t1, None)
                    store_as(dgamma, which, t2 * rs, None)
                x_factor, constant = coefficients(FORMULA, rs, factor, t1, t2, count)
                if BLOCK_CHANNELS > 1:
                    x_factor, constant = _spread(x_factor, constant, col_chan)
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
                    if dy is not None:
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
                t = FORMULA.centred(widen(tile_x), centre)
                if FORMULA.forward:
                    above = shifts[rest + HELD][:, None] if GROUP else shift
                    result = output(FORMULA, t, by, above)
                else:
                    d = widen(tile_dy)
                    if FORMULA.acts:
                        above = shifts[rest + HELD][:, None] if GROUP else shift
                        d = through(FORMULA, d, t, by, above)
                    result = FORMULA.element(d, t, by, x_factor, constant)
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
                if FORMULA.forward:
                    above = shifts[chunk][:, None] if GROUP else shift
                    t = FORMULA.centred(widen_again(held_x[chunk], zero), centre)
                    result = output(FORMULA, t, by, above)
                else:
                    d = widen_again(held_dy[chunk], zero)
                    t = FORMULA.centred(widen_again(held_x[chunk], zero), centre)
                    if FORMULA.acts:
                        above = shifts[chunk][:, None] if GROUP else shift
                        d = through(FORMULA, d, t, by, above)
                    result = FORMULA.element(d, t, by, x_factor, constant)
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
        samples = 1 if EACH else slabs // split
        join_groups(
            words + tally, partials, (rstd, dgamma, dbeta),
            (samples, (slabs if EACH else split) * size, pieces, size),
            CHANNELS, PARTS, TIMES, MANY, WARPS,
        )  # fmt: skip
