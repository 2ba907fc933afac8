"""The small launches between two passes, and at the end: partial sums are joined in fixed order.

What the partials are is said in `sums`; those of rows are a program's.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.pieces.common import (
    await_step_before,
    load_or,
    load_rstd,
    store_as,
    sum_pairs,
)
from normgrad.backends.cuda.pieces.joins import join_parameters, join_rows
from normgrad.backends.cuda.pieces.moments import store_part, store_statistics


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
    total_d, total_dt = join(partials, unit, ok, units, splits, SPLITS, UNITS, COMPUTE)
    store_as(totals, unit, total_d, ok)
    if totals is not None:
        tl.store(totals + units + unit, total_dt, mask=ok)
    store_as(sum_dy, unit, total_d, ok)
    store_as(sum_dy_xmu, unit, total_dt, ok)
    store_as(dbeta, unit, total_d, ok)
    if dgamma is not None:
        store_as(dgamma, unit, total_dt * load_rstd(rstd, unit, ok, eps, VARIANCE, COMPUTE), ok)


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
    sum_d = tl.zeros([UNITS, SPLITS], COMPUTE)
    sum_dt = tl.zeros([UNITS, SPLITS], COMPUTE)
    base = partials + unit.to(tl.int64)[:, None] * splits
    second = units.to(tl.int64) * splits
    for first in range(0, splits, SPLITS):
        part = first + tl.arange(0, SPLITS)
        mask = ok[:, None] & (part < splits)[None, :]
        sum_d += tl.load(base + part[None, :], mask=mask, other=0.0)
        sum_dt += tl.load(base + second + part[None, :], mask=mask, other=0.0)
    return sum_pairs(sum_d, sum_dt, 1)


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
    sum_d = tl.zeros([CHANNELS], COMPUTE)
    sum_dt = tl.zeros([CHANNELS], COMPUTE)
    for start in range(0, group_size, CHANNELS):
        local = start + tl.arange(0, CHANNELS)
        ok = local < group_size
        total_d, total_dt = join(
            partials, first + local, ok, units, splits, SPLITS, CHANNELS, COMPUTE
        )
        weight = load_or(gamma, channel + local, ok, 1.0, COMPUTE)
        sum_d += total_d * weight
        sum_dt += total_dt * weight
    total_d, total_dt = sum_pairs(sum_d, sum_dt, 0)
    tl.store(totals + statistic, total_d)
    tl.store(totals + (statistics.to(tl.int64) + statistic), total_dt)


@triton.jit
def finish_statistics(
    partials,  # [4, statistics, parts]: see `moments`
    next_mean,  # mean and rstd in the compute type, for kernels to come
    next_rstd,
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
    results = (next_mean, next_rstd, mean, rstd, old_mean, old_variance, new_mean, new_variance)
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
    JOIN_CHANNELS: tl.constexpr,
    JOIN_PARTS: tl.constexpr,
    JOIN_STEPS: tl.constexpr,
    INDEX64: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Group norm: each channel's sums over all samples and their partials."""
    channel = tl.program_id(0) * JOIN_CHANNELS + tl.arange(0, JOIN_CHANNELS)
    part = tl.arange(0, JOIN_PARTS)
    join_parameters(
        partials, rstd, dgamma, dbeta, samples, channels, splits, group_size,
        channel, part, JOIN_PARTS, JOIN_STEPS, INDEX64, COMPUTE,
    )  # fmt: skip


@triton.jit
def finish_rows(
    partials,
    dgamma,
    dbeta,
    programs,
    cols,
    JOIN_ROWS: tl.constexpr,
    JOIN_STEPS: tl.constexpr,
    JOIN_COLUMNS: tl.constexpr,
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
    program = tl.arange(0, JOIN_ROWS)
    column = tl.program_id(0) * JOIN_COLUMNS + tl.arange(0, JOIN_COLUMNS)
    join_rows(
        partials, dgamma, dbeta, programs, cols, program, column, JOIN_ROWS, JOIN_STEPS, COMPUTE
    )
