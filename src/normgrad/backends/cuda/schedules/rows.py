"""Layer norm: a block keeps whole rows on chip and adds up the parameter gradients it meets."""

import triton
import triton.language as tl

from normgrad.backends.cuda.activations import output, through
from normgrad.backends.cuda.pieces.common import (
    add_rounded,
    await_all,
    await_step_before,
    clear_previous,
    count_arrival,
    load_or,
    load_weight,
    store_as,
    sum_pairs,
    widen,
)
from normgrad.backends.cuda.pieces.joins import join_rows
from normgrad.backends.cuda.pieces.moments import store_statistics


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
def _normalize(
    x,
    results,  # y, mean, rstd
    beside,  # residual, sum, the steps of both
    row,
    rows,
    x_row,
    y_row,
    length,
    gamma,
    beta,
    eps,
    FORMULA: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALIGN: tl.constexpr,
    VARIANCE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Forward: statistics of some rows from registers, then y."""
    y, mean, rstd = results
    residual, total, residual_row, total_row = beside
    ok = row < rows
    far = row.to(tl.int64)
    tiles = ()
    sum_t = tl.zeros([ROWS, CHUNK], COMPUTE)
    sum_tt = tl.zeros([ROWS, CHUNK], COMPUTE)
    for chunk in tl.static_range(CHUNKS):
        tile = _tile(x, row, rows, x_row, chunk, length, CHUNK, ALIGN, "")
        if residual is not None:
            other = _tile(residual, row, rows, residual_row, chunk, length, CHUNK, ALIGN, "")
            tile = add_rounded(tile, other, COMPUTE)
            if total is not None:
                at = chunk * CHUNK + tl.arange(0, CHUNK)
                to = total + far[:, None] * total_row * ALIGN + at[None, :]
                tl.store(to, tile, mask=ok[:, None] & (at < length)[None, :])
        tiles = tiles + (widen(tile, COMPUTE),)
    mu = tl.zeros([ROWS], COMPUTE)
    if FORMULA.has_mean:
        # Distances from an element: where all are alike they are 0.
        base = tl.load(x + far * x_row * ALIGN, mask=ok, other=0.0).to(COMPUTE)
        if residual is not None:
            base += tl.load(residual + far * residual_row * ALIGN, mask=ok, other=0.0).to(COMPUTE)
            base = base.to(x.dtype.element_ty).to(COMPUTE)
        for chunk in tl.static_range(CHUNKS):
            there = (chunk * CHUNK + tl.arange(0, CHUNK) < length)[None, :]
            sum_t += tl.where(there, tiles[chunk] - base[:, None], 0.0)
        mu = base + tl.sum(sum_t, 1) / length
    for chunk in tl.static_range(CHUNKS):
        there = (chunk * CHUNK + tl.arange(0, CHUNK) < length)[None, :]
        t = tl.where(there, FORMULA.centred(tiles[chunk], mu[:, None]), 0.0)
        sum_tt += t * t
    count = (row * 0 + length).to(COMPUTE)
    made = (None, None, mean, rstd, None, None, None, None)
    moments = (count, mu, tl.sum(sum_tt, 1))
    mu, rs = store_statistics(made, row, moments, 0.0, eps, ok, VARIANCE)
    if y is not None:
        for chunk in tl.static_range(CHUNKS):
            at = chunk * CHUNK + tl.arange(0, CHUNK)
            # Loaded here they take no registers meanwhile.
            weight = load_weight(FORMULA, gamma, at, at < length, COMPUTE)[None, :]
            bias = load_or(beta, at, at < length, 0.0, COMPUTE)[None, :]
            t = FORMULA.centred(tiles[chunk], mu[:, None])
            result = output(FORMULA, t, rs[:, None] * weight, bias)
            to = y + far[:, None] * y_row * ALIGN + at[None, :]
            store_as(to, 0, result, ok[:, None] & (at < length)[None, :])


@triton.jit
def layer_rows(
    dy,
    x,  # None where dbeta is all that is wanted
    dx,
    residual,  # that is added to x, or to dx: see `plan.row_data`
    total,  # the sum of x and that
    mean,
    rstd,
    gamma,
    beta,
    partials,  # [programs, 2, cols]: dgamma and dbeta of each program
    dgamma,
    dbeta,
    sum_words,  # none but the count of arrivals
    previous_words,  # words of the call before, to be cleared for the next
    previous_count,
    arrivals,
    rows,
    cols,  # over ALIGN
    programs,
    each,  # rows of a sample that has weights of its own; None where one set serves all
    share,  # programs of it
    dy_row,
    x_row,
    dx_row,
    residual_row,
    total_row,
    eps,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,  # a row is CHUNKS tiles of CHUNK columns
    ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
    COMPUTE: tl.constexpr,
    FORMULA: tl.constexpr,
    VARIANCE: tl.constexpr,  # the variance is wanted in the place of rstd
    PRELOAD_ROWS: tl.constexpr,  # the next rows come to registers while these are at work
    FOLD: tl.constexpr,  # a thread holds all rows of its columns: add them up at once
    WARPS: tl.constexpr,
    JOINS_AT_END: tl.constexpr,  # the programs wait for each other and join their sums
    JOIN_ROWS: tl.constexpr,  # of these in tiles of JOIN_ROWS programs
    JOIN_STEPS: tl.constexpr,  # so often
    JOIN_COLUMNS: tl.constexpr,  # and so many columns
    EARLY: tl.constexpr,  # the count of arrivals is cleared meanwhile
    PHASE: tl.constexpr,  # 0; in the interpreter 3: rows, 4: the joint sums
):
    """Rows ``ROWS * program``, then every ``ROWS * programs`` further."""
    length = cols * ALIGN
    program = tl.program_id(0)
    last, number, step = rows, program, programs
    if each is not None:  # its programs alone have rows of a sample
        sample = program // share
        last, number, step = (sample + 1) * each, program % share, share
        if gamma is not None:
            gamma += sample.to(tl.int64) * length
        if beta is not None:
            beta += sample.to(tl.int64) * length
    column = tl.arange(0, CHUNK)
    local = tl.arange(0, ROWS)
    sums_gamma = ()
    sums_beta = ()
    sum_rows: tl.constexpr = 1 if FOLD else ROWS
    weights = ()
    biases = ()
    for chunk in tl.static_range(CHUNKS):
        if partials is not None:
            sums_gamma = sums_gamma + (tl.zeros([sum_rows, CHUNK], COMPUTE),)
            sums_beta = sums_beta + (tl.zeros([sum_rows, CHUNK], COMPUTE),)
        at = chunk * CHUNK + column
        if not FORMULA.forward:
            weight = load_weight(FORMULA, gamma, at, at < length, COMPUTE)
            weights = weights + (weight[None, :],)
            if FORMULA.acts:
                biases = biases + (load_or(beta, at, at < length, 0.0, COMPUTE)[None, :],)
    start = number * ROWS if PHASE != 4 else rows
    if each is not None:
        start += sample * each
    data = (dy, x, mean, rstd, dy_row, x_row)
    if PRELOAD_ROWS:
        coming = _fetch(data, start + local, last, length, CHUNK, CHUNKS, ALIGN, COMPUTE)
    for first in tl.range(start, last, step * ROWS, num_stages=STAGES):
        row = first + local
        if FORMULA.forward:
            results = (dx, mean, rstd)
            beside = (residual, total, residual_row, total_row)
            _normalize(
                x, results, beside, row, last, x_row, dx_row, length, gamma, beta, eps,
                FORMULA, ROWS, CHUNK, CHUNKS, ALIGN, VARIANCE, COMPUTE,
            )  # fmt: skip
        else:
            if PRELOAD_ROWS:
                mu, rs, tiles_x, tiles_dy = coming
                later = row + step * ROWS
                coming = _fetch(data, later, last, length, CHUNK, CHUNKS, ALIGN, COMPUTE)
            else:
                mu, rs = _statistics(mean, rstd, row, last, COMPUTE)
            row_ok = row < last
            far = row.to(tl.int64)[:, None]
            sum_d = tl.zeros([ROWS, CHUNK], COMPUTE)
            sum_dt = tl.zeros([ROWS, CHUNK], COMPUTE)
            xs = ()
            gs = ()
            more = ()
            next_gamma = ()
            next_beta = ()
            for chunk in tl.static_range(CHUNKS):
                if PRELOAD_ROWS:
                    xt, dyt = tiles_x[chunk], tiles_dy[chunk]
                else:
                    xt = tl.zeros([ROWS, CHUNK], COMPUTE)
                    if x is not None:
                        xt = _tile(x, row, last, x_row, chunk, length, CHUNK, ALIGN, "")
                    dyt = _tile(dy, row, last, dy_row, chunk, length, CHUNK, ALIGN, "")
                t = FORMULA.centred(widen(xt), mu)
                xhat = t * rs
                d = widen(dyt)
                if FORMULA.acts:
                    d = through(FORMULA, d, t, rs * weights[chunk], biases[chunk])
                g = d * weights[chunk]
                term_d, term_dt = FORMULA.terms(g, xhat)
                sum_d += term_d
                sum_dt += term_dt
                if partials is not None:
                    wide, product = FORMULA.terms(d, xhat)
                    if FOLD:
                        product = tl.sum(product, 0)[None, :]
                        wide = tl.sum(wide, 0)[None, :]
                    next_gamma = next_gamma + (sums_gamma[chunk] + product,)
                    next_beta = next_beta + (sums_beta[chunk] + wide,)
                if residual is not None:
                    tile = _tile(residual, row, last, residual_row, chunk, length, CHUNK, ALIGN, "")
                    more = more + (tile,)
                xs = xs + (xhat,)
                gs = gs + (g,)
            sums_gamma = next_gamma
            sums_beta = next_beta
            if dx is not None:
                row_d, row_dt = sum_pairs(sum_d, sum_dt, 1)
                mean_d, mean_dt = (row_d / length)[:, None], (row_dt / length)[:, None]
                x_factor, constant = FORMULA.coefficients(mean_d, mean_dt, rs)
                for chunk in tl.static_range(CHUNKS):
                    at = chunk * CHUNK + column
                    mask = row_ok[:, None] & (at < length)[None, :]
                    result = FORMULA.element(gs[chunk], xs[chunk], rs, x_factor, constant)
                    if residual is not None:
                        result += widen(more[chunk])
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
    if JOINS_AT_END:
        thread = tl.arange(0, 32 * WARPS)
        await_step_before(EARLY)
        turn = count_arrival(sum_words + arrivals)
        clear_previous(previous_words, previous_count, thread, 32 * WARPS)
        blocks = tl.cdiv(length, JOIN_COLUMNS)
        # Those that come last, whom everybody waits for, have little or nothing to add up.
        if turn < blocks and PHASE % 4 == 0:
            await_all(sum_words + arrivals, thread)
            down = tl.arange(0, JOIN_ROWS)
            across = tl.arange(0, JOIN_COLUMNS)
            for block in tl.range(turn, blocks, programs):
                there = block * JOIN_COLUMNS + across
                join_rows(
                    partials, dgamma, dbeta, programs, length, down, there, JOIN_ROWS, JOIN_STEPS,
                    COMPUTE
                )  # fmt: skip
