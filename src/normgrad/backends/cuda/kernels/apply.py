"""Element by element: the second of two passes, the element stage, and inference."""

import triton
import triton.language as tl

from normgrad.backends.cuda.kernels.common import (
    channel_of,
    coefficients,
    load_or,
    load_rstd,
    store_as,
    sum_pairs,
    widen,
)
from normgrad.backends.cuda.kernels.windows import store_inside, vectors_inside, window


@triton.jit
def total_count(counter, counts, count, COUNTS: tl.constexpr, COMPUTE: tl.constexpr):
    """The number of elements behind the sums: given, or added up exactly from the ranks' counts."""
    if counter is None:
        total = tl.full([], 0.0, COMPUTE) + count
    else:
        rank = tl.arange(0, COUNTS)
        # float64 adds whole numbers exactly up to 2**53, whatever type they come in.
        total = tl.sum(tl.load(counter + rank, mask=rank < counts, other=0).to(tl.float64), 0)
        total = total.to(COMPUTE)
    return total


@triton.jit
def load_once(pointers, mask):
    """A tile that nobody reads again, which the L2 cache is to evict last all the same.

    Measured on an H200, why is not known: the element stage gains 1 to 2 points, inference 2 to 5.
    Asynchronous copies cannot say it (PTX that does is an illegal instruction there).
    """
    return tl.load(pointers, mask=mask, other=0.0, eviction_policy="evict_last")


@triton.jit
def gradient(dy, x, mu, rs, weight, t1, t2, total, GROUP: tl.constexpr, CORRECT: tl.constexpr):
    """Dx from statistics and the two sums over them (of dy and dy * (x - mean))."""
    scale = rs * weight
    result = dy * scale
    if CORRECT:
        tilt, shift = coefficients(rs, rs if GROUP else scale, t1, t2, total)
        result += (x - mu) * tilt + shift
    return result


