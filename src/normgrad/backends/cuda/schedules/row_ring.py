"""Layer norm of whole rows that come by bulk copies, and group norm whose slabs are such rows.

As `rows.layer_rows`: a block has sets of rows, writes their dx and adds up the parameter gradients
it meets. A set that has been read into registers makes room in the ring for one DEPTH further on.

The rows of group norm are the groups of all samples. A block has the same groups of every so many
samples, so a column of it belongs to the same channel in all of them, and sums of columns become
sums of channels once, at the end.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.activations import output, through
from normgrad.backends.cuda.pieces.bulk import (
    all_read,
    await_turn,
    keep_last,
    read,
    read_number,
    ring_at,
    start_barriers,
    write,
)
from normgrad.backends.cuda.pieces.common import (
    await_step_before,
    clear_previous,
    count_arrival,
    load_or,
    load_weight,
    sum_pairs,
    widen,
)
from normgrad.backends.cuda.pieces.gluon import gl, jit
from normgrad.backends.cuda.pieces.joins import join_slices
from normgrad.backends.cuda.pieces.moments import store_statistics
from normgrad.backends.cuda.pieces.ring_sets import ask_rows, note_statistics, shift_of


@jit
def _inside(row, end, column, length, PARTIAL: tl.constexpr):
    """Which elements of a tile there are."""
    ok = (row < end)[:, None]
    if PARTIAL:
        ok = ok & (column < length)[None, :]
    return ok


@jit
def _store_columns(
    partials, sums_gamma, sums_beta, column, length, CHUNK: tl.constexpr, CHUNKS: tl.constexpr
):
    """A program's sums of each column."""
    for chunk in gl.static_range(CHUNKS):
        at = chunk * CHUNK + column
        all_gamma, all_beta = sum_pairs(sums_gamma[chunk], sums_beta[chunk], 0)
        gl.store(partials + at, all_gamma, mask=at < length)
        gl.store(partials + length + at, all_beta, mask=at < length)


