"""Channels last: rows of contiguous channels, a set of factors for each column.

Batch norm is one sample of many rows, group norm a sample of rows each. A block of rows is summed
into one float32 row, blocks are joined in float64, and a second pass over the rows writes.
"""

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.formats import F32, F64
from normgrad.backends.cpu.scalar import (
    count,
    entry,
    inverse_deviation,
    place,
    put,
    slope_and_offset,
)
from normgrad.backends.cpu.vector import (
    fence,
    fma,
    lanes,
    load,
    load_part,
    read,
    size_of,
    splat,
    store,
    store_part,
    store_wide,
    stream,
    widen,
    write,
    zero,
)


@jit.inner
def row_at(params, addresses, workspace, role, sample, row):
    """The address of a row."""
    run = params[slots.RUN]
    outer = row // run
    start = place(params, addresses, workspace, role)
    start += sample * params[role + slots.BY_SAMPLE] + outer * params[role + slots.BY_OUTER]
    return start + (row - outer * run) * params[role + slots.BY_INNER]


@jit.inner
def add_rows(fmt, flat, dy, x, dy_step, x_step, rows, columns, mean, sums, with_x):
    """Add rows at an even distance into two rows of sums. ``flat`` is the format of sums."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    sums_xmu = sums + columns * size_of(flat)
    row = 0
    while row < rows:
        four = rows - row >= 4
        at = 0
        where = 0
        column = 0
        while column < columns:
            full = columns - column >= width
            left = columns - column
            p = load(flat, sums + at) if full else load_part(flat, sums + at, left)
            if four:
                if full:
                    d0 = load(fmt, dy + where)
                    d1 = load(fmt, dy + where + dy_step)
                    d2 = load(fmt, dy + where + 2 * dy_step)
                    d3 = load(fmt, dy + where + 3 * dy_step)
                else:
                    d0 = load_part(fmt, dy + where, left)
                    d1 = load_part(fmt, dy + where + dy_step, left)
                    d2 = load_part(fmt, dy + where + 2 * dy_step, left)
                    d3 = load_part(fmt, dy + where + 3 * dy_step, left)
                p = p + ((d0 + d1) + (d2 + d3))
                if with_x:
                    if full:
                        centre = load(flat, mean + at)
                        t0 = load(fmt, x + where) - centre
                        t1 = load(fmt, x + where + x_step) - centre
                        t2 = load(fmt, x + where + 2 * x_step) - centre
                        t3 = load(fmt, x + where + 3 * x_step) - centre
                        q = load(flat, sums_xmu + at)
                        q = q + (fma(d0, t0, d1 * t1) + fma(d2, t2, d3 * t3))
                        store(flat, sums_xmu + at, q)
                    else:
                        centre = load_part(flat, mean + at, left)
                        t0 = load_part(fmt, x + where, left) - centre
                        t1 = load_part(fmt, x + where + x_step, left) - centre
                        t2 = load_part(fmt, x + where + 2 * x_step, left) - centre
                        t3 = load_part(fmt, x + where + 3 * x_step, left) - centre
                        q = load_part(flat, sums_xmu + at, left)
                        q = q + (fma(d0, t0, d1 * t1) + fma(d2, t2, d3 * t3))
                        store_part(flat, sums_xmu + at, q, left)
            else:
                part = width if full else left
                d0 = load_part(fmt, dy + where, part)
                p = p + d0
                if with_x:
                    t0 = load_part(fmt, x + where, part) - load_part(flat, mean + at, part)
                    q = fma(d0, t0, load_part(flat, sums_xmu + at, part))
                    store_part(flat, sums_xmu + at, q, part)
            if full:
                store(flat, sums + at, p)
            else:
                store_part(flat, sums + at, p, left)
            column += width
            where += step
            at += unit
        done = 4 if four else 1
        row += done
        dy += done * dy_step
        x += done * x_step


@jit.inner
def clear(flat, address, length):
    """Zeros."""
    width = lanes(flat)
    at = 0
    while at < length:
        part = min(width, length - at)
        store_part(flat, address + at * size_of(flat), zero(flat), part)
        at += width


@jit.inner
def block_sums(fmt, flat, params, addresses, workspace, index):
    """The sums of a few blocks of rows."""
    columns = params[slots.COLUMNS]
    blocks = params[slots.BLOCKS]
    first = index * params[slots.PER_TASK]
    for block in range(first, min(first + params[slots.PER_TASK], blocks * params[slots.SAMPLES])):
        sample = block // blocks
        row = (block - sample * blocks) * params[slots.BLOCK]
        end = min(row + params[slots.BLOCK], params[slots.ROWS])
        sums = workspace + params[slots.AT_PARTS] + block * 2 * columns * size_of(flat)
        mean = workspace + params[slots.AT_COEFFICIENTS] + sample * 4 * columns * size_of(flat)
        clear(flat, sums, 2 * columns)
        while row < end:
            rows = min(end - row, params[slots.RUN] - row % params[slots.RUN])
            add_rows(
                fmt,
                flat,
                row_at(params, addresses, workspace, slots.DY, sample, row),
                row_at(params, addresses, workspace, slots.X, sample, row),
                params[slots.DY + slots.BY_INNER],
                params[slots.X + slots.BY_INNER],
                rows,
                columns,
                mean,
                sums,
                params[slots.SUM_XMU] != 0,
            )
            row += rows
    return 0


@jit.inner
def written(fmt, flat, dy, x, factors, columns, at, part, corrected):
    """Up to a vector of gradients of one row."""
    span = columns * size_of(flat)
    d = load_part(fmt, dy, part)
    a = load_part(flat, factors + span + at, part)
    if not corrected:
        return a * d
    t = load_part(fmt, x, part) - load_part(flat, factors + at, part)
    b = load_part(flat, factors + 2 * span + at, part)
    return fma(a, d, fma(b, t, load_part(flat, factors + 3 * span + at, part)))


@jit.inner
def write_rows(
    fmt, flat, dy, x, dx, dy_step, x_step, dx_step, rows, columns, factors, corrected, streaming
):
    """``dx = a * dy + b * (x - mean) + c`` with factors by column: mean, a, b, c."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    span = columns * size_of(flat)
    whole = columns // width * width
    row = 0
    while row < rows:
        two = rows - row >= 2
        far = dy_step if two else 0
        far_x = x_step if two else 0
        at = 0
        where = 0
        column = 0
        if corrected and two:
            while column < whole:
                centre = load(flat, factors + at)
                a = load(flat, factors + span + at)
                b = load(flat, factors + 2 * span + at)
                c = load(flat, factors + 3 * span + at)
                d0 = load(fmt, dy + where)
                d1 = load(fmt, dy + where + far)
                t0 = load(fmt, x + where) - centre
                t1 = load(fmt, x + where + far_x) - centre
                r0 = fma(a, d0, fma(b, t0, c))
                r1 = fma(a, d1, fma(b, t1, c))
                if streaming:
                    stream(fmt, dx + where, r0)
                    stream(fmt, dx + where + dx_step, r1)
                else:
                    store(fmt, dx + where, r0)
                    store(fmt, dx + where + dx_step, r1)
                column += width
                where += step
                at += unit
        while column < columns:
            part = min(width, columns - column)
            r0 = written(fmt, flat, dy + where, x + where, factors, columns, at, part, corrected)
            if two:
                r1 = written(
                    fmt,
                    flat,
                    dy + where + dy_step,
                    x + where + x_step,
                    factors,
                    columns,
                    at,
                    part,
                    corrected,
                )
                store_part(fmt, dx + where + dx_step, r1, part)
            store_part(fmt, dx + where, r0, part)
            column += width
            where += step
            at += unit
        done = 2 if two else 1
        row += done
        dy += done * dy_step
        x += done * x_step
        dx += done * dx_step


