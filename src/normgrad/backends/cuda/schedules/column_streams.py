"""Channels-last batch and group norm of slabs that do not fit on chip as a whole.

As in `columns`, but a block has more tiles than room. REGISTER_TILES stay in registers, FIXED in
shared memory; the others share a ring of DEPTH, in which the last ones are still there when all
have been added up. Then the sums go round, and dx is written: of the tiles in the ring, of the
others backwards (the latest may come from the L2 cache), of those that stayed. A tile that is done
makes room for the next one wanted, of this slab or the next. Tiles for registers come through the
ring too: first.
"""

import triton.language as tl

from normgrad.backends.cuda.pieces.column_exchange import (
    factors_of,
    group_weights,
    keep_sums,
    share_sums,
)
from normgrad.backends.cuda.pieces.column_tiles import (
    add_rows,
    alike,
    before_of,
    centre_of,
    copy_tile,
    either,
    fetch_tiles,
    no_sums,
    of_image,
    strip_of,
    write_tile,
)
from normgrad.backends.cuda.pieces.common import (
    await_step_before,
    clear_previous,
    count_arrival,
    opaque_copy,
    rewiden_opaquely,
    widen,
)
from normgrad.backends.cuda.pieces.gluon import gl, jit
from normgrad.backends.cuda.pieces.joins import join_groups
from normgrad.backends.cuda.pieces.own_copies import commit, own_places, take_own, wait


@jit
def _turned(load, ring, REGISTER_TILES: tl.constexpr, FIXED: tl.constexpr):
    """The tile of a ring's load: held ones, others to be added up, these backwards once more."""
    stream, loads = ring
    back = gl.where(load < REGISTER_TILES + stream, load, loads + REGISTER_TILES - 1 - load)
    return gl.where(load < REGISTER_TILES, load, FIXED + back)


