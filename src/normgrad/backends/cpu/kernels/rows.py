"""Layer norm: a row is summed and written while it is near, four rows at a time.

Parameter gradients of a block of rows add up in one float32 row each; blocks are joined in
float64. Group norm of small images is the same: the rows are one group of all samples.
"""

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.kernels.columns import AHEAD, add_dy, fill
from normgrad.backends.cpu.kernels.entries import entries, inverse_deviations
from normgrad.backends.cpu.kernels.scalar import count, entry, inverse_deviation, place
from normgrad.backends.cpu.kernels.segments import completed, plus
from normgrad.backends.cpu.vectors import (
    fence,
    fma,
    four_totals,
    lanes,
    load,
    load_part,
    plain,
    prefetch,
    read,
    size_of,
    splat,
    store,
    store_part,
    stream,
    total,
    totals_in_lanes,
    write,
    zero,
)
from normgrad.backends.cpu.vectors.formats import F64

# Columns that each of a row's two sums adds in float32 lanes before it goes on in float64, in
# vectors.
_DEPTH = 32
# Bytes of the factors of four rows: their means, rstd, b and c, each in half of a vector. One row
# at a time made 10000x8 in float32 106 us, 94 so.
FACTORS = 256
_RSTD, _B, _C = 64, 128, 192
# Columns of rows whose lanes are added up four rows at a time: in the cache 1024x64 takes 10 to
# 17 % less, 512x128 3 to 9, 256x256 2 to 4 in 16 bits; 90x768 and 64x1024 the same.
_SHORT = 256


@jit.inner
def row_lanes(fmt, flat, dy, x, gamma, columns, mean):
    """Lane by lane the sums of g and of g * (x - mean) over some columns, g = gamma * dy."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    centre = splat(fmt, mean)
    p0 = zero(fmt)
    p1 = zero(fmt)
    q0 = zero(fmt)
    q1 = zero(fmt)
    pairs = columns // (2 * width)
    for _ in range(pairs):
        g0 = load(fmt, dy) * load(flat, gamma)
        g1 = load(fmt, dy + step) * load(flat, gamma + unit)
        q0 = fma(g0, load(fmt, x) - centre, q0)
        q1 = fma(g1, load(fmt, x + step) - centre, q1)
        p0 = p0 + g0
        p1 = p1 + g1
        prefetch(dy + AHEAD)
        prefetch(x + AHEAD)
        dy += 2 * step
        x += 2 * step
        gamma += 2 * unit
    left = columns - pairs * 2 * width
    while left > 0:
        part = min(left, width)
        g0 = load_part(fmt, dy, part) * load_part(flat, gamma, part)
        q0 = fma(g0, load_part(fmt, x, part) - centre, q0)
        p0 = p0 + g0
        dy += step
        x += step
        gamma += unit
        left -= part
    return p0 + p1, q0 + q1


@jit.inlined
def row_statistics(params, addresses, workspace, row, factors):
    """Leave mean and rstd of a row as float64."""
    write(F64, factors, entry(params, addresses, workspace, slots.MEAN, row, 0.0))
    write(F64, factors + _RSTD, inverse_deviation(params, addresses, workspace, row))


@jit.inlined
def row_slopes(rstd, sum_g, sum_xmu, inverse):
    """B and c of a row, or of rows in lanes."""
    return -rstd * rstd * (sum_xmu * rstd * inverse), -rstd * (sum_g * inverse)


@jit.inlined
def row_factors(fmt, flat, params, addresses, workspace, dy, x, gamma, row, inverse, factors):
    """Mean, rstd, b and c of a row."""
    row_statistics(params, addresses, workspace, row, factors)
    if params[slots.WRITE_DX]:
        mean = read(F64, factors)
        most = 2 * lanes(fmt) * _DEPTH
        sum_g, rest_g = 0.0, 0.0
        sum_xmu, rest_xmu = 0.0, 0.0
        left = params[slots.WIDTH]
        while left > 0:
            part = min(left, most)
            p, q = row_lanes(fmt, flat, dy, x, gamma, part, mean)
            if params[slots.WIDTH] <= _SHORT:
                # As in four rows at a time: bits do not depend on how many others there are.
                sum_g, sum_xmu, _, _ = four_totals(p, q, p, q)
            else:
                sum_g, rest_g = plus(fmt, sum_g, rest_g, total(p))
                sum_xmu, rest_xmu = plus(fmt, sum_xmu, rest_xmu, total(q))
            dy += part * size_of(fmt)
            x += part * size_of(fmt)
            gamma += part * size_of(flat)
            left -= part
        sum_g, sum_xmu = completed(sum_g, rest_g), completed(sum_xmu, rest_xmu)
        b, c = row_slopes(read(F64, factors + _RSTD), sum_g, sum_xmu, inverse)
        write(F64, factors + _B, b)
        write(F64, factors + _C, c)


@jit.inlined
def four_factors(
    fmt, flat, params, addresses, workspace, dy, x, dy_step, x_step, gamma, row, inverse, factors
):  # fmt: skip
    """The same of four rows that are not long: their lanes are added up together."""
    columns = params[slots.WIDTH]
    apart, four = params[slots.GROUPS], plain(4)
    store(F64, factors, entries(params, addresses, workspace, slots.MEAN, row, apart, four, 0.0))
    rstd = inverse_deviations(params, addresses, workspace, row, apart, four)
    store(F64, factors + _RSTD, rstd)
    if params[slots.WRITE_DX]:
        p0, q0 = row_lanes(fmt, flat, dy, x, gamma, columns, read(F64, factors))
        dy += dy_step
        x += x_step
        p1, q1 = row_lanes(fmt, flat, dy, x, gamma, columns, read(F64, factors + 8))
        dy += dy_step
        x += x_step
        p2, q2 = row_lanes(fmt, flat, dy, x, gamma, columns, read(F64, factors + 16))
        dy += dy_step
        x += x_step
        p3, q3 = row_lanes(fmt, flat, dy, x, gamma, columns, read(F64, factors + 24))
        sums_g = totals_in_lanes(p0, p1, p2, p3)
        sums_xmu = totals_in_lanes(q0, q1, q2, q3)
        b, c = row_slopes(rstd, sums_g, sums_xmu, splat(F64, inverse))
        store(F64, factors + _B, b)
        store(F64, factors + _C, c)


@jit.inlined
def factor(fmt, at):
    """One of a row's factors in every lane."""
    return splat(fmt, read(F64, at))


