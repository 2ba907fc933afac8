"""Channels last: rows of contiguous channels, a set of factors for each column.

Batch norm is one sample of many rows, group norm a sample of rows each. A block of rows is summed
into one float32 row, blocks are joined in float64, and a second pass over the rows writes.
"""

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.schedules.block_statistics import (
    block_moments,
    channel_statistics,
    group_statistics,
    row_at,
)
from normgrad.backends.cpu.schedules.column_joins import join_columns, paired
from normgrad.backends.cpu.schedules.columns import add_rows, fill, write_rows
from normgrad.backends.cpu.schedules.entries import (
    channel_results,
    entries,
    inverse_deviations,
    put_column,
)
from normgrad.backends.cpu.schedules.scalar import (
    count,
    entry,
    inverse_deviation,
    place,
    read_any,
    share_of_dy,
)
from normgrad.backends.cpu.schedules.segments import two_sum_result, two_sum_step
from normgrad.backends.cpu.schedules.slabs import known
from normgrad.backends.cpu.vectors import (
    fence,
    float_of,
    hidden_constant,
    lanes,
    load_part,
    read,
    size_of,
    splat,
    store_rounded,
    write,
    zero,
)
from normgrad.backends.cpu.vectors.formats import F64


@jit.inner
def block_sums(form, fmt, flat, params, addresses, workspace, first, last):
    """The sums of a few blocks of rows."""
    columns = params[slots.WIDTH]
    blocks = params[slots.BLOCKS]
    for block in range(first, last):
        sample = block // blocks
        row = (block - sample * blocks) * params[slots.BLOCK]
        end = min(row + params[slots.BLOCK], params[slots.ROWS])
        sums = workspace + params[slots.AT_PARTS] + block * 2 * columns * size_of(flat)
        factors = workspace + params[slots.AT_COEFFICIENTS] + sample * 5 * columns * size_of(flat)
        fill(flat, sums, 0.0, 2 * columns)
        while row < end:
            rows = min(end - row, params[slots.EVEN_ROWS] - row % params[slots.EVEN_ROWS])
            add_rows(
                form,
                fmt,
                flat,
                row_at(params, addresses, workspace, slots.DY, sample, row),
                row_at(params, addresses, workspace, slots.X, sample, row),
                params[slots.DY + slots.BY_INNER],
                params[slots.X + slots.BY_INNER],
                rows,
                columns,
                factors,
                sums,
                params[slots.SUM_XMU] != 0,
                params[slots.FOUR_ROWS] != 0,
                params[slots.PREFETCH_AHEAD] != 0,
            )
            row += rows


@jit.inner
def write_blocks(form, fmt, flat, params, addresses, workspace, first, last, ask_dy, ask_x):
    """What is written of a few blocks of rows."""
    columns = params[slots.WIDTH]
    blocks = params[slots.BLOCKS]
    streaming = params[slots.STREAM_DX] != 0
    for block in range(first, last):
        sample = block // blocks
        row = (block - sample * blocks) * params[slots.BLOCK]
        end = min(row + params[slots.BLOCK], params[slots.ROWS])
        factors = workspace + params[slots.AT_COEFFICIENTS] + sample * 5 * columns * size_of(flat)
        while row < end:
            rows = min(end - row, params[slots.EVEN_ROWS] - row % params[slots.EVEN_ROWS])
            dx = row_at(params, addresses, workspace, slots.DX, sample, row)
            step = params[slots.DX + slots.BY_INNER]
            write_rows(
                form,
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
                streaming and (dx | step) & 63 == 0,
                params[slots.FOUR_ROWS] > 1,
                ask_dy,
                ask_x,
            )
            row += rows
    if streaming:
        fence()


@jit.inner
def channel_factors(form, flat, params, addresses, workspace, first, last):
    """Batch norm: results and factors of some channels from their sums, eight at a time."""
    span = params[slots.WIDTH] * size_of(flat)
    elements, one = splat(F64, count(params, workspace)), hidden_constant(1)
    share = splat(F64, share_of_dy(params))
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
            dy_factor = rstd * entries(
                params, addresses, workspace, slots.GAMMA, column, one, part, 1.0
            )
            x_factor, constant = zero(F64), zero(F64)
            if params[slots.CORRECTION] != slots.NO_CORRECTION:
                x_factor, constant = form.coefficients(
                    dy_factor, rstd, elements, sum_dy * share, sum_xmu
                )
            at = workspace + params[slots.AT_COEFFICIENTS] + column * size_of(flat)
            for _ in range(params[slots.FOLDED]):
                store_rounded(flat, at + span, dy_factor * share, part)
                if form.reads_beta():
                    beta = entries(params, addresses, workspace, slots.BETA, column, one, part, 0.0)
                    store_rounded(flat, at + 2 * span, beta, part)
                store_rounded(flat, at + 3 * span, x_factor, part)
                store_rounded(flat, at + 4 * span, constant, part)
                at += params[slots.COLUMNS] * size_of(flat)


