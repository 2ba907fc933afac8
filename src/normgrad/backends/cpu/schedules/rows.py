"""Layer norm: a row is summed and written while it is near, four rows at a time.

Parameter gradients of a block of rows add up in one float32 row each; blocks are joined in
float64. Group norm of small images is the same: the rows are one group of all samples.
"""

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.schedules.columns import AHEAD, add_dy, fill
from normgrad.backends.cpu.schedules.row_statistics import (
    CONSTANT,
    FACTORS,
    NOTHING,
    RSTD,
    X_FACTOR,
    four_factors,
    four_moments,
    row_factors,
    row_moments,
    row_statistics,
)
from normgrad.backends.cpu.schedules.scalar import (
    count,
    place,
    share_of_dy,
)
from normgrad.backends.cpu.schedules.segments import ask
from normgrad.backends.cpu.vectors import (
    fence,
    float_of,
    hidden_constant,
    lanes,
    load,
    load_part,
    prefetch,
    read,
    size_of,
    splat,
    store,
    store_part,
    stream,
    traced,
    write,
)
from normgrad.backends.cpu.vectors.formats import F64


@traced
def factor(fmt, at):
    """One of a row's factors in every lane."""
    return splat(fmt, read(F64, at))


@traced
def factor_of_four(fmt, at):
    """The same of each of four rows."""
    return (
        factor(fmt, at),
        factor(fmt, at + 8),
        factor(fmt, at + 16),
        factor(fmt, at + 24),
    )


@traced
def four_loaded(fmt, at, step):
    """A vector of each of four rows."""
    return load(fmt, at), load(fmt, at + step), load(fmt, at + 2 * step), load(fmt, at + 3 * step)


@traced
def four_parts(fmt, at, step, part):
    """The first lanes of the same."""
    return (
        load_part(fmt, at, part),
        load_part(fmt, at + step, part),
        load_part(fmt, at + 2 * step, part),
        load_part(fmt, at + 3 * step, part),
    )


@traced
def four_centred(form, d, x, m, s, g, h):
    """What the formula sees of four elements of dy, and of x."""
    t0, t1 = form.row_distance(d[0], x[0], m[0]), form.row_distance(d[1], x[1], m[1])
    t2, t3 = form.row_distance(d[2], x[2], m[2]), form.row_distance(d[3], x[3], m[3])
    d0, d1 = form.seen(d[0], t0, s[0] * g, h), form.seen(d[1], t1, s[1] * g, h)
    d2, d3 = form.seen(d[2], t2, s[2] * g, h), form.seen(d[3], t3, s[3] * g, h)
    return (d0, d1, d2, d3), (t0, t1, t2, t3)


@jit.inlined
def four_added(form, flat, d, t, s, sums, apart, adding, weighing):
    """Four rows' share of the parameters' sums; s * dy, which dx has too."""
    w0, w1, w2, w3 = d[0] * s[0], d[1] * s[1], d[2] * s[2], d[3] * s[3]
    if adding:
        store(flat, sums, load(flat, sums) + ((d[0] + d[1]) + (d[2] + d[3])))
    if weighing:
        _, q0 = form.added(d[1], form.first(w1, t[1])[1], w0, t[0])
        _, q1 = form.added(d[3], form.first(w3, t[3])[1], w2, t[2])
        store(flat, sums + apart, load(flat, sums + apart) + (q0 + q1))
    return w0, w1, w2, w3


@traced
def four_results(form, w, t, s, g, h, x_factor, constant):
    """What is written of four rows."""
    return (
        form.row_result(w[0], t[0], s[0], g, h, x_factor[0], constant[0]),
        form.row_result(w[1], t[1], s[1], g, h, x_factor[1], constant[1]),
        form.row_result(w[2], t[2], s[2], g, h, x_factor[2], constant[2]),
        form.row_result(w[3], t[3], s[3], g, h, x_factor[3], constant[3]),
    )


