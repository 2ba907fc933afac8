"""Layer norm: a block keeps whole rows on chip and adds up the parameter gradients it meets."""

import triton
import triton.language as tl

from normgrad.backends.cuda.kernels.common import (
    arrive,
    await_all,
    await_step_before,
    clear_stale,
    load_or,
    sum_pairs,
    widen,
)
from normgrad.backends.cuda.kernels.joins import join_rows


@triton.jit
def _tile(
    data,
    row,
    rows,
    step,
    chunk,
    length,
    CHUNK: tl.constexpr,
    ALIGN: tl.constexpr,
    POLICY: tl.constexpr,
):
    """Some columns of some rows."""
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    mask = (row < rows)[:, None] & (at < length)[None, :]
    where = data + row.to(tl.int64)[:, None] * step * ALIGN + at[None, :]
    return tl.load(where, mask=mask, other=0.0, eviction_policy=POLICY)


@triton.jit
def _statistics(mean, rstd, row, rows, COMPUTE: tl.constexpr):
    """Mean and reciprocal deviation of rows."""
    ok = row < rows
    centre = load_or(mean, row, ok, 0.0, COMPUTE)[:, None]
    return centre, load_or(rstd, row, ok, 1.0, COMPUTE)[:, None]


@triton.jit
def _fetch(
    data,
    row,
    rows,
    length,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALIGN: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """All that rows need, on its way to registers; to be evicted last as in `apply.load_once`."""
    dy, x, mean, rstd, dy_row, x_row = data
    tiles_x = ()
    tiles_dy = ()
    for chunk in tl.static_range(CHUNKS):
        tile = _tile(x, row, rows, x_row, chunk, length, CHUNK, ALIGN, "evict_last")
        tiles_x = tiles_x + (tile,)
        tile = _tile(dy, row, rows, dy_row, chunk, length, CHUNK, ALIGN, "evict_last")
        tiles_dy = tiles_dy + (tile,)
    mu, rs = _statistics(mean, rstd, row, rows, COMPUTE)
    return mu, rs, tiles_x, tiles_dy


@triton.jit
def layer_rows(
    dy,
    x,  # None where dbeta is all that is wanted
    dx,
    mean,
    rstd,
    gamma,
    partials,  # [programs, 2, cols]: dgamma and dbeta of each program
    dgamma,
    dbeta,
    words,  # none but the count of arrivals
    stale,  # words of the call before, to be cleared for the next
    stale_words,
    tally,
    rows,
    cols,  # over ALIGN
    programs,
    dy_row,
    x_row,
    dx_row,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,  # a row is CHUNKS tiles of CHUNK columns
    ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
    COMPUTE: tl.constexpr,
    AHEAD: tl.constexpr,  # the next rows come to registers while these are at work
    FOLD: tl.constexpr,  # a thread holds all rows of its columns: add them up at once
    WARPS: tl.constexpr,
    MEETS: tl.constexpr,  # the programs wait for each other and join their sums
    DOWN: tl.constexpr,  # of these in tiles of DOWN programs
    TIMES: tl.constexpr,  # so often
    WIDTH: tl.constexpr,  # and so many columns
    EARLY: tl.constexpr,  # the count of arrivals is cleared meanwhile
    PHASE: tl.constexpr,  # 0; in the interpreter 3: rows, 4: the joint sums
):
    """Rows ``ROWS * program``, then every ``ROWS * programs`` further."""
    length = cols * ALIGN
    program = tl.program_id(0)
    column = tl.arange(0, CHUNK)
    local = tl.arange(0, ROWS)
    sums_gamma = ()
    sums_beta = ()
    held: tl.constexpr = 1 if FOLD else ROWS
    weights = ()
    for chunk in tl.static_range(CHUNKS):
        if partials is not None:
            sums_gamma = sums_gamma + (tl.zeros([held, CHUNK], COMPUTE),)
            sums_beta = sums_beta + (tl.zeros([held, CHUNK], COMPUTE),)
        at = chunk * CHUNK + column
        weights = weights + (load_or(gamma, at, at < length, 1.0, COMPUTE)[None, :],)
    start = program * ROWS if PHASE != 4 else rows
    data = (dy, x, mean, rstd, dy_row, x_row)
    if AHEAD:
        coming = _fetch(data, start + local, rows, length, CHUNK, CHUNKS, ALIGN, COMPUTE)
    for first in tl.range(start, rows, programs * ROWS, num_stages=STAGES):
        row = first + local
        if AHEAD:
            mu, rs, tiles_x, tiles_dy = coming
            later = row + programs * ROWS
            coming = _fetch(data, later, rows, length, CHUNK, CHUNKS, ALIGN, COMPUTE)
        else:
            mu, rs = _statistics(mean, rstd, row, rows, COMPUTE)
        row_ok = row < rows
        far = row.to(tl.int64)[:, None]
        s1 = tl.zeros([ROWS, CHUNK], COMPUTE)
        s2 = tl.zeros([ROWS, CHUNK], COMPUTE)
        xs = ()
        gs = ()
        next_gamma = ()
        next_beta = ()
        for chunk in tl.static_range(CHUNKS):
            if AHEAD:
                xt, dyt = tiles_x[chunk], tiles_dy[chunk]
            else:
                xt = tl.zeros([ROWS, CHUNK], COMPUTE)
                if x is not None:
                    xt = _tile(x, row, rows, x_row, chunk, length, CHUNK, ALIGN, "")
                dyt = _tile(dy, row, rows, dy_row, chunk, length, CHUNK, ALIGN, "")
            xhat = (widen(xt) - mu) * rs
            wide = widen(dyt)
            product = wide * xhat
            g = wide * weights[chunk]
            s1 += g
            s2 += g * xhat
            if partials is not None:
                if FOLD:
                    product = tl.sum(product, 0)[None, :]
                    wide = tl.sum(wide, 0)[None, :]
                next_gamma = next_gamma + (sums_gamma[chunk] + product,)
                next_beta = next_beta + (sums_beta[chunk] + wide,)
            xs = xs + (xhat,)
            gs = gs + (g,)
        sums_gamma = next_gamma
        sums_beta = next_beta
        if dx is not None:
            t1, t2 = sum_pairs(s1, s2, 1)
            # dx = (g - t1 / length - xhat * t2 / length) * rs, in two steps an element.
            shift = (t1 / length)[:, None] * -rs
            tilt = (t2 / length)[:, None] * -rs
            for chunk in tl.static_range(CHUNKS):
                at = chunk * CHUNK + column
                mask = row_ok[:, None] & (at < length)[None, :]
                result = gs[chunk] * rs + (xs[chunk] * tilt + shift)
                tl.store(
                    dx + far * dx_row * ALIGN + at[None, :],
                    result.to(dx.dtype.element_ty),
                    mask=mask,
                )
    if partials is not None and PHASE != 4:
        for chunk in tl.static_range(CHUNKS):
            at = chunk * CHUNK + column
            base = partials + program.to(tl.int64) * 2 * length
            tl.store(base + at, tl.sum(sums_gamma[chunk], 0), mask=at < length)
            tl.store(base + length + at, tl.sum(sums_beta[chunk], 0), mask=at < length)
    if MEETS:
        thread = tl.arange(0, 32 * WARPS)
        await_step_before(EARLY)
        turn = arrive(words + tally)
        clear_stale(stale, stale_words, thread, 32 * WARPS)
        blocks = tl.cdiv(length, WIDTH)
        # Those that come last, whom everybody waits for, have little or nothing to add up.
        if turn < blocks and PHASE % 4 == 0:
            await_all(words + tally, thread)
            down = tl.arange(0, DOWN)
            across = tl.arange(0, WIDTH)
            for block in tl.range(turn, blocks, programs):
                there = block * WIDTH + across
                join_rows(
                    partials, dgamma, dbeta, programs, length, down, there, DOWN, TIMES, COMPUTE
                )  # fmt: skip
