"""Rows of channels: where they are; statistics of blocks of them, columns, channels, groups."""

import numpy as np

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.schedules.columns import add_rows, fill
from normgrad.backends.cpu.schedules.entries import (
    entries,
    load_wide,
    own_statistics,
)
from normgrad.backends.cpu.schedules.scalar import (
    own_statistic,
    place,
)
from normgrad.backends.cpu.vectors import (
    hidden_constant,
    lanes,
    load_part,
    read,
    size_of,
    splat,
    store_part,
    store_rounded,
    traced,
    write,
    zero,
)
from normgrad.backends.cpu.vectors.formats import F64


@jit.inner
def row_at(params, addresses, workspace, role, sample, row):
    """The address of a row."""
    run = params[slots.EVEN_ROWS]
    outer = row // run
    start = place(params, addresses, workspace, role)
    start += sample * params[role + slots.BY_SAMPLE] + outer * params[role + slots.BY_OUTER]
    return start + (row - outer * run) * params[role + slots.BY_INNER]


@jit.inner
def block_moments(form, fmt, flat, params, addresses, workspace, first, last):
    """Sums of the distances in a few blocks of rows from the row that is kept behind them.

    That is a block's first row, and its mean if that was far away.
    """
    columns = params[slots.WIDTH]
    blocks = params[slots.BLOCKS]
    for block in range(first, last):
        sample = block // blocks
        row = (block - sample * blocks) * params[slots.BLOCK]
        end = min(row + params[slots.BLOCK], params[slots.ROWS])
        sums = workspace + params[slots.AT_PARTS] + block * 3 * columns * size_of(flat)
        start = sums + 2 * columns * size_of(flat)
        x = row_at(params, addresses, workspace, slots.X, sample, row)
        for column in range(0, columns, lanes(fmt)):
            part = min(lanes(fmt), columns - column)
            one = load_part(fmt, x + column * size_of(fmt), part)
            store_part(flat, start + column * size_of(flat), one, part)
        distances(form, fmt, flat, params, addresses, workspace, sample, row, end, start, sums)
        if block_lost(form, flat, sums, columns, np.float64(end - row)):
            distances(form, fmt, flat, params, addresses, workspace, sample, row, end, start, sums)


@jit.inner
def distances(form, fmt, flat, params, addresses, workspace, sample, row, end, start, sums):
    """Both sums of some rows' distances from a row."""
    columns = params[slots.WIDTH]
    fill(flat, sums, 0.0, 2 * columns)
    while row < end:
        rows = min(end - row, params[slots.EVEN_ROWS] - row % params[slots.EVEN_ROWS])
        x = row_at(params, addresses, workspace, slots.X, sample, row)
        step = params[slots.X + slots.BY_INNER]
        add_rows(
            form, fmt, flat, x, x, step, step, rows, columns, start, sums, hidden_constant(True),
            params[slots.FOUR_ROWS] != 0, params[slots.PREFETCH_AHEAD] != 0,
        )  # fmt: skip
        row += rows


@jit.inner
def block_lost(form, flat, sums, columns, rows):
    """Whether a column was summed from far away; its mean is where it is summed from then.

    Others are summed from where they were: what is in one column has no say in another's bits.
    """
    span = columns * size_of(flat)
    lost = False
    for column in range(0, columns, lanes(flat)):
        part = min(lanes(flat), columns - column)
        at = sums + column * size_of(flat)
        p, q = load_part(flat, at, part), load_part(flat, at + span, part)
        _, squares = form.moments(p, p, q, splat(flat, rows))
        if form.lost(q, squares):
            lost = True
            for there in range(at, at + part * size_of(flat), size_of(flat)):
                start, one, other = read_three(flat, there, span)
                mean, squares_there = form.moments(start, one, other, rows)
                if form.lost(other, squares_there):
                    write(flat, there + 2 * span, mean)
    return lost


@traced
def read_three(flat, at, span):
    """Where a column is summed from, and both sums."""
    return read(flat, at + 2 * span), read(flat, at), read(flat, at + span)


