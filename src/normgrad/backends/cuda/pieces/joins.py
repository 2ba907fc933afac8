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
    program,  # a vector of PROGRAMS
    column,
    PROGRAMS: tl.constexpr,
    TIMES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Layer norm: the programs' sums of some columns."""
    ok = column < cols
    s1 = (program[:, None] * 0 + column[None, :] * 0).to(COMPUTE)
    s2 = s1
    for time in tl.static_range(TIMES):  # all loads are on their way at once
        there = time * PROGRAMS + program
        mask = (there < programs)[:, None] & ok[None, :]
        at = partials + there.to(tl.int64)[:, None] * 2 * cols + column[None, :]
        s1 += tl.load(at, mask=mask, other=0.0)
        s2 += tl.load(at + cols, mask=mask, other=0.0)
    t1, t2 = sum_pairs(s1, s2, 0)
    store_as(dgamma, column, t1, ok)
    store_as(dbeta, column, t2, ok)


@jit
def join_slices(
    tally,
    thread,
    sums,  # partials, dgamma, dbeta
    sizes,  # partials of a column, columns
    first,  # slice of columns for this block,
    blocks,  # then every so many further
    DOWN: tl.constexpr,
    TIMES: tl.constexpr,
    WIDTH: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The end of a layer norm kernel: everybody has arrived, each block joins some columns."""
    LANES: tl.constexpr = min(16, WIDTH // 4)
    BELOW: tl.constexpr = min(WARPS, max(1, DOWN * LANES // 32))  # warps one below the other
    box: tl.constexpr = gl.BlockedLayout(
        [1, 4], [32 // LANES, LANES], [BELOW, WARPS // BELOW], [1, 0]
    )
    partials, dgamma, dbeta = sums
    programs, cols = sizes
    down = gl.arange(0, DOWN, gl.SliceLayout(1, box))
    across = gl.arange(0, WIDTH, gl.SliceLayout(0, box))
    await_all(tally, thread)
    for block in tl.range(first, tl.cdiv(cols, WIDTH), blocks):
        column = block * WIDTH + across
        join_rows(
            partials, dgamma, dbeta, programs, cols, down, column, DOWN, TIMES, tl.float32
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
    part,  # a vector of PARTS
    PARTS: tl.constexpr,
    TIMES: tl.constexpr,
    MANY: tl.constexpr,  # whether channels of samples take 64 bits, whose division is slow
    COMPUTE: tl.constexpr,
):
    """Group norm: the sums of some channels over all samples and their partials."""
    index: tl.constexpr = tl.int64 if MANY else tl.int32
    ok = channel < channels
    s1 = (channel[:, None] * 0 + part[None, :] * 0).to(COMPUTE)
    s2 = s1
    second = samples.to(tl.int64) * channels * splits
    for time in tl.range(0, TIMES):
        there = time * PARTS + part
        mask = ok[:, None] & (there < samples * splits)[None, :]
        unit = (there // splits).to(index)[None, :] * channels + channel[:, None]
        at = partials + unit.to(tl.int64) * splits + (there % splits)[None, :]
        scale = load_or(rstd, unit // group_size, mask, 1.0, COMPUTE)
        s1 += tl.load(at, mask=mask, other=0.0)
        s2 += tl.load(at + second, mask=mask, other=0.0) * scale
    t1, t2 = sum_pairs(s1, s2, 1)
    store_as(dbeta, channel, t1, ok)
    store_as(dgamma, channel, t2, ok)


@jit
def join_groups(
    tally,
    partials,
    vectors,  # rstd, dgamma, dbeta
    sizes,  # samples, channels, splits, group_size
    CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
    TIMES: tl.constexpr,
    MANY: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The end of a group norm kernel: everybody has arrived, each block joins some channels."""
    LANES: tl.constexpr = min(32, PARTS)
    ACROSS: tl.constexpr = min(WARPS, PARTS // LANES)
    box: tl.constexpr = gl.BlockedLayout(
        [1, 1], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0]
    )
    line: tl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    rstd, dgamma, dbeta = vectors
    samples, channels, splits, group_size = sizes
    await_all(tally, gl.arange(0, 32 * WARPS, line))
    part = gl.arange(0, PARTS, gl.SliceLayout(0, box))
    for block in tl.range(gl.program_id(0), tl.cdiv(channels, CHANNELS), gl.num_programs(0)):
        channel = block * CHANNELS + gl.arange(0, CHANNELS, gl.SliceLayout(1, box))
        join_parameters(
            partials, rstd, dgamma, dbeta, samples, channels, splits, group_size,
            channel, part, PARTS, TIMES, MANY, tl.float32,
        )  # fmt: skip