@jit.inner
def group_factors(form, flat, params, addresses, workspace, sample, first, last):
    """Group norm: factors of whole groups from the sums of their columns."""
    columns = params[slots.COLUMNS]
    channels = params[slots.CHANNELS]
    sums = workspace + params[slots.AT_SUMS] + sample * 2 * columns * 8
    span = columns * size_of(flat)
    factors = workspace + params[slots.AT_COEFFICIENTS] + sample * 5 * span
    elements = count(params, workspace)
    share = share_of_dy(params)
    # Looked up once: what is written below might be a parameter block to the compiler.
    code = params[slots.GAMMA + slots.CODE]
    gammas = place(params, addresses, workspace, slots.GAMMA) if code >= 0 else workspace
    step = params[slots.GAMMA + slots.STRIDE]
    gammas += sample * params[slots.OWN_GROUPS] * channels * step
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
            sum_dy, rest_dy = two_sum_step(flat, sum_dy, rest_dy, one)
            sum_xmu, rest_xmu = two_sum_step(flat, sum_xmu, rest_xmu, gamma * other)
            write(F64, sums + (columns + column) * 8, other * rstd)
            if writing:
                write(flat, factors + span + column * size_of(flat), rstd * gamma * share)
        if writing:
            sum_dy, sum_xmu = two_sum_result(sum_dy, rest_dy), two_sum_result(sum_xmu, rest_xmu)
            x_factor, constant = form.coefficients(rstd, rstd, elements, sum_dy * share, sum_xmu)
            at = factors + 3 * span + group * channels * size_of(flat)
            for _ in range(channels):
                write(flat, at, x_factor)
                write(flat, at + span, constant)
                at += size_of(flat)


@jit.inner
def spread(form, flat, params, addresses, workspace, sample):
    """Give every column of a sample its mean, and what else sums know of its factors."""
    columns = params[slots.COLUMNS]
    channels = params[slots.CHANNELS]
    span = params[slots.WIDTH] * size_of(flat)
    target = workspace + params[slots.AT_COEFFICIENTS] + sample * 5 * span
    if params[slots.BY_ROW]:
        before = sample * params[slots.OWN_GROUPS] * channels  # parameters of other samples
        for group in range(params[slots.GROUPS]):
            statistic = sample * params[slots.GROUPS] + group
            mean = entry(params, addresses, workspace, slots.MEAN, statistic, 0.0)
            rstd = inverse_deviation(params, addresses, workspace, statistic)
            for column in range(group * channels, (group + 1) * channels):
                write(flat, target, mean)
                if form.fused():
                    v = known(form, params, addresses, workspace, mean, rstd, before + column)
                    write(flat, target + span, v[1])
                    write(flat, target + 2 * span, v[2])
                target += size_of(flat)
        return
    one = hidden_constant(1)
    for column in range(0, columns, lanes(F64)):
        part = min(lanes(F64), columns - column)
        mean = entries(params, addresses, workspace, slots.MEAN, column, one, part, 0.0)
        for folded in range(params[slots.FOLDED]):
            there = target + (folded * columns + column) * size_of(flat)
            store_rounded(flat, there, mean, part)
            if form.fused():
                dy_factor = inverse_deviations(params, addresses, workspace, column, one, part)
                dy_factor = dy_factor * entries(
                    params, addresses, workspace, slots.GAMMA, column, one, part, 1.0
                )
                store_rounded(flat, there + span, dy_factor, part)
                beta = entries(params, addresses, workspace, slots.BETA, column, one, part, 0.0)
                store_rounded(flat, there + 2 * span, beta, part)


def spread_known(form, flat):
    """The task that gives every column of a sample what its sums know."""

    def spread_known_task(params, addresses, workspace, argument, sample, after):
        spread(form, flat, params, addresses, workspace, sample)
        return 0

    return spread_known_task


def sum_row_blocks(formula, fmt, flat):
    """The task that sums blocks of rows."""
    own = formula.own_statistics()  # a constant: Numba compiles one of two branches

    def sum_row_blocks_task(params, addresses, workspace, argument, index, after):
        form = formula.with_slope(float_of(params[slots.NEGATIVE_SLOPE]))
        first = index * params[slots.PER_TASK]
        last = min(first + params[slots.PER_TASK], params[slots.BLOCKS] * params[slots.SAMPLES])
        if own:
            block_moments(form, fmt, flat, params, addresses, workspace, first, last)
        else:
            block_sums(form, fmt, flat, params, addresses, workspace, first, last)
        return 0

    return sum_row_blocks_task


