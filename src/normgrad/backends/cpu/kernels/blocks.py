"""Channels last: rows of contiguous channels, a set of factors for each column.

Batch norm is one sample of many rows, group norm a sample of rows each. A block of rows is summed
into one float32 row, blocks are joined in float64, and a second pass over the rows writes.
"""

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.kernels.columns import add_rows, fill, write_rows
from normgrad.backends.cpu.kernels.entries import (
    channel_results,
    entries,
    inverse_deviations,
    put_entries,
)
from normgrad.backends.cpu.kernels.scalar import (
    count,
    entry,
    inverse_deviation,
    place,
    read_any,
    slope_and_offset,
)
from normgrad.backends.cpu.kernels.segments import completed, plus
from normgrad.backends.cpu.vectors import (
    fence,
    lanes,
    load,
    load_part,
    plain,
    read,
    size_of,
    splat,
    store_part,
    store_rounded,
    widen,
    write,
    zero,
)
from normgrad.backends.cpu.vectors.formats import F64

# Blocks, or samples, that are added one by one.
_FEW = 64


@jit.inner
def row_at(params, addresses, workspace, role, sample, row):
    """The address of a row."""
    run = params[slots.RUN]
    outer = row // run
    start = place(params, addresses, workspace, role)
    start += sample * params[role + slots.BY_SAMPLE] + outer * params[role + slots.BY_OUTER]
    return start + (row - outer * run) * params[role + slots.BY_INNER]


@jit.inner
def block_sums(fmt, flat, params, addresses, workspace, first, last):
    """The sums of a few blocks of rows."""
    columns = params[slots.WIDTH]
    blocks = params[slots.BLOCKS]
    for block in range(first, last):
        sample = block // blocks
        row = (block - sample * blocks) * params[slots.BLOCK]
        end = min(row + params[slots.BLOCK], params[slots.ROWS])
        sums = workspace + params[slots.AT_PARTS] + block * 2 * columns * size_of(flat)
        mean = workspace + params[slots.AT_COEFFICIENTS] + sample * 4 * columns * size_of(flat)
        fill(flat, sums, 0.0, 2 * columns)
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
                params[slots.SIDE_BY_SIDE] != 0,
                params[slots.FAR] != 0,
            )
            row += rows


@jit.inner
def block_gradients(fmt, flat, params, addresses, workspace, first, last, ask_dy, ask_x):
    """The gradients of a few blocks of rows."""
    columns = params[slots.WIDTH]
    blocks = params[slots.BLOCKS]
    streaming = params[slots.STREAM_DX] != 0
    for block in range(first, last):
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
                params[slots.SIDE_BY_SIDE] > 1,
                ask_dy,
                ask_x,
            )
            row += rows
    if streaming:
        fence()


@jit.inner
def paired(flat, parts, blocks, stride, columns):
    """Add blocks of float64 in pairs until few are left: how many, from the first on.

    One by one a million rows of 0.1 were 1257 roundings off. Float32 sums are added in float64.
    """
    width = lanes(flat)
    while size_of(flat) == 8 and blocks > _FEW:
        half = (blocks + 1) // 2
        for block in range(blocks - half):
            at = parts + block * stride
            for column in range(0, columns, width):
                part = min(width, columns - column)
                one = load_part(flat, at, part) + load_part(flat, at + half * stride, part)
                store_part(flat, at, one, part)
                at += width * size_of(flat)
        blocks = half
    return blocks


@jit.inner
def joined(flat, parts, blocks, stride, part):
    """Up to a vector of columns added over blocks, in float64."""
    sums = widen(zero(flat))
    for block in range(blocks):
        sums = sums + widen(load_part(flat, parts + block * stride, part))
    return sums


@jit.inner
def four_joined(flat, parts, blocks, stride):
    """Four vectors of columns added over blocks, in float64: a line alone comes late."""
    unit = lanes(flat) * size_of(flat)
    s0 = widen(zero(flat))
    s1 = widen(zero(flat))
    s2 = widen(zero(flat))
    s3 = widen(zero(flat))
    for _ in range(blocks):
        s0 = s0 + widen(load(flat, parts))
        s1 = s1 + widen(load(flat, parts + unit))
        s2 = s2 + widen(load(flat, parts + 2 * unit))
        s3 = s3 + widen(load(flat, parts + 3 * unit))
        parts += stride
    return s0, s1, s2, s3