@jit.inlined
def factor_of_four(fmt, at):
    """The same of each of four rows."""
    return (
        factor(fmt, at),
        factor(fmt, at + 8),
        factor(fmt, at + 16),
        factor(fmt, at + 24),
    )


@jit.inlined
def four_loaded(fmt, at, step):
    """A vector of each of four rows."""
    return load(fmt, at), load(fmt, at + step), load(fmt, at + 2 * step), load(fmt, at + 3 * step)


@jit.inlined
def four_parts(fmt, at, step, part):
    """The first lanes of the same."""
    return (
        load_part(fmt, at, part),
        load_part(fmt, at + step, part),
        load_part(fmt, at + 2 * step, part),
        load_part(fmt, at + 3 * step, part),
    )


@jit.inlined
def four_minus(a, b):
    """Four differences."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3]


@jit.inlined
def four_added(flat, d, t, s, sums, apart, adding, weighing):
    """Four rows' share of the parameters' sums; s * dy, which dx has too."""
    w0, w1, w2, w3 = d[0] * s[0], d[1] * s[1], d[2] * s[2], d[3] * s[3]
    if adding:
        store(flat, sums, load(flat, sums) + ((d[0] + d[1]) + (d[2] + d[3])))
    if weighing:
        q = fma(w0, t[0], w1 * t[1]) + fma(w2, t[2], w3 * t[3])
        store(flat, sums + apart, load(flat, sums + apart) + q)
    return w0, w1, w2, w3


@jit.inlined
def four_gradients(w, g, t, b, c):
    """``s * g * dy + b * (x - mean) + c``."""
    return (
        fma(w[0], g, fma(b[0], t[0], c[0])),
        fma(w[1], g, fma(b[1], t[1], c[1])),
        fma(w[2], g, fma(b[2], t[2], c[2])),
        fma(w[3], g, fma(b[3], t[3], c[3])),
    )


@jit.inner
def four_rows(
    fmt, flat, dy, x, dx, dy_step, x_step, dx_step, gamma, sums, apart, columns, factors, writing,
    adding, weighing, streaming, asking,
):  # fmt: skip
    """The second pass over four rows: gradients, and the parameters' share of them.

    Without gradients it is the first: the next four rows are asked for, if they are far away.
    """
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    m, s = factor_of_four(fmt, factors), factor_of_four(fmt, factors + _RSTD)
    b, c = factor_of_four(fmt, factors + _B), factor_of_four(fmt, factors + _C)
    left = columns
    while left >= width:
        # Where lines are streamed, two vectors of each row at a time; but the last of an odd number
        # alone, so that sums do not depend on where dx lies.
        pair = streaming and left >= 2 * width
        halves = 2 if pair else 1
        d = four_loaded(fmt, dy, dy_step)
        t = four_minus(four_loaded(fmt, x, x_step), m)
        if asking:
            for one in range(4, 8):
                prefetch(dy + one * dy_step)
                prefetch(x + one * x_step)
        w = four_added(flat, d, t, s, sums, apart, adding, weighing)
        if writing:
            r = four_gradients(w, load(flat, gamma), t, b, c)
            if pair:
                d = four_loaded(fmt, dy + step, dy_step)
                t = four_minus(four_loaded(fmt, x + step, x_step), m)
                w = four_added(flat, d, t, s, sums + unit, apart, adding, weighing)
                r_next = four_gradients(w, load(flat, gamma + unit), t, b, c)
                stream(fmt, dx, r[0], r_next[0])
                stream(fmt, dx + dx_step, r[1], r_next[1])
                stream(fmt, dx + 2 * dx_step, r[2], r_next[2])
                stream(fmt, dx + 3 * dx_step, r[3], r_next[3])
            else:
                store(fmt, dx, r[0])
                store(fmt, dx + dx_step, r[1])
                store(fmt, dx + 2 * dx_step, r[2])
                store(fmt, dx + 3 * dx_step, r[3])
        dy += halves * step
        x += halves * step
        dx += halves * step
        gamma += halves * unit
        sums += halves * unit
        left -= halves * width
    if left > 0:
        d = four_parts(fmt, dy, dy_step, left)
        t = four_minus(four_parts(fmt, x, x_step, left), m)
        # Sums have room for whole vectors: a part that was just stored takes long to load. With
        # such loads and row by row 10000x8 in float32 takes 214 us, 106 so.
        w = four_added(flat, d, t, s, sums, apart, adding, weighing)
        if writing:
            r = four_gradients(w, load_part(flat, gamma, left), t, b, c)
            store_part(fmt, dx, r[0], left)
            store_part(fmt, dx + dx_step, r[1], left)
            store_part(fmt, dx + 2 * dx_step, r[2], left)
            store_part(fmt, dx + 3 * dx_step, r[3], left)


@jit.inner
def one_row(
    fmt, flat, dy, x, dx, gamma, sums, apart, columns, factors, writing, adding, weighing
):  # fmt: skip
    """The second pass over one row."""
    width = lanes(fmt)
    vm, vs = factor(fmt, factors), factor(fmt, factors + _RSTD)
    vb, vc = factor(fmt, factors + _B), factor(fmt, factors + _C)
    sums_xhat = sums + apart
    column = 0
    while column < columns:
        part = min(width, columns - column)
        here = column * size_of(fmt)
        at = column * size_of(flat)
        d = load_part(fmt, dy + here, part)
        t = load_part(fmt, x + here, part) - vm
        w = d * vs
        if writing:
            g = load_part(flat, gamma + at, part)
            store_part(fmt, dx + here, fma(w, g, fma(vb, t, vc)), part)
        if adding:
            store_part(flat, sums + at, load_part(flat, sums + at, part) + d, part)
        if weighing:
            q = fma(w, t, load_part(flat, sums_xhat + at, part))
            store_part(flat, sums_xhat + at, q, part)
        column += width


@jit.inlined
def second_pass(
    fmt, flat, dy, x, dx, dy_step, x_step, dx_step, gamma, sums, apart, columns, factors, some,
    writing, adding, weighing, streaming, asking,
):  # fmt: skip
    """The second pass over four rows, or one."""
    if some == 4:
        four_rows(
            fmt, flat, dy, x, dx, dy_step, x_step, dx_step, gamma, sums, apart, columns, factors,
            writing, adding, weighing, streaming, asking,
        )  # fmt: skip
    else:
        one_row(
            fmt, flat, dy, x, dx, gamma, sums, apart, columns, factors, writing, adding, weighing
        )


def rows(fmt, flat, wide, wide_flat):
    """The task for blocks of rows, both passes; parameters' sums in formats of their own."""
    apart_too = fmt != wide  # a constant: Numba compiles one of two branches

    def rows_task(params, addresses, workspace, argument, index, after):
        columns = params[slots.WIDTH]
        groups = params[slots.GROUPS]
        writing = params[slots.WRITE_DX] != 0
        adding = params[slots.SUM_DY] != 0
        weighing = params[slots.SUM_XMU] != 0
        with_x = params[slots.SUM_XMU] != 0 or writing
        all_gamma = place(params, addresses, workspace, argument)
        dy_step = params[slots.DY + slots.BY_OUTER]
        x_step = params[slots.X + slots.BY_OUTER]
        dx_step = params[slots.DX + slots.BY_OUTER]
        streaming = params[slots.STREAM_DX] != 0
        asking = params[slots.ASKS] != 0
        no = plain(False)
        inverse = 1.0 / count(params, workspace)
        factors = workspace + params[slots.AT_COEFFICIENTS]
        factors += index * FACTORS
        first = index * params[slots.PER_TASK]
        last = min(first + params[slots.PER_TASK], params[slots.BLOCKS] * groups)
        for block in range(first, last):
            # Groups of the same rows follow each other: they share lines, and pages.
            group = block % groups
            row = block // groups * params[slots.BLOCK]
            end = min(row + params[slots.BLOCK], params[slots.ROWS])
            apart = params[slots.APART]
            sums = workspace + params[slots.AT_PARTS] + block * 2 * apart
            gamma = all_gamma + group * columns * size_of(flat)
            inside = group * columns * size_of(fmt)
            dy = place(params, addresses, workspace, slots.DY) + row * dy_step + inside
            x = place(params, addresses, workspace, slots.X) + row * x_step + inside
            dx = row * dx_step + inside
            if writing:
                dx += place(params, addresses, workspace, slots.DX)
            aligned = streaming and (dx | dx_step) & 63 == 0
            if adding or weighing:
                fill(wide_flat, sums, 0.0, 2 * apart // size_of(wide_flat))
                if not with_x:
                    add_dy(wide, wide_flat, dy, dy_step, end - row, columns, sums)
                    row = end
            while row < end:
                statistic = row * groups + group
                some = 4 if end - row >= 4 else 1
                if some == 4 and columns <= _SHORT:
                    four_factors(
                        fmt, flat, params, addresses, workspace, dy, x, dy_step, x_step, gamma,
                        statistic, inverse, factors,
                    )  # fmt: skip
                else:
                    for one in range(some):
                        here, here_x = dy + one * dy_step, x + one * x_step
                        at = factors + one * 8
                        row_factors(
                            fmt, flat, params, addresses, workspace, here, here_x, gamma,
                            statistic + one * groups, inverse, at,
                        )  # fmt: skip
                if apart_too:
                    second_pass(
                        wide, wide_flat, dy, x, dx, dy_step, x_step, dx_step, gamma, sums, apart,
                        columns, factors, some, no, adding, weighing, no, asking,
                    )  # fmt: skip
                    second_pass(
                        fmt, flat, dy, x, dx, dy_step, x_step, dx_step, gamma, sums, apart, columns,
                        factors, some, writing, no, no, aligned, no,
                    )  # fmt: skip
                else:
                    second_pass(
                        fmt, flat, dy, x, dx, dy_step, x_step, dx_step, gamma, sums, apart, columns,
                        factors, some, writing, adding, weighing, aligned, asking,
                    )  # fmt: skip
                dy += some * dy_step
                x += some * x_step
                dx += some * dx_step
                row += some
        if streaming:
            fence()
        return 0

    return rows_task


def row_strips(fmt, flat):
    """The task for strips of columns: the parameters' share of all rows.

    Those are few and have no gradients.
    """

    def row_strips_task(params, addresses, workspace, argument, index, after):
        columns = params[slots.WIDTH]
        rows = params[slots.ROWS]
        first = index * params[slots.PIECE]
        part = min(params[slots.PIECE], columns - first)
        apart = params[slots.APART]
        sums = workspace + params[slots.AT_PARTS] + first * size_of(flat)
        fill(flat, sums, 0.0, part)
        fill(flat, sums + apart, 0.0, part)
        factors = workspace + params[slots.AT_COEFFICIENTS] + index * FACTORS
        dy_step = params[slots.DY + slots.BY_OUTER]
        x_step = params[slots.X + slots.BY_OUTER]
        dy = place(params, addresses, workspace, slots.DY) + first * size_of(fmt)
        x = place(params, addresses, workspace, slots.X) + first * size_of(fmt)
        asking = params[slots.ASKS] != 0
        adding = params[slots.SUM_DY] != 0
        no, none = plain(False), plain(0)
        row = 0
        if not params[slots.SUM_XMU]:
            add_dy(fmt, flat, dy, dy_step, rows, part, sums)
            row = rows
        while row < rows:
            some = 4 if rows - row >= 4 else 1
            for one in range(some):
                row_statistics(params, addresses, workspace, row + one, factors + one * 8)
            second_pass(
                fmt, flat, dy, x, none, dy_step, x_step, none, none, sums, apart, part, factors,
                some, no, adding, plain(True), no, asking,
            )  # fmt: skip
            dy += some * dy_step
            x += some * x_step
            row += some
        return 0

    return row_strips_task