@triton.jit
def plane_apply(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    first_sum,
    second_sum,
    counter,
    counts,
    rows,  # all rows of all planes
    pieces,
    run,
    channels,
    group_size,
    dy_outer,
    dy_channel,
    x_outer,
    x_channel,
    dx_outer,
    dx_channel,
    count,
    eps,
    GROUP: tl.constexpr,
    CORRECT: tl.constexpr,
    VARIANCE: tl.constexpr,
    REVERSE: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    COUNTS: tl.constexpr,
    ALIGN: tl.constexpr,
    WINDOW: tl.constexpr,  # planes start anywhere in vectors of so many elements; else 0
    COMPUTE: tl.constexpr,
):
    """Channels first; strides and ``run`` come divided by ALIGN."""
    program = tl.program_id(0)
    length = run * ALIGN
    if WIDE:
        program = program.to(tl.int64)
        length = run.to(tl.int64) * ALIGN
    if REVERSE:  # what the first pass read last is still in the cache
        program = tl.num_programs(0) - 1 - program
    row = program * ROWS + tl.arange(0, ROWS)
    ok = row < rows
    plane = row // pieces
    inside = ((row % pieces) * COLS)[:, None] + tl.arange(0, COLS)[None, :]
    # Divided as narrow as can be (64-bit divisions are slow), then wide enough for any offset.
    outer = (plane // channels).to(tl.int64)
    channel = (plane % channels).to(tl.int64)
    at = (outer * dy_outer + channel * dy_channel)[:, None] * ALIGN
    low, high = 0, length
    if WINDOW:  # all three lie alike
        at, low, high = window(at, length, WINDOW)
        mask = ok[:, None] & vectors_inside(inside, high, WINDOW)
    else:
        mask = ok[:, None] & (inside < high)
    wide_dy = widen(load_once(dy + (at + inside), mask), COMPUTE)
    wide_x = wide_dy
    if CORRECT:
        if not WINDOW:
            at = (outer * x_outer + channel * x_channel)[:, None] * ALIGN
        wide_x = widen(load_once(x + (at + inside), mask), COMPUTE)
    statistic = channel
    if GROUP:
        statistic = outer * (channels // group_size) + channel // group_size
    mu = load_or(mean, statistic, ok, 0.0, COMPUTE)[:, None]
    rs = load_rstd(rstd, statistic, ok, eps, VARIANCE, COMPUTE)[:, None]
    weight = load_or(gamma, channel, ok, 1.0, COMPUTE)[:, None]
    t1 = load_or(first_sum, statistic, ok, 0.0, COMPUTE)[:, None]
    t2 = load_or(second_sum, statistic, ok, 0.0, COMPUTE)[:, None]
    total = total_count(counter, counts, count, COUNTS, COMPUTE)
    result = gradient(wide_dy, wide_x, mu, rs, weight, t1, t2, total, GROUP, CORRECT)
    if WINDOW:
        result = result.to(dx.dtype.element_ty)
        store_inside(dx + (at + inside), result, mask, inside, low, high, WINDOW)
    else:
        at = (outer * dx_outer + channel * dx_channel)[:, None] * ALIGN + inside
        store_as(dx, at, result, mask)


@triton.jit
def column_apply(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    first_sum,
    second_sum,
    counter,
    counts,
    rows,
    # Each None saves a division for a tile: both are 1.2 of 76 us, one 10 of 328.
    tiles,  # of ROWS rows; None for one sample
    blocks,  # of columns; None for one
    channels,  # over ALIGN, of all rows that lie side by side
    period,  # over RUN: channels of one row, if there are several
    pixels,  # columns of one channel, side by side; None for one
    group_size,
    dy_row,
    dy_outer,
    x_row,
    x_outer,
    dx_row,
    dx_outer,
    count,
    eps,
    GROUP: tl.constexpr,
    CORRECT: tl.constexpr,
    VARIANCE: tl.constexpr,
    REVERSE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    COUNTS: tl.constexpr,
    ALIGN: tl.constexpr,
    RUN: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Channels last; strides come divided by ALIGN."""
    tile = tl.program_id(0)
    block = 0
    # Neighbours in memory, and what the sums read last, come one after another.
    if blocks is not None:
        block, tile = tile % blocks, tile // blocks
    outer = tile.to(tl.int64) * 0
    if tiles is not None:
        outer, tile = (tile // tiles).to(tl.int64), tile % tiles
    if REVERSE:
        tile = tl.cdiv(rows, ROWS) - 1 - tile
    column = block * COLS + tl.arange(0, COLS)
    ok = column < channels * ALIGN
    channel, width = column, channels * ALIGN
    if period is not None:
        channel, width = channel_of(column, period, RUN), period * RUN
    if pixels is not None:
        channel = channel // pixels
    statistic = channel
    if GROUP:
        statistic = outer * (width // group_size) + channel // group_size
    mu = load_or(mean, statistic, ok, 0.0, COMPUTE)[None, :]
    rs = load_rstd(rstd, statistic, ok, eps, VARIANCE, COMPUTE)[None, :]
    weight = load_or(gamma, channel, ok, 1.0, COMPUTE)[None, :]
    t1 = load_or(first_sum, statistic, ok, 0.0, COMPUTE)[None, :]
    t2 = load_or(second_sum, statistic, ok, 0.0, COMPUTE)[None, :]
    total = total_count(counter, counts, count, COUNTS, COMPUTE)
    row = (tile.to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    mask = (row < rows) & ok[None, :]
    at = (row * dy_row + outer * dy_outer) * ALIGN + column[None, :]
    wide_dy = widen(load_once(dy + at, mask), COMPUTE)
    wide_x = wide_dy
    if CORRECT:
        at = (row * x_row + outer * x_outer) * ALIGN + column[None, :]
        wide_x = widen(load_once(x + at, mask), COMPUTE)
    result = gradient(wide_dy, wide_x, mu, rs, weight, t1, t2, total, GROUP, CORRECT)
    at = (row * dx_row + outer * dx_outer) * ALIGN + column[None, :]
    store_as(dx, at, result, mask)


@triton.jit
def row_statistics(
    dy,
    x,
    mean,
    gamma,
    partials,  # [2, rows, splits]
    rows,
    cols,
    splits,
    span,  # columns of each
    dy_row,
    x_row,
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Layer norm of rows too long for one block: their two sums in parts, with gamma inside."""
    row = tl.program_id(0) // splits
    start = tl.program_id(0) % splits * span
    far = row.to(tl.int64)
    mu = load_or(mean, row, None, 0.0, COMPUTE)
    s1 = tl.zeros([COLS], COMPUTE)
    s2 = tl.zeros([COLS], COMPUTE)
    stop = tl.minimum(start + span, cols * ALIGN)
    for first in tl.range(start, stop, COLS, num_stages=3):
        column = first + tl.arange(0, COLS)
        ok = column < stop
        g = tl.load(dy + far * dy_row * ALIGN + column, mask=ok, other=0.0).to(COMPUTE)
        g *= load_or(gamma, column, ok, 1.0, COMPUTE)
        s1 += g
        xt = tl.load(x + far * x_row * ALIGN + column, mask=ok, other=0.0)
        s2 += g * (xt.to(COMPUTE) - mu)
    t1, t2 = sum_pairs(s1, s2, 0)
    tl.store(partials + tl.program_id(0), t1)
    tl.store(partials + rows * splits + tl.program_id(0), t2)


@triton.jit
def row_apply(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    totals,
    partials,
    dgamma,
    dbeta,
    rows,
    cols,
    parts,  # programs that share some columns
    dy_row,
    x_row,
    dx_row,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The rest of it: dx, and the parameter gradients of every so many rows, or of all."""
    program = tl.program_id(1)
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    length = cols * ALIGN
    ok = column < length
    weight = load_or(gamma, column, ok, 1.0, COMPUTE)[None, :]
    sum_gamma = tl.zeros([ROWS, COLS], COMPUTE)
    sum_beta = tl.zeros([ROWS, COLS], COMPUTE)
    for first in tl.range(program * ROWS, rows, parts * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        row_ok = row < rows
        mask = row_ok[:, None] & ok[None, :]
        far = row.to(tl.int64)[:, None]
        dyt = tl.load(dy + far * dy_row * ALIGN + column[None, :], mask=mask, other=0.0)
        wide_dy = dyt.to(COMPUTE)
        wide_x = wide_dy  # where dbeta is all that is wanted
        if x is not None:
            xt = tl.load(x + far * x_row * ALIGN + column[None, :], mask=mask, other=0.0)
            wide_x = xt.to(COMPUTE)
        mu = load_or(mean, row, row_ok, 0.0, COMPUTE)[:, None]
        rs = load_or(rstd, row, row_ok, 1.0, COMPUTE)[:, None]
        sum_gamma += wide_dy * ((wide_x - mu) * rs)
        sum_beta += wide_dy
        if dx is not None:
            t1 = load_or(totals, row, row_ok, 0.0, COMPUTE)[:, None]
            t2 = load_or(totals + rows, row, row_ok, 0.0, COMPUTE)[:, None]
            total = (length + 0.0).to(COMPUTE)
            result = gradient(wide_dy, wide_x, mu, rs, weight, t1, t2, total, True, True)
            store_as(dx, far * dx_row * ALIGN + column[None, :], result, mask)
    if partials is not None:
        base = partials + program.to(tl.int64) * 2 * length
        tl.store(base + column, tl.sum(sum_gamma, 0), mask=ok)
        tl.store(base + length + column, tl.sum(sum_beta, 0), mask=ok)
    store_as(dgamma, column, tl.sum(sum_gamma, 0), ok)
    store_as(dbeta, column, tl.sum(sum_beta, 0), ok)
