"""Channels-last batch and group norm with every slab read once.

A slab is what shares statistics and is worked on together: a block of columns of all rows (batch
norm) or of one image (group norm). A team of blocks holds it on chip: each block a run of rows and
COLS of the columns, cut into CHUNKS tiles. A block adds up its tiles as they arrive, publishes the
sums, waits for its partners', and writes dx tile by tile. Each tile that is done makes room for
the tile DEPTH further on, whose copy starts at once. Three trips to memory instead of five.

The first HELD tiles move on to registers when they are added up. What takes their place in shared
memory arrives during the wait, or is the rest of a slab that shared memory alone has no room for.

Sums go round in one step. Each block publishes a word for each of its bins: a column, or a group
of columns with gamma inside. Everybody adds up the words of its own bins, part by part in order.
Where everybody would read too many words, there are two steps: each block adds up all parts of OWN
columns and publishes the totals, and everybody reads those.
"""

import triton.language as tl

from normgrad.backends.cuda.kernels.common import (
    arrive,
    await_step_before,
    await_words,
    clear_stale,
    coefficients,
    fresh,
    load_or,
    load_rstd,
    pack_pair,
    publish,
    store_as,
    sum_pairs,
    unpack_pair,
    widen,
    widen_again,
)
from normgrad.backends.cuda.kernels.gluon import async_copy, gl, jit
from normgrad.backends.cuda.kernels.joins import join_groups