@jit.inner
def join_columns(flat, params, workspace, sample, first, last):
    """Two rows of float64 sums over a sample's blocks, for some columns."""
    columns = params[slots.WIDTH]
    blocks = params[slots.BLOCKS]
    stride = 2 * columns * size_of(flat)
    parts = workspace + params[slots.AT_PARTS] + sample * blocks * stride
    sums = workspace + params[slots.AT_SUMS] + sample * 2 * columns * 8
    width = lanes(flat)
    for _ in range(2):
        left = paired(flat, parts + first * size_of(flat), blocks, stride, last - first)
        column = first
        while last - column >= 4 * width:
            here = parts + column * size_of(flat)
            s0, s1, s2, s3 = four_joined(flat, here, left, stride)
            store_rounded(F64, sums + column * 8, s0, width)
            store_rounded(F64, sums + (column + width) * 8, s1, width)
            store_rounded(F64, sums + (column + 2 * width) * 8, s2, width)
            store_rounded(F64, sums + (column + 3 * width) * 8, s3, width)
            column += 4 * width
        while column < last:
            part = min(width, last - column)
            here = parts + column * size_of(flat)
            store_rounded(F64, sums + column * 8, joined(flat, here, left, stride, part), part)
            column += width
        # The second row of sums.
        parts += columns * size_of(flat)
        sums += columns * 8


@jit.inner
def channel_factors(flat, params, addresses, workspace, first, last):
    """Batch norm: results and factors of some channels from their sums, eight at a time."""
    span = params[slots.WIDTH] * size_of(flat)
    elements, one = splat(F64, count(params, workspace)), plain(1)
    for column in range(first, last, lanes(F64)):
        part = min(lanes(F64), last - column)
        rstd = inverse_deviations(params, addresses, workspace, column, one, part)
        sum_dy, sum_xmu = zero(F64), zero(F64)
        if params[slots.SUM_DY]:
            at = workspace + params[slots.AT_SUMS] + column * 8
            for _ in range(params[slots.FOLDED]):
                sum_dy = sum_dy + load_part(F64, at, part)
                sum_xmu = sum_xmu + load_part(F64, at + params[slots.WIDTH] * 8, part)
                at += params[slots.COLUMNS] * 8
            channel_results(params, addresses, workspace, column, part, rstd, sum_dy, sum_xmu)
        elif params[slots.CORRECTION] == slots.GIVEN_CORRECTION:
            sum_dy = entries(
                params, addresses, workspace, slots.SUM_DY_VECTOR, column, one, part, 0.0
            )
            sum_xmu = entries(
                params, addresses, workspace, slots.SUM_XMU_VECTOR, column, one, part, 0.0
            )
        if params[slots.WRITE_DX]:
            a = rstd * entries(params, addresses, workspace, slots.GAMMA, column, one, part, 1.0)
            b, c = zero(F64), zero(F64)
            if params[slots.CORRECTION] != slots.NO_CORRECTION:
                b, c = slope_and_offset(a, rstd, elements, sum_dy, sum_xmu)
            at = workspace + params[slots.AT_COEFFICIENTS] + column * size_of(flat)
            for _ in range(params[slots.FOLDED]):
                store_rounded(flat, at + span, a, part)
                store_rounded(flat, at + 2 * span, b, part)
                store_rounded(flat, at + 3 * span, c, part)
                at += params[slots.COLUMNS] * size_of(flat)


