"""Layer norm: a row is summed and written while it is near, four rows at a time.

Parameter gradients of a block of rows add up in one float32 row each; blocks are joined in
float64.
"""

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.blocks import four_joined, joined
from normgrad.backends.cpu.columns import AHEAD, add_rows, fill
from normgrad.backends.cpu.formats import F32, F64
from normgrad.backends.cpu.scalar import count, entry, inverse_deviation, place, read_any, write_any
from normgrad.backends.cpu.vector import (
    fence,
    fma,
    four_totals,
    lanes,
    load,
    load_part,
    prefetch,
    read,
    rounded,
    size_of,
    splat,
    store,
    store_part,
    store_wide,
    stream,
    total,
    write,
    zero,
)

# Columns that a row adds in float32 lanes before it goes on in float64, in vectors.
_DEPTH = 128
# Bytes of a row's factors: mean, rstd, b and c.
_FACTORS = 32
# Columns of rows whose lanes are added up four rows at a time: in the cache 1024x64 takes 10 to
# 17 % less, 512x128 3 to 9, 256x256 2 to 4 in 16 bits; 90x768 and 64x1024 the same.
_SHORT = 256
_F32, _F64 = F32.code, F64.code


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


@jit.inner
def row_statistics(params, addresses, workspace, row, factors):
    """Leave mean and rstd of a row as float64."""
    write(F64, factors, entry(params, addresses, workspace, slots.MEAN, row, 0.0))
    write(F64, factors + 8, inverse_deviation(params, addresses, workspace, row))


@jit.inner
def row_slopes(factors, sum_g, sum_xmu, inverse):
    """Leave b and c of a row beside them."""
    rstd = read(F64, factors + 8)
    write(F64, factors + 16, -rstd * rstd * (sum_xmu * rstd * inverse))
    write(F64, factors + 24, -rstd * (sum_g * inverse))


@jit.inner
def row_factors(fmt, flat, params, addresses, workspace, dy, x, gamma, row, inverse, factors):
    """Mean, rstd, b and c of a row."""
    row_statistics(params, addresses, workspace, row, factors)
    if params[slots.WRITE_DX]:
        mean = read(F64, factors)
        most = 2 * lanes(fmt) * _DEPTH
        sum_g = 0.0
        sum_xmu = 0.0
        left = params[slots.COLUMNS]
        while left > 0:
            part = min(left, most)
            p, q = row_lanes(fmt, flat, dy, x, gamma, part, mean)
            sum_g += total(p)
            sum_xmu += total(q)
            dy += part * size_of(fmt)
            x += part * size_of(fmt)
            gamma += part * size_of(flat)
            left -= part
        row_slopes(factors, sum_g, sum_xmu, inverse)


@jit.inner
def four_factors(
    fmt, flat, params, addresses, workspace, dy, x, dy_step, x_step, gamma, row, inverse, factors
):  # fmt: skip
    """The same of four rows that are not long: their lanes are added up together."""
    columns = params[slots.COLUMNS]
    for one in range(4):
        row_statistics(params, addresses, workspace, row + one, factors + one * _FACTORS)
    if params[slots.WRITE_DX]:
        p0, q0 = row_lanes(fmt, flat, dy, x, gamma, columns, read(F64, factors))
        dy += dy_step
        x += x_step
        p1, q1 = row_lanes(fmt, flat, dy, x, gamma, columns, read(F64, factors + _FACTORS))
        dy += dy_step
        x += x_step
        p2, q2 = row_lanes(fmt, flat, dy, x, gamma, columns, read(F64, factors + 2 * _FACTORS))
        dy += dy_step
        x += x_step
        p3, q3 = row_lanes(fmt, flat, dy, x, gamma, columns, read(F64, factors + 3 * _FACTORS))
        sums_g = four_totals(p0, p1, p2, p3)
        sums_xmu = four_totals(q0, q1, q2, q3)
        for one in range(4):
            row_slopes(factors + one * _FACTORS, sums_g[one], sums_xmu[one], inverse)


@jit.inner
def factor(fmt, factors, row, which):
    """One of a row's factors in every lane."""
    return splat(fmt, read(F64, factors + row * _FACTORS + which * 8))