@traced
def four_met(form, d, x):
    """What the norm meets of four elements of both tensors."""
    return form.met(d[0], x[0]), form.met(d[1], x[1]), form.met(d[2], x[2]), form.met(d[3], x[3])


@traced
def four_more(r, e):
    """Four vectors and four more."""
    return r[0] + e[0], r[1] + e[1], r[2] + e[2], r[3] + e[3]


@traced
def four_stored(fmt, at, step, r):
    """A vector into each of four rows."""
    store(fmt, at, r[0])
    store(fmt, at + step, r[1])
    store(fmt, at + 2 * step, r[2])
    store(fmt, at + 3 * step, r[3])


@traced
def four_streamed(fmt, at, step, r, after):
    """Two vectors into each of four rows, past the cache."""
    stream(fmt, at, r[0], after[0])
    stream(fmt, at + step, r[1], after[1])
    stream(fmt, at + 2 * step, r[2], after[2])
    stream(fmt, at + 3 * step, r[3], after[3])


@traced
def four_parts_stored(fmt, at, step, r, part):
    """The first lanes of a vector into each of four rows."""
    store_part(fmt, at, r[0], part)
    store_part(fmt, at + step, r[1], part)
    store_part(fmt, at + 2 * step, r[2], part)
    store_part(fmt, at + 3 * step, r[3], part)


@jit.inner
def four_rows(
    form, fmt, flat, given, dy, x, dx, dy_step, x_step, dx_step, gamma, beta, sums, apart, columns,
    factors, writing, adding, weighing, streaming, asking, dsum, summed,
):  # fmt: skip
    """The second pass over four rows: what is written, and the parameters' share of them.

    ``given`` is the format of gamma and beta, ``flat`` that of the parameters' sums. Where nothing
    is written it is the first pass: the next four rows are asked for, if they are far away.
    ``dsum`` is what is added to what is written, ``summed`` where goes what the norm met: an
    address and a step, or nothing.
    """
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    unit_given = width * size_of(given)
    m, s = factor_of_four(fmt, factors), factor_of_four(fmt, factors + RSTD)
    x_factor, constant = (
        factor_of_four(fmt, factors + X_FACTOR),
        factor_of_four(fmt, factors + CONSTANT),
    )
    left, where = columns, 0
    while left >= width:
        # Where lines are streamed, two vectors of each row at a time; but the last of an odd number
        # alone, so that sums do not depend on where dx lies.
        pair = streaming and left >= 2 * width
        halves = 2 if pair else 1
        g, h = load(given, gamma), load(given, beta)
        d, t = four_loaded(fmt, dy, dy_step), four_loaded(fmt, x, x_step)
        if len(summed) > 0:
            n = four_met(form, d, t)
        d, t = four_centred(form, d, t, m, s, g, h)
        if asking:
            for one in range(4, 8):
                ask(form, dy + one * dy_step, x + one * x_step)
        w = four_added(form, flat, d, t, s, sums, apart, adding, weighing)
        if writing:
            r = four_results(form, w, t, s, g, h, x_factor, constant)
            if len(dsum) > 0:
                for one in range(4):
                    prefetch(dsum[0] + where + one * dsum[1] + AHEAD)
                r = four_more(r, four_loaded(fmt, dsum[0] + where, dsum[1]))
            if pair:
                g, h = load(given, gamma + unit_given), load(given, beta + unit_given)
                d, t = four_loaded(fmt, dy + step, dy_step), four_loaded(fmt, x + step, x_step)
                if len(summed) > 0:
                    n_next = four_met(form, d, t)
                    four_streamed(fmt, summed[0] + where, summed[1], n, n_next)
                d, t = four_centred(form, d, t, m, s, g, h)
                w = four_added(form, flat, d, t, s, sums + unit, apart, adding, weighing)
                r_next = four_results(form, w, t, s, g, h, x_factor, constant)
                if len(dsum) > 0:
                    e = four_loaded(fmt, dsum[0] + where + step, dsum[1])
                    r_next = four_more(r_next, e)
                four_streamed(fmt, dx, dx_step, r, r_next)
            else:
                four_stored(fmt, dx, dx_step, r)
        if len(summed) > 0:  # noqa: SIM102 (a constant: Numba compiles no other branch)
            if not pair:
                four_stored(fmt, summed[0] + where, summed[1], n)
        where += halves * step
        dy += halves * step
        x += halves * step
        dx += halves * step
        gamma += halves * unit_given
        beta += halves * unit_given
        sums += halves * unit
        left -= halves * width
    if left > 0:
        g, h = load_part(given, gamma, left), load_part(given, beta, left)
        d, t = four_parts(fmt, dy, dy_step, left), four_parts(fmt, x, x_step, left)
        if len(summed) > 0:
            n = four_met(form, d, t)
        d, t = four_centred(form, d, t, m, s, g, h)
        # Sums have room for whole vectors: a part that was just stored takes long to load. With
        # such loads and row by row 10000x8 in float32 takes 214 us, 106 so.
        w = four_added(form, flat, d, t, s, sums, apart, adding, weighing)
        if writing:
            r = four_results(form, w, t, s, g, h, x_factor, constant)
            if len(dsum) > 0:
                r = four_more(r, four_parts(fmt, dsum[0] + where, dsum[1], left))
            four_parts_stored(fmt, dx, dx_step, r, left)
        if len(summed) > 0:
            four_parts_stored(fmt, summed[0] + where, summed[1], n, left)


