"""Layer norm: a row is summed and written while it is near, four rows at a time.

Parameter gradients of a block of rows add up in one float32 row each; blocks are joined in
float64.
"""

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.columns import add_rows, clear, join_columns
from normgrad.backends.cpu.formats import F64
from normgrad.backends.cpu.scalar import count, entry, inverse_deviation, place, put
from normgrad.backends.cpu.vector import (
    fence,
    fma,
    lanes,
    load,
    load_part,
    read,
    size_of,
    splat,
    store,
    store_part,
    stream,
    total,
    write,
    zero,
)

# Columns that a row adds in float32 lanes before it goes on in float64, in vectors.
_DEPTH = 128


@jit.inner
def row_sums(fmt, flat, dy, x, gamma, columns, mean):
    """The sums of g and of g * (x - mean) over a row, g = gamma * dy."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    centre = splat(fmt, mean)
    sum_g = 0.0
    sum_xmu = 0.0
    left = columns
    while left > 0:
        p0 = zero(fmt)
        p1 = zero(fmt)
        q0 = zero(fmt)
        q1 = zero(fmt)
        pairs = min(left // (2 * width), _DEPTH)
        for _ in range(pairs):
            g0 = load(fmt, dy) * load(flat, gamma)
            g1 = load(fmt, dy + step) * load(flat, gamma + unit)
            q0 = fma(g0, load(fmt, x) - centre, q0)
            q1 = fma(g1, load(fmt, x + step) - centre, q1)
            p0 = p0 + g0
            p1 = p1 + g1
            dy += 2 * step
            x += 2 * step
            gamma += 2 * unit
        left -= pairs * 2 * width
        if pairs < _DEPTH:
            while left > 0:
                part = min(left, width)
                g0 = load_part(fmt, dy, part) * load_part(flat, gamma, part)
                q0 = fma(g0, load_part(fmt, x, part) - centre, q0)
                p0 = p0 + g0
                dy += step
                x += step
                gamma += unit
                left -= part
        sum_g += total(p0 + p1)
        sum_xmu += total(q0 + q1)
    return sum_g, sum_xmu


@jit.inner
def row_factors(fmt, flat, params, addresses, workspace, dy, x, gamma, row):
    """Mean, rstd, b and c of a row."""
    columns = params[slots.COLUMNS]
    mean = entry(params, addresses, workspace, slots.MEAN, row, 0.0)
    rstd = inverse_deviation(params, addresses, workspace, row)
    if not params[slots.WRITE_DX]:
        return mean, rstd, 0.0, 0.0
    sum_g, sum_xmu = row_sums(fmt, flat, dy, x, gamma, columns, mean)
    elements = count(params, workspace)
    slope = sum_xmu * rstd / elements
    return mean, rstd, -rstd * rstd * slope, -rstd * (sum_g / elements)


@jit.inner
def four_rows(
    fmt, flat, dy, x, dx, dy_step, x_step, dx_step, gamma, sums, columns, m0, m1, m2, m3,
    s0, s1, s2, s3, b0, b1, b2, b3, c0, c1, c2, c3, writing, adding, streaming,
):  # fmt: skip
    """The second pass over four rows: gradients, and the parameters' share of them."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    sums_xhat = sums + columns * size_of(flat)
    vm0, vm1, vm2, vm3 = splat(fmt, m0), splat(fmt, m1), splat(fmt, m2), splat(fmt, m3)
    vs0, vs1, vs2, vs3 = splat(fmt, s0), splat(fmt, s1), splat(fmt, s2), splat(fmt, s3)
    vb0, vb1, vb2, vb3 = splat(fmt, b0), splat(fmt, b1), splat(fmt, b2), splat(fmt, b3)
    vc0, vc1, vc2, vc3 = splat(fmt, c0), splat(fmt, c1), splat(fmt, c2), splat(fmt, c3)
    column = 0
    while columns - column >= width:
        d0 = load(fmt, dy)
        d1 = load(fmt, dy + dy_step)
        d2 = load(fmt, dy + 2 * dy_step)
        d3 = load(fmt, dy + 3 * dy_step)
        t0 = load(fmt, x) - vm0
        t1 = load(fmt, x + x_step) - vm1
        t2 = load(fmt, x + 2 * x_step) - vm2
        t3 = load(fmt, x + 3 * x_step) - vm3
        if writing:
            g = load(flat, gamma)
            r0 = fma(vs0 * g, d0, fma(vb0, t0, vc0))
            r1 = fma(vs1 * g, d1, fma(vb1, t1, vc1))
            r2 = fma(vs2 * g, d2, fma(vb2, t2, vc2))
            r3 = fma(vs3 * g, d3, fma(vb3, t3, vc3))
            if streaming:
                stream(fmt, dx, r0)
                stream(fmt, dx + dx_step, r1)
                stream(fmt, dx + 2 * dx_step, r2)
                stream(fmt, dx + 3 * dx_step, r3)
            else:
                store(fmt, dx, r0)
                store(fmt, dx + dx_step, r1)
                store(fmt, dx + 2 * dx_step, r2)
                store(fmt, dx + 3 * dx_step, r3)
        if adding:
            p = load(flat, sums) + ((d0 + d1) + (d2 + d3))
            store(flat, sums, p)
            q01 = fma(d0, t0 * vs0, d1 * (t1 * vs1))
            q23 = fma(d2, t2 * vs2, d3 * (t3 * vs3))
            store(flat, sums_xhat, load(flat, sums_xhat) + (q01 + q23))
        dy += step
        x += step
        dx += step
        gamma += unit
        sums += unit
        sums_xhat += unit
        column += width
    return column


