"""Layer norm with rows that come through a ring of tiles in shared memory.

A block has a range of columns, the whole row or a part of it, and adds up the parameter gradients
of its columns in registers over all its rows. Rows are copied to shared memory RING steps ahead; a
step that is done makes room for a later one. Where a team of blocks shares rows, a block publishes
the sums of a row LAG steps before it needs its partners': the exchange takes 2 to 3 us, in which
everybody has other rows to work on.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.kernels.common import (
    INTERPRETED,
    await_step_before,
    await_words,
    let_next_start,
    load_or,
    look_at_words,
    pack_pair,
    publish,
    sum_pairs,
    unpack_pair,
    widen,
)
from normgrad.backends.cuda.kernels.gluon import async_copy, gl, jit


@triton.jit
def _add_fours(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@jit
def _copy_rows(
    tiles,
    slot,
    source,
    row,
    rows,
    column,
    limit,
    step,
    COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALIGN: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Start copying the tiles of some rows; rows that do not exist become zeros."""
    ok = (row < rows)[:, None]
    start = source + row.to(tl.int64)[:, None] * step * ALIGN + column[None, :]
    for chunk in gl.static_range(CHUNKS):
        mask = ok if EVEN else ok & (column < limit - chunk * COLS)[None, :]
        to = tiles[chunk].index(slot)
        async_copy.async_copy_global_to_shared(to, start + chunk * COLS, mask)