@jit.inner
def block_gradients(fmt, flat, params, addresses, workspace, index):
    """The gradients of a few blocks of rows."""
    columns = params[slots.COLUMNS]
    blocks = params[slots.BLOCKS]
    # Backwards: what was summed last may still be in the cache.
    last = blocks * params[slots.SAMPLES] - index * params[slots.PER_TASK]
    streaming = params[slots.STREAM_DX] != 0
    for block in range(max(last - params[slots.PER_TASK], 0), last):
        sample = block // blocks
        row = (block - sample * blocks) * params[slots.BLOCK]
        end = min(row + params[slots.BLOCK], params[slots.ROWS])
        factors = workspace + params[slots.AT_COEFFICIENTS] + sample * 4 * columns * size_of(flat)
        while row < end:
            rows = min(end - row, params[slots.RUN] - row % params[slots.RUN])
            dx = row_at(params, addresses, workspace, slots.DX, sample, row)
            step = params[slots.DX + slots.BY_INNER]
            write_rows(
                fmt,
                flat,
                row_at(params, addresses, workspace, slots.DY, sample, row),
                row_at(params, addresses, workspace, slots.X, sample, row),
                dx,
                params[slots.DY + slots.BY_INNER],
                params[slots.X + slots.BY_INNER],
                step,
                rows,
                columns,
                factors,
                params[slots.CORRECTION] != slots.NO_CORRECTION,
                streaming and (dx | step) & 63 == 0,
            )
            row += rows
    if streaming:
        fence()
    return 0


