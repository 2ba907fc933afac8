"""How the blocks of a team exchange the sums of their columns, and what dx is made of then.

Sums go round in one step, or in two: see `columns`. They are ``sum_d`` and ``sum_dt``, of the terms
of a gradient; forward the distance of the mean from its base and the sum of squared distances.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.pieces.common import (
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
from normgrad.backends.cuda.pieces.gluon import gl, jit
from normgrad.backends.cuda.pieces.moments import add_parts, merged, parts_of, store_statistics


@triton.constexpr_function
def _box(bins, warps):
    """Words in which a thread has few bins."""
    lanes = min(32, bins)
    across = min(warps, bins // lanes)
    return gl.BlockedLayout([1, 1], [32 // lanes, lanes], [warps // across, across], [1, 0])


@triton.constexpr_function
def columns_layout(group, bins, warps):
    """Columns, as the words of their bins lie."""
    return (
        gl.BlockedLayout([1], [32], [warps], [0]) if group else gl.SliceLayout(0, _box(bins, warps))
    )


@jit
def publish_sums(
    slab_words,  # words of this slab: [parts, SPANS, bins]
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
    to = slab_words + (above * SPANS + span) * bins + own
    publish(to, pack_pair(sums[0], sums[1]), own * GROUP_SIZE < start + columns)


@jit
def rows_of_part(part, parts, rows, ROWS: tl.constexpr):
    """How many rows of a slab the blocks of a part have."""
    apart = parts * ROWS
    return rows // apart * ROWS + gl.minimum(gl.maximum(rows % apart - part * ROWS, 0), ROWS)


@jit
def columns_in(span, own, GROUP_SIZE: tl.constexpr, COLS: tl.constexpr):
    """How many columns of a bin lie in the piece that is so many behind its first."""
    piece = (own * GROUP_SIZE // COLS + span) * COLS
    last = gl.minimum((own + 1) * GROUP_SIZE, piece + COLS)
    return gl.maximum(last - gl.maximum(own * GROUP_SIZE, piece), 0)


@jit
def await_sums(
    slab_words,
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
    FORMULA: tl.constexpr,
    rows,  # of a slab
    ROWS: tl.constexpr,  # of a tile
):
    """The sums of a block's bins over all parts."""
    own = start // GROUP_SIZE + gl.arange(0, BINS, gl.SliceLayout(0, box))
    ok = own * GROUP_SIZE < start + columns
    last = (own * GROUP_SIZE + GROUP_SIZE - 1) // COLS - own * GROUP_SIZE // COLS
    row = gl.arange(0, STEP, gl.SliceLayout(1, box))
    sum_d = gl.zeros([STEP, BINS], tl.float32, box)
    sum_dt = gl.zeros([STEP, BINS], tl.float32, box)
    if FORMULA.forward:
        found = (sum_d, sum_d, sum_d, sum_d)
    for base in tl.range(0, parts * SPANS, STEP):
        word = base + row
        wanted = (word < parts * SPANS)[:, None] & ok[None, :]
        if SPANS > 1:
            wanted = wanted & ((word % SPANS)[:, None] <= last[None, :])
        at = word[:, None] * bins + own[None, :]
        partner_d, partner_dt = unpack_pair(
            await_words(slab_words + at, wanted, STEP * BINS // (32 * WARPS))
        )
        if FORMULA.forward:
            count = rows_of_part(word // SPANS, parts, rows, ROWS)[:, None]
            count = count * columns_in((word % SPANS)[:, None], own[None, :], GROUP_SIZE, COLS)
            count = gl.where(wanted, count.to(tl.float32), 0.0)
            found = add_parts(found, count, partner_d, partner_dt)
        else:
            sum_d += partner_d
            sum_dt += partner_dt
    if FORMULA.forward:
        _, sum_d, sum_dt = merged(FORMULA, parts_of(FORMULA, found, 0.0), 0)
    else:
        sum_d, sum_dt = sum_pairs(sum_d, sum_dt, 0)
    return sum_d, sum_dt


@jit
def publish_totals(
    slab_words,  # with one part more, for the totals
    above,
    parts,
    start,
    columns,
    bins,
    COLS: tl.constexpr,
    TOTALS_COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    WARPS: tl.constexpr,
    FORMULA: tl.constexpr,
    rows,
    ROWS: tl.constexpr,
):
    """Add up all parts of TOTALS_COLUMNS columns, for everybody."""
    LANES: tl.constexpr = min(32, TOTALS_COLUMNS)
    ACROSS: tl.constexpr = min(WARPS, TOTALS_COLUMNS // LANES)
    box: tl.constexpr = gl.BlockedLayout(
        [1, 1], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0]
    )
    first = start + above * TOTALS_COLUMNS
    sum_d, sum_dt = await_sums(
        slab_words, parts, first, columns - above * TOTALS_COLUMNS, bins, box, 1, COLS,
        TOTALS_COLUMNS, 1, STEP, WARPS, FORMULA, rows, ROWS,
    )  # fmt: skip
    own = first + gl.arange(0, TOTALS_COLUMNS, gl.SliceLayout(0, box))
    publish(slab_words + parts * bins + own, pack_pair(sum_d, sum_dt), own < start + columns)


@jit
def all_sums(sum_d, sum_dt, ONCE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The sums of a block's columns: a thread adds up its rows, then lanes and warps."""
    sum_d, sum_dt = sum_pairs(
        gl.reshape(sum_d, [ROWS // ONCE, ONCE, COLS]),
        gl.reshape(sum_dt, [ROWS // ONCE, ONCE, COLS]),
        0,
    )
    return sum_pairs(sum_d, sum_dt, 0)


@jit
def keep_sums(
    slot,  # of shared memory
    sum_d,
    sum_dt,
    KEPT: tl.constexpr,
    ONCE: tl.constexpr,  # rows that have one element in each thread
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Store the sums of each warp's rows, of which KEPT lie one below the other."""
    # A thread adds up its rows, then lanes.
    sum_d, sum_dt = sum_pairs(
        gl.reshape(sum_d, [ROWS // ONCE, KEPT, ONCE // KEPT, COLS]),
        gl.reshape(sum_dt, [ROWS // ONCE, KEPT, ONCE // KEPT, COLS]),
        0,
    )
    sum_d, sum_dt = sum_pairs(sum_d, sum_dt, 1)
    slot.store(pack_pair(sum_d, sum_dt))


@jit
def sums_in(kept, layout: tl.constexpr, down: tl.constexpr, KEPT: tl.constexpr):
    """The sums of columns in a layout; a thread adds up what KEPT warps have of a column.

    ``down`` has all of those in a thread, and columns as ``layout`` has them.
    """
    if KEPT:
        first, second = unpack_pair(kept.load(down))
        first, second = sum_pairs(first, second, 0)
        sums = gl.convert_layout(first, layout), gl.convert_layout(second, layout)
    else:
        sums = unpack_pair(gl.convert_layout(pack_pair(kept[0], kept[1]), layout))
    return sums


@jit
def group_weights(
    gamma, columns, left, COLS: tl.constexpr, BINS: tl.constexpr, WARPS: tl.constexpr
):
    """Gamma of a block's columns, as `publish_groups` wants it.

    To be loaded before the tiles: a wait for sums would be one for it too.
    """
    LANES: tl.constexpr = min(32, BINS)
    hot: tl.constexpr = gl.BlockedLayout([1, 1], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    cols = gl.arange(0, COLS, gl.SliceLayout(1, hot))
    return load_or(gamma, left + cols, cols < gl.minimum(columns, COLS), 1.0, tl.float32)


@jit
def publish_groups(
    kept,
    slab_words,
    above,
    place_of,  # first column of the block, columns
    bins,
    weight,  # see `group_weights`
    GROUP_SIZE: tl.constexpr,
    COLS: tl.constexpr,
    BINS: tl.constexpr,
    SPANS: tl.constexpr,
    KEPT: tl.constexpr,
    WARPS: tl.constexpr,
    SOLO: tl.constexpr,
    FORMULA: tl.constexpr,
    count,  # rows of this block
):
    """Group norm: the sums of a block's groups, with gamma inside."""
    LANES: tl.constexpr = min(32, BINS)
    hot: tl.constexpr = gl.BlockedLayout([1, 1], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    down: tl.constexpr = gl.BlockedLayout(
        [max(1, KEPT), 1], [LANES, 32 // LANES], [1, WARPS], [0, 1]
    )
    start, columns = place_of
    own = start // GROUP_SIZE + gl.arange(0, BINS, gl.SliceLayout(0, hot))
    cols = gl.arange(0, COLS, gl.SliceLayout(1, hot))
    within = ((start + cols) // GROUP_SIZE)[:, None] == own[None, :]
    sum_d, sum_dt = sums_in(kept, gl.SliceLayout(1, hot), down, KEPT)
    if FORMULA.forward:
        within = within & (cols < columns)[:, None]
        parts = (
            gl.where(within, count.to(tl.float32), 0.0),
            gl.where(within, sum_d[:, None], 0.0), gl.where(within, sum_dt[:, None], 0.0),
        )  # fmt: skip
        _, sum_d, sum_dt = merged(FORMULA, parts, 0)
    else:
        sum_d = gl.where(within, (sum_d * weight)[:, None], 0.0)
        sum_dt = gl.where(within, (sum_dt * weight)[:, None], 0.0)
        sum_d, sum_dt = sum_pairs(sum_d, sum_dt, 0)
    if not SOLO:
        publish_sums(
            slab_words, above, start, columns, bins, own, (sum_d, sum_dt), GROUP_SIZE, COLS, SPANS
        )
    return sum_d, sum_dt


@jit
def share_sums(
    kept,  # sums of the block's columns: of each warp, kept in shared memory, or as they are
    slab_words,
    place_of,  # above, start, columns, image, first channel
    sizes,  # parts, bins, images, channels
    partials,
    weights,  # of group norm: see `group_weights`
    GROUP: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    COLS: tl.constexpr,
    BINS: tl.constexpr,
    SPANS: tl.constexpr,
    KEPT: tl.constexpr,  # warps that have kept sums of a column; 0: none has
    WARPS: tl.constexpr,
    SOLO: tl.constexpr,
    FORMULA: tl.constexpr,
    rows,  # of a slab
    ROWS: tl.constexpr,  # of a tile
):
    """Publish the sums of a block's bins; they are returned for a block without partners."""
    above, start, columns, image, left = place_of
    columns = gl.minimum(columns, COLS)
    parts, bins, images, channels = sizes
    line: tl.constexpr = columns_layout(GROUP, BINS, WARPS)
    down: tl.constexpr = gl.BlockedLayout([max(1, KEPT), 1], [1, 32], [1, WARPS], [0, 1])
    cols = gl.arange(0, COLS, line)
    if GROUP:
        sum_d, sum_dt = publish_groups(
            kept, slab_words, above, (start, columns), bins, weights,
            GROUP_SIZE, COLS, BINS, SPANS, KEPT, WARPS, SOLO, FORMULA,
            rows_of_part(above, parts, rows, ROWS),
        )  # fmt: skip
        if partials is not None:  # nobody waits for these
            column_d, column_dt = sums_in(kept, line, down, KEPT)
            to = partials + (image.to(tl.int64) * channels + left + cols) * parts + above
            gl.store(to, column_d, mask=cols < columns)
            gl.store(to + images.to(tl.int64) * channels * parts, column_dt, mask=cols < columns)
    else:
        sum_d, sum_dt = sums_in(kept, line, down, KEPT)
        if not SOLO:
            own = start + cols
            publish_sums(
                slab_words, above, start, columns, bins, own, (sum_d, sum_dt), 1, COLS, SPANS
            )
    return sum_d, sum_dt


@jit
def factors_of(
    sums,  # of a block without partners
    slab_words,
    place_of,
    sizes,
    vectors,  # rstd, gamma, dgamma, dbeta
    count,
    eps,
    by_col: tl.constexpr,
    FORMULA: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    VARIANCE: tl.constexpr,
    COLS: tl.constexpr,
    BINS: tl.constexpr,
    SPANS: tl.constexpr,
    STEP: tl.constexpr,
    TOTALS_COLUMNS: tl.constexpr,
    WARPS: tl.constexpr,
    SOLO: tl.constexpr,
    PHASE: tl.constexpr,
    forward_operands,  # forward: the base of each column's mean, beta, results, momentum
    rows,  # of a slab
    ROWS: tl.constexpr,  # of a tile
):
    """The factors of dx for each column: of dy, of x, and the constant.

    Part 0 of a batch norm's slab also writes dgamma and dbeta.

    A thread has few columns here, where it has the VECTOR of a tile elsewhere.
    """
    above, start, columns, image, left = place_of
    columns = gl.minimum(columns, COLS)
    parts, bins, _, channels = sizes
    rstd, gamma, dgamma, dbeta = vectors
    box: tl.constexpr = _box(BINS, WARPS)
    cols = gl.arange(0, COLS, columns_layout(GROUP, BINS, WARPS))
    ok = cols < columns
    channel = left + cols
    statistic = image * (channels // GROUP_SIZE) + channel // GROUP_SIZE if GROUP else channel
    if FORMULA.forward:
        base, beta, results, momentum = forward_operands
        rs = base
    else:
        rs = load_rstd(rstd, statistic, ok, eps, VARIANCE, tl.float32)
    weight = load_or(gamma, channel, ok, 1.0, tl.float32)
    x_factor, constant = rs, rs
    if TOTALS_COLUMNS > 0 and PHASE % 3 == 0:
        publish_totals(
            slab_words,
            above,
            parts,
            start,
            columns,
            bins,
            COLS,
            TOTALS_COLUMNS,
            STEP,
            WARPS,
            FORMULA,
            rows,
            ROWS,
        )
    if PHASE != 1 and (TOTALS_COLUMNS == 0 or PHASE != 3):
        if TOTALS_COLUMNS > 0:
            TOTALS_STEP: tl.constexpr = max(1, 32 * WARPS // BINS)  # a word for every thread
            sum_d, sum_dt = await_sums(
                slab_words + parts * bins, 1, start, columns, bins, box, 1, COLS, BINS, 1,
                TOTALS_STEP, WARPS, FORMULA, rows, ROWS,
            )  # fmt: skip
        elif SOLO:
            sum_d, sum_dt = sums
        else:
            sum_d, sum_dt = await_sums(
                slab_words, parts, start, columns, bins, box, GROUP_SIZE, COLS, BINS, SPANS, STEP,
                WARPS, FORMULA, rows, ROWS,
            )  # fmt: skip
        if GROUP:
            mine = gl.minimum((start + cols) // GROUP_SIZE - start // GROUP_SIZE, BINS - 1)
            sum_d, sum_dt = unpack_pair(gl.gather(pack_pair(sum_d, sum_dt), mine, 0))
        elif above == 0 and not FORMULA.forward:
            store_as(dbeta, channel, sum_d, ok)
            store_as(dgamma, channel, sum_dt * rs, ok)
        if FORMULA.forward:
            rs = 1.0 / tl.sqrt(sum_dt / count + eps)
            x_factor = base + sum_d
            constant = load_or(beta, channel, ok, 0.0, tl.float32)
            if above == 0:
                moments = (count + sum_d * 0.0, x_factor, sum_dt)
                once = ok & (channel % GROUP_SIZE == 0)
                store_statistics(
                    results, statistic, moments, momentum, eps, once, VARIANCE, FORMULA.biased
                )
        else:
            # The sums of group norm have gamma inside.
            factor = rs if GROUP else rs * weight
            x_factor, constant = coefficients(FORMULA, rs, factor, sum_d, sum_dt, count)
    # All three at once: a barrier for each is half a percent of group norm 1x512x512x512.
    places = gl.allocate_shared_memory(tl.float32, [3, COLS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    places.index(0).store(rs * weight)
    places.index(1).store(x_factor)
    places.index(2).store(constant)
    dy_factor, x_factor = places.index(0).load(by_col), places.index(1).load(by_col)
    return dy_factor[None, :], x_factor[None, :], places.index(2).load(by_col)[None, :]
