"""Element by element: the second of two passes, the element stage, and inference."""

import triton
import triton.language as tl

from normgrad.backends.cuda.activations import output, through
from normgrad.backends.cuda.pieces.common import (
    add_rounded,
    channel_of,
    coefficients,
    load_or,
    load_rstd,
    load_weight,
    store_as,
    sum_pairs,
    widen,
)
from normgrad.backends.cuda.pieces.moments import add_elements, merged, parts_of, store_part
from normgrad.backends.cuda.pieces.windows import store_inside, vectors_inside, window


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
def applied(
    d, x, mu, rs, weight, sum_d, sum_dt, total, FORMULA: tl.constexpr, GROUP: tl.constexpr,
    CORRECT: tl.constexpr, bias=0.0, beside=None,
):  # fmt: skip
    """The result from statistics and the two sums over them."""
    dy_factor = rs * weight
    if FORMULA.forward:
        result = output(FORMULA, FORMULA.centred(x, mu), dy_factor, bias, beside)
    elif not FORMULA.sums:
        result = d
    elif CORRECT:
        factor = rs if GROUP else dy_factor
        x_factor, constant = coefficients(FORMULA, rs, factor, sum_d, sum_dt, total)
        result = FORMULA.element(d, FORMULA.centred(x, mu), dy_factor, x_factor, constant)
    else:
        result = d * dy_factor
    return result


