"""Contiguous segments at an even distance: their sums, and what is written of them."""

import numpy as np

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.vectors import (
    fills_line,
    four_totals,
    lanes,
    load,
    load_pair,
    load_part,
    prefetch,
    size_of,
    splat,
    store,
    store_pair,
    store_part,
    stream_line,
    stream_pair,
    total,
    traced,
    zero,
)
from normgrad.backends.cpu.vectors.formats import F64

# Vectors that an accumulator takes before it is added up in float64: 4 of 16 lanes make 1024
# numbers. With 128 sums of ten million terms that cancel were up to 13 units off, so up to 7; in a
# cache the join costs less than what two runs differ by.
_DEPTH = 16
# Segments of up to this many bytes are too short for the processor to see them coming.
_SHORT = 256
_PREFETCH_SEGMENTS = 4
# How far ahead lines are asked for in long ones, in bytes: 1024 gave nothing.
PREFETCH_BYTES = 2560


@traced
def ask_pair(fmt, address):
    """Ask for the lines of two vectors."""
    prefetch(address)
    if fills_line(fmt):
        prefetch(address + 64)


@traced
def ask(form, dy, x):
    """Ask for a line of each tensor."""
    prefetch(x)
    if form.reads_both():
        prefetch(dy)


@traced
def ask_pairs(form, fmt, dy, x):
    """Ask for the lines of two vectors of each tensor."""
    ask_pair(fmt, x)
    if form.reads_both():
        ask_pair(fmt, dy)


@traced
def two_sum_step(fmt, joined, rest, term):
    """A sum with one more term, and what all its roundings have lost (Knuth's two-sum).

    Float32 lanes have lost more before, and are joined in float64 all the same.
    """
    after = joined + term
    if lanes(fmt) == lanes(F64):
        share = after - joined
        rest = rest + ((joined - (after - share)) + (term - share))
    return after, rest


@jit.inlined
def two_sum_result(joined, rest):
    """A sum and what its roundings lost, which is nan where the sum is infinite.

    A float64 sum is joined from many parts: half a million planes of two pixels of 0.1, one by one,
    were 80542 roundings off.
    """
    return joined if np.isnan(rest) else joined + rest


@traced
def rounded(fmt, value):
    """As vectors hold it."""
    return total(splat(fmt, value)) / lanes(fmt)


@traced
def splats(fmt, factors):
    """The factors of an element in every lane."""
    mean, dy_factor, beta, x_factor, constant = factors
    return (
        splat(fmt, mean),
        splat(fmt, dy_factor),
        splat(fmt, beta),
        splat(fmt, x_factor),
        splat(fmt, constant),
    )