@jit.inner
def four_rows(
    fmt, flat, dy, x, dx, dy_step, x_step, dx_step, gamma, sums, columns, factors, writing,
    adding, streaming,
):  # fmt: skip
    """The second pass over four rows: gradients, and the parameters' share of them."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    sums_xhat = sums + columns * size_of(flat)
    vm0, vm1 = factor(fmt, factors, 0, 0), factor(fmt, factors, 1, 0)
    vm2, vm3 = factor(fmt, factors, 2, 0), factor(fmt, factors, 3, 0)
    vs0, vs1 = factor(fmt, factors, 0, 1), factor(fmt, factors, 1, 1)
    vs2, vs3 = factor(fmt, factors, 2, 1), factor(fmt, factors, 3, 1)
    vb0, vb1 = factor(fmt, factors, 0, 2), factor(fmt, factors, 1, 2)
    vb2, vb3 = factor(fmt, factors, 2, 2), factor(fmt, factors, 3, 2)
    vc0, vc1 = factor(fmt, factors, 0, 3), factor(fmt, factors, 1, 3)
    vc2, vc3 = factor(fmt, factors, 2, 3), factor(fmt, factors, 3, 3)
    whole = columns // width * width
    if streaming:
        whole = columns // (2 * width) * (2 * width)
    column = 0
    while column < whole:
        # Where lines are streamed, two vectors of each row at a time.
        halves = 2 if streaming else 1
        d0 = load(fmt, dy)
        d1 = load(fmt, dy + dy_step)
        d2 = load(fmt, dy + 2 * dy_step)
        d3 = load(fmt, dy + 3 * dy_step)
        t0 = load(fmt, x) - vm0
        t1 = load(fmt, x + x_step) - vm1
        t2 = load(fmt, x + 2 * x_step) - vm2
        t3 = load(fmt, x + 3 * x_step) - vm3
        w0 = d0 * vs0
        w1 = d1 * vs1
        w2 = d2 * vs2
        w3 = d3 * vs3
        if adding:
            store(flat, sums, load(flat, sums) + ((d0 + d1) + (d2 + d3)))
            q = fma(w0, t0, w1 * t1) + fma(w2, t2, w3 * t3)
            store(flat, sums_xhat, load(flat, sums_xhat) + q)
        if writing:
            g = load(flat, gamma)
            r0 = fma(w0, g, fma(vb0, t0, vc0))
            r1 = fma(w1, g, fma(vb1, t1, vc1))
            r2 = fma(w2, g, fma(vb2, t2, vc2))
            r3 = fma(w3, g, fma(vb3, t3, vc3))
            if streaming:
                d0 = load(fmt, dy + step)
                d1 = load(fmt, dy + step + dy_step)
                d2 = load(fmt, dy + step + 2 * dy_step)
                d3 = load(fmt, dy + step + 3 * dy_step)
                t0 = load(fmt, x + step) - vm0
                t1 = load(fmt, x + step + x_step) - vm1
                t2 = load(fmt, x + step + 2 * x_step) - vm2
                t3 = load(fmt, x + step + 3 * x_step) - vm3
                w0 = d0 * vs0
                w1 = d1 * vs1
                w2 = d2 * vs2
                w3 = d3 * vs3
                g = load(flat, gamma + unit)
                stream(fmt, dx, r0, fma(w0, g, fma(vb0, t0, vc0)))
                stream(fmt, dx + dx_step, r1, fma(w1, g, fma(vb1, t1, vc1)))
                stream(fmt, dx + 2 * dx_step, r2, fma(w2, g, fma(vb2, t2, vc2)))
                stream(fmt, dx + 3 * dx_step, r3, fma(w3, g, fma(vb3, t3, vc3)))
                if adding:
                    there = sums + unit
                    store(flat, there, load(flat, there) + ((d0 + d1) + (d2 + d3)))
                    there = sums_xhat + unit
                    q = fma(w0, t0, w1 * t1) + fma(w2, t2, w3 * t3)
                    store(flat, there, load(flat, there) + q)
            else:
                store(fmt, dx, r0)
                store(fmt, dx + dx_step, r1)
                store(fmt, dx + 2 * dx_step, r2)
                store(fmt, dx + 3 * dx_step, r3)
        dy += halves * step
        x += halves * step
        dx += halves * step
        gamma += halves * unit
        sums += halves * unit
        sums_xhat += halves * unit
        column += halves * width
    return column


@jit.inner
def one_row(fmt, flat, dy, x, dx, gamma, sums, first, columns, factors, writing, adding):
    """The second pass over one row, from some column on."""
    width = lanes(fmt)
    vm, vs = factor(fmt, factors, 0, 0), factor(fmt, factors, 0, 1)
    vb, vc = factor(fmt, factors, 0, 2), factor(fmt, factors, 0, 3)
    sums_xhat = sums + columns * size_of(flat)
    column = first
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
            q = fma(w, t, load_part(flat, sums_xhat + at, part))
            store_part(flat, sums_xhat + at, q, part)
        column += width


@jit.inner
def row_blocks(fmt, flat, params, addresses, workspace, gamma_slot, index):
    """A few blocks of rows, both passes."""
    columns = params[slots.COLUMNS]
    writing = params[slots.WRITE_DX] != 0
    adding = params[slots.SUM_DY] != 0
    with_x = params[slots.SUM_XMU] != 0 or writing
    gamma = place(params, addresses, workspace, gamma_slot)
    dy_step = params[slots.DY + slots.BY_OUTER]
    x_step = params[slots.X + slots.BY_OUTER]
    dx_step = params[slots.DX + slots.BY_OUTER]
    streaming = params[slots.STREAM_DX] != 0
    inverse = 1.0 / count(params, workspace)
    factors = workspace + params[slots.AT_COEFFICIENTS]
    factors += index * 4 * _FACTORS
    first = index * params[slots.PER_TASK]
    for block in range(first, min(first + params[slots.PER_TASK], params[slots.BLOCKS])):
        row = block * params[slots.BLOCK]
        end = min(row + params[slots.BLOCK], params[slots.ROWS])
        sums = workspace + params[slots.AT_PARTS] + block * 2 * columns * size_of(flat)
        dy = place(params, addresses, workspace, slots.DY) + row * dy_step
        x = place(params, addresses, workspace, slots.X) + row * x_step
        dx = row * dx_step
        if writing:
            dx += place(params, addresses, workspace, slots.DX)
        aligned = streaming and (dx | dx_step) & 63 == 0
        if adding:
            fill(flat, sums, 0.0, 2 * columns)
            if not with_x:
                rows = end - row
                add_rows(
                    fmt,
                    flat,
                    dy,
                    x,
                    dy_step,
                    x_step,
                    rows,
                    columns,
                    sums,
                    sums,
                    False,
                    False,
                    False,
                )
                row = end
        while row < end:
            some = 4 if end - row >= 4 else 1
            if some == 4 and columns <= _SHORT:
                four_factors(
                    fmt, flat, params, addresses, workspace, dy, x, dy_step, x_step, gamma, row,
                    inverse, factors,
                )  # fmt: skip
            else:
                for one in range(some):
                    here, here_x = dy + one * dy_step, x + one * x_step
                    at = factors + one * _FACTORS
                    row_factors(
                        fmt, flat, params, addresses, workspace, here, here_x, gamma, row + one,
                        inverse, at,
                    )  # fmt: skip
            column = 0
            if some == 4:
                column = four_rows(
                    fmt, flat, dy, x, dx, dy_step, x_step, dx_step, gamma, sums, columns, factors,
                    writing, adding, aligned,
                )  # fmt: skip
            for one in range(some):
                if column < columns:
                    here, here_x = dy + one * dy_step, x + one * x_step
                    one_row(
                        fmt, flat, here, here_x, dx + one * dx_step, gamma, sums, column, columns,
                        factors + one * _FACTORS, writing, adding,
                    )  # fmt: skip
            dy += some * dy_step
            x += some * x_step
            dx += some * dx_step
            row += some
    if streaming:
        fence()
    return 0


def rows(fmt, flat):
    """The task for blocks of rows."""

    def rows_task(params, addresses, workspace, argument, index, after):
        return row_blocks(fmt, flat, params, addresses, workspace, argument, index)

    return rows_task


def spread_gamma(flat):
    """The task that lays gamma out as the compute type, ones where it was not given."""

    def spread_gamma_task(params, addresses, workspace, argument, index, after):
        target = place(params, addresses, workspace, argument)
        columns = params[slots.COLUMNS]
        code = params[slots.GAMMA + slots.CODE]
        if code < 0:
            for _ in range(columns):
                write(flat, target, 1.0)
                target += size_of(flat)
            return 0
        source = place(params, addresses, workspace, slots.GAMMA)
        step = params[slots.GAMMA + slots.STRIDE]
        for _ in range(columns):
            write(flat, target, read_any(code, source))
            target += size_of(flat)
            source += step
        return 0

    return spread_gamma_task


@jit.inner
def put_lanes(flat, params, addresses, workspace, slot, column, values, part, scratch):
    """Write some elements of a result from float64 lanes, if it is wanted."""
    code = params[slot + slots.CODE]
    step = params[slot + slots.STRIDE]
    if code < 0:
        return
    target = place(params, addresses, workspace, slot) + column * step
    if code == (_F64 if size_of(flat) == 8 else _F32) and step == size_of(flat):
        store_part(flat, target, rounded(flat, values), part)
        return
    store_wide(scratch, values, part)
    for _ in range(part):
        write_any(code, target, read(F64, scratch))
        target += step
        scratch += 8


def join_rows(flat):
    """The task that joins the blocks of some columns and writes their parameter gradients."""

    def join_rows_task(params, addresses, workspace, argument, index, after):
        columns = params[slots.COLUMNS]
        blocks = params[slots.BLOCKS]
        stride = 2 * columns * size_of(flat)
        first = index * params[slots.CHUNK]
        last = min(first + params[slots.CHUNK], columns)
        scratch = workspace + params[slots.AT_SUMS]
        at = workspace + params[slots.AT_PARTS]
        width = lanes(flat)
        for slot in (slots.DBETA, slots.DGAMMA):
            column = first
            while last - column >= 4 * width:
                here = at + column * size_of(flat)
                for one in four_joined(flat, here, blocks, stride):
                    there = scratch + column * 8
                    put_lanes(flat, params, addresses, workspace, slot, column, one, width, there)
                    column += width
            while column < last:
                part = min(width, last - column)
                one = joined(flat, at + column * size_of(flat), blocks, stride, part)
                there = scratch + column * 8
                put_lanes(flat, params, addresses, workspace, slot, column, one, part, there)
                column += width
            at += columns * size_of(flat)
        return 0

    return join_rows_task
