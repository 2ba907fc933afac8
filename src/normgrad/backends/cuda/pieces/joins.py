"""Parameter gradients from partial sums, in fixed order: the end of a kernel, or one of its own.

What indexes a tile comes from the caller: Gluon wants layouts for it.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.pieces.common import await_all, load_or, store_as, sum_pairs
from normgrad.backends.cuda.pieces.gluon import gl, jit


@triton.jit
def join_rows(
    partials,  # [programs, 2, cols]
    dgamma,
    dbeta,
    programs,
    cols,
    program,  # a vector of JOIN_ROWS
    column,
    JOIN_ROWS: tl.constexpr,
    JOIN_STEPS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Layer norm: the programs' sums of some columns."""
    ok = column < cols
    sum_gamma = (program[:, None] * 0 + column[None, :] * 0).to(COMPUTE)
    sum_beta = sum_gamma
    for time in tl.static_range(JOIN_STEPS):  # all loads are on their way at once
        there = time * JOIN_ROWS + program
        mask = (there < programs)[:, None] & ok[None, :]
        at = partials + there.to(tl.int64)[:, None] * 2 * cols + column[None, :]
        sum_gamma += tl.load(at, mask=mask, other=0.0)
        sum_beta += tl.load(at + cols, mask=mask, other=0.0)
    total_gamma, total_beta = sum_pairs(sum_gamma, sum_beta, 0)
    store_as(dgamma, column, total_gamma, ok)
    store_as(dbeta, column, total_beta, ok)


@jit
def join_slices(
    arrivals,
    thread,
    sums,  # partials, dgamma, dbeta
    sizes,  # partials of a column, columns
    first,  # slice of columns for this block,
    blocks,  # then every so many further
    JOIN_ROWS: tl.constexpr,
    JOIN_STEPS: tl.constexpr,
    JOIN_COLUMNS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The end of a layer norm kernel: everybody has arrived, each block joins some columns."""
    LANES: tl.constexpr = min(16, JOIN_COLUMNS // 4)
    BELOW: tl.constexpr = min(WARPS, max(1, JOIN_ROWS * LANES // 32))  # warps one below the other
    box: tl.constexpr = gl.BlockedLayout(
        [1, 4], [32 // LANES, LANES], [BELOW, WARPS // BELOW], [1, 0]
    )
    partials, dgamma, dbeta = sums
    programs, cols = sizes
    down = gl.arange(0, JOIN_ROWS, gl.SliceLayout(1, box))
    across = gl.arange(0, JOIN_COLUMNS, gl.SliceLayout(0, box))
    await_all(arrivals, thread)
    for block in tl.range(first, tl.cdiv(cols, JOIN_COLUMNS), blocks):
        column = block * JOIN_COLUMNS + across
        join_rows(
            partials, dgamma, dbeta, programs, cols, down, column, JOIN_ROWS, JOIN_STEPS, tl.float32
        )  # fmt: skip


@triton.jit
def join_parameters(
    partials,  # [2, samples, channels, splits]
    rstd,
    dgamma,
    dbeta,
    samples,
    channels,
    splits,
    group_size,
    channel,
    part,  # a vector of JOIN_PARTS
    JOIN_PARTS: tl.constexpr,
    JOIN_STEPS: tl.constexpr,
    INDEX64: tl.constexpr,  # whether channels of samples take 64 bits, whose division is slow
    COMPUTE: tl.constexpr,
):
    """Group norm: the sums of some channels over all samples and their partials."""
    index: tl.constexpr = tl.int64 if INDEX64 else tl.int32
    ok = channel < channels
    sum_d = (channel[:, None] * 0 + part[None, :] * 0).to(COMPUTE)
    sum_dt = sum_d
    second = samples.to(tl.int64) * channels * splits
    for time in tl.range(0, JOIN_STEPS):
        there = time * JOIN_PARTS + part
        mask = ok[:, None] & (there < samples * splits)[None, :]
        unit = (there // splits).to(index)[None, :] * channels + channel[:, None]
        at = partials + unit.to(tl.int64) * splits + (there % splits)[None, :]
        rs = load_or(rstd, unit // group_size, mask, 1.0, COMPUTE)
        sum_d += tl.load(at, mask=mask, other=0.0)
        sum_dt += tl.load(at + second, mask=mask, other=0.0) * rs
    total_d, total_dt = sum_pairs(sum_d, sum_dt, 1)
    store_as(dbeta, channel, total_d, ok)
    store_as(dgamma, channel, total_dt, ok)


@jit
def join_groups(
    arrivals,
    partials,
    vectors,  # rstd, dgamma, dbeta
    sizes,  # samples, channels, splits, group_size
    JOIN_CHANNELS: tl.constexpr,
    JOIN_PARTS: tl.constexpr,
    JOIN_STEPS: tl.constexpr,
    INDEX64: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The end of a group norm kernel: everybody has arrived, each block joins some channels."""
    LANES: tl.constexpr = min(32, JOIN_PARTS)
    ACROSS: tl.constexpr = min(WARPS, JOIN_PARTS // LANES)
    box: tl.constexpr = gl.BlockedLayout(
        [1, 1], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0]
    )
    line: tl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    rstd, dgamma, dbeta = vectors
    samples, channels, splits, group_size = sizes
    await_all(arrivals, gl.arange(0, 32 * WARPS, line))
    part = gl.arange(0, JOIN_PARTS, gl.SliceLayout(0, box))
    for block in tl.range(gl.program_id(0), tl.cdiv(channels, JOIN_CHANNELS), gl.num_programs(0)):
        channel = block * JOIN_CHANNELS + gl.arange(0, JOIN_CHANNELS, gl.SliceLayout(1, box))
        join_parameters(
            partials, rstd, dgamma, dbeta, samples, channels, splits, group_size,
            channel, part, JOIN_PARTS, JOIN_STEPS, INDEX64, tl.float32,
        )  # fmt: skip