@jit.inner
def sums(form, fmt, dy, x, dy_step, x_step, segments, length, factors):
    """Both sums over segments at an even distance, in float64."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    v = splats(fmt, factors)
    short = length * size_of(fmt) <= _SHORT
    sum_dy = 0.0
    sum_xmu = 0.0
    rest_dy = 0.0
    rest_xmu = 0.0
    p0 = zero(fmt)
    p1 = zero(fmt)
    p2 = zero(fmt)
    p3 = zero(fmt)
    q0 = zero(fmt)
    q1 = zero(fmt)
    q2 = zero(fmt)
    q3 = zero(fmt)
    depth = _DEPTH
    for _ in range(segments):
        if short:
            ask(form, dy + _PREFETCH_SEGMENTS * dy_step, x + _PREFETCH_SEGMENTS * x_step)
        left = length
        at = dy
        at_x = x
        while left > 0:
            rounds = min(left // (4 * width), depth)
            for _ in range(rounds):
                d0, d1 = load_pair(fmt, at)
                d2, d3 = load_pair(fmt, at + 2 * step)
                t0, t1 = load_pair(fmt, at_x)
                t2, t3 = load_pair(fmt, at_x + 2 * step)
                p0, q0 = form.share(p0, q0, d0, t0, v)
                p1, q1 = form.share(p1, q1, d1, t1, v)
                p2, q2 = form.share(p2, q2, d2, t2, v)
                p3, q3 = form.share(p3, q3, d3, t3, v)
                ask(form, at + PREFETCH_BYTES, at_x + PREFETCH_BYTES)
                ask(form, at + PREFETCH_BYTES + 2 * step, at_x + PREFETCH_BYTES + 2 * step)
                at += 4 * step
                at_x += 4 * step
            left -= rounds * 4 * width
            depth -= rounds
            if left < 4 * width:
                depth -= 1
                if left >= width:
                    p0, q0 = form.share(p0, q0, load(fmt, at), load(fmt, at_x), v)
                if left >= 2 * width:
                    d1, t1 = load(fmt, at + step), load(fmt, at_x + step)
                    p1, q1 = form.share(p1, q1, d1, t1, v)
                if left >= 3 * width:
                    d2, t2 = load(fmt, at + 2 * step), load(fmt, at_x + 2 * step)
                    p2, q2 = form.share(p2, q2, d2, t2, v)
                rest = left % width
                if rest > 0:
                    last = (left - rest) * size_of(fmt)
                    # Lanes without an element hold 0 - mean; their dy is 0.
                    d3, t3 = load_part(fmt, at + last, rest), load_part(fmt, at_x + last, rest)
                    p3, q3 = form.part_share(p3, q3, d3, t3, v, rest)
                left = 0
            if depth <= 0:
                one, other = total((p0 + p1) + (p2 + p3)), total((q0 + q1) + (q2 + q3))
                sum_dy, rest_dy = two_sum_step(fmt, sum_dy, rest_dy, one)
                sum_xmu, rest_xmu = two_sum_step(fmt, sum_xmu, rest_xmu, other)
                p0 = zero(fmt)
                p1 = zero(fmt)
                p2 = zero(fmt)
                p3 = zero(fmt)
                q0 = zero(fmt)
                q1 = zero(fmt)
                q2 = zero(fmt)
                q3 = zero(fmt)
                depth = _DEPTH
        dy += dy_step
        x += x_step
    sum_dy += total((p0 + p1) + (p2 + p3))
    sum_xmu += total((q0 + q1) + (q2 + q3))
    return two_sum_result(sum_dy, rest_dy), two_sum_result(sum_xmu, rest_xmu)


@jit.inlined
def lane_sums(form, fmt, dy, x, length, v):
    """Both sums of a short segment, lane by lane."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    p0 = zero(fmt)
    p1 = zero(fmt)
    q0 = zero(fmt)
    q1 = zero(fmt)
    left = length
    while left >= 2 * width:
        d0, d1 = load_pair(fmt, dy)
        t0, t1 = load_pair(fmt, x)
        p0, q0 = form.share(p0, q0, d0, t0, v)
        p1, q1 = form.share(p1, q1, d1, t1, v)
        ask(form, dy + PREFETCH_BYTES, x + PREFETCH_BYTES)
        dy += 2 * step
        x += 2 * step
        left -= 2 * width
    while left > 0:
        part = min(left, width)
        d0, t0 = load_part(fmt, dy, part), load_part(fmt, x, part)
        p0, q0 = form.part_share(p0, q0, d0, t0, v, part)
        dy += step
        x += step
        left -= part
    return p0 + p1, q0 + q1


@jit.inlined
def four_sums(form, fmt, dy, x, dy_step, x_step, length, v0, v1, v2, v3):
    """The sums of each of four short segments, whose lanes are added up together."""
    p0, q0 = lane_sums(form, fmt, dy, x, length, v0)
    p1, q1 = lane_sums(form, fmt, dy + dy_step, x + x_step, length, v1)
    p2, q2 = lane_sums(form, fmt, dy + 2 * dy_step, x + 2 * x_step, length, v2)
    p3, q3 = lane_sums(form, fmt, dy + 3 * dy_step, x + 3 * x_step, length, v3)
    return four_totals(p0, p1, p2, p3), four_totals(q0, q1, q2, q3)


@jit.inlined
def both_sums(form, fmt, dy, x, length, v):
    """The sums of a short segment, with the bits that it has among four."""
    p, q = lane_sums(form, fmt, dy, x, length, v)
    sums = four_totals(p, q, p, q)
    return sums[0], sums[1]


