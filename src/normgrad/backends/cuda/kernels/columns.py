"""Channels-last batch and group norm with every slab read once.

A slab is a block of columns of all rows (batch norm) or of one image's rows (group norm, whole
groups). A team of blocks holds it as in `planes`. A team can be the whole device, too many
partners for each block to add up all partial sums of all columns: each column has an owner that
adds its partials and publishes the total, which all then read.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.kernels.common import (
    await_words,
    keep_narrow,
    load_or,
    load_rstd,
    pack_pair,
    publish,
    store_as,
    sum_pairs,
    unpack_pair,
)


@triton.jit
def column_slabs(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    dgamma,
    dbeta,
    partials,  # group norm: sum of dy of each image's columns, then sum of dy * (x - mean)
    words,
    totals,
    slabs,
    rows,  # rows of a slab
    share,  # rows of a block
    blocks,  # slabs of one image
    width,  # columns of a slab, over ALIGN
    channels,  # over ALIGN
    units,
    group_size,
    team,
    teams,
    row_step,
    outer_step,
    count,
    eps,
    zero,
    GROUP: tl.constexpr,
    VARIANCE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,  # channels of a group, up to a power of two
    OWNED: tl.constexpr,  # columns of an owner, with TEAM at least as many as threads
    OWN: tl.constexpr,
    TEAM: tl.constexpr,
    LANES: tl.constexpr,  # threads, or columns if more
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    PHASE: tl.constexpr,  # 0; in the interpreter 1: sums, 2: totals, 3: gradient
):
    """See the module. The three tensors have the same strides, which come divided by ALIGN."""
    index: tl.constexpr = tl.int64 if WIDE else tl.int32
    member = tl.program_id(0) % team
    local = tl.arange(0, ROWS)
    row = member * share + local
    col = tl.arange(0, COLS)
    row_ok = (local < share) & (row < rows)
    at = (row.to(index) * row_step * ALIGN)[:, None] + col[None, :]
    lane = tl.arange(0, LANES)
    own = member * OWN + tl.arange(0, OWNED)
    partner = tl.arange(0, TEAM)
    for slab in tl.range(tl.program_id(0) // team, slabs, teams, num_stages=STAGES):
        outer = (slab // blocks).to(tl.int64)
        block = slab % blocks
        first = block * width * ALIGN
        base = outer * outer_step * ALIGN + first
        wide = tl.minimum(width, channels - block * width) * ALIGN
        col_ok = col < wide
        mask = row_ok[:, None] & col_ok[None, :]
        dyt = tl.load(dy + base + at, mask=mask, other=0.0)
        xt = tl.load(x + base + at, mask=mask, other=0.0)
        channel = first + col
        statistic = channel
        if GROUP:
            statistic = (outer * (channels * ALIGN // group_size)).to(
                tl.int32
            ) + channel // group_size
        mu = load_or(mean, statistic, col_ok, 0.0, tl.float32)[None, :]
        if PHASE == 0 or PHASE == 1:
            wide_dy = dyt.to(tl.float32)
            s1, s2 = sum_pairs(wide_dy, wide_dy * (xt.to(tl.float32) - mu), 0)
            box = words + (slab * COLS + col) * team + member
            publish(box, pack_pair(s1, s2), col_ok)
        # Always so. Triton puts an `if` behind the copies that fetch the next slab: they are on
        # their way while this block waits.
        if PHASE != 1 and zero == 0:
            if PHASE != 3 and member * OWN < wide:
                owned_ok = (tl.arange(0, OWNED) < OWN) & (own < wide)
                boxes = words + ((slab * COLS + own) * team)[:, None] + partner[None, :]
                got = await_words(boxes, owned_ok[:, None] & (partner < team)[None, :])
                p1, p2 = unpack_pair(got)
                t1, t2 = sum_pairs(p1, p2, 1)
                publish(totals + slab * COLS + own, pack_pair(t1, t2), owned_ok)
                if GROUP:
                    unit = outer * channels * ALIGN + first + own
                    store_as(partials, unit, t1, owned_ok)
                    if partials is not None:
                        tl.store(partials + units + unit, t2, mask=owned_ok)
                else:
                    store_as(dbeta, first + own, t1, owned_ok)
                    if dgamma is not None:
                        own_rs = load_rstd(rstd, first + own, owned_ok, eps, VARIANCE, tl.float32)
                        store_as(dgamma, first + own, t2 * own_rs, owned_ok)
            if PHASE != 2:
                seen = await_words(totals + slab * COLS + lane, lane < wide)
                # One thread polls one total; then all threads read those they need, whose addresses
                # depend on the poll. (A plain load would be moved ahead of it, to the last round.)
                after = tl.max((seen >> 63).to(tl.int32), 0) & zero
                here = totals + slab * COLS + after
                if GROUP:
                    depth = tl.arange(0, DEPTH)
                    near = (col // group_size * group_size)[:, None] + depth[None, :]
                    near_ok = col_ok[:, None] & (depth < group_size)[None, :]
                    p1, p2 = unpack_pair(await_words(here + near, near_ok))
                    weight = load_or(gamma, first + near, near_ok, 1.0, tl.float32)
                    t1, t2 = sum_pairs(p1 * weight, p2 * weight, 1)
                else:
                    t1, t2 = unpack_pair(await_words(here + col, col_ok))
                rs = load_rstd(rstd, statistic, col_ok, eps, VARIANCE, tl.float32)
                weight = load_or(gamma, channel, col_ok, 1.0, tl.float32)
                offset = (t1 / count)[None, :]
                slope = (t2 * rs / count * rs)[None, :]
                g = keep_narrow(dyt, zero).to(tl.float32)
                if GROUP:
                    g = g * weight[None, :]
                    factor = rs[None, :]
                else:
                    factor = (rs * weight)[None, :]
                wide_x = keep_narrow(xt, zero).to(tl.float32)
                result = (g - offset - (wide_x - mu) * slope) * factor
                tl.store(dx + base + at, result.to(dx.dtype.element_ty), mask=mask)
