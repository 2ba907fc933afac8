"""The first of two passes: partial sums of dy and dy * (x - mean) for each unit.

A unit is what one parameter's sum is made of: a channel (batch norm) or a channel of one image
(group norm). K programs share a unit; partial k of unit u lies at u * K + k, first all sums of dy,
then all of dy * (x - mean).
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.activations import through
from normgrad.backends.cuda.pieces.common import (
    await_step_before,
    channel_of,
    load_or,
    load_rstd,
    quotient,
    store_as,
    sum_pairs,
    widen,
)
from normgrad.backends.cuda.pieces.joins import join_parameters, join_rows
from normgrad.backends.cuda.pieces.moments import (
    add_elements,
    merged,
    parts_of,
    store_part,
    store_statistics,
)
from normgrad.backends.cuda.pieces.windows import is_inside, vectors_inside, window


@triton.jit
def plane_sums(
    dy,
    x,  # None where sums of dy are all that is wanted
    mean,
    rstd,  # what an activation needs: None without one
    gamma,
    beta,
    partials,
    units,
    splits,
    planes,  # planes of a unit
    pieces,
    run,  # elements of a plane
    channels,
    group_size,  # channels that share a statistic (group norm)
    dy_plane,
    dy_outer,
    dy_channel,
    x_plane,
    x_outer,
    x_channel,
    magic,  # to divide by ``pieces``, or None
    eps,
    VARIANCE: tl.constexpr,
    EACH: tl.constexpr,  # each sample has weights of its own
    GROUP: tl.constexpr,
    WIDE: tl.constexpr,
    EXACT: tl.constexpr,  # all pieces are full
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
    WINDOW: tl.constexpr,  # planes start anywhere in vectors of so many elements; else 0
    FORMULA: tl.constexpr,
    COMPUTE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Channels first; strides and ``run`` come divided by ALIGN."""
    unit = tl.program_id(0) // splits
    part = tl.program_id(0) % splits
    outer = (unit // channels).to(tl.int64)
    channel = (unit % channels).to(tl.int64)
    statistic = unit
    if GROUP:
        statistic = (outer * (channels // group_size) + channel // group_size).to(tl.int32)
    mu = load_or(mean, statistic, None, 0.0, COMPUTE)
    if FORMULA.acts and not FORMULA.forward:
        parameter = unit if EACH else channel
        shift = load_or(beta, parameter, None, 0.0, COMPUTE)
        scale = load_rstd(rstd, statistic, None, eps, VARIANCE, COMPUTE)
        scale *= load_or(gamma, parameter, None, 1.0, COMPUTE)
    cols = tl.arange(0, COLS)
    rows = planes * pieces
    length = run * ALIGN
    if WIDE:
        length = run.to(tl.int64) * ALIGN
    s1 = tl.zeros([ROWS, COLS], COMPUTE)
    s2 = tl.zeros([ROWS, COLS], COMPUTE)
    if FORMULA.forward:
        count = s1
        if EXACT:  # all columns have as many
            count = tl.zeros([ROWS, 1], COMPUTE)
        found = (count, s1, s1, s1)
    for first in tl.range(part * ROWS, rows, splits * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        if magic is None:
            plane = (row // pieces).to(tl.int64)[:, None]
            inside = ((row % pieces).to(length.dtype) * COLS)[:, None] + cols[None, :]
        else:
            which = quotient(row, magic)
            plane = which.to(tl.int64)[:, None]
            inside = ((row - which * pieces).to(length.dtype) * COLS)[:, None] + cols[None, :]
        mask = (row < rows)[:, None]
        dy_at = (plane * dy_plane + outer * dy_outer + channel * dy_channel) * ALIGN
        x_at = (plane * x_plane + outer * x_outer + channel * x_channel) * ALIGN
        mine = mask
        if WINDOW:  # x and dy lie alike
            dy_at, low, high = window(dy_at, length, WINDOW)
            x_at = dy_at
            mine = is_inside(inside, low, high)
            mask = mask & vectors_inside(inside, high, WINDOW)
        elif not EXACT:
            mask = mask & (inside < length)
        if FORMULA.forward:
            wide_x = widen(tl.load(x + (x_at + inside), mask=mask, other=0.0), COMPUTE)
            found = add_elements(FORMULA, found, wide_x, mask & mine)
        else:
            wide = widen(tl.load(dy + (dy_at + inside), mask=mask, other=0.0), COMPUTE)
            product = wide
            if x is not None:
                wide_x = widen(tl.load(x + (x_at + inside), mask=mask, other=0.0), COMPUTE)
                t = FORMULA.centred(wide_x, mu)
                if FORMULA.acts:
                    wide = through(FORMULA, wide, t, scale, shift)
                wide, product = FORMULA.terms(wide, t)
            if WINDOW:
                wide = tl.where(mine, wide, 0.0)
                product = tl.where(mine, product, 0.0)
            s1 += wide
            s2 += product
    if FORMULA.forward:
        near = channel
        if GROUP:
            near = channel // group_size * group_size
        base = tl.load(x + (outer * x_outer + near * x_channel) * ALIGN).to(COMPUTE)
        whole = merged(FORMULA, parts_of(FORMULA, found, base), None)
        second = units.to(tl.int64) * splits
        store_part(partials, unit * splits + part, whole, base, second, None)
    else:
        t1, t2 = sum_pairs(s1, s2, None)
        tl.store(partials + unit * splits + part, t1)
        tl.store(partials + (units.to(tl.int64) + unit) * splits + part, t2)


@triton.jit
def unit_sums(
    dy,
    x,
    mean,
    rstd,
    gamma,
    beta,
    partials,
    units,
    run,
    channels,
    group_size,
    dy_outer,
    dy_channel,
    x_outer,
    x_channel,
    EACH: tl.constexpr,  # each sample has weights of its own
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
    FORMULA: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Group norm, channels first: units that are a row of a tile each."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    unit = program * ROWS + tl.arange(0, ROWS)
    ok = unit < units
    cols = tl.arange(0, COLS)
    outer = (unit // channels).to(tl.int64)
    channel = (unit % channels).to(tl.int64)
    mask = ok[:, None] & (cols < run * ALIGN)[None, :]
    if FORMULA.forward:
        x_at = (outer * x_outer + channel * x_channel)[:, None] * ALIGN + cols[None, :]
        wide_x = widen(tl.load(x + x_at, mask=mask, other=0.0), COMPUTE)
        none = tl.zeros([ROWS, COLS], COMPUTE)
        found = add_elements(FORMULA, (none, none, none, none), wide_x, mask)
        near = channel // group_size * group_size
        base = tl.load(x + (outer * x_outer + near * x_channel) * ALIGN, mask=ok, other=0.0)
        base = base.to(COMPUTE)
        whole = merged(FORMULA, parts_of(FORMULA, found, base[:, None]), 1)
        store_part(partials, unit, whole, base, units.to(tl.int64), ok)
    else:
        dy_at = (outer * dy_outer + channel * dy_channel)[:, None] * ALIGN + cols[None, :]
        s1 = widen(tl.load(dy + dy_at, mask=mask, other=0.0), COMPUTE)
        s2 = s1
        if x is not None:
            mu = load_or(mean, unit // group_size, ok, 0.0, COMPUTE)[:, None]
            x_at = (outer * x_outer + channel * x_channel)[:, None] * ALIGN + cols[None, :]
            wide_x = widen(tl.load(x + x_at, mask=mask, other=0.0), COMPUTE)
            t = FORMULA.centred(wide_x, mu)
            if FORMULA.acts:
                scale = load_or(rstd, unit // group_size, ok, 1.0, COMPUTE)[:, None]
                parameter = unit if EACH else channel
                scale *= load_or(gamma, parameter, ok, 1.0, COMPUTE)[:, None]
                shift = load_or(beta, parameter, ok, 0.0, COMPUTE)[:, None]
                s1 = through(FORMULA, s1, t, scale, shift)
            s1, s2 = FORMULA.terms(s1, t)
        t1, t2 = sum_pairs(s1, s2, 1)
        tl.store(partials + unit, t1, mask=ok)
        tl.store(partials + (units.to(tl.int64) + unit), t2, mask=ok)


@triton.jit
def column_sums(
    dy,
    x,
    mean,
    rstd,
    gamma,
    beta,
    partials,
    units,
    splits,
    blocks,  # of columns
    rows,
    channels,  # over ALIGN, of all rows that lie side by side
    period,  # over RUN: channels of one row, if there are several
    times,  # so many
    pixels,  # columns of one channel, side by side; None for one
    group_size,
    dy_row,
    dy_outer,
    x_row,
    x_outer,
    eps,
    VARIANCE: tl.constexpr,
    EACH: tl.constexpr,  # each sample has weights of its own
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
    RUN: tl.constexpr,
    FORMULA: tl.constexpr,
    COMPUTE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Channels last; strides come divided by ALIGN."""
    part = tl.program_id(0) % splits
    block = tl.program_id(0) // splits
    outer = (block // blocks).to(tl.int64)
    column = (block % blocks) * COLS + tl.arange(0, COLS)
    col_ok = column < channels * ALIGN
    channel, width = column, channels * ALIGN
    if period is not None:
        channel, width = channel_of(column, period, RUN), period * RUN
    statistic = channel
    if pixels is not None:
        statistic = channel // pixels
    parameter = statistic
    if GROUP:
        parameter = outer * width + channel if EACH else channel
        statistic = outer * (width // group_size) + channel // group_size
    mu = load_or(mean, statistic, col_ok, 0.0, COMPUTE)[None, :]
    if FORMULA.acts and not FORMULA.forward:
        scale = load_rstd(rstd, statistic, col_ok, eps, VARIANCE, COMPUTE)
        scale = (scale * load_or(gamma, parameter, col_ok, 1.0, COMPUTE))[None, :]
        shift = load_or(beta, parameter, col_ok, 0.0, COMPUTE)[None, :]
    s1 = tl.zeros([ROWS, COLS], COMPUTE)
    s2 = tl.zeros([ROWS, COLS], COMPUTE)
    if FORMULA.forward:
        found = (tl.zeros([ROWS, 1], COMPUTE), s1, s1, s1)  # all columns have as many
    for first in tl.range(part * ROWS, rows, splits * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & col_ok[None, :]
        far = row.to(tl.int64)[:, None]
        dy_at = (far * dy_row + outer * dy_outer) * ALIGN + column[None, :]
        x_at = (far * x_row + outer * x_outer) * ALIGN + column[None, :]
        if FORMULA.forward:
            wide_x = widen(tl.load(x + x_at, mask=mask, other=0.0), COMPUTE)
            found = add_elements(FORMULA, found, wide_x, (row < rows)[:, None])
        else:
            wide = widen(tl.load(dy + dy_at, mask=mask, other=0.0), COMPUTE)
            if x is not None:
                wide_x = widen(tl.load(x + x_at, mask=mask, other=0.0), COMPUTE)
                t = FORMULA.centred(wide_x, mu)
                if FORMULA.acts:
                    wide = through(FORMULA, wide, t, scale, shift)
                wide, product = FORMULA.terms(wide, t)
                s2 += product
            s1 += wide
    if not FORMULA.forward:
        t1, t2 = sum_pairs(s1, s2, 0)
    unit = outer * width + channel
    place = column // width * splits + part
    if FORMULA.forward:
        near = channel
        if pixels is not None:
            near = channel // pixels * pixels
        if GROUP:
            near = channel // group_size * group_size
        base = tl.load(x + outer * x_outer * ALIGN + near, mask=col_ok, other=0.0).to(COMPUTE)
        whole = merged(FORMULA, parts_of(FORMULA, found, base[None, :]), 0)
        second = units.to(tl.int64) * splits * times
        store_part(partials, unit * splits * times + place, whole, base, second, col_ok)
    else:
        tl.store(partials + unit * splits * times + place, t1, mask=col_ok)
        tl.store(partials + (units + unit) * splits * times + place, t2, mask=col_ok)


@triton.jit
def finish_channels(
    partials,
    rstd,
    totals,  # sums of dy, then of dy * (x - mean), in the compute type; or None
    sum_dy,
    sum_dy_xmu,
    dgamma,
    dbeta,
    units,
    splits,
    eps,
    VARIANCE: tl.constexpr,
    UNITS: tl.constexpr,
    SPLITS: tl.constexpr,
    COMPUTE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Batch norm: join the partial sums of each channel in fixed order."""
    await_step_before(EARLY)
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    ok = unit < units
    t1, t2 = join(partials, unit, ok, units, splits, SPLITS, UNITS, COMPUTE)
    store_as(totals, unit, t1, ok)
    if totals is not None:
        tl.store(totals + units + unit, t2, mask=ok)
    store_as(sum_dy, unit, t1, ok)
    store_as(sum_dy_xmu, unit, t2, ok)
    store_as(dbeta, unit, t1, ok)
    if dgamma is not None:
        store_as(dgamma, unit, t2 * load_rstd(rstd, unit, ok, eps, VARIANCE, COMPUTE), ok)


@triton.jit
def join(
    partials,
    unit,
    ok,
    units,
    splits,
    SPLITS: tl.constexpr,
    UNITS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Both sums of some units over their partials."""
    s1 = tl.zeros([UNITS, SPLITS], COMPUTE)
    s2 = tl.zeros([UNITS, SPLITS], COMPUTE)
    base = partials + unit.to(tl.int64)[:, None] * splits
    second = units.to(tl.int64) * splits
    for first in range(0, splits, SPLITS):
        part = first + tl.arange(0, SPLITS)
        mask = ok[:, None] & (part < splits)[None, :]
        s1 += tl.load(base + part[None, :], mask=mask, other=0.0)
        s2 += tl.load(base + second + part[None, :], mask=mask, other=0.0)
    return sum_pairs(s1, s2, 1)


@triton.jit
def finish_groups(
    partials,
    gamma,
    totals,
    units,
    splits,
    channels,
    group_size,
    statistics,
    CHANNELS: tl.constexpr,
    SPLITS: tl.constexpr,
    COMPUTE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Group norm: the two sums of each statistic, with gamma inside."""
    await_step_before(EARLY)
    statistic = tl.program_id(0)
    first = statistic.to(tl.int64) * group_size
    channel = statistic % (channels // group_size) * group_size
    s1 = tl.zeros([CHANNELS], COMPUTE)
    s2 = tl.zeros([CHANNELS], COMPUTE)
    for start in range(0, group_size, CHANNELS):
        local = start + tl.arange(0, CHANNELS)
        ok = local < group_size
        t1, t2 = join(partials, first + local, ok, units, splits, SPLITS, CHANNELS, COMPUTE)
        weight = load_or(gamma, channel + local, ok, 1.0, COMPUTE)
        s1 += t1 * weight
        s2 += t2 * weight
    t1, t2 = sum_pairs(s1, s2, 0)
    tl.store(totals + statistic, t1)
    tl.store(totals + (statistics.to(tl.int64) + statistic), t2)


@triton.jit
def finish_statistics(
    partials,  # [4, statistics, parts]: see `moments`
    centre,  # mean and rstd in the compute type, for kernels to come
    scale,
    mean,  # as they are wanted
    rstd,
    old_mean,  # running statistics before
    old_variance,
    new_mean,  # and after
    new_variance,
    statistics,
    parts,
    momentum,
    eps,
    FORMULA: tl.constexpr,
    VARIANCE: tl.constexpr,
    UNITS: tl.constexpr,
    PARTS: tl.constexpr,
    COMPUTE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Join the parts of each statistic in fixed order."""
    await_step_before(EARLY)
    which = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    ok = which < statistics
    there = partials + which.to(tl.int64)[:, None] * parts
    second = statistics.to(tl.int64) * parts
    total = tl.zeros([UNITS, PARTS], COMPUTE)
    off = tl.zeros([UNITS, PARTS], COMPUTE)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)[None, :]
        mask = ok[:, None] & (part < parts)
        count = tl.load(there + part, mask=mask, other=0.0)
        total += count
        off += count * tl.load(there + second + part, mask=mask, other=0.0)
    total, off = sum_pairs(total, off, 1)
    off = off / tl.where(total > 0, total, 1.0)
    apart = tl.zeros([UNITS, PARTS], COMPUTE)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)[None, :]
        mask = ok[:, None] & (part < parts)
        apart += tl.load(there + 2 * second + part, mask=mask, other=0.0)
        if FORMULA.has_mean:
            count = tl.load(there + part, mask=mask, other=0.0)
            far = tl.load(there + second + part, mask=mask, other=0.0) - off[:, None]
            apart += count * far * far
    base = tl.load(partials + 3 * second + which.to(tl.int64) * parts, mask=ok, other=0.0)
    results = (centre, scale, mean, rstd, old_mean, old_variance, new_mean, new_variance)
    moments = (total, base + off, tl.sum(apart, 1))
    store_statistics(results, which, moments, momentum, eps, ok, VARIANCE, FORMULA.biased)


@triton.jit
def rank_parts(
    means,  # [ranks, channels]
    variances,
    counter,
    partials,  # [4, channels, ranks]
    ranks,
    channels,
    eps,
    RANKS: tl.constexpr,
    CHANNELS: tl.constexpr,
    INVSTD: tl.constexpr,  # inverse deviations in the place of variances
    COMPUTE: tl.constexpr,
):
    """The statistics of ranks as parts."""
    rank = (tl.program_id(0) * RANKS + tl.arange(0, RANKS))[:, None]
    channel = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    mask = (rank < ranks) & (channel < channels)
    at = rank.to(tl.int64) * channels + channel
    count = tl.load(counter + rank + channel * 0, mask=mask, other=0).to(COMPUTE)
    mean = tl.load(means + at, mask=mask, other=0.0).to(COMPUTE)
    variance = tl.load(variances + at, mask=mask, other=1.0).to(COMPUTE)
    if INVSTD:
        variance = 1.0 / (variance * variance) - eps
    apart = variance * count
    base = tl.load(means + rank * 0 + channel, mask=mask, other=0.0).to(COMPUTE)
    part = (count, tl.where(count > 0, mean - base, 0.0), tl.where(count > 0, apart, 0.0))
    place = channel.to(tl.int64) * ranks + rank
    store_part(partials, place, part, base, channels.to(tl.int64) * ranks, mask)


@triton.jit
def finish_parameters(
    partials,
    rstd,
    dgamma,
    dbeta,
    samples,
    channels,
    splits,
    group_size,
    CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
    TIMES: tl.constexpr,
    MANY: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Group norm: each channel's sums over all samples and their partials."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    part = tl.arange(0, PARTS)
    join_parameters(
        partials, rstd, dgamma, dbeta, samples, channels, splits, group_size,
        channel, part, PARTS, TIMES, MANY, COMPUTE,
    )  # fmt: skip


@triton.jit
def finish_rows(
    partials,
    dgamma,
    dbeta,
    programs,
    cols,
    PROGRAMS: tl.constexpr,
    TIMES: tl.constexpr,
    COLS: tl.constexpr,
    EACH: tl.constexpr,  # each sample has weights of its own
    COMPUTE: tl.constexpr,
):
    """Layer norm: join the programs' parameter gradients, of a sample by so many of them."""
    if EACH:
        sample = tl.program_id(1).to(tl.int64)
        partials += sample * programs * 2 * cols
        if dgamma is not None:
            dgamma += sample * cols
        if dbeta is not None:
            dbeta += sample * cols
    program = tl.arange(0, PROGRAMS)
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    join_rows(partials, dgamma, dbeta, programs, cols, program, column, PROGRAMS, TIMES, COMPUTE)