@jit.inner
def sums_of_dy(fmt, dy, dy_step, segments, length):
    """The sum of dy alone; x is not read."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    sum_dy = 0.0
    rest = 0.0
    for _ in range(segments):
        left = length
        at = dy
        while left > 0:
            p0 = zero(fmt)
            p1 = zero(fmt)
            p2 = zero(fmt)
            p3 = zero(fmt)
            rounds = min(left // (4 * width), _DEPTH)
            for _ in range(rounds):
                p0 = p0 + load(fmt, at)
                p1 = p1 + load(fmt, at + step)
                p2 = p2 + load(fmt, at + 2 * step)
                p3 = p3 + load(fmt, at + 3 * step)
                at += 4 * step
            left -= rounds * 4 * width
            if left < 4 * width:
                while left > 0:
                    part = min(left, width)
                    p1 = p1 + load_part(fmt, at, part)
                    at += step
                    left -= part
            sum_dy, rest = two_sum_step(fmt, sum_dy, rest, total((p0 + p1) + (p2 + p3)))
        dy += dy_step
    return two_sum_result(sum_dy, rest)


@jit.inner
def near_segment(form, fmt, dy, x, dx, left, v):
    """What is written of a segment, through the cache."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    while left >= 2 * width:
        d0, d1 = load_pair(fmt, dy)
        t0, t1 = load_pair(fmt, x)
        store_pair(fmt, dx, form.element(d0, t0, v), form.element(d1, t1, v))
        dy += 2 * step
        x += 2 * step
        dx += 2 * step
        left -= 2 * width
    if left >= width:
        store(fmt, dx, form.element(load(fmt, dy), load(fmt, x), v))
        dy += step
        x += step
        dx += step
        left -= width
    if left > 0:
        r = form.element(load_part(fmt, dy, left), load_part(fmt, x, left), v)
        store_part(fmt, dx, r, left)


@jit.inner
def written(
    form, fmt, dy, x, dx, dy_step, x_step, dx_step, segments, length, factors, streaming, far,
    ask_dy, ask_x,
):  # fmt: skip
    """What is written of segments at an even distance.

    Data that far away (``ask_dy``, ``ask_x``) are asked for meanwhile; 0: none.
    """
    step = lanes(fmt) * size_of(fmt)
    v = splats(fmt, factors)
    for _ in range(segments):
        left = length
        at = dy
        at_x = x
        to = dx
        if streaming:
            head = min((-to & 63) // size_of(fmt), left)
            write_partial_line(form, fmt, at, at_x, to, head, v)
            at += head * size_of(fmt)
            at_x += head * size_of(fmt)
            to += head * size_of(fmt)
            left -= head
            # A loop of its own: in one with plain stores LLVM made these plain for float16.
            while left >= 2 * lanes(fmt):
                d0, d1 = load_pair(fmt, at)
                t0, t1 = load_pair(fmt, at_x)
                stream_pair(fmt, to, form.element(d0, t0, v), form.element(d1, t1, v))
                if ask_x != 0:
                    ask_pairs(form, fmt, at + ask_dy, at_x + ask_x)
                if far:
                    ask_pairs(form, fmt, at + PREFETCH_BYTES, at_x + PREFETCH_BYTES)
                at += 2 * step
                at_x += 2 * step
                to += 2 * step
                left -= 2 * lanes(fmt)
            if left >= lanes(fmt):
                stream_line(fmt, to, form.element(load(fmt, at), load(fmt, at_x), v))
                at += step
                at_x += step
                to += step
                left -= lanes(fmt)
        near_segment(form, fmt, at, at_x, to, left, v)
        dy += dy_step
        x += x_step
        dx += dx_step


@jit.inner
def write_partial_line(form, fmt, dy, x, dx, length, v):
    """What is written of less than a line, through the cache."""
    while length > 0:
        part = min(length, lanes(fmt))
        r = form.element(load_part(fmt, dy, part), load_part(fmt, x, part), v)
        store_part(fmt, dx, r, part)
        dy += part * size_of(fmt)
        x += part * size_of(fmt)
        dx += part * size_of(fmt)
        length -= part