@jit.inner
def one_row(
    form, fmt, flat, given, dy, x, dx, gamma, beta, sums, apart, columns, factors, writing, adding,
    weighing, dsum, summed,
):  # fmt: skip
    """The second pass over one row."""
    width = lanes(fmt)
    m, s = factor(fmt, factors), factor(fmt, factors + RSTD)
    x_factor, constant = factor(fmt, factors + X_FACTOR), factor(fmt, factors + CONSTANT)
    sums_xhat = sums + apart
    column = 0
    while column < columns:
        part = min(width, columns - column)
        here = column * size_of(fmt)
        at = column * size_of(flat)
        there = column * size_of(given)
        g, h = load_part(given, gamma + there, part), load_part(given, beta + there, part)
        d, n = load_part(fmt, dy + here, part), load_part(fmt, x + here, part)
        if len(summed) > 0:
            store_part(fmt, summed[0] + here, form.met(d, n), part)
        t = form.row_distance(d, n, m)
        d = form.seen(d, t, s * g, h)
        w = d * s
        if writing:
            r = form.row_result(w, t, s, g, h, x_factor, constant)
            if len(dsum) > 0:
                r = r + load_part(fmt, dsum[0] + here, part)
            store_part(fmt, dx + here, r, part)
        if adding:
            store_part(flat, sums + at, load_part(flat, sums + at, part) + d, part)
        if weighing:
            _, q = form.added(d, load_part(flat, sums_xhat + at, part), w, t)
            store_part(flat, sums_xhat + at, q, part)
        column += width


@jit.inlined
def second_pass(
    form, fmt, flat, given, dy, x, dx, dy_step, x_step, dx_step, gamma, beta, sums, apart, columns,
    factors, some, writing, adding, weighing, streaming, asking, dsum, summed,
):  # fmt: skip
    """The second pass over four rows, or one."""
    if some == 4:
        four_rows(
            form, fmt, flat, given, dy, x, dx, dy_step, x_step, dx_step, gamma, beta, sums, apart,
            columns, factors, writing, adding, weighing, streaming, asking, dsum, summed,
        )  # fmt: skip
    else:
        one_row(
            form, fmt, flat, given, dy, x, dx, gamma, beta, sums, apart, columns, factors, writing,
            adding, weighing, dsum, summed,
        )  # fmt: skip