@jit
def _store_channels(
    partials,
    sums_gamma,
    sums_beta,
    places,  # rows and columns of a tile
    channels,  # the first, how many this block has and there are in all
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PIXELS: tl.constexpr,
    HEAD: tl.constexpr,
    BYTES: tl.constexpr,
    WARPS: tl.constexpr,
):
    """A program's sums of each channel: columns that lie side by side.

    The ring, which is done with, serves as scratch: [sum_beta, sum_gamma] of ROWS x COLS float32.
    Lanes past COLS write to a slot behind, at 2 * ROWS * COLS.
    """
    PART: tl.constexpr = min(256, triton.next_power_of_2(PIXELS))
    LANES: tl.constexpr = min(32, PART)
    DOWN: tl.constexpr = 8 * 32 * WARPS // PART
    box: tl.constexpr = gl.BlockedLayout([1, 1], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    local, column = places
    first, count, total = channels
    for chunk in gl.static_range(CHUNKS):
        across = (chunk * CHUNK + column)[None, :]
        place = gl.where(across < COLS, local[:, None] * COLS + across, 2 * ROWS * COLS)
        write(ring_at(HEAD + place * 4, BYTES), sums_beta[chunk])
        place = gl.where(across < COLS, place + ROWS * COLS, place)
        write(ring_at(HEAD + place * 4, BYTES), sums_gamma[chunk])
    tl.debug_barrier()
    channel = gl.arange(0, DOWN, gl.SliceLayout(1, box))
    pixel = gl.arange(0, PART, gl.SliceLayout(0, box))
    for done in tl.range(0, count, DOWN):
        sum_beta = gl.zeros([DOWN, PART], tl.float32, box)
        sum_gamma = gl.zeros([DOWN, PART], tl.float32, box)
        for piece in gl.static_range((PIXELS + PART - 1) // PART):
            there = (done + channel < count)[:, None] & (piece * PART + pixel < PIXELS)[None, :]
            at = (done + channel)[:, None] * PIXELS + (piece * PART + pixel)[None, :]
            at = ring_at(HEAD + gl.where(there, at, 0) * 4, BYTES)
            sum_beta += gl.where(there, read_number(at), 0.0)
            sum_gamma += gl.where(there, read_number(at + 4 * ROWS * COLS), 0.0)
        total_beta, total_gamma = sum_pairs(sum_beta, sum_gamma, 1)
        to = _sums_of(partials, first + done + channel, total)
        gl.store(to, total_gamma, mask=done + channel < count)
        gl.store(to + total, total_beta, mask=done + channel < count)


@jit
def _sums_of(partials, channel, total):
    """Where the sums of a channel are; samples that lie side by side have sums of their own."""
    return partials + channel // total * (2 * total) + channel % total


@jit
def _distance(
    x, origin, places, chunk: tl.constexpr, CHUNK: tl.constexpr, CUT: tl.constexpr,
    FULL_SETS: tl.constexpr,
):  # fmt: skip
    """How far the elements of a tile are from a number of each row; 0 where there is none."""
    row, end, column, length = places
    t = x - origin[:, None]
    if chunk == CUT or not FULL_SETS:
        ok = _inside(row, end, chunk * CHUNK + column, length, chunk == CUT)
        t = gl.where(ok, t, 0.0)
    return t


@jit
def _normalize(
    xs,
    base,  # an element of each row
    results,  # y, mean, rstd
    places,
    y_row,
    weights,
    biases,
    inverse,
    eps,
    FORMULA: tl.constexpr,
    VARIANCE: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    CUT: tl.constexpr,
    FULL_SETS: tl.constexpr,
    GAMMA_PER_ROW: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """Forward: the statistics of a set of rows in registers, then y."""
    y, mean, rstd = results
    row, end, column, length = places
    mu = base * 0.0
    if FORMULA.has_mean:
        sum_t = _distance(xs[0], base, places, 0, CHUNK, CUT, FULL_SETS)
        for chunk in gl.static_range(1, CHUNKS):
            sum_t += _distance(xs[chunk], base, places, chunk, CHUNK, CUT, FULL_SETS)
        mu = base + tl.sum(sum_t, 1) * inverse
    t = _distance(xs[0], mu, places, 0, CHUNK, CUT, FULL_SETS)
    sum_tt = t * t
    for chunk in gl.static_range(1, CHUNKS):
        t = _distance(xs[chunk], mu, places, chunk, CHUNK, CUT, FULL_SETS)
        sum_tt += t * t
    made = (None, None, mean, rstd, None, None, None, None)
    moments = (length + mu * 0.0, mu, tl.sum(sum_tt, 1))
    mu, rs = store_statistics(made, row, moments, 0.0, eps, row < end, VARIANCE)
    if y is not None:
        to = y + row.to(tl.int64)[:, None] * y_row * ALIGN + column[None, :]
        for chunk in gl.static_range(CHUNKS):
            weight = weights if GAMMA_PER_ROW else weights[chunk]
            bias = biases if GAMMA_PER_ROW else biases[chunk]
            t = FORMULA.centred(xs[chunk], mu[:, None])
            result = output(FORMULA, t, rs[:, None] * weight, bias).to(y.dtype.element_ty)
            if chunk == CUT or not FULL_SETS:
                ok = _inside(row, end, chunk * CHUNK + column, length, chunk == CUT)
                gl.store(to + chunk * CHUNK, result, mask=ok)
            else:
                gl.store(to + chunk * CHUNK, result)


@jit
def whole_rows(
    dy,
    x,
    dx,
    mean,
    rstd,
    gamma,
    beta,
    partials,  # [parts, 2, columns or channels]: dgamma and dbeta of some rows
    dgamma,
    dbeta,
    sum_words,  # none but the count of arrivals
    previous_words,  # words of the call before, to be cleared for the next
    previous_count,
    arrivals,
    rows,
    cols,  # over ALIGN
    groups,  # of a sample; None in layer norm
    parts,  # programs that share some columns or groups
    dy_row,
    x_row,
    dx_row,
    eps,
    FORMULA: tl.constexpr,
    VARIANCE: tl.constexpr,  # the variance is wanted in the place of rstd
    ROWS: tl.constexpr,
    COLS: tl.constexpr,  # of a row: CHUNKS tiles of CHUNK, the last of them perhaps in part
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PIXELS: tl.constexpr,  # of a channel: columns of one gamma
    SAMPLES: tl.constexpr,  # whose groups are the rows of a set; 1 where those fill more
    STACKED: tl.constexpr,  # rows lie in a warp or a part of one, not across the block
    VECTOR: tl.constexpr,  # elements of a thread side by side
    DEPTH: tl.constexpr,  # sets of rows that there is room for
    HEAD: tl.constexpr,  # bytes of the barriers
    SLOT: tl.constexpr,  # bytes of a set of rows
    PACKED: tl.constexpr,  # rows lie one after another
    SHIFTED: tl.constexpr,  # and sets start anywhere
    RAGGED: tl.constexpr,  # and the last of them ends there
    FULL_SETS: tl.constexpr,  # so many rows that all sets are full
    STATISTICS_ROWS: tl.constexpr,  # rows whose statistics there is room for, a power of two
    AGAIN: tl.constexpr,  # a block has more
    ALIGN: tl.constexpr,
    WARPS: tl.constexpr,
    JOINS_AT_END: tl.constexpr,  # the programs wait for each other and join their sums
    JOIN_ROWS: tl.constexpr,  # of these in tiles of JOIN_ROWS programs
    JOIN_STEPS: tl.constexpr,  # so often
    JOIN_COLUMNS: tl.constexpr,  # and so many columns
    EARLY: tl.constexpr,  # the count of arrivals is cleared meanwhile
    PHASE: tl.constexpr,  # 0; in the interpreter 3: rows, 4: the joint sums
):
    """Rows ``ROWS * program``, then every ``ROWS * parts`` further.

    In group norm some groups of one sample, then the same of every ``parts`` samples further.
    """
    NOTES: tl.constexpr = HEAD + DEPTH * SLOT
    BYTES: tl.constexpr = NOTES + 8 * STATISTICS_ROWS
    ITEM: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    CUT: tl.constexpr = COLS // CHUNK  # the tile that is there in part, if there is one
    GROUP: tl.constexpr = groups is not None
    GAMMA_PER_ROW: tl.constexpr = GROUP and PIXELS == COLS  # instance norm: a row has one gamma
    SUM_ROWS: tl.constexpr = ROWS if STACKED or GROUP else 1  # rows of the sums of columns
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
    start, stride, height = program * ROWS, parts * ROWS, program * 0 + ROWS
    part, group = program, program * 0
    if SAMPLES > 1:  # as many as have room
        height = SAMPLES * groups
        start, stride = program * height, parts * height
    elif GROUP:
        sets = tl.cdiv(groups, ROWS)
        part, group = program // sets, program % sets * ROWS
        start, stride = part * groups + group, parts * groups
        height = tl.minimum(groups - group, ROWS)
    total = length if not GROUP else groups * (COLS // PIXELS)
    member = group + local  # which group a row is
    if SAMPLES > 1:
        member = member % groups
    if PHASE == 4:
        start = rows
    sizes = (rows, height, length)
    for ahead in gl.static_range(DEPTH):
        later = start + ahead * stride
        ask_rows(
            data, ring, ahead, later, sizes, thread, PACKED, SHIFTED, RAGGED, HEAD, SLOT,
            ALIGN,
        )  # fmt: skip
    sums_gamma = ()
    sums_beta = ()
    weights = ()
    biases = ()
    if GAMMA_PER_ROW:
        weights = load_weight(FORMULA, gamma, member, local < height, tl.float32)[:, None]
        biases = load_or(beta, member, local < height, 0.0, tl.float32)[:, None]
        sums_gamma = gl.zeros([ROWS], tl.float32, gl.SliceLayout(1, tile))
        sums_beta = gl.zeros([ROWS], tl.float32, gl.SliceLayout(1, tile))
    else:
        for chunk in gl.static_range(CHUNKS):
            if partials is not None:
                sums_gamma = sums_gamma + (gl.zeros([SUM_ROWS, CHUNK], tl.float32, tile),)
                sums_beta = sums_beta + (gl.zeros([SUM_ROWS, CHUNK], tl.float32, tile),)
            at = (chunk * CHUNK + column)[None, :]
            known = at < length
            if GROUP:
                known = known & (local < height)[:, None]
                at = member[:, None] * (COLS // PIXELS) + at // PIXELS
            weights = weights + (load_weight(FORMULA, gamma, at, known, tl.float32),)
            if FORMULA.forward or FORMULA.acts:
                biases = biases + (load_or(beta, at, known, 0.0, tl.float32),)
    # Where this thread's elements are in the first slot; what lies behind a row is not read.
    vectors = (column // VECTOR * VECTOR)[None, :]
    first_x = HEAD + local[:, None] * (COLS * ITEM)
    first_dy = first_x + SLOT // 2 if dy is not None else first_x
    at_x = ring_at(first_x + vectors * ITEM, BYTES)
    at_dy = ring_at(first_dy + vectors * ITEM, BYTES)
    if FORMULA.forward:
        at_row_base = ring_at(HEAD + local * (COLS * ITEM), BYTES)
    last_x, last_dy = at_x, at_dy
    if CUT < CHUNKS:
        vectors = gl.minimum(vectors, COLS - CUT * CHUNK - VECTOR)
        last_x = ring_at(first_x + vectors * ITEM, BYTES)
        last_dy = ring_at(first_dy + vectors * ITEM, BYTES)
    at_mean = ring_at(NOTES + local * 4, BYTES)
    notes = base + NOTES
    noted = program * 0
    if not FORMULA.forward:
        note_statistics(mean, rstd, start, stride, rows, notes, thread, ROWS, STATISTICS_ROWS)
    place = program
    await_step_before(EARLY)  # it cleared the count
    slot = program * 0
    turn = thread * 0
    for first in tl.range(start, rows, stride):
        if AGAIN:  # noqa: SIM102
            if noted == STATISTICS_ROWS:
                note_statistics(
                    mean, rstd, first, stride, rows, notes, thread, ROWS, STATISTICS_ROWS
                )
                noted = 0
        row = first + local
        end = tl.minimum(first + height, rows)
        origin = slot * SLOT
        if SHIFTED:
            origin += shift_of(first, COLS * ITEM)
        if not FORMULA.forward:
            mu = read_number(at_mean + noted * 4)[:, None]
            rs = read_number(at_mean + (noted + STATISTICS_ROWS) * 4)[:, None]
            noted += ROWS
        await_turn(base + slot * 8, turn)
        sum_d = gl.zeros([ROWS, CHUNK], tl.float32, tile)
        sum_dt = gl.zeros([ROWS, CHUNK], tl.float32, tile)
        xs = ()
        gs = ()
        next_gamma = ()
        next_beta = ()
        for chunk in gl.static_range(CHUNKS):
            from_x, from_dy = at_x, at_dy
            if chunk == CUT:
                from_x, from_dy = last_x, last_dy
            far = origin + chunk * CHUNK * ITEM
            wide_x = widen(read(from_x + far, x, VECTOR))
            if FORMULA.forward:
                xs = xs + (wide_x,)
            else:
                wide = widen(read(from_dy + far, dy, VECTOR))
            if not FORMULA.forward:
                if chunk == CUT or not FULL_SETS:
                    ok = _inside(row, end, chunk * CHUNK + column, length, chunk == CUT)
                    wide_x = gl.where(ok, wide_x, mu)
                    wide = gl.where(ok, wide, 0.0)
                t = FORMULA.centred(wide_x, mu)
                xhat = t * rs
                xs = xs + (xhat,)
                if FORMULA.acts:
                    weight = weights if GAMMA_PER_ROW else weights[chunk]
                    bias = biases if GAMMA_PER_ROW else biases[chunk]
                    wide = through(FORMULA, wide, t, rs * weight, bias)
                wide, product = FORMULA.terms(wide, xhat)
                if GAMMA_PER_ROW:
                    sum_d += wide
                    sum_dt += product
                    gs = gs + (wide,)
                else:
                    if dx is not None:
                        g = wide * weights[chunk]
                        term_d, term_dt = FORMULA.terms(g, xhat)
                        sum_d += term_d
                        sum_dt += term_dt
                        gs = gs + (g,)
                    if partials is not None:
                        if SUM_ROWS < ROWS:  # a thread has all rows of its columns
                            product = gl.sum(product, 0)[None, :]
                            wide = gl.sum(wide, 0)[None, :]
                        next_gamma = next_gamma + (sums_gamma[chunk] + product,)
                        next_beta = next_beta + (sums_beta[chunk] + wide,)
        if FORMULA.forward:
            row_base = read(at_row_base + origin, x, 1).to(tl.float32)
        else:
            if GAMMA_PER_ROW or dx is not None:
                row_d, row_dt = sum_pairs(sum_d, sum_dt, 1)
            dy_factor = rs
            if GAMMA_PER_ROW:
                next_gamma = sums_gamma + row_dt
                next_beta = sums_beta + row_d
                dy_factor = rs * weights
            sums_gamma = next_gamma
            sums_beta = next_beta
        all_read(slot)
        later = first + DEPTH * stride
        ask_rows(
            data, ring, slot, later, sizes, thread, PACKED, SHIFTED, RAGGED, HEAD, SLOT,
            ALIGN,
        )  # fmt: skip
        if partials is not None:  # noqa: SIM102
            if first + stride >= rows:  # dx follows, but all sums are there
                sums = partials + part.to(tl.int64) * SAMPLES * 2 * total
                if GAMMA_PER_ROW:
                    to_sums = _sums_of(sums, group + local, total)
                    gl.store(to_sums, sums_gamma, mask=local < height)
                    gl.store(to_sums + total, sums_beta, mask=local < height)
                elif GROUP:
                    channels = (group * (COLS // PIXELS), height * (COLS // PIXELS), total)
                    _store_channels(
                        sums, sums_gamma, sums_beta, (local, column), channels,
                        ROWS, COLS, CHUNK, CHUNKS, PIXELS, HEAD, BYTES, WARPS,
                    )  # fmt: skip
                else:
                    _store_columns(sums, sums_gamma, sums_beta, column, length, CHUNK, CHUNKS)
                place = count_arrival(sum_words + arrivals)
        if FORMULA.forward:
            results = (dx, mean, rstd)
            places = (row, end, column, length)
            _normalize(
                xs, row_base, results, places, dx_row, weights, biases, inverse, eps,
                FORMULA, VARIANCE, CHUNK, CHUNKS, CUT, FULL_SETS, GAMMA_PER_ROW, ALIGN,
            )  # fmt: skip
        elif dx is not None:
            mean_d, mean_dt = (row_d * inverse)[:, None], (row_dt * inverse)[:, None]
            x_factor, constant = FORMULA.coefficients(mean_d, mean_dt, dy_factor)
            to = dx + row.to(tl.int64)[:, None] * dx_row * ALIGN + column[None, :]
            for chunk in gl.static_range(CHUNKS):
                result = FORMULA.element(gs[chunk], xs[chunk], dy_factor, x_factor, constant)
                result = result.to(dx.dtype.element_ty)
                if chunk == CUT or not FULL_SETS:
                    ok = _inside(row, end, chunk * CHUNK + column, length, chunk == CUT)
                    gl.store(to + chunk * CHUNK, result, mask=ok)
                else:
                    gl.store(to + chunk * CHUNK, result)
        slot += 1
        turn = tl.where(slot == DEPTH, turn ^ 1, turn)
        slot = tl.where(slot == DEPTH, 0, slot)
    if JOINS_AT_END:
        clear_previous(previous_words, previous_count, thread, 32 * WARPS)
        # Those that come last, whom everybody waits for, have little or nothing to add up.
        if place < tl.cdiv(total, JOIN_COLUMNS) and PHASE % 4 == 0:
            join_slices(
                sum_words + arrivals, thread, (partials, dgamma, dbeta), (parts * SAMPLES, total),
                place, gl.num_programs(0), JOIN_ROWS, JOIN_STEPS, JOIN_COLUMNS, WARPS,
            )  # fmt: skip
