"""Channels-last batch and group norm with every slab read once.

A slab is what shares statistics and is worked on together: a block of columns of all rows (batch
norm) or of one image (group norm). A team of blocks holds it on chip: each block a run of rows and
COLS of the columns, cut into CHUNKS tiles. A block adds up its tiles as they arrive, publishes the
sums, waits for its partners', and writes dx tile by tile. Each tile that is done makes room for
the tile DEPTH further on, whose copy starts at once. Three trips to memory instead of five.

The first REGISTER_TILES move on to registers when they are added up. What takes their place in
shared memory arrives during the wait, or is the rest of a slab that shared memory alone has no room
for.

Sums go round in one step. Each block publishes a word for each of its bins: a column, or a group
of columns with gamma inside. Everybody adds up the words of its own bins, part by part in order.
Where everybody would read too many words, there are two steps: each block adds up all parts of
TOTALS_COLUMNS and publishes the totals, and everybody reads those.

A shortcut that is added before the activation comes when y is written, through a ring of its own:
its first tiles during the wait. What a mask lets through of dy takes the place of dy on chip when
it is added up; it is written, as the gradient of the shortcut, together with dx. Four trips.
"""

import triton.language as tl

from normgrad.backends.cuda.pieces.column_exchange import (
    all_sums,
    columns_layout,
    factors_of,
    group_weights,
    keep_sums,
    share_sums,
)
from normgrad.backends.cuda.pieces.column_tiles import (
    add_moments,
    add_tile,
    ask_tile,
    base_of,
    before_of,
    bits_of,
    centre_of,
    copy_tile,
    either,
    fetch_bits,
    fetch_tiles,
    load_bits,
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
from normgrad.backends.cuda.pieces.mask_bits import through_bits
from normgrad.backends.cuda.pieces.moments import merged, parts_of
from normgrad.backends.cuda.pieces.own_copies import commit, own_places, put_own, take_own, wait


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
    beta,
    old_mean,  # running statistics before
    old_variance,
    new_mean,  # and after
    new_variance,
    momentum,
    shortcut,  # what is added before the activation, or where its gradient goes; or None
    bits,  # where ReLU is open: written or, of gradients, read; or None
    partials,  # group norm: [2, images, channels, parts], sums of dy, then of dy * (x - mean)
    sum_words,  # [slabs, parts, SPANS, bins]; one part more with TOTALS_COLUMNS: the totals
    previous_words,  # words of the call before, to be cleared for the next
    previous_count,
    arrivals,  # the word that counts arrivals
    slabs,
    rows,  # rows of a slab
    parts,  # blocks one below the other: they take turns at the tiles of their columns
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
    CHUNKS: tl.constexpr,  # tiles of a block's share: at most DEPTH + REGISTER_TILES
    DEPTH: tl.constexpr,  # tiles that there is room for in shared memory
    REGISTER_TILES: tl.constexpr,  # tiles that move on to registers
    BESIDE: tl.constexpr,  # tiles of the shortcut that there is room for: not fewer
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    BINS: tl.constexpr,  # of a block, up to a power of two
    SPANS: tl.constexpr,  # pieces that the columns of a bin can lie in
    STEP: tl.constexpr,  # words of a bin to wait for together
    TOTALS_COLUMNS: tl.constexpr,  # that a block adds up for its team; 0: it has all its own bins
    VECTOR: tl.constexpr,  # elements of 16 bytes
    WARPS: tl.constexpr,
    SOLO: tl.constexpr,  # a team of one
    TOGETHER: tl.constexpr,  # the warps ask for what follows a held tile together
    REQUEST_AFTER_PUBLISH: tl.constexpr,  # of tiles of the next slab: when sums are published
    L2_TILES: tl.constexpr,  # of the next slab, which the L2 cache is to fetch then
    ALIGN: tl.constexpr,
    JOINS_AT_END: tl.constexpr,  # the blocks wait for each other and join group norm's partials
    JOIN_CHANNELS: tl.constexpr,  # in tiles of so many channels
    JOIN_PARTS: tl.constexpr,  # and parts
    JOIN_STEPS: tl.constexpr,  # so often
    INDEX64: tl.constexpr,
    EARLY: tl.constexpr,  # the words are cleared meanwhile
    # 0; in the interpreter 1: sums, 3: totals or all of SOLO, 2: gradient, 4: the end
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
    flat: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    # In float32 the compiler puts off adding up held tiles if the sums are kept: 8 to 80 bytes of
    # spills, and batch norm 256x2048x7x7 takes 97 us instead of 92.
    KEPT: tl.constexpr = 0 if VECTOR == 4 or FORMULA.forward else WARPS_DOWN
    if KEPT:
        warp_sums = gl.allocate_shared_memory(tl.uint64, [1, KEPT, COLS], flat)
    above = gl.program_id(0) % team // pieces
    start = gl.program_id(0) % pieces * COLS
    first_slab = gl.program_id(0) // team
    # All blocks go along one front: batch norm 131072x256 in bfloat16 takes 70 us so, 72 otherwise.
    apart = parts * ROWS
    first = above * ROWS
    limit = rows - first
    local = gl.arange(0, ROWS, gl.SliceLayout(1, tile))
    cols = gl.arange(0, COLS, by_col)
    part = (slabs, split, width, channels, start, first, limit, apart, outer_step, row_step)
    ITEM: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    data = (x, dy) + own_places(
        x, dy, slabs * 0, tile, DEPTH, VECTOR, ROWS, COLS, ALIGN, LANES, WARPS_DOWN, WARPS,
        BESIDE * ROWS * COLS * ITEM,
    )  # fmt: skip
    if BESIDE:
        base = data[2] + DEPTH * ROWS * COLS * ITEM
        besides = (shortcut, None, base, data[3], data[4], data[5], data[6])
    dshortcut = None if FORMULA.forward else shortcut
    row_bytes = tl.cdiv(channels * ALIGN, 8)  # of the mask
    written_bits = None
    if bits is not None and FORMULA.forward:
        written_bits = bits_of(bits, first, row_bytes, tile, ROWS, COLS)
    MASKED: tl.constexpr = bits is not None and not FORMULA.forward
    sizes = (parts, bins, images, channels * ALIGN)
    # Unrolled; 6 beside 2 that are held spill 48 bytes.
    FEW: tl.constexpr = CHUNKS - REGISTER_TILES <= 5
    # Slabs ahead that the place of the first tile behind the held ones, and of the last, goes to.
    FIRST_AHEAD: tl.constexpr = (REGISTER_TILES + DEPTH) // CHUNKS
    LAST_AHEAD: tl.constexpr = (CHUNKS - 1 + DEPTH) // CHUNKS
    runtime_zero = parts >> 30  # 0
    for ahead in (gl.static_range if FEW else tl.range)(0, DEPTH):
        early = strip_of(first_slab + ahead // CHUNKS * teams, part, ALIGN)
        copy_tile(data, ahead, early, ahead % CHUNKS, row_step, ROWS, COLS, ALIGN)
    await_step_before(EARLY)  # it cleared the words
    thread = gl.arange(0, 32 * WARPS, gl.BlockedLayout([1], [32], [WARPS], [0]))
    if MASKED:
        early = strip_of(first_slab, part, ALIGN)
        fetch_bits(bits, first, row_bytes, early, thread, CHUNKS, ROWS, 32 * WARPS)
    turn = slabs * 0
    for slab in tl.range(first_slab if PHASE != 4 else slabs, slabs, teams):
        strip = strip_of(slab, part, ALIGN)
        _, columns, _, image, left, _ = strip
        gamma_of, beta_of = gamma, beta
        if EACH:
            gamma_of = of_image(gamma, image, channels, ALIGN)
            beta_of = of_image(beta, image, channels, ALIGN)
        if FORMULA.forward:
            centre = base_of(x, strip, outer_step, cols, GROUP_SIZE, ALIGN)[None, :]
            weights = None
        else:
            centre = centre_of(mean, strip, channels * ALIGN, cols, GROUP, GROUP_SIZE)
            weights = group_weights(gamma_of, columns, left, COLS, BINS, WARPS) if GROUP else None
        before = (centre, centre)  # that nobody reads
        if FORMULA.acts and not FORMULA.forward:
            before = before_of(
                (rstd, gamma_of, beta_of), strip, channels * ALIGN, cols, eps,
                VARIANCE, GROUP, GROUP_SIZE,
            )  # fmt: skip
        step = opaque_copy(row_step)
        turns = opaque_copy(apart)
        now = (slabs, split, width, channels, start, first, limit, turns, outer_step, step)
        held = ()
        sum_d = gl.zeros([ROWS, COLS], tl.float32, tile)
        sum_dt = gl.zeros([ROWS, COLS], tl.float32, tile)
        if FORMULA.forward:
            met = gl.zeros([ROWS], tl.float32, gl.SliceLayout(1, tile))[:, None]
            found = (met, sum_d, sum_d, sum_d)
        if MASKED:
            mine = strip_of(slab, now, ALIGN)
            mask = bits_of(bits, opaque_copy(first), row_bytes, tile, ROWS, COLS)
            coming = load_bits(mask, mine, 0)
        # Each tile commits one group, so that the number to wait for is always the same.
        for chunk in gl.static_range(REGISTER_TILES):
            wait(slab, DEPTH - 1)
            slot = (turn + chunk) % DEPTH
            values = take_own(data, slot, VECTOR, ROWS * COLS)
            if MASKED:
                values = (through_bits(values[0], coming, tile, ROWS, COLS), values[1])
                coming = load_bits(mask, mine, chunk + 1)
            held = held + (values,)
            later = strip_of(slab + (chunk + DEPTH) // CHUNKS * teams, now, ALIGN)
            number = (chunk + DEPTH) % CHUNKS
            if REQUEST_AFTER_PUBLISH and chunk + DEPTH >= CHUNKS:
                commit(slab)
            else:
                copy_tile(data, slot, later, number, step, ROWS, COLS, ALIGN, TOGETHER)
            if FORMULA.forward:
                found = add_moments(found, values, strip, chunk, local, FORMULA)
            else:
                sum_d, sum_dt = add_tile(sum_d, sum_dt, values, centre, before, FORMULA)
        for chunk in (gl.static_range if FEW else tl.range)(REGISTER_TILES, CHUNKS):
            wait(slab, DEPTH - 1)
            slot = chunk if DEPTH == CHUNKS else (turn + chunk) % DEPTH
            values = take_own(data, slot, VECTOR, ROWS * COLS)
            if MASKED:
                values = (through_bits(values[0], coming, tile, ROWS, COLS), values[1])
                coming = load_bits(mask, mine, chunk + 1)
                put_own(data, slot, values[0], VECTOR, ROWS * COLS)
            if FORMULA.forward:
                found = add_moments(found, values, strip, chunk, local, FORMULA)
            else:
                sum_d, sum_dt = add_tile(sum_d, sum_dt, values, centre, before, FORMULA)
            commit(slab)
        if FORMULA.forward:
            whole = merged(FORMULA, parts_of(FORMULA, found, centre), 0)
            sums = (whole[1], whole[2])
        elif KEPT:
            sums = warp_sums.index(opaque_copy(slabs * 0))  # found here, else it is spilled
            keep_sums(sums, sum_d, sum_dt, KEPT, ONCE, ROWS, COLS)
        else:
            sums = all_sums(sum_d, sum_dt, ONCE, ROWS, COLS)
        slab_words = sum_words
        if sum_words is not None:
            slab_words = (
                sum_words + ((parts + (TOTALS_COLUMNS > 0)) * SPANS).to(tl.int64) * slab * bins
            )
        # Offsets from an opaque copy are not kept from round to round: 16 bytes of spills less.
        place_of = (above, opaque_copy(start), columns, image, left)
        totals, mean_base = None, None
        if FORMULA.forward:
            # Before the sums are published: part 0 may write y over x as soon as it has them all.
            line = gl.arange(0, COLS, columns_layout(GROUP, BINS, WARPS))
            mean_base = base_of(x, strip, outer_step, line, GROUP_SIZE, ALIGN)
        if PHASE != 2:
            totals = share_sums(
                sums, slab_words, place_of, sizes, partials, weights, GROUP, GROUP_SIZE, COLS, BINS,
                SPANS, KEPT, WARPS, SOLO, FORMULA, rows, ROWS,
            )  # fmt: skip
        later = strip_of(slab + teams, now, ALIGN)
        for number in tl.range(0, REGISTER_TILES + DEPTH - CHUNKS if REQUEST_AFTER_PUBLISH else 0):
            slot = (turn + number + CHUNKS) % DEPTH
            copy_tile(data, slot, later, number, step, ROWS, COLS, ALIGN)
        if MASKED:
            fetch_bits(bits, first, row_bytes, later, thread, CHUNKS, ROWS, 32 * WARPS)
        if BESIDE:
            mine = strip_of(slab, now, ALIGN)
            for visit in gl.static_range(BESIDE):  # in the order in which they are written
                number = (REGISTER_TILES + visit) % CHUNKS
                ask_tile(besides, visit, mine, number, step, ROWS, COLS, ALIGN)
                commit(slab)
        if L2_TILES:  # what follows is made anew: 16 bytes of spills less in float32
            fetch_tiles(x, dy, later, thread, step, L2_TILES, ROWS, COLS, ALIGN, 32 * WARPS)
            _, columns, _, image, left, _ = strip_of(opaque_copy(slab + turn * 0), now, ALIGN)
            place_of = (above, opaque_copy(start), columns, image, left)
        results = (None, None, mean, rstd, old_mean, old_variance, new_mean, new_variance)
        forward_operands = (mean_base, beta_of, results, momentum) if FORMULA.forward else None
        dy_factor, x_factor, constant = factors_of(
            totals, slab_words, place_of, sizes, (rstd, gamma_of, dgamma, dbeta), count, eps,
            by_col, FORMULA, GROUP, GROUP_SIZE, VARIANCE, COLS, BINS, SPANS, STEP, TOTALS_COLUMNS,
            WARPS, SOLO, PHASE, forward_operands, rows, ROWS,
        )  # fmt: skip
        if JOINS_AT_END:  # noqa: SIM102
            if slab + teams >= slabs:  # dx follows, but all sums are there
                count_arrival(sum_words + arrivals)
        if MASKED and TOTALS_COLUMNS > 0 and VECTOR == 4:  # kept, it is spilled: 8 to 40 bytes
            again = strip_of(opaque_copy(slab + turn * 0), part, ALIGN)
            centre = centre_of(mean, again, channels * ALIGN, cols, GROUP, GROUP_SIZE)
        factors = (dy_factor, centre, x_factor, constant, before)
        step = opaque_copy(row_step)
        turns = opaque_copy(apart)
        now = (slabs, split, width, channels, start, first, limit, turns, outer_step, step)
        strip = strip_of(slab, now, ALIGN)
        first_later = strip_of(slab + FIRST_AHEAD * teams, now, ALIGN)
        last_later = strip_of(slab + LAST_AHEAD * teams, now, ALIGN)
        WRITES: tl.constexpr = PHASE % 2 == 0 or SOLO
        # First the tiles that make room for others.
        for chunk in (gl.static_range if FEW else tl.range)(REGISTER_TILES, CHUNKS):
            slot = chunk if DEPTH == CHUNKS else (turn + chunk) % DEPTH
            tile_dy, tile_x = take_own(data, slot, VECTOR, ROWS * COLS)
            beside = tile_dy if dshortcut is not None else None
            if BESIDE:
                wait(slab, BESIDE - 1)
                place = (chunk - REGISTER_TILES) % BESIDE
                beside = take_own(besides, place, VECTOR, ROWS * COLS)[1]
                if chunk - REGISTER_TILES + BESIDE < CHUNKS:
                    number = (chunk + BESIDE) % CHUNKS
                    ask_tile(besides, place, strip, number, step, ROWS, COLS, ALIGN)
            if VECTOR == 4:  # float32 spills 16 bytes otherwise
                later = strip_of(slab + (chunk + DEPTH) // CHUNKS * teams, now, ALIGN)
            elif FIRST_AHEAD == LAST_AHEAD:
                later = first_later
            else:
                later = either(
                    chunk + DEPTH < LAST_AHEAD * CHUNKS + turn * 0, first_later, last_later
                )
            number = (chunk + DEPTH) % CHUNKS
            copy_tile(data, slot, later, number, step, ROWS, COLS, ALIGN)
            if WRITES:
                wide = (widen(tile_dy), widen(tile_x))
                write_tile(
                    dx, wide, factors, strip, chunk, step, local, cols, FORMULA, ROWS, ALIGN,
                    beside, written_bits, dshortcut, tile,
                )  # fmt: skip
        for chunk in gl.static_range(REGISTER_TILES):
            beside = held[chunk][0] if dshortcut is not None else None
            if BESIDE:
                wait(slab, BESIDE - 1 - chunk)
                place = (CHUNKS - REGISTER_TILES + chunk) % BESIDE
                beside = take_own(besides, place, VECTOR, ROWS * COLS)[1]
            if WRITES:
                wide = (
                    rewiden_opaquely(held[chunk][0], runtime_zero),
                    rewiden_opaquely(held[chunk][1], runtime_zero),
                )
                write_tile(
                    dx, wide, factors, strip, chunk, step, local, cols, FORMULA, ROWS, ALIGN,
                    beside, written_bits, dshortcut, tile,
                )  # fmt: skip
        turn = (turn + CHUNKS) % DEPTH
    wait(slabs, 0)
    clear_previous(previous_words, previous_count, thread, 32 * WARPS)
    if JOINS_AT_END and PHASE % 4 == 0:
        join_groups(
            sum_words + arrivals, partials, (rstd, dgamma, dbeta),
            (1 if EACH else images, channels * ALIGN * (images if EACH else 1), parts, GROUP_SIZE),
            JOIN_CHANNELS, JOIN_PARTS, JOIN_STEPS, INDEX64, WARPS,
        )  # fmt: skip
