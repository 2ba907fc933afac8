"""Channels-first batch and group norm with every slab read once.

A slab is what shares statistics: a block of channels of all images (batch norm) or a group of one
image (group norm). It consists of planes, contiguous runs of elements, cut into rows of a piece;
or, if they are short, several of them make one line of a tile.
A team of blocks holds a slab in shared memory, in CHUNKS tiles each: a block adds up its tiles as
they arrive, publishes the sums, waits for its partners', and writes dx tile by tile. Each tile
that is done makes room for one of the next slab, whose copy starts at once. Three trips to memory
instead of five.

Sums of a gradient's two terms are ``_d`` and ``_dt``: of a row, of a block (``sum_``), of the slab
(``total_``). Forward they are the distance of the mean from its base and the squared distances.
"""

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
    await_step_before,
    await_words,
    clear_previous,
    coefficients,
    count_arrival,
    load_or,
    opaque_copy,
    pack_pair,
    publish,
    rewiden_opaquely,
    spread_over_teams,
    store_as,
    sum_pairs,
    unpack_pair,
    widen,
)
from normgrad.backends.cuda.pieces.gluon import async_copy, gl, jit
from normgrad.backends.cuda.pieces.joins import join_groups
from normgrad.backends.cuda.pieces.moments import (
    add_elements,
    merged,
    parts_of,
    store_statistics,
)
from normgrad.backends.cuda.pieces.plane_channels import (
    base_and_weights,
    bias_of,
    elements_in,
    line_of,
    merge_channels,
    spread,
    statistics_of,
    sum_channels,
)
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
    sum_words,  # [slabs, COPIES, team, BLOCK_CHANNELS]
    previous_words,  # words of the call before, to be cleared for the next
    previous_count,
    arrivals,  # the word that counts arrivals
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
    REGISTER_TILES: tl.constexpr,  # that move on to registers; CHUNKS <= DEPTH + these
    PRELOAD_STATISTICS: tl.constexpr,  # statistics are loaded a round ahead
    REQUEST_AFTER_PUBLISH: tl.constexpr,  # of tiles of the next slab: when sums are published
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    VECTOR: tl.constexpr,  # elements of 16 bytes
    WARPS: tl.constexpr,
    COPIES: tl.constexpr,  # of each word, so that fewer blocks read the same
    TEAM: tl.constexpr,  # the team rounded up to a power of two: at least a word for every thread
    SOLO: tl.constexpr,  # a team of one
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    SM_COUNTERS: tl.constexpr,  # one a multiprocessor, if its blocks go to different teams
    JOINS_AT_END: tl.constexpr,  # the blocks wait for each other and join group norm's partials
    JOIN_CHANNELS: tl.constexpr,  # in tiles of so many channels
    JOIN_PARTS: tl.constexpr,  # and parts
    JOIN_STEPS: tl.constexpr,  # so often
    INDEX64: tl.constexpr,
    BULK: tl.constexpr,  # tiles come by bulk copies
    SPANS: tl.constexpr,  # of so many planes a tile, at most; 0: a slab is one run
    EQUAL_ROWS: tl.constexpr,  # all rows of a plane are of one length,
    ROWS_FILL_TILE: tl.constexpr,  # that of a tile
    FULL_TILES: tl.constexpr,  # so many tiles are full in every block
    HEAD: tl.constexpr,  # bytes of the barriers
    TILE: tl.constexpr,  # bytes of a tile in the ring
    WINDOW: tl.constexpr,  # planes start anywhere in vectors of so many elements; else 0
    EARLY: tl.constexpr,  # the words are cleared meanwhile
    PHASE: tl.constexpr,  # 0; in the interpreter 1: sums, 2: gradient, 3: all of SOLO, 4: the end
):
    """See the module. The three tensors have the same strides, which come divided by ALIGN."""
    LANES: tl.constexpr = min(32, COLS // VECTOR)
    # Warps one below the other; side by side where columns are added up by themselves.
    WARPS_DOWN: tl.constexpr = 1 if PLANE else min(WARPS, max(1, ROWS // (32 // LANES)))
    tile: tl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [WARPS_DOWN, WARPS // WARPS_DOWN], [1, 0]
    )
    line: tl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    # Words of the team for each channel, elements of each channel.
    box: tl.constexpr = gl.BlockedLayout(
        [1, 1], [32 // BLOCK_CHANNELS, BLOCK_CHANNELS], [WARPS, 1], [1, 0]
    )
    APART: tl.constexpr = min(WARPS, BLOCK_CHANNELS)
    bins: tl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [APART, WARPS // APART], [1, 0])
    # Tiles in registers whose slot in shared memory is refilled while sums are added up; slots of
    # the others when they are published.
    REFILLED_IN_SUMS: tl.constexpr = (
        min(REGISTER_TILES, max(0, CHUNKS - DEPTH)) if REQUEST_AFTER_PUBLISH else REGISTER_TILES
    )
    thread = gl.arange(0, 32 * WARPS, line)
    if BULK:
        base = ring_at(slabs * 0, HEAD + 2 * DEPTH * TILE)
        start_barriers(base, DEPTH)
        if FULL_TILES < CHUNKS or not ROWS_FILL_TILE:
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
    if SM_COUNTERS:
        await_step_before(EARLY)
        number = spread_over_teams(sum_words + arrivals + JOINS_AT_END, team, teams, SM_COUNTERS)
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
        if ROWS_FILL_TILE:
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
            BULK, SPANS, EQUAL_ROWS, FULL_TILES, HEAD, TILE, WINDOW,
        )  # fmt: skip
    await_step_before(EARLY)  # it cleared the words
    if PRELOAD_STATISTICS:
        which = first_slab * BLOCK_CHANNELS + chan
        if FORMULA.forward:
            next_one = base_and_weights(
                x, gamma, beta, first_slab, chan, steps, channels, GROUP, PIXELS, BLOCK_CHANNELS,
                ALIGN,
            )  # fmt: skip
        else:
            next_one = statistics_of(mean, rstd, gamma, which, channels, eps, GROUP, VARIANCE)
            if FORMULA.acts:
                next_bias = bias_of(beta, which, channels, GROUP)
    turn = slabs * 0
    odd = slabs * 0  # whether the first slot's turn is
    runtime_zero = share >> 30
    for slab in tl.range(first_slab if PHASE != 4 else slabs, slabs, teams):
        now = (opaque_copy(first), share, rows, pieces, magic, piece, run, plane_step, local, cols)
        weights = ()
        biases = ()
        held_x = ()
        held_dy = ()
        which = slab * BLOCK_CHANNELS + chan
        if PRELOAD_STATISTICS:
            centre, rs, factor = next_one
            coming = which + teams * BLOCK_CHANNELS
            if FORMULA.forward:
                next_one = base_and_weights(
                    x, gamma, beta, slab + teams, chan, steps, channels, GROUP, PIXELS,
                    BLOCK_CHANNELS, ALIGN,
                )  # fmt: skip
            else:
                next_one = statistics_of(mean, rstd, gamma, coming, channels, eps, GROUP, VARIANCE)
                if FORMULA.acts:
                    bias = next_bias
                    next_bias = bias_of(beta, coming, channels, GROUP)
        elif FORMULA.forward:
            centre, rs, factor = base_and_weights(
                x, gamma, beta, slab, chan, steps, channels, GROUP, PIXELS, BLOCK_CHANNELS, ALIGN
            )  # fmt: skip
        else:
            centre, rs, factor = statistics_of(
                mean, rstd, gamma, which, channels, eps, GROUP, VARIANCE
            )
            if FORMULA.acts:
                bias = bias_of(beta, which, channels, GROUP)
        if not FORMULA.forward:
            factor *= rs
            dy_factor = factor
        _, before = cut_origin(origin_of(slab, steps, ALIGN), WINDOW)
        if BLOCK_CHANNELS > 1:
            col_chan = cols % PLANE // PIXELS
        if FORMULA.forward:
            mean_base, weight, bias = centre, rs, factor
            if BLOCK_CHANNELS > 1:
                centre, _ = spread(mean_base, mean_base, col_chan)
        elif BLOCK_CHANNELS > 1:
            centre, dy_factor = spread(centre, dy_factor, col_chan)
            if FORMULA.acts:
                bias, _ = spread(bias, bias, col_chan)
        if GROUP:
            group_start = (slab if EACH else slab % split) * (rows // pieces)
            for chunk in gl.static_range(CHUNKS):
                _, plane, ok = rows_of(now, chunk, ROWS)
                weights = weights + (load_or(gamma, group_start + plane, ok, 1.0, tl.float32),)
                if FORMULA.forward or FORMULA.acts:
                    biases = biases + (load_or(beta, group_start + plane, ok, 0.0, tl.float32),)
        if FORMULA.forward:
            none = gl.zeros([ROWS, COLS], tl.float32, tile)
            found = (none, none, none, none)
        elif GROUP:
            sum_d = gl.zeros([ROWS], tl.float32, gl.SliceLayout(1, tile))
            sum_dt = gl.zeros([ROWS], tl.float32, gl.SliceLayout(1, tile))
        else:
            sum_d = gl.zeros([ROWS, COLS], tl.float32, tile)
            sum_dt = gl.zeros([ROWS, COLS], tl.float32, tile)
        for chunk in gl.static_range(CHUNKS):
            slot, rounds = slot_of(turn, chunk, CHUNKS, DEPTH)
            if BULK:
                await_turn(base + slot * 8, (odd + rounds) & 1)
                at_x = place + slot * (2 * TILE)
                at_dy = at_x + TILE
                if chunk >= FULL_TILES or not ROWS_FILL_TILE:  # lanes without one read zeros
                    if chunk >= FULL_TILES:
                        seen = (now[0], share, rows, pieces, magic, piece, run, 0, local, vectors)
                        _, mask = elements_of(
                            seen, chunk, ROWS, PLANE, ALIGN, False, EQUAL_ROWS, ROWS_FILL_TILE
                        )
                    else:
                        mask = columns
                    at_x = gl.where(mask, at_x, base + (HEAD - 16))
                    at_dy = gl.where(mask, at_dy, base + (HEAD - 16))
                tile_dy = read(at_dy, dy, VECTOR)
                tile_x = read(at_x, x, VECTOR)
            else:
                async_copy.wait_group(DEPTH - 1 - chunk + min(chunk, REFILLED_IN_SUMS))
                if dy is not None:
                    tile_dy = tiles_dy.index(slot).load(tile)
                tile_x = tiles_x.index(slot).load(tile)
                if dy is None:
                    tile_dy = tile_x
            if chunk < REGISTER_TILES:
                held_dy = held_dy + (tile_dy,)
                held_x = held_x + (tile_x,)
                if chunk < REFILLED_IN_SUMS:
                    if BULK:
                        all_read(slab)
                    later = slab + (chunk + DEPTH) // CHUNKS * teams
                    ask(
                        data, slot, later, steps, now, (chunk + DEPTH) % CHUNKS, ROWS, PLANE,
                        ALIGN, WIDE, WARPS, BULK, SPANS, EQUAL_ROWS, FULL_TILES, HEAD, TILE, WINDOW,
                    )  # fmt: skip
            if FORMULA.forward:
                if PHASE != 2:
                    there = inside_of(
                        now, chunk, before, ROWS, PLANE, ALIGN, WIDE, EQUAL_ROWS, ROWS_FILL_TILE,
                        chunk < FULL_TILES, WINDOW,
                    )  # fmt: skip
                    found = add_elements(FORMULA, found, widen(tile_x), there)
                    if WINDOW:  # masks of all tiles would be kept: 384 bytes of spills
                        found = (
                            opaque_copy(found[0]),
                            opaque_copy(found[1]),
                            opaque_copy(found[2]),
                            opaque_copy(found[3]),
                        )
            elif WINDOW:  # some are of the planes around
                _, _, low, high = window_of(now, chunk, before, ROWS, ALIGN, WIDE, WINDOW)
                tile_x, tile_dy = keep_inside(tile_x, tile_dy, low, high, VECTOR)
            if PHASE != 2 and not FORMULA.forward:
                # Masked elements of dy are 0, so their x does not matter.
                d, t = widen(tile_dy), FORMULA.centred(widen(tile_x), centre)
                if FORMULA.acts:
                    row_factor = weights[chunk][:, None] * dy_factor if GROUP else dy_factor
                    d = through(
                        FORMULA, d, t, row_factor, biases[chunk][:, None] if GROUP else bias
                    )
                term_d, term_dt = FORMULA.terms(d, t)
                if GROUP:
                    row_d, row_dt = sum_pairs(term_d, term_dt, 1)
                    if partials is not None:
                        row, _, ok = rows_of(now, chunk, ROWS)
                        to = rows.to(tl.int64) * slab + row
                        gl.store(partials + to, row_d, mask=ok)
                        gl.store(partials + slabs.to(tl.int64) * rows + to, row_dt, mask=ok)
                    sum_d += weights[chunk] * row_d
                    sum_dt += weights[chunk] * row_dt
                else:
                    sum_d += term_d
                    sum_dt += term_dt
                    if BULK or WINDOW:
                        sum_d = opaque_copy(sum_d)
                        sum_dt = opaque_copy(sum_dt)
        slab_words = sum_words
        if sum_words is not None:
            slab_words += team.to(tl.int64) * slab * (COPIES * BLOCK_CHANNELS)
        if PHASE != 2:
            if FORMULA.forward:
                parts = parts_of(FORMULA, found, centre)
                if BLOCK_CHANNELS == 1:
                    whole = merged(FORMULA, line_of(parts), 0)
                    sum_d, sum_dt = whole[1], whole[2]
                else:
                    parts = merged(FORMULA, parts, 0)
                    whole = merge_channels(FORMULA, parts, bins, PLANE, PIXELS, BLOCK_CHANNELS)
                    sum_d = gl.convert_layout(whole[1], gl.SliceLayout(0, box))
                    sum_dt = gl.convert_layout(whole[2], gl.SliceLayout(0, box))
            elif GROUP:
                sum_d, sum_dt = sum_pairs(sum_d, sum_dt, 0)
            elif BLOCK_CHANNELS == 1:
                sum_d, sum_dt = sum_pairs(
                    gl.reshape(sum_d, [ROWS * COLS]), gl.reshape(sum_dt, [ROWS * COLS]), 0
                )
            else:
                sum_d, sum_dt = sum_pairs(sum_d, sum_dt, 0)
                sum_d, sum_dt = sum_channels(sum_d, sum_dt, bins, PLANE, PIXELS, BLOCK_CHANNELS)
                sum_d = gl.convert_layout(sum_d, gl.SliceLayout(0, box))
                sum_dt = gl.convert_layout(sum_dt, gl.SliceLayout(0, box))
            if not SOLO:
                if BLOCK_CHANNELS == 1:
                    copies = gl.arange(0, COPIES, line)
                    pair = pack_pair(sum_d, sum_dt) + copies.to(tl.uint64) * 0
                    publish(slab_words + copies * team + member, pair, copies < COPIES)
                else:
                    box_of = slab_words + member * BLOCK_CHANNELS + chan
                    publish(box_of, pack_pair(sum_d, sum_dt), chan < BLOCK_CHANNELS)
            if JOINS_AT_END:  # noqa: SIM102
                if slab + teams >= slabs:  # dx follows, but all sums are there
                    count_arrival(sum_words + arrivals)
        if BULK and REFILLED_IN_SUMS < REGISTER_TILES:
            all_read(slab)
        for chunk in gl.static_range(REFILLED_IN_SUMS, REGISTER_TILES):
            slot, _ = slot_of(turn, chunk, CHUNKS, DEPTH)
            later = slab + (chunk + DEPTH) // CHUNKS * teams
            ask(
                data, slot, later, steps, now, (chunk + DEPTH) % CHUNKS, ROWS, PLANE,
                ALIGN, WIDE, WARPS, BULK, SPANS, EQUAL_ROWS, FULL_TILES, HEAD, TILE, WINDOW,
            )  # fmt: skip
        if PHASE != 1:
            if SOLO:
                total_d, total_dt = sum_d, sum_dt
            elif BLOCK_CHANNELS == 1:
                partner = gl.arange(0, TEAM, line)
                slab_words += member % COPIES * team
                got = await_words(slab_words + partner, partner < team, TEAM // (32 * WARPS))
                total_d, total_dt = unpack_pair(got)
                if FORMULA.forward:
                    sizes = (share, rows, magic, pieces, piece, run)
                    met = elements_in(partner, sizes, before, plane_step, ALIGN, WIDE, WINDOW)
                    met = gl.where(partner < team, met, 0.0)
                    _, total_d, total_dt = merged(FORMULA, (met, total_d, total_dt), 0)
                else:
                    total_d, total_dt = sum_pairs(total_d, total_dt, 0)
            else:
                partner = gl.arange(0, TEAM, gl.SliceLayout(1, box))[:, None]
                each: tl.constexpr = TEAM * BLOCK_CHANNELS // (32 * WARPS)
                theirs = slab_words + partner * BLOCK_CHANNELS + chan[None, :]
                got = await_words(theirs, (partner < team) & (chan >= 0)[None, :], each)
                total_d, total_dt = unpack_pair(got)
                if FORMULA.forward:
                    sizes = (share, rows, magic, pieces, piece, run)
                    met = elements_in(partner, sizes, before, plane_step, ALIGN, WIDE, WINDOW)
                    met *= 1.0 / BLOCK_CHANNELS
                    met = gl.where(partner < team, met, 0.0)
                    _, total_d, total_dt = merged(
                        FORMULA, (met + total_d * 0.0, total_d, total_dt), 0
                    )
                else:
                    total_d, total_dt = sum_pairs(total_d, total_dt, 0)
            if FORMULA.forward:
                results = (
                    None, None, mean, rstd, old_mean, old_variance, new_mean, new_variance
                )  # fmt: skip
                rs = 1.0 / tl.sqrt(total_dt / count + eps)
                centre, dy_factor = mean_base + total_d, rs * weight
                if member == 0:
                    moments = (count + total_d * 0.0, centre, total_dt)
                    store_statistics(
                        results, which, moments, momentum, eps, None, VARIANCE, FORMULA.biased
                    )
                if BLOCK_CHANNELS > 1:
                    centre, dy_factor = spread(centre, dy_factor, col_chan)
                    bias, _ = spread(bias, bias, col_chan)
            else:
                if not GROUP and member == 0:
                    store_as(dbeta, which, total_d, None)
                    store_as(dgamma, which, total_dt * rs, None)
                x_factor, constant = coefficients(FORMULA, rs, factor, total_d, total_dt, count)
                if BLOCK_CHANNELS > 1:
                    x_factor, constant = spread(x_factor, constant, col_chan)
        now = (opaque_copy(first), share, rows, pieces, magic, piece, run, plane_step, local, cols)
        origin, before = cut_origin(origin_of(slab, steps, ALIGN), WINDOW)
        target = dx + origin
        for rest in gl.static_range(CHUNKS - REGISTER_TILES):  # first those that make room
            slot, _ = slot_of(turn, rest + REGISTER_TILES, CHUNKS, DEPTH)
            if PHASE != 1:
                if BULK:
                    tile_dy = read(place + (slot * (2 * TILE) + TILE), dy, VECTOR)
                    tile_x = read(place + slot * (2 * TILE), x, VECTOR)
                else:
                    if dy is not None:
                        tile_dy = tiles_dy.index(slot).load(tile)
                    tile_x = tiles_x.index(slot).load(tile)
            later = slab + (rest + REGISTER_TILES + DEPTH) // CHUNKS * teams
            if BULK:
                all_read(slab)
                ask(
                    data, slot, later, steps, now, (rest + REGISTER_TILES + DEPTH) % CHUNKS, ROWS,
                    PLANE, ALIGN, WIDE, WARPS, BULK, SPANS, EQUAL_ROWS, FULL_TILES, HEAD, TILE,
                    WINDOW,
                )  # fmt: skip
            if PHASE != 1:
                row_factor = (
                    weights[rest + REGISTER_TILES][:, None] * dy_factor if GROUP else dy_factor
                )
                t = FORMULA.centred(widen(tile_x), centre)
                if FORMULA.forward:
                    row_bias = biases[rest + REGISTER_TILES][:, None] if GROUP else bias
                    result = output(FORMULA, t, row_factor, row_bias)
                else:
                    d = widen(tile_dy)
                    if FORMULA.acts:
                        row_bias = biases[rest + REGISTER_TILES][:, None] if GROUP else bias
                        d = through(FORMULA, d, t, row_factor, row_bias)
                    result = FORMULA.element(d, t, row_factor, x_factor, constant)
                write_tile(
                    target, result, now, rest + REGISTER_TILES, before, ROWS, PLANE, ALIGN, WIDE,
                    EQUAL_ROWS, ROWS_FILL_TILE, rest + REGISTER_TILES < FULL_TILES, WINDOW,
                )  # fmt: skip
            if not BULK:
                ask(
                    data, slot, later, steps, now, (rest + REGISTER_TILES + DEPTH) % CHUNKS, ROWS,
                    PLANE, ALIGN, WIDE, WARPS, BULK, SPANS, EQUAL_ROWS, FULL_TILES, HEAD, TILE,
                    WINDOW,
                )  # fmt: skip
        for chunk in gl.static_range(REGISTER_TILES):
            if PHASE != 1:
                row_factor = weights[chunk][:, None] * dy_factor if GROUP else dy_factor
                if FORMULA.forward:
                    row_bias = biases[chunk][:, None] if GROUP else bias
                    t = FORMULA.centred(rewiden_opaquely(held_x[chunk], runtime_zero), centre)
                    result = output(FORMULA, t, row_factor, row_bias)
                else:
                    d = rewiden_opaquely(held_dy[chunk], runtime_zero)
                    t = FORMULA.centred(rewiden_opaquely(held_x[chunk], runtime_zero), centre)
                    if FORMULA.acts:
                        row_bias = biases[chunk][:, None] if GROUP else bias
                        d = through(FORMULA, d, t, row_factor, row_bias)
                    result = FORMULA.element(d, t, row_factor, x_factor, constant)
                write_tile(
                    target, result, now, chunk, before, ROWS, PLANE, ALIGN, WIDE, EQUAL_ROWS,
                    ROWS_FILL_TILE, chunk < FULL_TILES, WINDOW,
                )  # fmt: skip
        turn, rounds = slot_of(turn, CHUNKS, 0, DEPTH)
        odd += rounds
    if not BULK:
        async_copy.wait_group(0)
    clear_previous(previous_words, previous_count, thread, 32 * WARPS)
    if JOINS_AT_END and PHASE % 4 == 0:
        size = rows // pieces
        samples = 1 if EACH else slabs // split
        join_groups(
            sum_words + arrivals, partials, (rstd, dgamma, dbeta),
            (samples, (slabs if EACH else split) * size, pieces, size),
            JOIN_CHANNELS, JOIN_PARTS, JOIN_STEPS, INDEX64, WARPS,
        )  # fmt: skip