@jit.inner
def column_moments(form, flat, params, workspace, sample, column, part):
    """Means and squared distances of up to eight columns of a sample, over blocks."""
    span = params[slots.WIDTH] * size_of(flat)
    blocks = params[slots.BLOCKS]
    at = workspace + params[slots.AT_PARTS] + sample * blocks * 3 * span + column * size_of(flat)
    n, mean, squares = 0.0, zero(F64), zero(F64)
    for block in range(blocks):
        rows = min(params[slots.BLOCK], params[slots.ROWS] - block * params[slots.BLOCK])
        elements = np.float64(rows)
        there = at + block * 3 * span
        for _ in range(params[slots.FOLDED]):
            p, q = load_wide(flat, there, part), load_wide(flat, there + span, part)
            start = load_wide(flat, there + 2 * span, part)
            other, others = form.moments(start, p, q, splat(F64, elements))
            share = elements / (n + elements)
            mean, squares = form.merged(
                mean, squares, other, others, splat(F64, share), splat(F64, n * share)
            )
            n += elements
            there += params[slots.COLUMNS] * size_of(flat)
    return mean, squares


@jit.inner
def channel_statistics(form, flat, params, addresses, workspace, first, last):
    """Batch norm: statistics and factors of some channels, eight at a time."""
    span, one = params[slots.WIDTH] * size_of(flat), hidden_constant(1)
    for column in range(first, last, lanes(F64)):
        part = min(lanes(F64), last - column)
        mean, squares = column_moments(
            form, flat, params, workspace, hidden_constant(0), column, part
        )
        rstd = own_statistics(params, addresses, workspace, column, one, part, mean, squares)
        rstd = form.given(rstd)
        dy_factor = rstd * entries(
            params, addresses, workspace, slots.GAMMA, column, one, part, 1.0
        )
        beta = entries(params, addresses, workspace, slots.BETA, column, one, part, 0.0)
        at = workspace + params[slots.AT_COEFFICIENTS] + column * size_of(flat)
        for _ in range(params[slots.FOLDED]):
            store_rounded(flat, at, mean, part)
            store_rounded(flat, at + span, dy_factor, part)
            store_rounded(flat, at + 2 * span, beta, part)
            at += params[slots.COLUMNS] * size_of(flat)


@jit.inner
def group_statistics(form, flat, params, addresses, workspace, sample, first, last):
    """Group norm: statistics and factors of whole groups."""
    channels = params[slots.CHANNELS]
    span = params[slots.COLUMNS] * size_of(flat)
    sums = workspace + params[slots.AT_SUMS] + sample * 2 * params[slots.COLUMNS] * 8
    for column in range(first, last, lanes(F64)):
        part = min(lanes(F64), last - column)
        mean, squares = column_moments(form, flat, params, workspace, sample, column, part)
        store_rounded(F64, sums + column * 8, mean, part)
        store_rounded(F64, sums + (params[slots.COLUMNS] + column) * 8, squares, part)
    elements = np.float64(params[slots.ROWS])
    for group in range(first // channels, last // channels):
        # Chan's rule for parts of one size.
        first_mean = read(F64, sums + group * channels * 8)
        apart, squares = 0.0, 0.0
        for column in range(group * channels, (group + 1) * channels):
            apart += read(F64, sums + column * 8) - first_mean
        mean = first_mean + apart / channels
        for column in range(group * channels, (group + 1) * channels):
            apart = read(F64, sums + column * 8) - mean
            squares += read(F64, sums + (params[slots.COLUMNS] + column) * 8)
            squares += elements * (apart * apart)
        statistic = sample * params[slots.GROUPS] + group
        rstd = own_statistic(params, addresses, workspace, statistic, mean, squares)
        rstd = form.given(rstd)
        at = workspace + params[slots.AT_COEFFICIENTS] + sample * 5 * span
        at += group * channels * size_of(flat)
        end, one = (group + 1) * channels, hidden_constant(1)
        before = sample * params[slots.OWN_GROUPS] * channels  # parameters of other samples
        for column in range(group * channels, end, lanes(F64)):
            part = min(lanes(F64), end - column)
            own = before + column
            gamma = entries(params, addresses, workspace, slots.GAMMA, own, one, part, 1.0)
            beta = entries(params, addresses, workspace, slots.BETA, own, one, part, 0.0)
            store_rounded(flat, at, splat(F64, mean), part)
            store_rounded(flat, at + span, splat(F64, rstd) * gamma, part)
            store_rounded(flat, at + 2 * span, beta, part)
            at += part * size_of(flat)
