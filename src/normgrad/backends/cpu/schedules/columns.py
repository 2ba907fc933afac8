"""Rows of columns, a set of factors for each column: sums of rows, and what is written."""

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.schedules.segments import ask, ask_pairs
from normgrad.backends.cpu.vectors import (
    lanes,
    load,
    load_part,
    size_of,
    splat,
    store,
    store_part,
    stream,
    traced,
)

# How far ahead of its use a line is asked for, in bytes.
AHEAD = 4096


@traced
def column_factors(flat, at, span):
    """The factors of a vector of columns; those that a formula does not read are not loaded."""
    return (
        load(flat, at),
        load(flat, at + span),
        load(flat, at + 2 * span),
        load(flat, at + 3 * span),
        load(flat, at + 4 * span),
    )


@traced
def last_factors(flat, at, span, left):
    """The same of the last columns."""
    return (
        load_part(flat, at, left),
        load_part(flat, at + span, left),
        load_part(flat, at + 2 * span, left),
        load_part(flat, at + 3 * span, left),
        load_part(flat, at + 4 * span, left),
    )


@traced
def share_of_two(form, d0, x0, d1, x1, v):
    """Both sums of two elements."""
    t1 = form.centre(x1, v[0])
    p, q = form.first(form.seen(d1, t1, v[1], v[2]), t1)
    return form.share(p, q, d0, x0, v)


@jit.inner
def add_dy(fmt, flat, dy, dy_step, rows, columns, sums):
    """Add rows of dy at an even distance into a row of sums, one after the other."""
    width = lanes(fmt)
    for _ in range(rows):
        where = dy
        at = sums
        left = columns
        while left >= width:
            store(flat, at, load(flat, at) + load(fmt, where))
            where += width * size_of(fmt)
            at += width * size_of(flat)
            left -= width
        if left > 0:
            one = load_part(flat, at, left) + load_part(fmt, where, left)
            store_part(flat, at, one, left)
        dy += dy_step


@jit.inner
def add_rows(
    form, fmt, flat, dy, x, dy_step, x_step, rows, columns, factors, sums, with_x, four, far
):  # fmt: skip
    """Add rows at an even distance into two rows of sums. ``flat`` is the format of sums.

    Four rows side by side load and store the sums a quarter as often, but rows of 512 bytes or
    more then outrun the processor's own prefetching: half the speed where data come from memory.
    ``far`` asks for the next four.
    """
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    below = columns * size_of(flat)
    whole = columns // width * width
    pairs = columns // (2 * width) * (2 * width)
    row = 0
    while row < rows:
        at = sums
        where = 0
        column = 0
        done = 4 if four and rows - row >= 4 else 1
        if done == 1 and not with_x:
            add_dy(fmt, flat, dy, dy_step, rows - row, columns, sums)
            return
        if done == 4:
            while column < whole:
                d0 = load(fmt, dy + where)
                d1 = load(fmt, dy + where + dy_step)
                d2 = load(fmt, dy + where + 2 * dy_step)
                d3 = load(fmt, dy + where + 3 * dy_step)
                if with_x:
                    v = column_factors(flat, factors - sums + at, below)
                    x0, x1 = load(fmt, x + where), load(fmt, x + where + x_step)
                    x2, x3 = load(fmt, x + where + 2 * x_step), load(fmt, x + where + 3 * x_step)
                    p0, q0 = share_of_two(form, d0, x0, d1, x1, v)
                    p1, q1 = share_of_two(form, d2, x2, d3, x3, v)
                    store(flat, at, load(flat, at) + (p0 + p1))
                    store(flat, at + below, load(flat, at + below) + (q0 + q1))
                else:
                    store(flat, at, load(flat, at) + ((d0 + d1) + (d2 + d3)))
                if far:
                    for one in range(4, 8):
                        ask(form, dy + where + one * dy_step, x + where + one * x_step)
                column += width
                where += step
                at += unit
        else:
            while column < pairs:
                add_row(form, fmt, flat, dy + where, x + where, factors - sums + at, at, below)
                there = where + step
                add_row(
                    form, fmt, flat, dy + there, x + there, factors - sums + at + unit, at + unit,
                    below,
                )  # fmt: skip
                ask_pairs(form, fmt, dy + where + AHEAD, x + where + AHEAD)
                column += 2 * width
                where += 2 * step
                at += 2 * unit
            while column < whole:
                add_row(form, fmt, flat, dy + where, x + where, factors - sums + at, at, below)
                column += width
                where += step
                at += unit
        left = columns - whole
        if left > 0:
            for one in range(done):
                d0 = load_part(fmt, dy + where + one * dy_step, left)
                p0 = load_part(flat, at, left)
                if with_x:
                    v = last_factors(flat, factors - sums + at, below, left)
                    x0 = load_part(fmt, x + where + one * x_step, left)
                    p0, q0 = form.share(p0, load_part(flat, at + below, left), d0, x0, v)
                    store_part(flat, at, p0, left)
                    store_part(flat, at + below, q0, left)
                else:
                    store_part(flat, at, p0 + d0, left)
        row += done
        dy += done * dy_step
        x += done * x_step