@jit.inner
def joined(flat, parts, blocks, stride, part):
    """Up to a vector of columns added over blocks, in float64."""
    sums = widen(zero(flat))
    for block in range(blocks):
        sums = sums + widen(load_part(flat, parts + block * stride, part))
    return sums


@jit.inner
def join_columns(flat, params, workspace, sample, first, last):
    """Two rows of float64 sums over a sample's blocks, for some columns."""
    columns = params[slots.COLUMNS]
    blocks = params[slots.BLOCKS]
    stride = 2 * columns * size_of(flat)
    parts = workspace + params[slots.AT_PARTS] + sample * blocks * stride
    sums = workspace + params[slots.AT_SUMS] + sample * 2 * columns * 8
    column = first
    while column < last:
        part = min(lanes(flat), last - column)
        here = parts + column * size_of(flat)
        store_wide(sums + column * 8, joined(flat, here, blocks, stride, part), part)
        here += columns * size_of(flat)
        store_wide(sums + (columns + column) * 8, joined(flat, here, blocks, stride, part), part)
        column += lanes(flat)


@jit.inner
def channel_factors(flat, params, addresses, workspace, first, last):
    """Batch norm: results and factors of some channels from their sums."""
    columns = params[slots.COLUMNS]
    sums = workspace + params[slots.AT_SUMS]
    factors = workspace + params[slots.AT_COEFFICIENTS]
    span = columns * size_of(flat)
    elements = count(params, workspace)
    own = params[slots.SUM_DY] != 0
    for column in range(first, last):
        rstd = inverse_deviation(params, addresses, workspace, column)
        sum_dy = 0.0
        sum_xmu = 0.0
        if own:
            sum_dy = read(F64, sums + column * 8)
            sum_xmu = read(F64, sums + (columns + column) * 8)
            put(params, addresses, workspace, slots.SUM_DY_VECTOR, column, sum_dy)
            put(params, addresses, workspace, slots.SUM_XMU_VECTOR, column, sum_xmu)
            put(params, addresses, workspace, slots.DGAMMA, column, sum_xmu * rstd)
            put(params, addresses, workspace, slots.DBETA, column, sum_dy)
        if params[slots.WRITE_DX]:
            if params[slots.CORRECTION] == slots.GIVEN_CORRECTION:
                sum_dy = entry(params, addresses, workspace, slots.SUM_DY_VECTOR, column, 0.0)
                sum_xmu = entry(params, addresses, workspace, slots.SUM_XMU_VECTOR, column, 0.0)
            gamma = entry(params, addresses, workspace, slots.GAMMA, column, 1.0)
            b, c = slope_and_offset(params, False, rstd, gamma, elements, sum_dy, sum_xmu)
            at = factors + column * size_of(flat)
            write(flat, at + span, rstd * gamma)
            write(flat, at + 2 * span, b)
            write(flat, at + 3 * span, c)


