"""Layer norm of whole rows that come by bulk copies.

As `rows.layer_rows`: a block has sets of rows, writes their dx and adds up the parameter gradients
it meets. A set that has been read into registers makes room in the ring for one DEPTH further on.
"""

import triton.language as tl

from normgrad.backends.cuda.kernels.bulk import (
    all_read,
    await_turn,
    copy_runs,
    keep_last,
    read,
    read_number,
    ring_at,
    start_barriers,
    write,
)
from normgrad.backends.cuda.kernels.common import (
    arrive,
    await_step_before,
    clear_stale,
    load_or,
    sum_pairs,
    widen,
)
from normgrad.backends.cuda.kernels.gluon import gl, jit
from normgrad.backends.cuda.kernels.joins import join_slices


@jit
def _ask(
    data,
    ring,  # where it starts, and the policy
    slot,
    first,
    sizes,
    thread,
    ROWS: tl.constexpr,
    PACKED: tl.constexpr,
    HEAD: tl.constexpr,
    SLOT: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """Start copying the rows from ``first`` on: the first thread, or one for each row."""
    dy, x, dy_row, x_row = data
    rows, length = sizes
    base, policy = ring
    count = tl.minimum(tl.maximum(rows - first, 0), ROWS)
    leads = (thread == 0) & (count > 0)
    x_bytes = length * (x.dtype.element_ty.primitive_bitwidth // 8)
    dy_bytes = length * (dy.dtype.element_ty.primitive_bitwidth // 8)
    promise = tl.where(leads, count * (x_bytes + dy_bytes), -1)
    to = base + (HEAD + slot * SLOT)
    to_dy = to + ROWS * x_bytes
    zero = thread * 0
    row = first + zero
    copies = leads
    sizes = (zero + count * x_bytes, zero + count * dy_bytes)
    if not PACKED:
        row = first + thread
        copies = thread < count
        to, to_dy = to + thread * x_bytes, to_dy + thread * dy_bytes
        sizes = (zero + x_bytes, zero + dy_bytes)
    far = row.to(tl.int64)
    from_x = tl.where(copies, (x + far * x_row * ALIGN).to(tl.uint64), 0)
    from_dy = (dy + far * dy_row * ALIGN).to(tl.uint64)
    copy_runs(base + slot * 8, promise, (to, to_dy), (from_x, from_dy), sizes, policy)


@jit
def _note(
    mean,
    rstd,
    first,
    stride,
    rows,
    at,  # where the ring has room for them
    thread,
    ROWS: tl.constexpr,
    NOTED: tl.constexpr,
):
    """Mean and rstd of the next NOTED rows of this block, from ``first`` on; 0 for no row."""
    tl.debug_barrier()  # all have read those before
    left = tl.cdiv(rows - first, stride) * ROWS
    for done in tl.range(0, tl.minimum(left, NOTED), thread.shape[0]):
        number = done + thread
        row = first + number // ROWS * stride + number % ROWS
        ok = row < rows
        write(at + number * 4, load_or(mean, row, ok, 0.0, tl.float32))
        write(at + (number + NOTED) * 4, load_or(rstd, row, ok, 0.0, tl.float32))
    tl.debug_barrier()


@jit
def _inside(row, rows, column, length, PARTIAL: tl.constexpr):
    """Which elements of a tile there are."""
    ok = (row < rows)[:, None]
    if PARTIAL:
        ok = ok & (column < length)[None, :]
    return ok


@jit
def layer_ring(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    partials,  # [programs, 2, cols]: dgamma and dbeta of each program
    dgamma,
    dbeta,
    words,  # none but the count of arrivals
    stale,  # words of the call before, to be cleared for the next
    stale_words,
    tally,
    rows,
    cols,  # over ALIGN
    programs,
    dy_row,
    x_row,
    dx_row,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,  # of a row: CHUNKS tiles of CHUNK, the last of them perhaps in part
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    STACKED: tl.constexpr,  # rows lie in a warp or a part of one, not across the block
    VECTOR: tl.constexpr,  # elements of a thread side by side
    DEPTH: tl.constexpr,  # sets of rows that there is room for
    HEAD: tl.constexpr,  # bytes of the barriers
    SLOT: tl.constexpr,  # bytes of a set of rows
    PACKED: tl.constexpr,  # rows lie one after another
    EVEN: tl.constexpr,  # so many rows that all sets are full
    NOTED: tl.constexpr,  # rows whose statistics there is room for, a power of two
    AGAIN: tl.constexpr,  # a block has more
    ALIGN: tl.constexpr,
    WARPS: tl.constexpr,
    MEETS: tl.constexpr,  # the programs wait for each other and join their sums
    DOWN: tl.constexpr,  # of these in tiles of DOWN programs
    TIMES: tl.constexpr,  # so often
    WIDTH: tl.constexpr,  # and so many columns
    EARLY: tl.constexpr,  # the count of arrivals is cleared meanwhile
    PHASE: tl.constexpr,  # 0; in the interpreter 3: rows, 4: the joint sums
):
    """Rows ``ROWS * program``, then every ``ROWS * programs`` further."""
    NOTES: tl.constexpr = HEAD + DEPTH * SLOT
    BYTES: tl.constexpr = NOTES + 8 * NOTED
    ITEM: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    CUT: tl.constexpr = COLS // CHUNK  # the tile that is there in part, if there is one
    HELD: tl.constexpr = ROWS if STACKED else 1  # rows of the sums of columns
    BELOW: tl.constexpr = WARPS if STACKED else 1  # warps one below the other
    LANES: tl.constexpr = CHUNK // VECTOR * BELOW // WARPS
    tile: tl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [BELOW, WARPS // BELOW], [1, 0]
    )
    line: tl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    side: tl.constexpr = gl.SliceLayout(0, tile)
    length = cols * ALIGN
    inverse = 1.0 / length
    program = gl.program_id(0)
    thread = gl.arange(0, 32 * WARPS, line)
    column = gl.arange(0, CHUNK, side)
    local = gl.arange(0, ROWS, gl.SliceLayout(1, tile))
    if STACKED and partials is None:
        # Nothing else would have shared memory of the compiler's, behind which the ring is.
        flat: tl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        gl.allocate_shared_memory(tl.int32, [1, 32 * WARPS], flat).index(0).store(thread)
    base = ring_at(thread * 0, BYTES)
    start_barriers(base, DEPTH)
    data = (dy, x, dy_row, x_row)
    ring = (base, keep_last(thread))
    sizes = (rows, length)
    start = program * ROWS if PHASE != 4 else rows
    stride = programs * ROWS
    for ahead in gl.static_range(DEPTH):
        later = start + ahead * stride
        _ask(
            data, ring, ahead, later, sizes, thread, ROWS, PACKED, HEAD, SLOT, ALIGN
        )  # fmt: skip
    sums_gamma = ()
    sums_beta = ()
    weights = ()
    for chunk in gl.static_range(CHUNKS):
        if partials is not None:
            sums_gamma = sums_gamma + (gl.zeros([HELD, CHUNK], tl.float32, tile),)
            sums_beta = sums_beta + (gl.zeros([HELD, CHUNK], tl.float32, tile),)
        at = chunk * CHUNK + column
        weights = weights + (load_or(gamma, at, at < length, 1.0, tl.float32)[None, :],)
    # Where this thread's elements are in the first slot; what lies behind a row is not read.
    vectors = (column // VECTOR * VECTOR)[None, :]
    first_x = HEAD + local[:, None] * (COLS * ITEM)
    first_dy = first_x + ROWS * COLS * ITEM
    at_x = ring_at(first_x + vectors * ITEM, BYTES)
    at_dy = ring_at(first_dy + vectors * ITEM, BYTES)
    last_x, last_dy = at_x, at_dy
    if CUT < CHUNKS:
        vectors = gl.minimum(vectors, COLS - CUT * CHUNK - VECTOR)
        last_x = ring_at(first_x + vectors * ITEM, BYTES)
        last_dy = ring_at(first_dy + vectors * ITEM, BYTES)
    at_mean = ring_at(NOTES + local * 4, BYTES)
    notes = base + NOTES
    noted = program * 0
    _note(mean, rstd, start, stride, rows, notes, thread, ROWS, NOTED)
    place = program
    await_step_before(EARLY)  # it cleared the count
    slot = program * 0
    turn = thread * 0
    for first in tl.range(start, rows, stride):
        if AGAIN:  # noqa: SIM102
            if noted == NOTED:
                _note(mean, rstd, first, stride, rows, notes, thread, ROWS, NOTED)
                noted = 0
        row = first + local
        mu = read_number(at_mean + noted * 4)[:, None]
        rs = read_number(at_mean + (noted + NOTED) * 4)[:, None]
        noted += ROWS
        await_turn(base + slot * 8, turn)
        s1 = gl.zeros([ROWS, CHUNK], tl.float32, tile)
        s2 = gl.zeros([ROWS, CHUNK], tl.float32, tile)
        xs = ()
        gs = ()
        next_gamma = ()
        next_beta = ()
        for chunk in gl.static_range(CHUNKS):
            from_x, from_dy = at_x, at_dy
            if chunk == CUT:
                from_x, from_dy = last_x, last_dy
            far = slot * SLOT + chunk * CHUNK * ITEM
            wide_x = widen(read(from_x + far, x, VECTOR))
            wide = widen(read(from_dy + far, dy, VECTOR))
            if chunk == CUT or not EVEN:
                ok = _inside(row, rows, chunk * CHUNK + column, length, chunk == CUT)
                wide_x = gl.where(ok, wide_x, mu)
                wide = gl.where(ok, wide, 0.0)
            xhat = (wide_x - mu) * rs
            product = wide * xhat
            g = wide * weights[chunk]
            s1 += g
            s2 += g * xhat
            if partials is not None:
                if not STACKED:  # a thread has all rows of its columns
                    product = gl.sum(product, 0)[None, :]
                    wide = gl.sum(wide, 0)[None, :]
                next_gamma = next_gamma + (sums_gamma[chunk] + product,)
                next_beta = next_beta + (sums_beta[chunk] + wide,)
            xs = xs + (xhat,)
            gs = gs + (g,)
        sums_gamma = next_gamma
        sums_beta = next_beta
        t1, t2 = sum_pairs(s1, s2, 1)
        all_read(slot)
        later = first + DEPTH * stride
        _ask(
            data, ring, slot, later, sizes, thread, ROWS, PACKED, HEAD, SLOT, ALIGN
        )  # fmt: skip
        if partials is not None:  # noqa: SIM102
            if first + stride >= rows:  # dx follows, but all sums are there
                sums = partials + program.to(tl.int64) * 2 * length
                for chunk in gl.static_range(CHUNKS):
                    at = chunk * CHUNK + column
                    all_gamma, all_beta = sum_pairs(sums_gamma[chunk], sums_beta[chunk], 0)
                    gl.store(sums + at, all_gamma, mask=at < length)
                    gl.store(sums + length + at, all_beta, mask=at < length)
                place = arrive(words + tally)
        # dx = (g - t1 / length - xhat * t2 / length) * rs, in two steps an element.
        shift = (t1 * inverse)[:, None] * -rs
        tilt = (t2 * inverse)[:, None] * -rs
        to = dx + row.to(tl.int64)[:, None] * dx_row * ALIGN + column[None, :]
        for chunk in gl.static_range(CHUNKS):
            result = (gs[chunk] * rs + (xs[chunk] * tilt + shift)).to(dx.dtype.element_ty)
            if chunk == CUT or not EVEN:
                ok = _inside(row, rows, chunk * CHUNK + column, length, chunk == CUT)
                gl.store(to + chunk * CHUNK, result, mask=ok)
            else:
                gl.store(to + chunk * CHUNK, result)
        slot += 1
        turn = tl.where(slot == DEPTH, turn ^ 1, turn)
        slot = tl.where(slot == DEPTH, 0, slot)
    if MEETS:
        clear_stale(stale, stale_words, thread, 32 * WARPS)
        # Those that come last, whom everybody waits for, have little or nothing to add up.
        if place < tl.cdiv(length, WIDTH) and PHASE % 4 == 0:
            join_slices(
                words + tally, thread, (partials, dgamma, dbeta), (programs, length), place,
                programs, DOWN, TIMES, WIDTH, WARPS,
            )  # fmt: skip