@traced
def add_row(form, fmt, flat, dy, x, factors, at, below):
    """Add a vector of a row into both rows of sums."""
    v = column_factors(flat, factors, below)
    p, q = form.share(load(flat, at), load(flat, at + below), load(fmt, dy), load(fmt, x), v)
    store(flat, at, p)
    store(flat, at + below, q)


@jit.inner
def fill(flat, address, value, length):
    """One number everywhere."""
    width = lanes(flat)
    values = splat(flat, value)
    while length >= width:
        store(flat, address, values)
        address += width * size_of(flat)
        length -= width
    if length > 0:
        store_part(flat, address, values, length)


@jit.inner
def write_four(
    form, fmt, flat, dy, x, dx, dy_step, x_step, dx_step, columns, factors, streaming, ask_dy,
    ask_x,
):  # fmt: skip
    """Four rows side by side: factors are loaded a quarter as often.

    Where they are streamed, data that far away are asked for meanwhile; 0: none.
    """
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    span = columns * size_of(flat)
    column = 0
    while streaming and column + 2 * width <= columns:
        v0 = column_factors(flat, factors, span)
        v1 = column_factors(flat, factors + unit, span)
        for one in range(4):
            here, here_x = dy + one * dy_step, x + one * x_step
            r0 = form.element(load(fmt, here), load(fmt, here_x), v0)
            r1 = form.element(load(fmt, here + step), load(fmt, here_x + step), v1)
            stream(fmt, dx + one * dx_step, r0, r1)
            if ask_x != 0:
                ask_pairs(form, fmt, here + ask_dy, here_x + ask_x)
        column += 2 * width
        dy += 2 * step
        x += 2 * step
        dx += 2 * step
        factors += 2 * unit
    while column + width <= columns:
        v = column_factors(flat, factors, span)
        for one in range(4):
            r = form.element(load(fmt, dy + one * dy_step), load(fmt, x + one * x_step), v)
            store(fmt, dx + one * dx_step, r)
        column += width
        dy += step
        x += step
        dx += step
        factors += unit
    left = columns - column
    if left > 0:
        v = last_factors(flat, factors, span, left)
        for one in range(4):
            d = load_part(fmt, dy + one * dy_step, left)
            r = form.element(d, load_part(fmt, x + one * x_step, left), v)
            store_part(fmt, dx + one * dx_step, r, left)


@jit.inner
def write_rows(
    form, fmt, flat, dy, x, dx, dy_step, x_step, dx_step, rows, columns, factors, streaming, four,
    ask_dy, ask_x,
):  # fmt: skip
    """What is written of rows, with factors by column."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    span = columns * size_of(flat)
    row = 0
    while row < rows:
        if four and rows - row >= 4:
            write_four(
                form, fmt, flat, dy, x, dx, dy_step, x_step, dx_step, columns, factors, streaming,
                ask_dy, ask_x,
            )  # fmt: skip
            row += 4
            dy += 4 * dy_step
            x += 4 * x_step
            dx += 4 * dx_step
            continue
        at = factors
        where = 0
        column = 0
        while streaming and column + 2 * width <= columns:
            v0 = column_factors(flat, at, span)
            v1 = column_factors(flat, at + unit, span)
            there = where + step
            r0 = form.element(load(fmt, dy + where), load(fmt, x + where), v0)
            r1 = form.element(load(fmt, dy + there), load(fmt, x + there), v1)
            stream(fmt, dx + where, r0, r1)
            ask_pairs(form, fmt, dy + where + AHEAD, x + where + AHEAD)
            column += 2 * width
            where += 2 * step
            at += 2 * unit
        while column + width <= columns:
            v = column_factors(flat, at, span)
            store(fmt, dx + where, form.element(load(fmt, dy + where), load(fmt, x + where), v))
            column += width
            where += step
            at += unit
        left = columns - column
        if left > 0:
            v = last_factors(flat, at, span, left)
            d = load_part(fmt, dy + where, left)
            r = form.element(d, load_part(fmt, x + where, left), v)
            store_part(fmt, dx + where, r, left)
        row += 1
        dy += dy_step
        x += x_step
        dx += dx_step