@jit
def strip_of(slab, part, ALIGN: tl.constexpr):
    """A block's part of a slab: first element, columns, rows; its image and first channel.

    Once for all tiles where registers allow it: two divisions are 41 of the 134 instructions that
    writing a tile takes in bfloat16.
    """
    slabs, split, width, channels, start, first, limit, outer_step, row_step = part
    image = slab // split
    left = (slab % split) * width * ALIGN + start
    origin = (image.to(tl.int64) * outer_step + first.to(tl.int64) * row_step) * ALIGN + left
    columns = gl.minimum(width - start // ALIGN, channels - left // ALIGN) * ALIGN
    return origin, columns, gl.where(slab < slabs, limit, 0), image, left


@jit
def either(which, one, other):
    """The first strip where ``which`` is true, else the other."""
    origin = gl.where(which, one[0], other[0])
    columns = gl.where(which, one[1], other[1])
    return origin, columns, gl.where(which, one[2], other[2]), one[3], one[4]


@jit
def tile_at(strip, number, row_step, local, cols, ROWS: tl.constexpr, ALIGN: tl.constexpr):
    """The elements of a tile: where the first is, where the others are from there, which exist."""
    origin, columns, limit, _, _ = strip
    origin += (row_step * ALIGN).to(tl.int64) * (number * ROWS)
    at = local[:, None] * row_step * ALIGN + cols[None, :]
    ok = number * ROWS + local < limit
    return origin, at, ok[:, None] & (cols < columns)[None, :]


@jit
def copy_tile(
    data, slot, strip, number, row_step, local, cols, ROWS: tl.constexpr, ALIGN: tl.constexpr
):
    """Ask for a tile."""
    x, dy, tiles_x, tiles_dy = data
    origin, at, mask = tile_at(strip, number, row_step, local, cols, ROWS, ALIGN)
    async_copy.async_copy_global_to_shared(tiles_x.index(slot), x + origin + at, mask)
    async_copy.async_copy_global_to_shared(tiles_dy.index(slot), dy + origin + at, mask)
    async_copy.commit_group()


@jit
def take_tile(data, slot, tile: tl.constexpr):
    """A tile of shared memory, in registers: dy, x."""
    _, _, tiles_x, tiles_dy = data
    return tiles_dy.index(slot).load(tile), tiles_x.index(slot).load(tile)


@jit
def add_tile(s1, s2, values, centre):
    """The two sums with one tile more."""
    # Masked elements of dy are 0, so their x does not matter.
    wide = widen(values[0])
    return s1 + wide, s2 + wide * (widen(values[1]) - centre)


@jit
def write_tile(
    dx, values, factors, strip, number, row_step, local, cols, ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """Dx of one tile."""
    scale, centre, tilt, shift = factors
    result = values[0] * scale + ((values[1] - centre) * tilt + shift)
    origin, at, mask = tile_at(strip, number, row_step, local, cols, ROWS, ALIGN)
    gl.store(dx + origin + at, result.to(dx.dtype.element_ty), mask=mask)


@jit
def centre_of(mean, strip, channels, cols, GROUP: tl.constexpr, GROUP_SIZE: tl.constexpr):
    """The mean of each column."""
    _, columns, _, image, left = strip
    statistic = left + cols
    if GROUP:
        statistic = image * (channels // GROUP_SIZE) + statistic // GROUP_SIZE
    return load_or(mean, statistic, cols < columns, 0.0, tl.float32)[None, :]


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


@jit
def column_slabs(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    dgamma,
    dbeta,
    partials,  # group norm: [2, images, channels, parts], sums of dy, then of dy * (x - mean)
    words,  # [slabs, parts, SPANS, bins]; one part more with OWN: the totals
    stale,  # words of the call before, to be cleared for the next
    stale_words,
    tally,  # the word that counts arrivals
    slabs,
    rows,  # rows of a slab
    share,  # rows of a block
    parts,  # blocks one below the other
    pieces,  # blocks side by side
    width,  # columns of a slab, over ALIGN
    bins,  # of a slab
    team,  # parts * pieces
    teams,
    split,  # slabs side by side
    images,
    channels,  # over ALIGN
    row_step,
    outer_step,
    count,
    eps,
    GROUP: tl.constexpr,
    GROUP_SIZE: tl.constexpr,  # columns of a bin
    VARIANCE: tl.constexpr,
    CHUNKS: tl.constexpr,  # tiles of a block's share: at most DEPTH + HELD
    DEPTH: tl.constexpr,  # tiles that there is room for in shared memory
    HELD: tl.constexpr,  # tiles that move on to registers
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    BINS: tl.constexpr,  # of a block, up to a power of two
    SPANS: tl.constexpr,  # pieces that the columns of a bin can lie in
    STEP: tl.constexpr,  # words of a bin to wait for together
    OWN: tl.constexpr,  # columns that a block adds up for its team; 0: it has all its own bins
    VECTOR: tl.constexpr,  # elements of 16 bytes
    WARPS: tl.constexpr,
    SOLO: tl.constexpr,  # a team of one
    ALIGN: tl.constexpr,
    MEETS: tl.constexpr,  # the blocks wait for each other and join group norm's partials
    CHANNELS: tl.constexpr,  # in tiles of so many channels
    PARTS: tl.constexpr,  # and parts
    TIMES: tl.constexpr,  # so often
    EARLY: tl.constexpr,  # the words are cleared meanwhile
    # 0; in the interpreter 1: sums, 3: totals or all of SOLO, 2: gradient, 4: the end
    PHASE: tl.constexpr,
):
    """See the module. The three tensors have the same strides, which come divided by ALIGN."""
    LANES: tl.constexpr = min(32, COLS // VECTOR)
    DOWN: tl.constexpr = min(WARPS, max(1, ROWS // (32 // LANES)))  # warps one below the other
    ONCE: tl.constexpr = min(ROWS, DOWN * (32 // LANES))  # rows with one element in each thread
    tile: tl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [DOWN, WARPS // DOWN], [1, 0]
    )
    by_col: tl.constexpr = gl.SliceLayout(0, tile)
    flat: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    tiles_x = gl.allocate_shared_memory(x.dtype.element_ty, [DEPTH, ROWS, COLS], flat)
    tiles_dy = gl.allocate_shared_memory(dy.dtype.element_ty, [DEPTH, ROWS, COLS], flat)
    above = gl.program_id(0) % team // pieces
    start = gl.program_id(0) % pieces * COLS
    first_slab = gl.program_id(0) // team
    first = above * share
    limit = gl.minimum(share, rows - first)
    local = gl.arange(0, ROWS, gl.SliceLayout(1, tile))
    cols = gl.arange(0, COLS, by_col)
    part = (slabs, split, width, channels, start, first, limit, outer_step, row_step)
    data = (x, dy, tiles_x, tiles_dy)
    sizes = (parts, bins, images, channels * ALIGN)
    vectors = (rstd, gamma, dgamma, dbeta, partials)
    FEW: tl.constexpr = CHUNKS - HELD <= 5  # unrolled; 6 beside 2 that are held spill 48 bytes
    # Slabs ahead that the place of the first tile behind the held ones, and of the last, goes to.
    NEAR: tl.constexpr = (HELD + DEPTH) // CHUNKS
    FAR: tl.constexpr = (CHUNKS - 1 + DEPTH) // CHUNKS
    unknown = share >> 30  # 0
    for ahead in (gl.static_range if FEW else tl.range)(0, DEPTH):
        early = strip_of(first_slab + ahead // CHUNKS * teams, part, ALIGN)
        copy_tile(data, ahead, early, ahead % CHUNKS, row_step, local, cols, ROWS, ALIGN)
    await_step_before(EARLY)  # it cleared the words
    thread = gl.arange(0, 32 * WARPS, gl.BlockedLayout([1], [32], [WARPS], [0]))
    turn = slabs * 0
    for slab in tl.range(first_slab if PHASE != 4 else slabs, slabs, teams):
        strip = strip_of(slab, part, ALIGN)
        _, columns, _, image, left = strip
        centre = centre_of(mean, strip, channels * ALIGN, cols, GROUP, GROUP_SIZE)
        step = fresh(row_step)
        now = (slabs, split, width, channels, start, first, limit, outer_step, step)
        s1 = gl.zeros([ROWS, COLS], tl.float32, tile)
        s2 = gl.zeros([ROWS, COLS], tl.float32, tile)
        held = ()
        # Each tile commits one group, so that the number to wait for is always the same.
        for chunk in gl.static_range(HELD):
            async_copy.wait_group(DEPTH - 1)
            slot = (turn + chunk) % DEPTH
            values = take_tile(data, slot, tile)
            held = held + (values,)
            later = strip_of(slab + (chunk + DEPTH) // CHUNKS * teams, now, ALIGN)
            number = (chunk + DEPTH) % CHUNKS
            copy_tile(data, slot, later, number, step, local, cols, ROWS, ALIGN)
            s1, s2 = add_tile(s1, s2, values, centre)
        mail = words
        if words is not None:
            mail = words + ((parts + (OWN > 0)) * SPANS).to(tl.int64) * slab * bins
        for chunk in (gl.static_range if FEW else tl.range)(HELD, CHUNKS):
            async_copy.wait_group(DEPTH - 1)
            slot = chunk if DEPTH == CHUNKS else (turn + chunk) % DEPTH
            s1, s2 = add_tile(s1, s2, take_tile(data, slot, tile), centre)
            async_copy.commit_group()
        # A thread adds up its rows; lanes and warps last.
        sums = sum_pairs(
            gl.reshape(s1, [ROWS // ONCE, ONCE, COLS]),
            gl.reshape(s2, [ROWS // ONCE, ONCE, COLS]),
            0,
        )
        sums = sum_pairs(sums[0], sums[1], 0)
        # Offsets from a fresh start are not kept from round to round: 16 bytes of spills less.
        scale, tilt, shift = exchange(
            sums, mail, (above, fresh(start), columns, image, left), sizes, vectors, count, eps,
            by_col, GROUP, GROUP_SIZE, VARIANCE, COLS, BINS, SPANS, STEP, OWN, WARPS, SOLO, PHASE,
        )  # fmt: skip
        if MEETS:  # noqa: SIM102
            if slab + teams >= slabs:  # dx follows, but all sums are there
                arrive(words + tally)
        factors = (scale, centre, tilt, shift)
        step = fresh(row_step)
        now = (slabs, split, width, channels, start, first, limit, outer_step, step)
        strip = strip_of(slab, now, ALIGN)
        near = strip_of(slab + NEAR * teams, now, ALIGN)
        far = strip_of(slab + FAR * teams, now, ALIGN)
        WRITES: tl.constexpr = PHASE % 2 == 0 or SOLO
        for chunk in (gl.static_range if FEW else tl.range)(HELD, CHUNKS):  # these make room
            slot = chunk if DEPTH == CHUNKS else (turn + chunk) % DEPTH
            tile_dy, tile_x = take_tile(data, slot, tile)
            if VECTOR == 4:  # float32 spills 16 bytes otherwise
                later = strip_of(slab + (chunk + DEPTH) // CHUNKS * teams, now, ALIGN)
            elif NEAR == FAR:
                later = near
            else:
                later = either(chunk + DEPTH < FAR * CHUNKS + turn * 0, near, far)
            number = (chunk + DEPTH) % CHUNKS
            copy_tile(data, slot, later, number, step, local, cols, ROWS, ALIGN)
            if WRITES:
                wide = (widen(tile_dy), widen(tile_x))
                write_tile(dx, wide, factors, strip, chunk, step, local, cols, ROWS, ALIGN)
        for chunk in gl.static_range(HELD):
            if WRITES:
                wide = (widen_again(held[chunk][0], unknown), widen_again(held[chunk][1], unknown))
                write_tile(dx, wide, factors, strip, chunk, step, local, cols, ROWS, ALIGN)
        turn = (turn + CHUNKS) % DEPTH
    async_copy.wait_group(0)
    clear_stale(stale, stale_words, thread, 32 * WARPS)
    if MEETS and PHASE % 4 == 0:
        join_groups(
            words + tally, partials, (rstd, dgamma, dbeta),
            (images, channels * ALIGN, parts, GROUP_SIZE), CHANNELS, PARTS, TIMES, WARPS,
        )  # fmt: skip
