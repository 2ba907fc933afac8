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
    await_previous,
    await_words,
    load_or,
    look_at_words,
    pack_pair,
    publish,
    release_next,
    sum_pairs,
    unpack_pair,
)
from normgrad.backends.cuda.kernels.gluon import async_copy, gl, jit


@triton.jit
def fill_words(words, count, BLOCK: tl.constexpr):
    """Set all bits of all words."""
    release_next()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ones = (at * 0 - 1).to(tl.uint64)
    tl.store(words + at, ones, mask=at < count)


@jit
def _request(
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
        mask = ok & (column < limit - chunk * COLS)[None, :]
        if EVEN:
            mask = ok
        to = tiles[chunk].index(slot)
        async_copy.async_copy_global_to_shared(to, start + chunk * COLS, mask)


@jit
def _write(
    dx,
    xs,
    dys,
    weights,
    mu,
    rs,
    t1,
    t2,
    row,
    rows,
    column,
    limit,
    length,
    step,
    COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALIGN: tl.constexpr,
    EVEN: tl.constexpr,
    HINT: tl.constexpr,
):
    """The gradient of some rows, from their sums of g and g * (x - mean)."""
    offset = (t1 / length)[:, None]
    slope = (t2 / length)[:, None] * rs * rs
    ok = (row < rows)[:, None]
    start = dx + row.to(tl.int64)[:, None] * step * ALIGN + column[None, :]
    for chunk in gl.static_range(CHUNKS):
        mask = ok & (column < limit - chunk * COLS)[None, :]
        if EVEN:
            mask = ok
        g = dys[chunk].to(tl.float32) * weights[chunk]
        result = (g - offset - (xs[chunk].to(tl.float32) - mu) * slope) * rs
        gl.store(
            start + chunk * COLS, result.to(dx.dtype.element_ty), mask=mask, cache_modifier=HINT
        )


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
    COLS: tl.constexpr,  # columns of a tile
    CHUNKS: tl.constexpr,  # tiles of a block's part of a row
    RING: tl.constexpr,  # steps that there is room for
    LAG: tl.constexpr,  # steps between the sums and the gradient of a row
    LANES: tl.constexpr,  # threads side by side in a warp; the others have further rows
    ACROSS: tl.constexpr,  # warps side by side; the others have further rows
    VECTOR: tl.constexpr,  # elements of 16 bytes
    WARPS: tl.constexpr,
    TEAM: tl.constexpr,  # a power of two, so that every thread has a word
    SOLO: tl.constexpr,  # no block needs another's sums
    EVEN: tl.constexpr,  # the tiles cover the columns exactly
    ALIGN: tl.constexpr,
    EARLY: tl.constexpr,  # the launch that joins the sums may start before this one ends
    HINT: tl.constexpr,
    LATE: tl.constexpr,  # this launch may have started before the words were filled
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
    # A thread has all rows of its columns, or one row of them in each step.
    FOLD: tl.constexpr = LANES == 32 and ACROSS == WARPS
    HELD: tl.constexpr = 1 if FOLD else ROWS
    if EARLY:
        release_next()
    # An allocation for each tile of a row: between copies to one and the same the compiler waits.
    tiles_x = ()
    tiles_dy = ()
    size: tl.constexpr = [RING, ROWS, COLS]
    for _ in gl.static_range(CHUNKS):
        tiles_x = tiles_x + (gl.allocate_shared_memory(x.dtype.element_ty, size, flat),)
        tiles_dy = tiles_dy + (gl.allocate_shared_memory(dy.dtype.element_ty, size, flat),)
    length = cols * ALIGN
    member = gl.program_id(0) % team
    first = gl.program_id(0) // team
    column = member * width * ALIGN + gl.arange(0, COLS, across)
    limit = tl.minimum(length, (member + 1) * width * ALIGN)
    local = gl.arange(0, ROWS, down)
    for ahead in gl.static_range(RING):
        row = (first + ahead * teams) * ROWS + local
        _request(tiles_x, ahead, x, row, rows, column, limit, x_row, COLS, CHUNKS, ALIGN, EVEN)
        _request(tiles_dy, ahead, dy, row, rows, column, limit, dy_row, COLS, CHUNKS, ALIGN, EVEN)
        async_copy.commit_group()
    weights = ()
    sums_gamma = ()
    sums_beta = ()
    for chunk in gl.static_range(CHUNKS):
        ok = column < limit - chunk * COLS
        weights = weights + (load_or(gamma, column + chunk * COLS, ok, 1.0, tl.float32)[None, :],)
        if partials is not None:
            sums_gamma = sums_gamma + (gl.zeros([HELD, COLS], tl.float32, tile),)
            sums_beta = sums_beta + (gl.zeros([HELD, COLS], tl.float32, tile),)
    row = first * ROWS + local
    next_mu = load_or(mean, row, row < rows, 0.0, tl.float32)
    next_rs = load_or(rstd, row, row < rows, 0.0, tl.float32)
    if LATE:
        await_previous()
    steps = (tl.cdiv(rows, ROWS) - first + teams - 1) // teams
    for step in tl.range(0, steps + LAG):
        # Rows beyond the last are zeros: they add nothing.
        row = (first + step * teams) * ROWS + local
        mu = next_mu[:, None]
        rs = next_rs[:, None]
        after = row + teams * ROWS
        next_mu = load_or(mean, after, after < rows, 0.0, tl.float32)
        next_rs = load_or(rstd, after, after < rows, 0.0, tl.float32)
        if not SOLO:
            # What is needed for the gradient of an earlier row: on its way during these sums.
            earlier = row - LAG * teams * ROWS
            earlier_ok = (earlier < rows) & (earlier >= 0)
            mu_b = load_or(mean, earlier, earlier_ok, 0.0, tl.float32)[:, None]
            rs_b = load_or(rstd, earlier, earlier_ok, 0.0, tl.float32)[:, None]
            theirs = (first + (step - LAG) * teams) * ROWS + gl.arange(
                0, ROWS, gl.SliceLayout(1, box)
            )
            partner = gl.arange(0, TEAM, gl.SliceLayout(0, box))[None, :]
            wanted = (theirs < rows)[:, None] & (theirs >= 0)[:, None] & (partner < team)
            mail = words + theirs.to(tl.int64)[:, None] * team + partner
            seen = look_at_words(mail, wanted)
        slot = step % RING
        async_copy.wait_group(RING - 1 - LAG)
        xs = ()
        dys = ()
        for chunk in gl.static_range(CHUNKS):
            xs = xs + (tiles_x[chunk].index(slot).load(tile),)
            dys = dys + (tiles_dy[chunk].index(slot).load(tile),)
        if SOLO:
            later = row + RING * teams * ROWS
            _request(tiles_x, slot, x, later, rows, column, limit, x_row, COLS, CHUNKS, ALIGN, EVEN)
            _request(
                tiles_dy, slot, dy, later, rows, column, limit, dy_row, COLS, CHUNKS, ALIGN, EVEN
            )
            async_copy.commit_group()
        if PHASE != 2:
            s1 = gl.zeros([ROWS, COLS], tl.float32, tile)
            s2 = gl.zeros([ROWS, COLS], tl.float32, tile)
            next_gamma = ()
            next_beta = ()
            for chunk in gl.static_range(CHUNKS):
                wide = dys[chunk].to(tl.float32)
                product = wide * (xs[chunk].to(tl.float32) - mu)
                s1 += wide * weights[chunk]
                s2 += product * weights[chunk]
                if partials is not None:
                    product = product * rs
                    if FOLD:
                        product = gl.sum(product, 0)[None, :]
                        wide = gl.sum(wide, 0)[None, :]
                    next_gamma = next_gamma + (sums_gamma[chunk] + product,)
                    next_beta = next_beta + (sums_beta[chunk] + wide,)
            sums_gamma = next_gamma
            sums_beta = next_beta
            if dx is not None:
                t1, t2 = sum_pairs(s1, s2, 1)
                if not SOLO:
                    publish(words + row.to(tl.int64) * team + member, pack_pair(t1, t2), row < rows)
        if SOLO:
            if dx is not None:
                _write(
                    dx,
                    xs,
                    dys,
                    weights,
                    mu,
                    rs,
                    t1,
                    t2,
                    row,
                    rows,
                    column,
                    limit,
                    length,
                    dx_row,
                    COLS,
                    CHUNKS,
                    ALIGN,
                    EVEN,
                    HINT,
                )
        elif step >= LAG:
            slot_b = (step - LAG) % RING
            xs_b = ()
            dys_b = ()
            for chunk in gl.static_range(CHUNKS):
                xs_b = xs_b + (tiles_x[chunk].index(slot_b).load(tile),)
                dys_b = dys_b + (tiles_dy[chunk].index(slot_b).load(tile),)
            far = earlier + RING * teams * ROWS
            _request(tiles_x, slot_b, x, far, rows, column, limit, x_row, COLS, CHUNKS, ALIGN, EVEN)
            _request(
                tiles_dy, slot_b, dy, far, rows, column, limit, dy_row, COLS, CHUNKS, ALIGN, EVEN
            )
            async_copy.commit_group()
            if PHASE != 1:
                each: tl.constexpr = ROWS * max(1, TEAM // (32 * WARPS))
                u1, u2 = unpack_pair(await_words(mail, wanted, each, seen))
                u1, u2 = sum_pairs(u1, u2, 1)
                u1 = gl.convert_layout(u1, down)
                u2 = gl.convert_layout(u2, down)
                _write(
                    dx,
                    xs_b,
                    dys_b,
                    weights,
                    mu_b,
                    rs_b,
                    u1,
                    u2,
                    earlier,
                    rows,
                    column,
                    limit,
                    length,
                    dx_row,
                    COLS,
                    CHUNKS,
                    ALIGN,
                    EVEN,
                    HINT,
                )
    async_copy.wait_group(0)
    if partials is not None and PHASE != 2:
        base = partials + first.to(tl.int64) * 2 * length + column
        for chunk in gl.static_range(CHUNKS):
            ok = column < limit - chunk * COLS
            gl.store(base + chunk * COLS, gl.sum(sums_gamma[chunk], 0), mask=ok)
            gl.store(base + length + chunk * COLS, gl.sum(sums_beta[chunk], 0), mask=ok)
