"""Layer norm with rows too long for one block: a team of blocks shares each row.

A block has a range of columns and adds up the parameter gradients of these in registers over all
its rows. Rows are copied to shared memory RING steps ahead; a step that is done makes room for a
later one. A block publishes its sums of a row LAG steps before it needs its partners': the exchange
takes 2 to 3 us, in which all blocks have other rows to work on.

Step s    publishes the sums of row s
          waits for the words of row s - LAG (`earlier`) and writes its dx
          peeks at those of row s - LAG + 1 (`soon`), for the next step
          refills the slot of row s - LAG with row s - LAG + RING (`after`)
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.activations import through
from normgrad.backends.cuda.pieces.common import (
    INTERPRETED,
    await_step_before,
    await_words,
    clear_previous,
    count_arrival,
    load_or,
    load_weight,
    pack_pair,
    peek_words,
    publish,
    sum_pairs,
    unpack_pair,
    widen,
)
from normgrad.backends.cuda.pieces.gluon import async_copy, gl, jit
from normgrad.backends.cuda.pieces.joins import join_slices


@triton.jit
def _add_fours(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@jit
def _request(
    tiles_x,
    tiles_dy,
    shared,  # of mean and rstd
    data,  # x, dy, mean, rstd
    part,
    slot,
    row,
    COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALIGN: tl.constexpr,
    COLS_FILL_TILES: tl.constexpr,
):
    """Start copying all that a step needs; a row that does not exist becomes zeros.

    The statistics too: a value that every thread loads alike becomes a uniform register, and the
    move into that waits for the load at once.
    """
    x, dy, mean, rstd = data
    rows, column, limit, x_row, dy_row, one = part
    there = row < rows
    far = row.to(tl.int64)
    from_x = x + far * x_row * ALIGN + column
    from_dy = dy + far * dy_row * ALIGN + column
    for chunk in gl.static_range(CHUNKS):
        mask = there if COLS_FILL_TILES else there & (column < limit - chunk * COLS)
        to_x, to_dy = tiles_x[chunk].index(slot), tiles_dy[chunk].index(slot)
        async_copy.async_copy_global_to_shared(to_x, from_x + chunk * COLS, mask)
        async_copy.async_copy_global_to_shared(to_dy, from_dy + chunk * COLS, mask)
    if mean is not None:
        async_copy.async_copy_global_to_shared(shared[0].index(slot), mean + row + one, there)
    async_copy.async_copy_global_to_shared(shared[1].index(slot), rstd + row + one, there)
    async_copy.commit_group()


@jit
def layer_teams(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    beta,
    partials,  # [teams, 2, cols]: dgamma and dbeta of each team's rows
    sum_words,  # [rows, team]
    previous_words,  # words of the call before, to be cleared for the next
    previous_count,
    arrivals,  # the word that counts arrivals
    dgamma,
    dbeta,
    rows,
    cols,  # over ALIGN
    width,  # columns of a block, over ALIGN
    team,  # blocks that share a row
    teams,
    dy_row,
    x_row,
    dx_row,
    FORMULA: tl.constexpr,
    COLS: tl.constexpr,  # columns of a tile: VECTOR for each thread
    CHUNKS: tl.constexpr,  # tiles of a block's part of a row
    RING: tl.constexpr,  # steps that there is room for
    LAG: tl.constexpr,  # steps between the sums and the gradient of a row
    VECTOR: tl.constexpr,  # elements of 16 bytes
    WARPS: tl.constexpr,
    COLS_FILL_TILES: tl.constexpr,  # the tiles cover the columns exactly
    ALIGN: tl.constexpr,
    EARLY: tl.constexpr,  # the words are cleared meanwhile
    JOINS_AT_END: tl.constexpr,  # the blocks wait for each other and join the teams' sums
    JOIN_ROWS: tl.constexpr,  # of these in tiles of JOIN_ROWS teams
    JOIN_STEPS: tl.constexpr,  # so often
    JOIN_COLUMNS: tl.constexpr,  # and so many columns
    PHASE: tl.constexpr,  # 0; in the interpreter 1: sums, 2: gradient, 4: the joint sums
):
    """Step ``s`` of a team has the row ``its number + s * teams``."""
    THREADS: tl.constexpr = 32 * WARPS
    tile: tl.constexpr = gl.BlockedLayout([VECTOR], [32], [WARPS], [0])
    box: tl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    flat: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    partner = gl.arange(0, THREADS, box)
    # An allocation for each tile of a row: between copies to one and the same the compiler waits.
    tiles_x = ()
    tiles_dy = ()
    for _ in gl.static_range(CHUNKS):
        tiles_x = tiles_x + (gl.allocate_shared_memory(x.dtype.element_ty, [RING, COLS], flat),)
        tiles_dy = tiles_dy + (gl.allocate_shared_memory(dy.dtype.element_ty, [RING, COLS], flat),)
    centres = gl.allocate_shared_memory(tl.float32, [RING, 1], flat)
    rstds = gl.allocate_shared_memory(tl.float32, [RING, 1], flat)
    length = cols * ALIGN
    inverse = 1.0 / length
    member = gl.program_id(0) % team
    first = gl.program_id(0) // team
    column = member * width * ALIGN + gl.arange(0, COLS, tile)
    limit = tl.minimum(length, (member + 1) * width * ALIGN)
    shared = (centres, rstds)
    data = (x, dy, mean, rstd)
    part = (rows, column, limit, x_row, dy_row, gl.arange(0, 1, tile))
    for ahead in gl.static_range(RING):
        row = first + ahead * teams
        _request(
            tiles_x, tiles_dy, shared, data, part, ahead, row, COLS, CHUNKS, ALIGN, COLS_FILL_TILES
        )  # fmt: skip
    weights = ()
    biases = ()
    sums_gamma = ()
    sums_beta = ()
    for chunk in gl.static_range(CHUNKS):
        ok = column < limit - chunk * COLS
        weight = load_weight(FORMULA, gamma, column + chunk * COLS, ok, tl.float32)
        weights = weights + (weight,)
        if FORMULA.acts:
            biases = biases + (load_or(beta, column + chunk * COLS, ok, 0.0, tl.float32),)
        if partials is not None:
            sums_gamma = sums_gamma + (gl.zeros([COLS], tl.float32, tile),)
            sums_beta = sums_beta + (gl.zeros([COLS], tl.float32, tile),)
    await_step_before(EARLY)  # it cleared the words
    seen = gl.zeros([THREADS], tl.uint64, box)
    steps = (rows - first + teams - 1) // teams if PHASE != 4 else -LAG
    for step in tl.range(0, steps + LAG):
        row = first + step * teams
        async_copy.wait_group(RING - 1 - LAG)
        slot = step % RING
        mu = centres.index(slot).load(tile) if mean is not None else 0.0
        rs = rstds.index(slot).load(tile)
        sum_d = gl.zeros([COLS], tl.float32, tile)
        sum_dt = gl.zeros([COLS], tl.float32, tile)
        next_gamma = ()
        next_beta = ()
        for chunk in gl.static_range(CHUNKS):  # zeros beyond the last row: they add nothing
            wide = widen(tiles_dy[chunk].index(slot).load(tile))
            t = FORMULA.centred(widen(tiles_x[chunk].index(slot).load(tile)), mu)
            xhat = t * rs
            if FORMULA.acts:
                wide = through(FORMULA, wide, t, rs * weights[chunk], biases[chunk])
            term_d, term_dt = FORMULA.terms(wide * weights[chunk], xhat)
            sum_d += term_d
            sum_dt += term_dt
            if partials is not None:
                term_d, term_dt = FORMULA.terms(wide, xhat)
                next_gamma = next_gamma + (sums_gamma[chunk] + term_dt,)
                next_beta = next_beta + (sums_beta[chunk] + term_d,)
        if PHASE != 2:
            sums_gamma = next_gamma
            sums_beta = next_beta
        # A thread's own numbers first: what is left is one for each thread.
        sum_d, sum_dt = sum_pairs(
            gl.reshape(sum_d, [THREADS, VECTOR]), gl.reshape(sum_dt, [THREADS, VECTOR]), 1
        )
        earlier = row - LAG * teams
        partner_d, partner_dt = sum_d, sum_dt
        if PHASE != 1:
            # The partners' sums of an earlier row were looked at in the step before.
            wanted = (partner < team) & (earlier >= 0)
            row_words = sum_words + earlier.to(tl.int64) * team + partner
            partner_d, partner_dt = unpack_pair(await_words(row_words, wanted, 1, seen))
            soon = earlier + teams
            expected = (partner < team) & (soon >= 0) & (soon < rows)
            seen = peek_words(sum_words + soon.to(tl.int64) * team + partner, expected)
        if INTERPRETED:
            sum_d, sum_dt = sum_pairs(sum_d, sum_dt, 0)
            partner_d, partner_dt = sum_pairs(partner_d, partner_dt, 0)
        else:
            partner_d = gl.convert_layout(partner_d, sum_d.type.layout)
            partner_dt = gl.convert_layout(partner_dt, sum_d.type.layout)
            sum_d, sum_dt, partner_d, partner_dt = gl.reduce(
                (sum_d, sum_dt, partner_d, partner_dt), 0, _add_fours
            )
        if PHASE != 2:
            publish(
                sum_words + row.to(tl.int64) * team + member, pack_pair(sum_d, sum_dt), row < rows
            )
        if step >= LAG:
            done = (step - LAG) % RING
            centre = centres.index(done).load(tile) if mean is not None else 0.0
            factor = rstds.index(done).load(tile)
            again_x = ()
            again_dy = ()
            for chunk in gl.static_range(CHUNKS):
                again_x = again_x + (tiles_x[chunk].index(done).load(tile),)
                again_dy = again_dy + (tiles_dy[chunk].index(done).load(tile),)
            after = earlier + RING * teams
            _request(
                tiles_x, tiles_dy, shared, data, part, done, after, COLS, CHUNKS, ALIGN,
                COLS_FILL_TILES
            )  # fmt: skip
            x_factor, constant = FORMULA.coefficients(
                partner_d * inverse, partner_dt * inverse, factor
            )
            x_factor *= factor  # of numbers that are not divided by the deviation
            to = dx + earlier.to(tl.int64) * dx_row * ALIGN + column
            for chunk in gl.static_range(CHUNKS):
                t = FORMULA.centred(widen(again_x[chunk]), centre)
                dy_factor = weights[chunk] * factor
                d = widen(again_dy[chunk])
                if FORMULA.acts:
                    d = through(FORMULA, d, t, dy_factor, biases[chunk])
                result = FORMULA.element(d, t, dy_factor, x_factor, constant)
                if PHASE != 1:
                    mask = None if COLS_FILL_TILES else column < limit - chunk * COLS
                    gl.store(to + chunk * COLS, result.to(dx.dtype.element_ty), mask=mask)
    async_copy.wait_group(0)
    if partials is not None and PHASE < 2:
        base = partials + first.to(tl.int64) * 2 * length + column
        for chunk in gl.static_range(CHUNKS):
            ok = column < limit - chunk * COLS
            gl.store(base + chunk * COLS, sums_gamma[chunk], mask=ok)
            gl.store(base + length + chunk * COLS, sums_beta[chunk], mask=ok)
    if JOINS_AT_END:
        count_arrival(sum_words + arrivals)
    clear_previous(previous_words, previous_count, partner, THREADS)
    if JOINS_AT_END and PHASE % 4 == 0:
        join_slices(
            sum_words + arrivals, partner, (partials, dgamma, dbeta), (teams, length),
            gl.program_id(0), team * teams, JOIN_ROWS, JOIN_STEPS, JOIN_COLUMNS, WARPS,
        )  # fmt: skip
