"""Rows of columns, a set of factors for each column: sums of rows, and gradients."""

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.vectors import (
    fills_line,
    fma,
    lanes,
    load,
    load_part,
    prefetch,
    size_of,
    splat,
    store,
    store_part,
    stream,
)

# How far ahead of its use a line is asked for, in bytes.
AHEAD = 4096


@jit.inner
def ask_pair(fmt, address):
    """Ask for the lines of two vectors."""
    prefetch(address)
    if fills_line(fmt):
        prefetch(address + 64)


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
def add_rows(fmt, flat, dy, x, dy_step, x_step, rows, columns, mean, sums, with_x, four, far):
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
                store(flat, at, load(flat, at) + ((d0 + d1) + (d2 + d3)))
                if with_x:
                    centre = load(flat, mean - sums + at)
                    t0 = load(fmt, x + where) - centre
                    t1 = load(fmt, x + where + x_step) - centre
                    t2 = load(fmt, x + where + 2 * x_step) - centre
                    t3 = load(fmt, x + where + 3 * x_step) - centre
                    q = fma(d0, t0, d1 * t1) + fma(d2, t2, d3 * t3)
                    store(flat, at + below, load(flat, at + below) + q)
                if far:
                    for one in range(4, 8):
                        prefetch(dy + where + one * dy_step)
                        prefetch(x + where + one * x_step)
                column += width
                where += step
                at += unit
        else:
            while column < pairs:
                d0 = load(fmt, dy + where)
                d1 = load(fmt, dy + where + step)
                t0 = load(fmt, x + where) - load(flat, mean - sums + at)
                t1 = load(fmt, x + where + step) - load(flat, mean - sums + at + unit)
                store(flat, at, load(flat, at) + d0)
                store(flat, at + unit, load(flat, at + unit) + d1)
                store(flat, at + below, fma(d0, t0, load(flat, at + below)))
                store(flat, at + below + unit, fma(d1, t1, load(flat, at + below + unit)))
                ask_pair(fmt, dy + where + AHEAD)
                ask_pair(fmt, x + where + AHEAD)
                column += 2 * width
                where += 2 * step
                at += 2 * unit
            while column < whole:
                d0 = load(fmt, dy + where)
                t0 = load(fmt, x + where) - load(flat, mean - sums + at)
                store(flat, at, load(flat, at) + d0)
                store(flat, at + below, fma(d0, t0, load(flat, at + below)))
                column += width
                where += step
                at += unit
        left = columns - whole
        if left > 0:
            for one in range(done):
                d0 = load_part(fmt, dy + where + one * dy_step, left)
                store_part(flat, at, load_part(flat, at, left) + d0, left)
                if with_x:
                    t0 = load_part(fmt, x + where + one * x_step, left)
                    t0 = t0 - load_part(flat, mean - sums + at, left)
                    q = fma(d0, t0, load_part(flat, at + below, left))
                    store_part(flat, at + below, q, left)
        row += done
        dy += done * dy_step
        x += done * x_step


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
def four_written(
    fmt, flat, dy, x, dx, dy_step, x_step, dx_step, columns, factors, corrected, streaming, ask_dy,
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
    if corrected and streaming:
        while column + 2 * width <= columns:
            m0, m1 = load(flat, factors), load(flat, factors + unit)
            a0, a1 = load(flat, factors + span), load(flat, factors + span + unit)
            b0, b1 = load(flat, factors + 2 * span), load(flat, factors + 2 * span + unit)
            c0, c1 = load(flat, factors + 3 * span), load(flat, factors + 3 * span + unit)
            for one in range(4):
                s0 = fma(b0, load(fmt, x + one * x_step) - m0, c0)
                s1 = fma(b1, load(fmt, x + one * x_step + step) - m1, c1)
                r0 = fma(a0, load(fmt, dy + one * dy_step), s0)
                r1 = fma(a1, load(fmt, dy + one * dy_step + step), s1)
                stream(fmt, dx + one * dx_step, r0, r1)
                if ask_x != 0:
                    ask_pair(fmt, dy + one * dy_step + ask_dy)
                    ask_pair(fmt, x + one * x_step + ask_x)
            column += 2 * width
            dy += 2 * step
            x += 2 * step
            dx += 2 * step
            factors += 2 * unit
    while column + width <= columns:
        a = load(flat, factors + span)
        if corrected:
            m = load(flat, factors)
            b = load(flat, factors + 2 * span)
            c = load(flat, factors + 3 * span)
            for one in range(4):
                s = fma(b, load(fmt, x + one * x_step) - m, c)
                store(fmt, dx + one * dx_step, fma(a, load(fmt, dy + one * dy_step), s))
        else:
            for one in range(4):
                store(fmt, dx + one * dx_step, a * load(fmt, dy + one * dy_step))
        column += width
        dy += step
        x += step
        dx += step
        factors += unit
    left = columns - column
    if left > 0:
        a = load_part(flat, factors + span, left)
        m = load_part(flat, factors, left)
        b = load_part(flat, factors + 2 * span, left)
        c = load_part(flat, factors + 3 * span, left)
        for one in range(4):
            d = load_part(fmt, dy + one * dy_step, left)
            r = a * d
            if corrected:
                r = fma(a, d, fma(b, load_part(fmt, x + one * x_step, left) - m, c))
            store_part(fmt, dx + one * dx_step, r, left)


@jit.inner
def write_rows(
    fmt, flat, dy, x, dx, dy_step, x_step, dx_step, rows, columns, factors, corrected, streaming,
    four, ask_dy, ask_x,
):  # fmt: skip
    """``dx = a * dy + b * (x - mean) + c`` with factors by column: mean, a, b, c."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    span = columns * size_of(flat)
    whole = columns // width * width
    pairs = columns // (2 * width) * (2 * width) if streaming else 0
    row = 0
    while row < rows:
        if four and rows - row >= 4:
            four_written(
                fmt, flat, dy, x, dx, dy_step, x_step, dx_step, columns, factors, corrected,
                streaming, ask_dy, ask_x,
            )  # fmt: skip
            row += 4
            dy += 4 * dy_step
            x += 4 * x_step
            dx += 4 * dx_step
            continue
        at = factors
        where = 0
        column = 0
        while column < pairs and not corrected:
            r0 = load(flat, at + span) * load(fmt, dy + where)
            r1 = load(flat, at + span + unit) * load(fmt, dy + where + step)
            stream(fmt, dx + where, r0, r1)
            ask_pair(fmt, dy + where + AHEAD)
            column += 2 * width
            where += 2 * step
            at += 2 * unit
        while column < pairs:
            t0 = load(fmt, x + where) - load(flat, at)
            t1 = load(fmt, x + where + step) - load(flat, at + unit)
            s0 = fma(load(flat, at + 2 * span), t0, load(flat, at + 3 * span))
            s1 = fma(load(flat, at + 2 * span + unit), t1, load(flat, at + 3 * span + unit))
            r0 = fma(load(flat, at + span), load(fmt, dy + where), s0)
            r1 = fma(load(flat, at + span + unit), load(fmt, dy + where + step), s1)
            stream(fmt, dx + where, r0, r1)
            ask_pair(fmt, dy + where + AHEAD)
            ask_pair(fmt, x + where + AHEAD)
            column += 2 * width
            where += 2 * step
            at += 2 * unit
        if corrected:
            while column < whole:
                t0 = load(fmt, x + where) - load(flat, at)
                s0 = fma(load(flat, at + 2 * span), t0, load(flat, at + 3 * span))
                store(fmt, dx + where, fma(load(flat, at + span), load(fmt, dy + where), s0))
                column += width
                where += step
                at += unit
        else:
            while column < whole:
                store(fmt, dx + where, load(flat, at + span) * load(fmt, dy + where))
                column += width
                where += step
                at += unit
        left = columns - column
        if left > 0:
            a = load_part(flat, at + span, left)
            d0 = load_part(fmt, dy + where, left)
            r0 = a * d0
            if corrected:
                t0 = load_part(fmt, x + where, left) - load_part(flat, at, left)
                c = load_part(flat, at + 3 * span, left)
                r0 = fma(a, d0, fma(load_part(flat, at + 2 * span, left), t0, c))
            store_part(fmt, dx + where, r0, left)
        row += 1
        dy += dy_step
        x += x_step
        dx += dx_step