@jit.inner
def one_row(
    fmt, flat, dy, x, dx, gamma, sums, first, columns, mean, rstd, b, c, writing, adding
):  # fmt: skip
    """The second pass over one row, from some column on."""
    width = lanes(fmt)
    vm, vs, vb, vc = splat(fmt, mean), splat(fmt, rstd), splat(fmt, b), splat(fmt, c)
    sums_xhat = sums + columns * size_of(flat)
    column = first
    while column < columns:
        part = min(width, columns - column)
        here = column * size_of(fmt)
        at = column * size_of(flat)
        d = load_part(fmt, dy + here, part)
        t = load_part(fmt, x + here, part) - vm
        if writing:
            g = load_part(flat, gamma + at, part)
            store_part(fmt, dx + here, fma(vs * g, d, fma(vb, t, vc)), part)
        if adding:
            store_part(flat, sums + at, load_part(flat, sums + at, part) + d, part)
            q = fma(d, t * vs, load_part(flat, sums_xhat + at, part))
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
            clear(flat, sums, 2 * columns)
            if not with_x:
                rows = end - row
                add_rows(fmt, flat, dy, x, dy_step, x_step, rows, columns, sums, sums, False)
                row = end
        while row < end:
            if end - row >= 4:
                m0, s0, b0, c0 = row_factors(
                    fmt, flat, params, addresses, workspace, dy, x, gamma, row
                )
                m1, s1, b1, c1 = row_factors(
                    fmt, flat, params, addresses, workspace, dy + dy_step, x + x_step, gamma, row + 1
                )
                m2, s2, b2, c2 = row_factors(
                    fmt, flat, params, addresses, workspace, dy + 2 * dy_step, x + 2 * x_step, gamma,
                    row + 2,
                )  # fmt: skip
                m3, s3, b3, c3 = row_factors(
                    fmt, flat, params, addresses, workspace, dy + 3 * dy_step, x + 3 * x_step, gamma,
                    row + 3,
                )  # fmt: skip
                done = four_rows(
                    fmt, flat, dy, x, dx, dy_step, x_step, dx_step, gamma, sums, columns,
                    m0, m1, m2, m3, s0, s1, s2, s3, b0, b1, b2, b3, c0, c1, c2, c3,
                    writing, adding, aligned,
                )  # fmt: skip
                if done < columns:
                    one_row(
                        fmt, flat, dy, x, dx, gamma, sums, done, columns,
                        m0, s0, b0, c0, writing, adding,
                    )  # fmt: skip
                    one_row(
                        fmt, flat, dy + dy_step, x + x_step, dx + dx_step, gamma, sums, done,
                        columns, m1, s1, b1, c1, writing, adding,
                    )  # fmt: skip
                    one_row(
                        fmt, flat, dy + 2 * dy_step, x + 2 * x_step, dx + 2 * dx_step, gamma, sums,
                        done, columns, m2, s2, b2, c2, writing, adding,
                    )  # fmt: skip
                    one_row(
                        fmt, flat, dy + 3 * dy_step, x + 3 * x_step, dx + 3 * dx_step, gamma, sums,
                        done, columns, m3, s3, b3, c3, writing, adding,
                    )  # fmt: skip
                step = 4
            else:
                m0, s0, b0, c0 = row_factors(
                    fmt, flat, params, addresses, workspace, dy, x, gamma, row
                )
                one_row(
                    fmt, flat, dy, x, dx, gamma, sums, 0, columns,
                    m0, s0, b0, c0, writing, adding,
                )  # fmt: skip
                step = 1
            row += step
            dy += step * dy_step
            x += step * x_step
            dx += step * dx_step
    if streaming:
        fence()
    return 0


def rows(fmt, flat):
    """The task for blocks of rows."""

    def rows_task(params, addresses, workspace, argument, index):
        return row_blocks(fmt, flat, params, addresses, workspace, argument, index)

    return rows_task


def spread_gamma(flat):
    """The task that lays gamma out as the compute type, ones where it was not given."""

    def spread_gamma_task(params, addresses, workspace, argument, index):
        target = place(params, addresses, workspace, argument)
        for column in range(params[slots.COLUMNS]):
            gamma = entry(params, addresses, workspace, slots.GAMMA, column, 1.0)
            write(flat, target + column * size_of(flat), gamma)
        return 0

    return spread_gamma_task


def join_rows(flat):
    """The task that joins the blocks of some columns and writes their parameter gradients."""

    def join_rows_task(params, addresses, workspace, argument, index):
        columns = params[slots.COLUMNS]
        first = index * params[slots.CHUNK]
        last = min(first + params[slots.CHUNK], columns)
        join_columns(flat, params, workspace, 0, first, last)
        sums = workspace + params[slots.AT_SUMS]
        for column in range(first, last):
            dbeta = read(F64, sums + column * 8)
            put(params, addresses, workspace, slots.DBETA, column, dbeta)
            dgamma = read(F64, sums + (columns + column) * 8)
            put(params, addresses, workspace, slots.DGAMMA, column, dgamma)
        return 0

    return join_rows_task