@jit
def column_streams(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    dgamma,
    dbeta,
    beta,
    old_mean,  # running statistics, of forward operators
    old_variance,
    new_mean,
    new_variance,
    momentum,
    partials,  # group norm: [2, images, channels, parts], sums of dy, then of dy * (x - mean)
    sum_words,  # [slabs, parts, SPANS, bins]; one part more with TOTALS_COLUMNS: the totals
    previous_words,  # words of the call before, to be cleared for the next
    previous_count,
    arrivals,  # the word that counts arrivals
    slabs,
    rows,  # rows of a slab
    stream,  # tiles of a block that go through the ring and do not stay
    parts,  # blocks one below the other
    pieces,  # blocks side by side
    width,  # columns of a slab, over ALIGN
    bins,  # of a slab
    team,  # parts * pieces
    teams,
    split,  # slabs side by side
    images,
    channels,  # over ALIGN
    row_step,
    outer_step,
    count,
    eps,
    FORMULA: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_SIZE: tl.constexpr,  # columns of a bin
    EACH: tl.constexpr,  # each sample has weights of its own
    VARIANCE: tl.constexpr,
    FIXED: tl.constexpr,  # that stay in shared memory: FIXED + REGISTER_TILES is at least DEPTH
    DEPTH: tl.constexpr,  # tiles of the ring
    REGISTER_TILES: tl.constexpr,  # tiles that stay in registers
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    BINS: tl.constexpr,  # of a block, up to a power of two
    SPANS: tl.constexpr,
    STEP: tl.constexpr,
    TOTALS_COLUMNS: tl.constexpr,  # that a block adds up for its team; 0: it has all its own bins
    VECTOR: tl.constexpr,  # elements of 16 bytes
    WARPS: tl.constexpr,
    ALIGN: tl.constexpr,
    JOINS_AT_END: tl.constexpr,  # the blocks wait for each other and join group norm's partials
    JOIN_CHANNELS: tl.constexpr,  # in tiles of so many channels
    JOIN_PARTS: tl.constexpr,  # and parts
    JOIN_STEPS: tl.constexpr,  # so often
    INDEX64: tl.constexpr,
    L2_TILES: tl.constexpr,  # tiles of the next slab that the L2 cache is to fetch during the wait
    EARLY: tl.constexpr,  # the words are cleared meanwhile
    # 0; in the interpreter 1: sums, then 3: totals if TOTALS_COLUMNS, 2: gradient, 4: the end
    PHASE: tl.constexpr,
):
    """See the module. The three tensors have the same strides, which come divided by ALIGN."""
    LANES: tl.constexpr = min(32, COLS // VECTOR)
    # Warps one below the other, and rows with one element in each thread.
    WARPS_DOWN: tl.constexpr = min(WARPS, max(1, ROWS // (32 // LANES)))
    ONCE: tl.constexpr = min(ROWS, WARPS_DOWN * (32 // LANES))
    tile: tl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [WARPS_DOWN, WARPS // WARPS_DOWN], [1, 0]
    )
    by_col: tl.constexpr = gl.SliceLayout(0, tile)
    # All columns of a vector are of one group: centre and two factors take 3 registers, not 24.
    WHOLE: tl.constexpr = GROUP and GROUP_SIZE % VECTOR == 0
    flat: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    warp_sums = gl.allocate_shared_memory(tl.uint64, [1, WARPS_DOWN, COLS], flat)
    above = gl.program_id(0) % team // pieces
    start = gl.program_id(0) % pieces * COLS
    first_slab = gl.program_id(0) // team
    apart = parts * ROWS  # all blocks of a team go along one front
    first = above * ROWS
    limit = rows - first
    local = gl.arange(0, ROWS, gl.SliceLayout(1, tile))
    cols = gl.arange(0, COLS, by_col)
    part = (slabs, split, width, channels, start, first, limit, apart, outer_step, row_step)
    data = (x, dy) + own_places(
        x, dy, slabs * 0, tile, DEPTH + FIXED, VECTOR, ROWS, COLS, ALIGN, LANES, WARPS_DOWN, WARPS
    )
    kept = DEPTH - 1  # of the ring, when all have been added up
    loads = REGISTER_TILES + 2 * stream - kept  # of the ring, for a slab
    ring = (stream, loads)
    zero = slabs * 0
    runtime_zero = parts >> 30  # 0
    strip = strip_of(first_slab, part, ALIGN)
    for ahead in tl.range(0, DEPTH):  # fewer than the loads of a slab
        number = _turned(zero + ahead, ring, REGISTER_TILES, FIXED)
        copy_tile(data, ahead, strip, number, row_step, ROWS, COLS, ALIGN)
    for ahead in tl.range(0, FIXED):
        number = zero + REGISTER_TILES + ahead
        copy_tile(data, DEPTH + ahead, strip, number, row_step, ROWS, COLS, ALIGN)
    await_step_before(EARLY)  # it cleared the words
    thread = gl.arange(0, 32 * WARPS, gl.BlockedLayout([1], [32], [WARPS], [0]))
    turn = zero
    for slab in tl.range(first_slab if PHASE != 4 else slabs, slabs, teams):
        strip = strip_of(slab, part, ALIGN)
        _, columns, _, image, left, _ = strip
        gamma_of, beta_of = gamma, beta
        if EACH:
            gamma_of = of_image(gamma, image, channels, ALIGN)
            beta_of = of_image(beta, image, channels, ALIGN)
        centre = centre_of(mean, strip, channels * ALIGN, cols, GROUP, GROUP_SIZE)
        if WHOLE:
            centre = alike(centre, by_col, VECTOR, COLS)
        before = (centre, centre)  # that nobody reads
        if FORMULA.acts:
            before = before_of(
                (rstd, gamma_of, beta_of), strip, channels * ALIGN, cols, eps,
                VARIANCE, GROUP, GROUP_SIZE,
            )  # fmt: skip
        weights = group_weights(gamma_of, columns, left, COLS, BINS, WARPS) if GROUP else None
        step = opaque_copy(row_step)
        slab_words = sum_words + ((parts + (TOTALS_COLUMNS > 0)) * SPANS).to(tl.int64) * slab * bins
        sum_d, sum_dt = no_sums(tile, ONCE, ROWS, COLS)
        held = ()
        for visit in gl.static_range(REGISTER_TILES):
            wait(slab, DEPTH - 1)
            slot = (turn + visit) % DEPTH
            values = take_own(data, slot, VECTOR, ROWS * COLS)
            held = held + (values,)
            number = _turned(zero + visit + DEPTH, ring, REGISTER_TILES, FIXED)
            copy_tile(data, slot, strip, number, step, ROWS, COLS, ALIGN)
            sum_d, sum_dt = add_rows(
                sum_d, sum_dt, values, centre, before, FORMULA, ONCE, ROWS, COLS
            )
        for visit in tl.range(0, gl.maximum(stream, FIXED)):
            wait(slab, DEPTH - 1)
            if visit < stream:
                slot = (turn + REGISTER_TILES + visit) % DEPTH
                values = take_own(data, slot, VECTOR, ROWS * COLS)
                if visit < stream - kept:
                    number = _turned(
                        zero + REGISTER_TILES + visit + DEPTH, ring, REGISTER_TILES, FIXED
                    )
                    copy_tile(data, slot, strip, number, step, ROWS, COLS, ALIGN)
                else:
                    commit(slab)
                sum_d, sum_dt = add_rows(
                    sum_d, sum_dt, values, centre, before, FORMULA, ONCE, ROWS, COLS
                )
            if visit < FIXED:
                values = take_own(data, zero + DEPTH + visit, VECTOR, ROWS * COLS)
                sum_d, sum_dt = add_rows(
                    sum_d, sum_dt, values, centre, before, FORMULA, ONCE, ROWS, COLS
                )
        sums = warp_sums.index(0)
        keep_sums(sums, sum_d, sum_dt, WARPS_DOWN, ONCE, ONCE, COLS)
        # Offsets made of opaque copies are not kept from round to round: 24 bytes of spills less.
        place_of = (opaque_copy(above), opaque_copy(start), columns, image, left)
        sizes = (opaque_copy(parts), opaque_copy(bins), images, channels * ALIGN)
        if PHASE != 2:
            share_sums(
                sums, slab_words, place_of, sizes, partials, weights, GROUP, GROUP_SIZE, COLS, BINS,
                SPANS, WARPS_DOWN, WARPS, False, FORMULA, rows, ROWS,
            )  # fmt: skip
        if L2_TILES:
            soon = strip_of(opaque_copy(slab + zero) + teams, part, ALIGN)
            fetch_tiles(x, dy, soon, thread, step, L2_TILES, ROWS, COLS, ALIGN, 32 * WARPS)
            _, columns, _, image, left, _ = strip_of(opaque_copy(slab + zero), part, ALIGN)
            place_of = (opaque_copy(above), opaque_copy(start), columns, image, left)
        dy_factor, x_factor, constant = factors_of(
            None, slab_words, place_of, sizes, (rstd, gamma_of, dgamma, dbeta), count, eps, by_col,
            FORMULA, GROUP, GROUP_SIZE, VARIANCE, COLS, BINS, SPANS, STEP, TOTALS_COLUMNS, WARPS,
            False, PHASE, None, rows, ROWS,
        )  # fmt: skip
        if JOINS_AT_END:  # noqa: SIM102
            if slab + teams >= slabs:  # dx follows, but all sums are there
                count_arrival(sum_words + arrivals)
        if WHOLE:
            x_factor = alike(x_factor, by_col, VECTOR, COLS)
            constant = alike(constant, by_col, VECTOR, COLS)
        factors = (dy_factor, centre, x_factor, constant, before)
        # Made anew, not kept meanwhile.
        now = opaque_copy(slab + zero)
        strip = strip_of(now, part, ALIGN)
        following = strip_of(now + teams, part, ALIGN)
        step = opaque_copy(row_step)
        for visit in tl.range(0, stream):
            wait(slab, DEPTH - 1)
            load = REGISTER_TILES + stream - kept + visit
            slot = (turn + load) % DEPTH
            tile_dy, tile_x = take_own(data, slot, VECTOR, ROWS * COLS)
            later = load + DEPTH
            over = later >= loads
            number = _turned(gl.where(over, later - loads, later), ring, REGISTER_TILES, FIXED)
            source = either(over, following, strip)
            copy_tile(data, slot, source, number, step, ROWS, COLS, ALIGN)
            if PHASE % 2 == 0:
                wide = (widen(tile_dy), widen(tile_x))
                number = _turned(load, ring, REGISTER_TILES, FIXED)
                write_tile(
                    dx, wide, factors, strip, number, step, local, cols, FORMULA, ROWS, ALIGN
                )
        for visit in tl.range(0, FIXED):
            slot = zero + DEPTH + visit
            tile_dy, tile_x = take_own(data, slot, VECTOR, ROWS * COLS)
            number = zero + REGISTER_TILES + visit
            copy_tile(data, slot, following, number, step, ROWS, COLS, ALIGN)
            if PHASE % 2 == 0:
                wide = (widen(tile_dy), widen(tile_x))
                write_tile(
                    dx, wide, factors, strip, number, step, local, cols, FORMULA, ROWS, ALIGN
                )
        for visit in gl.static_range(REGISTER_TILES):
            if PHASE % 2 == 0:
                wide = (
                    rewiden_opaquely(held[visit][0], runtime_zero),
                    rewiden_opaquely(held[visit][1], runtime_zero),
                )
                write_tile(dx, wide, factors, strip, visit, step, local, cols, FORMULA, ROWS, ALIGN)
        turn = (turn + loads) % DEPTH
    wait(slabs, 0)
    clear_previous(previous_words, previous_count, thread, 32 * WARPS)
    if JOINS_AT_END and PHASE % 4 == 0:
        join_groups(
            sum_words + arrivals, partials, (rstd, dgamma, dbeta),
            (1 if EACH else images, channels * ALIGN * (images if EACH else 1), parts, GROUP_SIZE),
            JOIN_CHANNELS, JOIN_PARTS, JOIN_STEPS, INDEX64, WARPS,
        )  # fmt: skip
