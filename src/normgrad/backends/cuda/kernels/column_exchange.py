"""How the blocks of a team exchange the sums of their columns, and what dx is made of then.

Sums go round in one step, or in two: see `columns`.
"""

import triton.language as tl

from normgrad.backends.cuda.kernels.common import (
    await_words,
    coefficients,
    load_or,
    load_rstd,
    pack_pair,
    publish,
    store_as,
    sum_pairs,
    unpack_pair,
)
from normgrad.backends.cuda.kernels.gluon import gl, jit


@jit
def publish_sums(
    mail,  # words of this slab: [parts, SPANS, bins]
    above,
    start,
    columns,
    bins,
    own,  # bins of this block
    sums,
    GROUP_SIZE: tl.constexpr,
    COLS: tl.constexpr,
    SPANS: tl.constexpr,
):
    """Publish the sums of a block's bins."""
    span = start // COLS - own * GROUP_SIZE // COLS  # how many pieces have columns of it before
    to = mail + (above * SPANS + span) * bins + own
    publish(to, pack_pair(sums[0], sums[1]), own * GROUP_SIZE < start + columns)


@jit
def await_sums(
    mail,
    parts,
    start,
    columns,
    bins,
    box: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    COLS: tl.constexpr,
    BINS: tl.constexpr,
    SPANS: tl.constexpr,
    STEP: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The sums of a block's bins over all parts."""
    own = start // GROUP_SIZE + gl.arange(0, BINS, gl.SliceLayout(0, box))
    ok = own * GROUP_SIZE < start + columns
    last = (own * GROUP_SIZE + GROUP_SIZE - 1) // COLS - own * GROUP_SIZE // COLS
    row = gl.arange(0, STEP, gl.SliceLayout(1, box))
    t1 = gl.zeros([STEP, BINS], tl.float32, box)
    t2 = gl.zeros([STEP, BINS], tl.float32, box)
    for base in tl.range(0, parts * SPANS, STEP):
        word = base + row
        wanted = (word < parts * SPANS)[:, None] & ok[None, :]
        if SPANS > 1:
            wanted = wanted & ((word % SPANS)[:, None] <= last[None, :])
        at = word[:, None] * bins + own[None, :]
        u1, u2 = unpack_pair(await_words(mail + at, wanted, STEP * BINS // (32 * WARPS)))
        t1 += u1
        t2 += u2
    return sum_pairs(t1, t2, 0)


@jit
def publish_totals(
    mail,  # with one part more, for the totals
    above,
    parts,
    start,
    columns,
    bins,
    COLS: tl.constexpr,
    OWN: tl.constexpr,
    STEP: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Add up all parts of OWN columns, for everybody."""
    LANES: tl.constexpr = min(32, OWN)
    ACROSS: tl.constexpr = min(WARPS, OWN // LANES)
    box: tl.constexpr = gl.BlockedLayout(
        [1, 1], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0]
    )
    first = start + above * OWN
    t1, t2 = await_sums(
        mail, parts, first, columns - above * OWN, bins, box, 1, COLS, OWN, 1, STEP, WARPS
    )
    own = first + gl.arange(0, OWN, gl.SliceLayout(0, box))
    publish(mail + parts * bins + own, pack_pair(t1, t2), own < start + columns)


@jit
def exchange(
    sums,  # of the block's columns, in any layout
    mail,
    place_of,  # above, start, columns, image, first channel
    sizes,  # parts, bins, images, channels
    vectors,  # rstd, gamma, dgamma, dbeta, partials
    count,
    eps,
    by_col: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    VARIANCE: tl.constexpr,
    COLS: tl.constexpr,
    BINS: tl.constexpr,
    SPANS: tl.constexpr,
    STEP: tl.constexpr,
    OWN: tl.constexpr,
    WARPS: tl.constexpr,
    SOLO: tl.constexpr,
    PHASE: tl.constexpr,
):
    """What dx is made of, for each column: scale, tilt, shift. Parameter gradients on the way.

    A thread has few columns here, where it has the VECTOR of a tile elsewhere.
    """
    above, start, columns, image, left = place_of
    columns = gl.minimum(columns, COLS)
    parts, bins, images, channels = sizes
    rstd, gamma, dgamma, dbeta, partials = vectors
    LANES: tl.constexpr = min(32, BINS)
    ACROSS: tl.constexpr = min(WARPS, BINS // LANES)
    box: tl.constexpr = gl.BlockedLayout(
        [1, 1], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0]
    )
    flat: tl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    line: tl.constexpr = flat if GROUP else gl.SliceLayout(0, box)
    cols = gl.arange(0, COLS, line)
    ok = cols < columns
    channel = left + cols
    statistic = image * (channels // GROUP_SIZE) + channel // GROUP_SIZE if GROUP else channel
    rs = load_rstd(rstd, statistic, ok, eps, VARIANCE, tl.float32)
    weight = load_or(gamma, channel, ok, 1.0, tl.float32)
    t1, t2 = rs, rs
    if PHASE != 2:
        pair = gl.convert_layout(pack_pair(sums[0], sums[1]), line)
        t1, t2 = unpack_pair(pair)
        if GROUP:
            if partials is not None:
                to = partials + (image.to(tl.int64) * channels + channel) * parts + above
                gl.store(to, t1, mask=ok)
                gl.store(to + images.to(tl.int64) * channels * parts, t2, mask=ok)
            hot: tl.constexpr = gl.BlockedLayout([1, 1], [32 // LANES, LANES], [WARPS, 1], [1, 0])
            own = start // GROUP_SIZE + gl.arange(0, BINS, gl.SliceLayout(0, hot))
            side = start + gl.arange(0, COLS, gl.SliceLayout(1, hot))
            within = (side // GROUP_SIZE)[:, None] == own[None, :]
            pair = gl.convert_layout(pack_pair(t1 * weight, t2 * weight), gl.SliceLayout(1, hot))
            t1, t2 = unpack_pair(pair)
            t1, t2 = sum_pairs(
                gl.where(within, t1[:, None], 0.0), gl.where(within, t2[:, None], 0.0), 0
            )
        else:
            own = start + cols
        if not SOLO:
            publish_sums(mail, above, start, columns, bins, own, (t1, t2), GROUP_SIZE, COLS, SPANS)
    if OWN > 0 and PHASE % 3 == 0:
        publish_totals(mail, above, parts, start, columns, bins, COLS, OWN, STEP, WARPS)
    if PHASE != 1 and (OWN == 0 or PHASE != 3):
        if OWN > 0:
            ONE: tl.constexpr = max(1, 32 * WARPS // BINS)  # a word for every thread
            t1, t2 = await_sums(
                mail + parts * bins, 1, start, columns, bins, box, 1, COLS, BINS, 1, ONE, WARPS
            )
        elif not SOLO:
            t1, t2 = await_sums(
                mail, parts, start, columns, bins, box, GROUP_SIZE, COLS, BINS, SPANS, STEP, WARPS
            )
        if GROUP:
            mine = gl.minimum((start + cols) // GROUP_SIZE - start // GROUP_SIZE, BINS - 1)
            t1 = gl.gather(t1, mine, 0)
            t2 = gl.gather(t2, mine, 0)
        elif above == 0:
            store_as(dbeta, channel, t1, ok)
            store_as(dgamma, channel, t2 * rs, ok)
        # The sums of group norm have gamma inside.
        t2, t1 = coefficients(rs, rs if GROUP else rs * weight, t1, t2, count)
    scale = gl.convert_layout(rs * weight, by_col)[None, :]
    return scale, gl.convert_layout(t2, by_col)[None, :], gl.convert_layout(t1, by_col)[None, :]