@jit.inner
def group_factors(flat, params, addresses, workspace, sample, first, last):
    """Group norm: factors of whole groups from the sums of their columns."""
    columns = params[slots.COLUMNS]
    channels = params[slots.CHANNELS]
    sums = workspace + params[slots.AT_SUMS] + sample * 2 * columns * 8
    span = columns * size_of(flat)
    factors = workspace + params[slots.AT_COEFFICIENTS] + sample * 4 * span
    elements = count(params, workspace)
    # Looked up once: what is written below might be a parameter block to the compiler.
    code = params[slots.GAMMA + slots.CODE]
    gammas = place(params, addresses, workspace, slots.GAMMA) if code >= 0 else workspace
    step = params[slots.GAMMA + slots.STRIDE]
    writing = params[slots.WRITE_DX] != 0
    for group in range(first // channels, last // channels):
        statistic = sample * params[slots.GROUPS] + group
        rstd = inverse_deviation(params, addresses, workspace, statistic)
        sum_dy, rest_dy = 0.0, 0.0
        sum_xmu, rest_xmu = 0.0, 0.0
        for column in range(group * channels, (group + 1) * channels):
            gamma = read_any(code, gammas + column * step) if code >= 0 else 1.0
            other = read(F64, sums + (columns + column) * 8)
            one = gamma * read(F64, sums + column * 8)
            sum_dy, rest_dy = plus(flat, sum_dy, rest_dy, one)
            sum_xmu, rest_xmu = plus(flat, sum_xmu, rest_xmu, gamma * other)
            write(F64, sums + (columns + column) * 8, other * rstd)
            if writing:
                write(flat, factors + span + column * size_of(flat), rstd * gamma)
        if writing:
            sum_dy, sum_xmu = completed(sum_dy, rest_dy), completed(sum_xmu, rest_xmu)
            b, c = slope_and_offset(rstd, rstd, elements, sum_dy, sum_xmu)
            at = factors + 2 * span + group * channels * size_of(flat)
            for _ in range(channels):
                write(flat, at, b)
                write(flat, at + span, c)
                at += size_of(flat)


@jit.inner
def spread(flat, params, addresses, workspace, sample):
    """Give every column of a sample its mean."""
    columns = params[slots.COLUMNS]
    channels = params[slots.CHANNELS]
    target = workspace + params[slots.AT_COEFFICIENTS] + sample * 4 * columns * size_of(flat)
    if params[slots.BY_ROW]:
        for group in range(params[slots.GROUPS]):
            statistic = sample * params[slots.GROUPS] + group
            mean = entry(params, addresses, workspace, slots.MEAN, statistic, 0.0)
            for _ in range(channels):
                write(flat, target, mean)
                target += size_of(flat)
        return
    one = plain(1)
    for column in range(0, columns, lanes(F64)):
        part = min(lanes(F64), columns - column)
        mean = entries(params, addresses, workspace, slots.MEAN, column, one, part, 0.0)
        for folded in range(params[slots.FOLDED]):
            there = target + (folded * columns + column) * size_of(flat)
            store_rounded(flat, there, mean, part)


def spread_means(flat):
    """The task that gives every column of a sample its mean."""

    def spread_means_task(params, addresses, workspace, argument, sample, after):
        spread(flat, params, addresses, workspace, sample)
        return 0

    return spread_means_task


def blocks_in(fmt, flat):
    """The task that sums blocks of rows."""

    def blocks_in_task(params, addresses, workspace, argument, index, after):
        first = index * params[slots.PER_TASK]
        last = min(first + params[slots.PER_TASK], params[slots.BLOCKS] * params[slots.SAMPLES])
        block_sums(fmt, flat, params, addresses, workspace, first, last)
        return 0

    return blocks_in_task


def blocks_out(fmt, flat):
    """The task that writes blocks of rows."""

    def blocks_out_task(params, addresses, workspace, argument, index, after):
        first = index * params[slots.PER_TASK]
        last = min(first + params[slots.PER_TASK], params[slots.BLOCKS] * params[slots.SAMPLES])
        if params[slots.BACKWARDS]:
            last = params[slots.BLOCKS] * params[slots.SAMPLES] - index * params[slots.PER_TASK]
            first = max(last - params[slots.PER_TASK], 0)
        block_gradients(fmt, flat, params, addresses, workspace, first, last, plain(0), plain(0))
        return 0

    return blocks_out_task


def samples(fmt, flat):
    """The task that takes a sample of group norm from sums to gradients, while it is cached."""

    def samples_task(params, addresses, workspace, argument, sample, after):
        columns = params[slots.COLUMNS]
        blocks = params[slots.BLOCKS]
        block = sample * blocks
        spread(flat, params, addresses, workspace, sample)
        block_sums(fmt, flat, params, addresses, workspace, block, block + blocks)
        join_columns(flat, params, workspace, sample, plain(0), columns)
        group_factors(flat, params, addresses, workspace, sample, plain(0), columns)
        ask_dy = 0
        ask_x = 0
        if params[slots.ASKS] and after > sample:
            ask_dy = (after - sample) * params[slots.DY + slots.BY_SAMPLE]
            ask_x = (after - sample) * params[slots.X + slots.BY_SAMPLE]
        for back in range(block + blocks - 1, block - 1, -1):
            block_gradients(fmt, flat, params, addresses, workspace, back, back + 1, ask_dy, ask_x)
        return 0

    return samples_task


def join_blocks(flat):
    """The task that joins the blocks of some columns of a sample and makes their factors."""

    def join_blocks_task(params, addresses, workspace, argument, index, after):
        sample = index // params[slots.CHUNKS]
        first = (index - sample * params[slots.CHUNKS]) * params[slots.CHUNK]
        last = min(first + params[slots.CHUNK], params[slots.COLUMNS])
        if params[slots.SUM_DY]:
            # Folded rows are all in one chunk.
            end = params[slots.WIDTH] if params[slots.FOLDED] > 1 else last
            join_columns(flat, params, workspace, sample, first, end)
        if params[slots.BY_ROW]:
            group_factors(flat, params, addresses, workspace, sample, first, last)
        else:
            channel_factors(flat, params, addresses, workspace, first, last)
        return 0

    return join_blocks_task


def join_samples():
    """The task that adds group norm's parameter gradients over samples."""

    def join_samples_task(params, addresses, workspace, argument, index, after):
        columns = params[slots.COLUMNS]
        samples = params[slots.OUTER]
        first = index * params[slots.CHUNK]
        last = min(first + params[slots.CHUNK], columns)
        sums = workspace + params[slots.AT_SUMS]
        for row in range(2):
            at = sums + (row * columns + first) * 8
            left = paired(F64, at, samples, 2 * columns * 8, last - first)
        for column in range(first, last, lanes(F64)):
            part = min(lanes(F64), last - column)
            dgamma, dbeta = zero(F64), zero(F64)
            at = sums + column * 8
            for _ in range(left):
                dbeta = dbeta + load_part(F64, at, part)
                dgamma = dgamma + load_part(F64, at + columns * 8, part)
                at += 2 * columns * 8
            put_entries(params, addresses, workspace, slots.DGAMMA, column, dgamma, part)
            put_entries(params, addresses, workspace, slots.DBETA, column, dbeta, part)
        return 0

    return join_samples_task