@jit
def _request(
    tiles_x,
    tiles_dy,
    centres,
    scales,
    slot,
    x,
    dy,
    mean,
    rstd,
    row,
    rows,
    column,
    limit,
    x_row,
    dy_row,
    COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALIGN: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Start copying all that a step needs.

    The statistics too: a value that every thread loads alike becomes a uniform register, and the
    move into that waits for the load at once.
    """
    _copy_rows(tiles_x, slot, x, row, rows, column, limit, x_row, COLS, CHUNKS, ALIGN, EVEN)
    _copy_rows(tiles_dy, slot, dy, row, rows, column, limit, dy_row, COLS, CHUNKS, ALIGN, EVEN)
    async_copy.async_copy_global_to_shared(centres.index(slot), mean + row, row < rows)
    async_copy.async_copy_global_to_shared(scales.index(slot), rstd + row, row < rows)
    async_copy.commit_group()


@jit
def layer_ring(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    partials,  # [teams, 2, cols]: dgamma and dbeta of each team's rows
    words,  # [rows, team]
    rows,
    cols,  # over ALIGN
    width,  # columns of a block, over ALIGN
    team,  # blocks that share a row
    teams,
    dy_row,
    x_row,
    dx_row,
    ROWS: tl.constexpr,  # rows of a step
    COLS: tl.constexpr,  # columns of a tile: 16 bytes for each thread
    CHUNKS: tl.constexpr,  # tiles of a block's part of a row
    RING: tl.constexpr,  # steps that there is room for
    LAG: tl.constexpr,  # steps between the sums and the gradient of a row
    LANES: tl.constexpr,  # threads side by side in a warp; the others have further rows
    ACROSS: tl.constexpr,  # warps side by side; the others have further rows
    VECTOR: tl.constexpr,  # elements side by side in a thread
    WARPS: tl.constexpr,
    SOLO: tl.constexpr,  # no block needs another's sums
    KEEP: tl.constexpr,  # hold gamma in registers; else in shared memory
    EVEN: tl.constexpr,  # the tiles cover the columns exactly
    ALIGN: tl.constexpr,
    EARLY: tl.constexpr,  # the words are cleared meanwhile
    NEXT: tl.constexpr,  # the launch that joins the sums may start before this one is done
    PHASE: tl.constexpr,  # 0; in the interpreter 1: sums only, 2: gradient only, 3: all of SOLO
):
    """Step ``s`` of a team has the rows ``ROWS * (its number + s * teams)`` and following."""
    tile: tl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0]
    )
    across: tl.constexpr = gl.SliceLayout(0, tile)
    down: tl.constexpr = gl.SliceLayout(1, tile)
    box: tl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, WARPS], [1, 0])
    flat: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    line: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    THREADS: tl.constexpr = 32 * WARPS
    # A thread has all rows of its columns, or one row of them in each step.
    FOLD: tl.constexpr = LANES == 32 and ACROSS == WARPS
    HELD: tl.constexpr = 1 if FOLD else ROWS
    if NEXT:
        let_next_start()
    # An allocation for each tile of a row: between copies to one and the same the compiler waits.
    tiles_x = ()
    tiles_dy = ()
    size: tl.constexpr = [RING, ROWS, COLS]
    for _ in gl.static_range(CHUNKS):
        tiles_x = tiles_x + (gl.allocate_shared_memory(x.dtype.element_ty, size, flat),)
        tiles_dy = tiles_dy + (gl.allocate_shared_memory(dy.dtype.element_ty, size, flat),)
    centres = gl.allocate_shared_memory(tl.float32, [RING, ROWS], line)
    scales = gl.allocate_shared_memory(tl.float32, [RING, ROWS], line)
    length = cols * ALIGN
    inverse = 1.0 / length
    member = gl.program_id(0) % team
    first = gl.program_id(0) // team
    column = member * width * ALIGN + gl.arange(0, COLS, across)
    limit = tl.minimum(length, (member + 1) * width * ALIGN)
    local = gl.arange(0, ROWS, down)
    for ahead in gl.static_range(RING):
        row = (first + ahead * teams) * ROWS + local
        _request(
            tiles_x,
            tiles_dy,
            centres,
            scales,
            ahead,
            x,
            dy,
            mean,
            rstd,
            row,
            rows,
            column,
            limit,
            x_row,
            dy_row,
            COLS,
            CHUNKS,
            ALIGN,
            EVEN,
        )
    weights = ()
    sums_gamma = ()
    sums_beta = ()
    for chunk in gl.static_range(CHUNKS):
        ok = column < limit - chunk * COLS
        weight = load_or(gamma, column + chunk * COLS, ok, 1.0, tl.float32)
        if KEEP:
            weights = weights + (weight,)
        else:
            held = gl.allocate_shared_memory(tl.float32, [1, COLS], line)
            held.index(0).store(weight)
            weights = weights + (held,)
        if partials is not None:
            sums_gamma = sums_gamma + (gl.zeros([HELD, COLS], tl.float32, tile),)
            sums_beta = sums_beta + (gl.zeros([HELD, COLS], tl.float32, tile),)
    await_step_before(EARLY)  # it cleared the words
    seen = gl.zeros([ROWS, THREADS], tl.uint64, box)
    steps = (tl.cdiv(rows, ROWS) - first + teams - 1) // teams
    for step in tl.range(0, steps + LAG):
        # Rows beyond the last are zeros: they add nothing.
        row = (first + step * teams) * ROWS + local
        earlier = row - LAG * teams * ROWS
        if not SOLO:
            # The partners' sums of an earlier row: looked at in the step before.
            theirs = (first + (step - LAG) * teams) * ROWS + gl.arange(
                0, ROWS, gl.SliceLayout(1, box)
            )
            partner = gl.arange(0, THREADS, gl.SliceLayout(0, box))[None, :]
            wanted = ((theirs < rows) & (theirs >= 0))[:, None] & (partner < team)
            mail = words + theirs.to(tl.int64)[:, None] * team + partner
        async_copy.wait_group(RING - 1 - LAG)
        slot = step % RING
        mu = centres.index(slot).load(down)[:, None]
        rs = scales.index(slot).load(down)[:, None]
        xs = ()
        gs = ()
        s1 = gl.zeros([ROWS, COLS], tl.float32, tile)
        s2 = gl.zeros([ROWS, COLS], tl.float32, tile)
        next_gamma = ()
        next_beta = ()
        for chunk in gl.static_range(CHUNKS):
            wide = widen(tiles_dy[chunk].index(slot).load(tile))
            xhat = (widen(tiles_x[chunk].index(slot).load(tile)) - mu) * rs
            weight = weights[chunk] if KEEP else weights[chunk].index(0).load(across)
            g = wide * weight[None, :]
            s1 += g
            s2 += g * xhat
            if SOLO:
                xs = xs + (xhat,)
                gs = gs + (g,)
            if partials is not None:
                product = wide * xhat
                if FOLD and ROWS > 1:
                    product = gl.sum(product, 0)[None, :]
                    wide = gl.sum(wide, 0)[None, :]
                next_gamma = next_gamma + (sums_gamma[chunk] + product,)
                next_beta = next_beta + (sums_beta[chunk] + wide,)
        if PHASE != 2:
            sums_gamma = next_gamma
            sums_beta = next_beta
        if SOLO:
            later = row + RING * teams * ROWS
            _request(
                tiles_x,
                tiles_dy,
                centres,
                scales,
                slot,
                x,
                dy,
                mean,
                rstd,
                later,
                rows,
                column,
                limit,
                x_row,
                dy_row,
                COLS,
                CHUNKS,
                ALIGN,
                EVEN,
            )
        if dx is not None:
            if SOLO:
                u1, u2 = sum_pairs(s1, s2, 1)
            else:
                # A thread's own numbers first: what is left is one for each thread.
                s1 = gl.reshape(s1, [ROWS, THREADS, VECTOR])
                s2 = gl.reshape(s2, [ROWS, THREADS, VECTOR])
                s1, s2 = sum_pairs(s1, s2, 2)
                if PHASE == 1:
                    u1, u2 = s1, s2
                else:
                    u1, u2 = unpack_pair(await_words(mail, wanted, ROWS, seen))
                    soon = theirs + teams * ROWS
                    expected = ((soon < rows) & (soon >= 0))[:, None] & (partner < team)
                    seen = look_at_words(
                        words + soon.to(tl.int64)[:, None] * team + partner, expected
                    )
                if INTERPRETED:
                    s1, s2 = sum_pairs(s1, s2, 1)
                    u1, u2 = sum_pairs(u1, u2, 1)
                else:
                    u1 = gl.convert_layout(u1, s1.type.layout)
                    u2 = gl.convert_layout(u2, s1.type.layout)
                    s1, s2, u1, u2 = gl.reduce((s1, s2, u1, u2), 1, _add_fours)
                s1 = gl.convert_layout(s1, down)
                s2 = gl.convert_layout(s2, down)
                if PHASE != 2:
                    publish(words + row.to(tl.int64) * team + member, pack_pair(s1, s2), row < rows)
            u1 = gl.convert_layout(u1, down)[:, None]
            u2 = gl.convert_layout(u2, down)[:, None]
            if SOLO or step >= LAG:
                # dx = (g - u1 / length - xhat * u2 / length) * rs, in two steps an element.
                there = (earlier < rows)[:, None]
                to = dx + earlier.to(tl.int64)[:, None] * dx_row * ALIGN + column[None, :]
                again_x = ()
                again_dy = ()
                centre = mu
                factor = rs
                tilt = u2 * inverse * -factor
                if not SOLO:
                    done = (step - LAG) % RING
                    centre = centres.index(done).load(down)[:, None]
                    factor = scales.index(done).load(down)[:, None]
                    tilt = u2 * inverse * -factor * factor
                    for chunk in gl.static_range(CHUNKS):
                        again_x = again_x + (tiles_x[chunk].index(done).load(tile),)
                        again_dy = again_dy + (tiles_dy[chunk].index(done).load(tile),)
                    far = earlier + RING * teams * ROWS
                    _request(
                        tiles_x,
                        tiles_dy,
                        centres,
                        scales,
                        done,
                        x,
                        dy,
                        mean,
                        rstd,
                        far,
                        rows,
                        column,
                        limit,
                        x_row,
                        dy_row,
                        COLS,
                        CHUNKS,
                        ALIGN,
                        EVEN,
                    )
                shift = u1 * inverse * -factor
                for chunk in gl.static_range(CHUNKS):
                    mask = there if EVEN else there & (column < limit - chunk * COLS)[None, :]
                    if SOLO:
                        result = gs[chunk] * factor + (xs[chunk] * tilt + shift)
                    else:
                        scale = weights[chunk] if KEEP else weights[chunk].index(0).load(across)
                        result = widen(again_dy[chunk]) * (scale[None, :] * factor) + (
                            (widen(again_x[chunk]) - centre) * tilt + shift
                        )
                    if PHASE != 1:
                        gl.store(to + chunk * COLS, result.to(dx.dtype.element_ty), mask=mask)
    async_copy.wait_group(0)
    if partials is not None and PHASE != 2:
        base = partials + first.to(tl.int64) * 2 * length + column
        for chunk in gl.static_range(CHUNKS):
            ok = column < limit - chunk * COLS
            gl.store(base + chunk * COLS, gl.sum(sums_gamma[chunk], 0), mask=ok)
            gl.store(base + length + chunk * COLS, gl.sum(sums_beta[chunk], 0), mask=ok)