def rows(formula, fmt, flat, wide, wide_flat, short, beside=False):
    """The task for blocks of rows, both passes; parameters' sums in formats of their own.

    ``beside``: a residual's sum is written, its gradient is read.
    """
    # Constants: Numba compiles one of two branches.
    apart_too, own = fmt != wide, formula.own_statistics()
    summing, more = beside and own, beside and not own

    def rows_task(params, addresses, workspace, argument, index, after):
        form = formula.with_slope(float_of(params[slots.NEGATIVE_SLOPE]))
        columns = params[slots.WIDTH]
        groups = params[slots.GROUPS]
        writing = params[slots.WRITE_DX] != 0
        adding = params[slots.SUM_DY] != 0
        weighing = params[slots.SUM_XMU] != 0
        with_x = weighing or writing or form.fused()
        all_gamma = place(params, addresses, workspace, argument)
        all_beta = place(params, addresses, workspace, argument + 2)
        dy_step = params[slots.DY + slots.BY_OUTER]
        x_step = params[slots.X + slots.BY_OUTER]
        dx_step = params[slots.DX + slots.BY_OUTER]
        streaming = params[slots.STREAM_DX] != 0
        asking = params[slots.PREFETCH_NEXT_TASK] != 0
        beside_step = params[slots.BESIDE + slots.BY_OUTER]
        no = hidden_constant(False)
        inverse = 1.0 / count(params, workspace)
        share = inverse * share_of_dy(params)
        factors = workspace + params[slots.AT_COEFFICIENTS]
        factors += index * FACTORS
        write(flat, factors + NOTHING, 0.0)
        first = index * params[slots.PER_TASK]
        blocks = params[slots.BLOCKS] * groups
        last = min(first + params[slots.PER_TASK], blocks * params[slots.SETS])
        for block in range(first, last):
            # Groups of the same rows follow each other: they share lines, and pages.
            group = block % groups
            sample = block // blocks  # whose parameters they have
            row = (block - sample * blocks) // groups * params[slots.BLOCK]
            end = min(row + params[slots.BLOCK], params[slots.ROWS]) + sample * params[slots.ROWS]
            row += sample * params[slots.ROWS]
            apart = params[slots.DGAMMA_OFFSET]
            sums = workspace + params[slots.AT_PARTS] + block * 2 * apart
            given = (sample * groups + group) * columns * size_of(flat)
            gamma, beta = all_gamma + given, all_beta + given
            # What dy is multiplied by in dx, beside rstd.
            weight = gamma if share != 0.0 else factors + NOTHING
            inside = group * columns * size_of(fmt)
            dy = place(params, addresses, workspace, slots.DY) + row * dy_step + inside
            x = place(params, addresses, workspace, slots.X) + row * x_step + inside
            dx = row * dx_step + inside
            if writing:
                dx += place(params, addresses, workspace, slots.DX)
            aligned = streaming and (dx | dx_step) & 63 == 0
            third = 0
            if beside:
                third = place(params, addresses, workspace, slots.BESIDE) + row * beside_step
                aligned = aligned and (not own or (third | beside_step) & 63 == 0)
            if adding or weighing:
                fill(wide_flat, sums, 0.0, 2 * apart // size_of(wide_flat))
                if not with_x:
                    add_dy(wide, wide_flat, dy, dy_step, end - row, columns, sums)
                    row = end
            while row < end:
                statistic = row * groups + group
                some = 4 if end - row >= 4 else 1
                # What is added to dx, and where the sum goes.
                dsum, summed = (), ()
                if more:
                    dsum = third, beside_step
                if summing:
                    summed = third, beside_step
                if own:
                    if some == 4:
                        four_moments(
                            form, fmt, flat, params, addresses, workspace, dy, x, dy_step, x_step,
                            gamma, statistic, factors,
                        )  # fmt: skip
                    else:
                        row_moments(
                            form, fmt, flat, params, addresses, workspace, dy, x, gamma, statistic,
                            factors,
                        )  # fmt: skip
                else:
                    together = short and some == 4  # whose lanes are added up together
                    if short:  # noqa: SIM102 (a constant: Numba compiles no other branch)
                        if together:
                            four_factors(
                                form, fmt, flat, params, addresses, workspace, dy, x, dy_step,
                                x_step, gamma, beta, statistic, inverse, share, factors,
                            )  # fmt: skip
                    for one in range(0 if together else some):
                        here, here_x = dy + one * dy_step, x + one * x_step
                        at = factors + one * 8
                        row_factors(
                            form, fmt, flat, params, addresses, workspace, here, here_x, gamma,
                            beta, statistic + one * groups, inverse, share, at,
                        )  # fmt: skip
                if apart_too:
                    second_pass(
                        form, wide, wide_flat, wide, dy, x, dx, dy_step, x_step, dx_step, gamma,
                        beta, sums, apart, columns, factors, some, no, adding, weighing, no, asking,
                        (), (),
                    )  # fmt: skip
                    second_pass(
                        form, fmt, flat, flat, dy, x, dx, dy_step, x_step, dx_step, weight,
                        beta, sums, apart, columns, factors, some, writing, no, no, aligned, no,
                        dsum, (),
                    )  # fmt: skip
                elif writing or adding or weighing or summing:
                    second_pass(
                        form, fmt, flat, flat, dy, x, dx, dy_step, x_step, dx_step, weight,
                        beta, sums, apart, columns, factors, some, writing, adding, weighing,
                        aligned, asking, dsum, summed,
                    )  # fmt: skip
                third += some * beside_step
                dy += some * dy_step
                x += some * x_step
                dx += some * dx_step
                row += some
        if streaming:
            fence()
        return 0

    return rows_task


def column_blocks_of_rows(formula, fmt, flat):
    """The task for strips of columns: the parameters' share of all rows.

    Those are few and have no gradients.
    """

    def column_blocks_of_rows_task(params, addresses, workspace, argument, index, after):
        form = formula.with_slope(float_of(params[slots.NEGATIVE_SLOPE]))
        columns = params[slots.WIDTH]
        rows = params[slots.ROWS]
        sample = index // params[slots.SPLIT_COUNT]  # whose parameters they have
        before = sample * rows
        first = (index - sample * params[slots.SPLIT_COUNT]) * params[slots.SPLIT_ELEMENTS]
        part = min(params[slots.SPLIT_ELEMENTS], columns - first)
        apart = params[slots.DGAMMA_OFFSET]
        sums = workspace + params[slots.AT_PARTS] + sample * 2 * apart + first * size_of(flat)
        fill(flat, sums, 0.0, part)
        fill(flat, sums + apart, 0.0, part)
        factors = workspace + params[slots.AT_COEFFICIENTS] + index * FACTORS
        dy_step = params[slots.DY + slots.BY_OUTER]
        x_step = params[slots.X + slots.BY_OUTER]
        dy = place(params, addresses, workspace, slots.DY) + before * dy_step
        x = place(params, addresses, workspace, slots.X) + before * x_step
        dy += first * size_of(fmt)
        x += first * size_of(fmt)
        given = (sample * columns + first) * size_of(flat)
        gamma = place(params, addresses, workspace, argument) + given
        beta = place(params, addresses, workspace, argument + 2) + given
        asking = params[slots.PREFETCH_NEXT_TASK] != 0
        adding = params[slots.SUM_DY] != 0
        no, none = hidden_constant(False), hidden_constant(0)
        row = 0
        if not (params[slots.SUM_XMU] or form.fused()):
            add_dy(fmt, flat, dy, dy_step, rows, part, sums)
            row = rows
        while row < rows:
            some = 4 if rows - row >= 4 else 1
            for one in range(some):
                statistic = before + row + one
                row_statistics(params, addresses, workspace, statistic, factors + one * 8)
            second_pass(
                form, fmt, flat, flat, dy, x, none, dy_step, x_step, none, gamma, beta, sums, apart,
                part, factors, some, no, adding, hidden_constant(True), no, asking, (), (),
            )  # fmt: skip
            dy += some * dy_step
            x += some * x_step
            row += some
        return 0

    return column_blocks_of_rows_task