def write_row_blocks(formula, fmt, flat):
    """The task that writes blocks of rows."""

    def write_row_blocks_task(params, addresses, workspace, argument, index, after):
        form = formula.with_slope(float_of(params[slots.NEGATIVE_SLOPE]))
        first = index * params[slots.PER_TASK]
        last = min(first + params[slots.PER_TASK], params[slots.BLOCKS] * params[slots.SAMPLES])
        if params[slots.BACKWARDS]:
            last = params[slots.BLOCKS] * params[slots.SAMPLES] - index * params[slots.PER_TASK]
            first = max(last - params[slots.PER_TASK], 0)
        write_blocks(
            form,
            fmt,
            flat,
            params,
            addresses,
            workspace,
            first,
            last,
            hidden_constant(0),
            hidden_constant(0),
        )
        return 0

    return write_row_blocks_task


def whole_samples(formula, fmt, flat):
    """The task that takes a sample of group norm from sums to what is written, while cached."""
    own = formula.own_statistics()

    def whole_samples_task(params, addresses, workspace, argument, sample, after):
        form = formula.with_slope(float_of(params[slots.NEGATIVE_SLOPE]))
        columns = params[slots.COLUMNS]
        blocks = params[slots.BLOCKS]
        block = sample * blocks
        if own:
            block_moments(form, fmt, flat, params, addresses, workspace, block, block + blocks)
            group_statistics(
                form, flat, params, addresses, workspace, sample, hidden_constant(0), columns
            )
        else:
            spread(form, flat, params, addresses, workspace, sample)
            block_sums(form, fmt, flat, params, addresses, workspace, block, block + blocks)
            join_columns(flat, params, workspace, sample, hidden_constant(0), columns)
            group_factors(
                form, flat, params, addresses, workspace, sample, hidden_constant(0), columns
            )
        ask_dy = 0
        ask_x = 0
        if params[slots.PREFETCH_NEXT_TASK] and after > sample:
            ask_dy = (after - sample) * params[slots.DY + slots.BY_SAMPLE]
            ask_x = (after - sample) * params[slots.X + slots.BY_SAMPLE]
        for back in range(block + blocks - 1, block - 1, -1):
            write_blocks(
                form, fmt, flat, params, addresses, workspace, back, back + 1, ask_dy, ask_x
            )
        return 0

    return whole_samples_task


def join_blocks(form, flat, by_row):
    """The task that joins the blocks of some columns of a sample and makes their factors."""
    own = form.own_statistics()

    def join_blocks_task(params, addresses, workspace, argument, index, after):
        sample = index // params[slots.JOIN_TASKS]
        first = (index - sample * params[slots.JOIN_TASKS]) * params[slots.JOIN_COLUMNS]
        last = min(first + params[slots.JOIN_COLUMNS], params[slots.COLUMNS])
        if own:
            if by_row:
                group_statistics(form, flat, params, addresses, workspace, sample, first, last)
            else:
                channel_statistics(form, flat, params, addresses, workspace, first, last)
            return 0
        if params[slots.SUM_DY]:
            # Folded rows are all in one chunk.
            end = params[slots.WIDTH] if params[slots.FOLDED] > 1 else last
            join_columns(flat, params, workspace, sample, first, end)
        if by_row:
            group_factors(form, flat, params, addresses, workspace, sample, first, last)
        else:
            channel_factors(form, flat, params, addresses, workspace, first, last)
        return 0

    return join_blocks_task


def join_samples():
    """The task that adds group norm's parameter gradients over samples."""

    def join_whole_samples_task(params, addresses, workspace, argument, index, after):
        columns = params[slots.COLUMNS]
        samples = params[slots.OUTER] // params[slots.SETS]
        chunks = -(-columns // params[slots.JOIN_COLUMNS])
        own = index // chunks  # which of them, where each has parameters of its own
        first = (index - own * chunks) * params[slots.JOIN_COLUMNS]
        last = min(first + params[slots.JOIN_COLUMNS], columns)
        sums = workspace + params[slots.AT_SUMS] + own * 2 * columns * 8
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
            to = own * columns + column
            put_column(params, addresses, workspace, slots.DGAMMA, to, dgamma, part)
            put_column(params, addresses, workspace, slots.DBETA, to, dbeta, part)
        return 0

    return join_whole_samples_task