@triton.jit
def store_bits(bits, at, result, there, COLS: tl.constexpr):
    """A bit for each element that is not 0, eight in a byte, the first one lowest."""
    ROWS: tl.constexpr = result.shape[0]
    opened = ((result != 0) & there).to(tl.int32) << (tl.arange(0, COLS) % 8)[None, :]
    byte = tl.sum(tl.reshape(opened, [ROWS, COLS // 8, 8]), 2)
    offsets, mask = at
    tl.store(bits + offsets, byte.to(tl.uint8), mask=mask)


@triton.jit
def plane_apply(
    dy,
    x,
    dx,
    shortcut,  # what is added to y before its activation, or None
    bits,  # where ReLU is open: written or, of gradients, read; or None
    mean,
    rstd,
    gamma,
    beta,
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
    shortcut_outer,
    shortcut_channel,
    count,
    eps,
    FORMULA: tl.constexpr,
    GROUP: tl.constexpr,
    EACH: tl.constexpr,  # each sample has weights of its own
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
    if dy is not None:
        wide_dy = widen(load_once(dy + (at + inside), mask), COMPUTE)
        wide_x = wide_dy
    if CORRECT or FORMULA.forward or FORMULA.acts:
        if not WINDOW:
            at = (outer * x_outer + channel * x_channel)[:, None] * ALIGN
        wide_x = widen(load_once(x + (at + inside), mask), COMPUTE)
        if FORMULA.forward:
            wide_dy = wide_x
    beside = None
    if shortcut is not None:
        at = (outer * shortcut_outer + channel * shortcut_channel)[:, None] * ALIGN
        beside = widen(load_once(shortcut + (at + inside), mask), COMPUTE)
    statistic = channel
    if GROUP:
        statistic = outer * (channels // group_size) + channel // group_size
    mu = load_or(mean, statistic, ok, 0.0, COMPUTE)[:, None]
    rs = load_rstd(rstd, statistic, ok, eps, VARIANCE, COMPUTE)[:, None]
    parameter = channel
    if EACH:
        parameter = outer * channels + channel
    weight = load_or(gamma, parameter, ok, 1.0, COMPUTE)[:, None]
    sum_d = load_or(first_sum, statistic, ok, 0.0, COMPUTE)[:, None]
    sum_dt = load_or(second_sum, statistic, ok, 0.0, COMPUTE)[:, None]
    total = total_count(counter, counts, count, COUNTS, COMPUTE)
    bias = load_or(beta, parameter, ok, 0.0, COMPUTE)[:, None]
    if bits is not None:
        in_bytes = plane.to(tl.int64)[:, None] * tl.cdiv(length, 8)
    if dy is not None:
        if bits is None:
            t = FORMULA.centred(wide_x, mu)
            wide_dy = through(FORMULA, wide_dy, t, rs * weight, bias, beside)
        else:
            byte = tl.load(bits + (in_bytes + inside // 8), mask=mask, other=0).to(tl.int32)
            wide_dy *= (byte >> (inside % 8).to(tl.int32) & 1).to(COMPUTE)
    result = applied(
        wide_dy, wide_x, mu, rs, weight, sum_d, sum_dt, total, FORMULA, GROUP, CORRECT, bias, beside
    )  # fmt: skip
    if bits is not None and FORMULA.forward:
        place = ((row % pieces) * (COLS // 8))[:, None] + tl.arange(0, COLS // 8)[None, :]
        there = ok[:, None] & (place < tl.cdiv(length, 8))
        store_bits(bits, (in_bytes + place, there), result.to(dx.dtype.element_ty), mask, COLS)
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
    shortcut,
    bits,
    mean,
    rstd,
    gamma,
    beta,
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
    shortcut_row,
    shortcut_outer,
    count,
    eps,
    FORMULA: tl.constexpr,
    GROUP: tl.constexpr,
    EACH: tl.constexpr,  # each sample has weights of its own
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
    parameter = channel
    if EACH:
        parameter = outer * width + channel
    weight = load_or(gamma, parameter, ok, 1.0, COMPUTE)[None, :]
    sum_d = load_or(first_sum, statistic, ok, 0.0, COMPUTE)[None, :]
    sum_dt = load_or(second_sum, statistic, ok, 0.0, COMPUTE)[None, :]
    total = total_count(counter, counts, count, COUNTS, COMPUTE)
    row = (tile.to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    mask = (row < rows) & ok[None, :]
    at = (row * dy_row + outer * dy_outer) * ALIGN + column[None, :]
    if dy is not None:
        wide_dy = widen(load_once(dy + at, mask), COMPUTE)
        wide_x = wide_dy
    if CORRECT or FORMULA.forward or FORMULA.acts:
        at = (row * x_row + outer * x_outer) * ALIGN + column[None, :]
        wide_x = widen(load_once(x + at, mask), COMPUTE)
        if FORMULA.forward:
            wide_dy = wide_x
    beside = None
    if shortcut is not None:
        at = (row * shortcut_row + outer * shortcut_outer) * ALIGN + column[None, :]
        beside = widen(load_once(shortcut + at, mask), COMPUTE)
    bias = load_or(beta, parameter, ok, 0.0, COMPUTE)[None, :]
    if bits is not None:
        in_bytes = row * tl.cdiv(channels * ALIGN, 8)
    if dy is not None:
        if bits is None:
            t = FORMULA.centred(wide_x, mu)
            wide_dy = through(FORMULA, wide_dy, t, rs * weight, bias, beside)
        else:
            byte = tl.load(bits + (in_bytes + column[None, :] // 8), mask=mask, other=0)
            wide_dy *= (byte.to(tl.int32) >> (column[None, :] % 8) & 1).to(COMPUTE)
    result = applied(
        wide_dy, wide_x, mu, rs, weight, sum_d, sum_dt, total, FORMULA, GROUP, CORRECT, bias, beside
    )  # fmt: skip
    if bits is not None and FORMULA.forward:
        place = block * (COLS // 8) + tl.arange(0, COLS // 8)[None, :]
        there = (row < rows) & (place < tl.cdiv(channels * ALIGN, 8))
        store_bits(bits, (in_bytes + place, there), result.to(dx.dtype.element_ty), mask, COLS)
    at = (row * dx_row + outer * dx_outer) * ALIGN + column[None, :]
    store_as(dx, at, result, mask)


@triton.jit
def row_statistics(
    dy,
    x,
    residual,  # that is added to x, forward
    mean,
    rstd,  # and beta: where an activation follows
    gamma,
    beta,
    partials,  # [2, rows, splits]
    rows,
    cols,
    splits,
    span,  # columns of each
    each,  # rows of a sample that has weights of its own; None where one set serves all
    dy_row,
    x_row,
    residual_row,
    SPAN: tl.constexpr,  # the same, forward
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
    FORMULA: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Layer norm of rows too long for one block: their two sums in parts, with gamma inside."""
    row = tl.program_id(0) // splits
    start = tl.program_id(0) % splits * span
    far = row.to(tl.int64)
    mu = load_or(mean, row, None, 0.0, COMPUTE)
    rs = load_or(rstd, row, None, 1.0, COMPUTE)
    sum_d = tl.zeros([COLS], COMPUTE)
    sum_dt = tl.zeros([COLS], COMPUTE)
    stop = tl.minimum(start + span, cols * ALIGN)
    own = 0  # where the weights of a sample are
    if each is not None:
        own = (row // each).to(tl.int64) * cols * ALIGN
    if FORMULA.forward:
        found = (sum_d, sum_d, sum_d, sum_d)
        start = tl.program_id(0) % splits * SPAN  # a constant, so that loads are wide
        for first in tl.range(start, stop, COLS, num_stages=3):
            column = first + tl.arange(0, COLS)
            ok = column < cols * ALIGN
            xt = tl.load(x + far * x_row * ALIGN + column, mask=ok, other=0.0)
            if residual is not None:
                at = far * residual_row * ALIGN + column
                xt = add_rounded(xt, tl.load(residual + at, mask=ok, other=0.0), COMPUTE)
            found = add_elements(FORMULA, found, xt.to(COMPUTE), ok)
        base = 0.0
        if FORMULA.has_mean:
            base = tl.load(x + far * x_row * ALIGN).to(COMPUTE)
            if residual is not None:
                base += tl.load(residual + far * residual_row * ALIGN).to(COMPUTE)
                base = base.to(x.dtype.element_ty).to(COMPUTE)
        whole = merged(FORMULA, parts_of(FORMULA, found, base), 0)
        second = rows.to(tl.int64) * splits
        store_part(partials, tl.program_id(0), whole, base, second, None)
    else:
        for first in tl.range(start, stop, COLS, num_stages=3):
            column = first + tl.arange(0, COLS)
            ok = column < stop
            g = tl.load(dy + far * dy_row * ALIGN + column, mask=ok, other=0.0).to(COMPUTE)
            weight = load_weight(FORMULA, gamma, own + column, ok, COMPUTE)
            if not FORMULA.acts:
                g *= weight
            xt = tl.load(x + far * x_row * ALIGN + column, mask=ok, other=0.0)
            t = FORMULA.centred(xt.to(COMPUTE), mu)
            if FORMULA.acts:
                bias = load_or(beta, own + column, ok, 0.0, COMPUTE)
                g = through(FORMULA, g, t, rs * weight, bias) * weight
            term_d, term_dt = FORMULA.terms(g, t)
            sum_d += term_d
            sum_dt += term_dt
        total_d, total_dt = sum_pairs(sum_d, sum_dt, 0)
        tl.store(partials + tl.program_id(0), total_d)
        tl.store(partials + rows * splits + tl.program_id(0), total_dt)


@triton.jit
def row_apply(
    dy,
    x,
    dx,
    residual,  # that is added to x, or to dx
    total,  # the sum of x and that
    mean,
    rstd,
    gamma,
    beta,
    totals,
    partials,
    dgamma,
    dbeta,
    rows,
    cols,
    parts,  # programs that share some columns, of a sample that has weights of its own
    each,  # rows of that; None where one set serves all
    dy_row,
    x_row,
    dx_row,
    residual_row,
    total_row,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
    FORMULA: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The rest of it: dx, and the parameter gradients of every so many rows, or of all."""
    program = tl.program_id(1)
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    length = cols * ALIGN
    ok = column < length
    own, start, last = 0, program * ROWS, rows
    if each is not None:
        sample = program // parts
        start, last = sample * each + program % parts * ROWS, (sample + 1) * each
        own = sample.to(tl.int64) * length
    weight = load_weight(FORMULA, gamma, own + column, ok, COMPUTE)[None, :]
    bias = load_or(beta, own + column, ok, 0.0, COMPUTE)[None, :]
    sum_gamma = tl.zeros([ROWS, COLS], COMPUTE)
    sum_beta = tl.zeros([ROWS, COLS], COMPUTE)
    for first in tl.range(start, last, parts * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        row_ok = row < last
        mask = row_ok[:, None] & ok[None, :]
        far = row.to(tl.int64)[:, None]
        if residual is not None:
            at = far * residual_row * ALIGN + column[None, :]
            other = tl.load(residual + at, mask=mask, other=0.0)
        if dy is not None:
            dyt = tl.load(dy + far * dy_row * ALIGN + column[None, :], mask=mask, other=0.0)
            wide_dy = dyt.to(COMPUTE)
            wide_x = wide_dy  # where dbeta is all that is wanted
        if x is not None:
            xt = tl.load(x + far * x_row * ALIGN + column[None, :], mask=mask, other=0.0)
            if residual is not None and FORMULA.forward:
                xt = add_rounded(xt, other, COMPUTE)
                store_as(total, far * total_row * ALIGN + column[None, :], xt, mask)
            wide_x = xt.to(COMPUTE)
        mu = load_or(mean, row, row_ok, 0.0, COMPUTE)[:, None]
        rs = load_or(rstd, row, row_ok, 1.0, COMPUTE)[:, None]
        if FORMULA.forward:
            result = output(FORMULA, FORMULA.centred(wide_x, mu), rs * weight, bias)
            store_as(dx, far * dx_row * ALIGN + column[None, :], result, mask)
        else:
            wide_dy = through(FORMULA, wide_dy, FORMULA.centred(wide_x, mu), rs * weight, bias)
            term_d, term_dt = FORMULA.terms(wide_dy, FORMULA.centred(wide_x, mu) * rs)
            sum_gamma += term_dt
            sum_beta += term_d
        if dx is not None and not FORMULA.forward:
            sum_d = load_or(totals, row, row_ok, 0.0, COMPUTE)[:, None]
            sum_dt = load_or(totals + rows, row, row_ok, 0.0, COMPUTE)[:, None]
            count = (length + 0.0).to(COMPUTE)
            result = applied(
                wide_dy, wide_x, mu, rs, weight, sum_d, sum_dt, count, FORMULA, True, True
            )
            if residual is not None:
                result += other.to(COMPUTE)
            store_as(dx, far * dx_row * ALIGN + column[None, :], result, mask)
    if partials is not None:
        base = partials + program.to(tl.int64) * 2 * length
        tl.store(base + column, tl.sum(sum_gamma, 0), mask=ok)
        tl.store(base + length + column, tl.sum(sum_beta, 0), mask=ok)
    store_as(dgamma, column, tl.sum(sum_gamma, 0), ok)
    store_as(dbeta, column, tl.sum(sum_beta, 0), ok)