@jit.inner
def group_factors(flat, params, addresses, workspace, sample, first, last):
    """Group norm: factors of whole groups from the sums of their columns."""
    columns = params[slots.COLUMNS]
    channels = params[slots.CHANNELS]
    sums = workspace + params[slots.AT_SUMS] + sample * 2 * columns * 8
    span = columns * size_of(flat)
    factors = workspace + params[slots.AT_COEFFICIENTS] + sample * 4 * span
    elements = count(params, workspace)
    for group in range(first // channels, last // channels):
        statistic = sample * params[slots.GROUPS] + group
        rstd = inverse_deviation(params, addresses, workspace, statistic)
        sum_dy = 0.0
        sum_xmu = 0.0
        for column in range(group * channels, (group + 1) * channels):
            one = read(F64, sums + column * 8)
            other = read(F64, sums + (columns + column) * 8)
            gamma = entry(params, addresses, workspace, slots.GAMMA, column, 1.0)
            sum_dy += gamma * one
            sum_xmu += gamma * other
            write(F64, sums + (columns + column) * 8, other * rstd)
        if not params[slots.WRITE_DX]:
            continue
        b, c = slope_and_offset(params, True, rstd, 1.0, elements, sum_dy, sum_xmu)
        for column in range(group * channels, (group + 1) * channels):
            gamma = entry(params, addresses, workspace, slots.GAMMA, column, 1.0)
            at = factors + column * size_of(flat)
            write(flat, at + span, rstd * gamma)
            write(flat, at + 2 * span, b)
            write(flat, at + 3 * span, c)


def spread_means(flat):
    """The task that gives every column of a sample its mean."""

    def spread_means_task(params, addresses, workspace, argument, sample):
        columns = params[slots.COLUMNS]
        channels = params[slots.CHANNELS]
        means = workspace + params[slots.AT_COEFFICIENTS] + sample * 4 * columns * size_of(flat)
        by_row = params[slots.BY_ROW] != 0
        for column in range(columns):
            index = sample * params[slots.GROUPS] + column // channels if by_row else column
            mean = entry(params, addresses, workspace, slots.MEAN, index, 0.0)
            write(flat, means + column * size_of(flat), mean)
        return 0

    return spread_means_task


def blocks_in(fmt, flat):
    """The task that sums blocks of rows."""

    def blocks_in_task(params, addresses, workspace, argument, index):
        return block_sums(fmt, flat, params, addresses, workspace, index)

    return blocks_in_task


def blocks_out(fmt, flat):
    """The task that writes blocks of rows."""

    def blocks_out_task(params, addresses, workspace, argument, index):
        return block_gradients(fmt, flat, params, addresses, workspace, index)

    return blocks_out_task


def join_blocks(flat):
    """The task that joins the blocks of some columns of a sample and makes their factors."""

    def join_blocks_task(params, addresses, workspace, argument, index):
        sample = index // params[slots.CHUNKS]
        first = (index - sample * params[slots.CHUNKS]) * params[slots.CHUNK]
        last = min(first + params[slots.CHUNK], params[slots.COLUMNS])
        if params[slots.SUM_DY]:
            join_columns(flat, params, workspace, sample, first, last)
        if params[slots.BY_ROW]:
            group_factors(flat, params, addresses, workspace, sample, first, last)
        else:
            channel_factors(flat, params, addresses, workspace, first, last)
        return 0

    return join_blocks_task


def join_samples():
    """The task that adds group norm's parameter gradients over samples."""

    def join_samples_task(params, addresses, workspace, argument, index):
        columns = params[slots.COLUMNS]
        first = index * params[slots.CHUNK]
        sums = workspace + params[slots.AT_SUMS]
        for column in range(first, min(first + params[slots.CHUNK], columns)):
            dgamma = 0.0
            dbeta = 0.0
            for sample in range(params[slots.OUTER]):
                at = sums + (sample * 2 * columns + column) * 8
                dbeta += read(F64, at)
                dgamma += read(F64, at + columns * 8)
            put(params, addresses, workspace, slots.DGAMMA, column, dgamma)
            put(params, addresses, workspace, slots.DBETA, column, dbeta)
        return 0

    return join_samples_task
