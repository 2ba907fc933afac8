"""Channels-first batch and group norm with every slab read once.

A slab is what shares statistics: a block of channels of all images (batch norm) or a group of one
image (group norm). It consists of planes, contiguous runs of elements, cut into rows of COLS. A
team of K blocks holds a slab: each loads ROWS rows of x and dy into registers (the next slab's are
on their way into shared memory meanwhile), publishes its sums, waits for its partners', and writes
dx. Three trips to memory instead of five.
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
def plane_slabs(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    dgamma,
    dbeta,
    partials,  # group norm: sum of dy of each row, then sum of dy * (x - mean)
    words,
    slabs,
    rows,  # rows of a slab
    share,  # rows of a block
    pieces,  # rows of a plane
    run,  # elements of a plane, over ALIGN
    team,  # blocks that share a slab
    teams,
    split,  # slabs of one image (group norm), 1 for batch norm
    channels,
    plane_step,
    outer_step,
    inner_step,
    count,
    eps,
    zero,
    GROUP: tl.constexpr,
    VARIANCE: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,  # channels of a plane (batch norm of small images)
    CHANNEL_TILE: tl.constexpr,  # the same, up to a power of two
    PIXELS: tl.constexpr,  # elements of a channel in a plane, if BLOCK_CHANNELS > 1
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    TEAM: tl.constexpr,  # at least `team` and the number of threads
    SOLO: tl.constexpr,  # a team of one
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,  # fetch the next slab before the wait (float32: 16-bit tiles would spill)
    PHASE: tl.constexpr,  # 0; in the interpreter 1: sums only, 2: gradient only, 3: all of SOLO
):
    """See the module. The three tensors have the same strides, which come divided by ALIGN."""
    index: tl.constexpr = tl.int64 if WIDE else tl.int32
    member = tl.program_id(0) % team
    local = tl.arange(0, ROWS)
    row = member * share + local
    plane = row // pieces
    start = (row % pieces) * COLS
    cols = tl.arange(0, COLS)
    row_ok = (local < share) & (row < rows)
    mask = row_ok[:, None] & ((start[:, None] + cols[None, :]) < run * ALIGN)
    at = (plane.to(index) * plane_step * ALIGN + start)[:, None] + cols[None, :]
    partners = tl.arange(0, TEAM)
    chan = tl.arange(0, CHANNEL_TILE)
    col_chan = cols // PIXELS
    for slab in tl.range(tl.program_id(0) // team, slabs, teams, num_stages=STAGES):
        outer = (slab // split).to(tl.int64)
        inner = (slab % split).to(tl.int64)
        base = (outer * outer_step + inner * inner_step) * ALIGN
        dyt = tl.load(dy + base + at, mask=mask, other=0.0)
        xt = tl.load(x + base + at, mask=mask, other=0.0)
        if BLOCK_CHANNELS == 1:
            mu = load_or(mean, slab, None, 0.0, tl.float32)
            rs = load_rstd(rstd, slab, None, eps, VARIANCE, tl.float32)
            centre = mu
        else:
            first = slab * BLOCK_CHANNELS
            col_ok = (col_chan < BLOCK_CHANNELS) & (first + col_chan < channels)
            mu = load_or(mean, first + col_chan, col_ok, 0.0, tl.float32)[None, :]
            centre = mu
        if GROUP:
            channel = inner * (rows // pieces) + plane
            row_gamma = load_or(gamma, channel, row_ok, 1.0, tl.float32)
        if PHASE != 2:
            wide_dy = dyt.to(tl.float32)
            # Masked elements of dy are 0, so their x does not matter.
            product = wide_dy * (xt.to(tl.float32) - centre)
            if GROUP:
                s1, s2 = sum_pairs(wide_dy, product, 1)
                if partials is not None:
                    to = (outer * channels + channel) * pieces + row % pieces
                    tl.store(partials + to, s1, mask=row_ok)
                    tl.store(partials + slabs.to(tl.int64) * rows + to, s2, mask=row_ok)
                s1, s2 = sum_pairs(row_gamma * s1, row_gamma * s2, 0)
            elif BLOCK_CHANNELS == 1:
                s1, s2 = sum_pairs(wide_dy, product, None)
            else:
                c1, c2 = sum_pairs(wide_dy, product, 0)
                own = col_chan[:, None] == chan[None, :]
                s1, s2 = sum_pairs(
                    tl.where(own, c1[:, None], 0.0), tl.where(own, c2[:, None], 0.0), 0
                )
            if not SOLO or PHASE == 1:
                box = words + slab * team * CHANNEL_TILE + member
                if BLOCK_CHANNELS == 1:
                    publish(box, pack_pair(s1, s2), None)
                else:
                    publish(box + chan * team, pack_pair(s1, s2), chan < BLOCK_CHANNELS)
        # `zero == 0` is always so. Triton puts an `if` behind the copies that fetch the next slab:
        # they are on their way while this block waits.
        if PHASE != 1 and (not AHEAD or zero == 0):
            if not SOLO or PHASE == 2:
                box = words + slab * team * CHANNEL_TILE
                ok = partners < team
                if BLOCK_CHANNELS == 1:
                    got = await_words(box + partners, ok)
                    p1, p2 = unpack_pair(got)
                    t1, t2 = sum_pairs(p1, p2, 0)
                else:
                    boxes = box + chan[None, :] * team + partners[:, None]
                    got = await_words(boxes, ok[:, None] & (chan < BLOCK_CHANNELS)[None, :])
                    p1, p2 = unpack_pair(got)
                    t1, t2 = sum_pairs(p1, p2, 0)
            else:
                t1, t2 = s1, s2
            if BLOCK_CHANNELS == 1:
                if not GROUP and member == 0:
                    store_as(dbeta, slab, t1, None)
                    store_as(dgamma, slab, t2 * rs, None)
                offset = t1 / count
                slope = t2 * rs / count * rs
            else:
                chan_ok = (chan < BLOCK_CHANNELS) & (first + chan < channels)
                if member == 0:
                    chan_rs = load_rstd(rstd, first + chan, chan_ok, eps, VARIANCE, tl.float32)
                    store_as(dbeta, first + chan, t1, chan_ok)
                    store_as(dgamma, first + chan, t2 * chan_rs, chan_ok)
                own = col_chan[:, None] == chan[None, :]
                t1, t2 = sum_pairs(
                    tl.where(own, t1[None, :], 0.0), tl.where(own, t2[None, :], 0.0), 1
                )
                rs = load_rstd(rstd, first + col_chan, col_ok, eps, VARIANCE, tl.float32)[None, :]
                offset = t1[None, :] / count
                slope = t2[None, :] * rs / count * rs
            dyt = keep_narrow(dyt, zero)
            xt = keep_narrow(xt, zero)
            g = dyt.to(tl.float32)
            if GROUP:
                g = g * row_gamma[:, None]
                factor = rs
            elif BLOCK_CHANNELS == 1:
                factor = load_or(gamma, slab, None, 1.0, tl.float32) * rs
            else:
                factor = load_or(gamma, first + col_chan, col_ok, 1.0, tl.float32)[None, :] * rs
            result = (g - offset - (xt.to(tl.float32) - centre) * slope) * factor
            tl.store(dx + base + at, result.to(dx.dtype.element_ty), mask=mask)
