"""Contiguous segments at an even distance: their sums, and gradients with one set of factors."""

import numpy as np

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.vectors import (
    fills_line,
    fma,
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
    zero,
)
from normgrad.backends.cpu.vectors.formats import F64

# Vectors that an accumulator takes before it is added up in float64: 4 of 16 lanes make 1024
# numbers. With 128 sums of ten million terms that cancel were up to 13 units off, so up to 7; in a
# cache the join costs less than what two runs differ by.
_DEPTH = 16
# Segments of up to this many bytes are too short for the processor to see them coming.
_SHORT = 256
_AHEAD = 4
# How far ahead lines are asked for in long ones, in bytes: 1024 gave nothing.
FAR = 2560


@jit.inlined
def plus(fmt, joined, rest, term):
    """A sum with one more term, and what all its roundings have lost (Knuth's two-sum).

    Float32 lanes have lost more before, and are joined in float64 all the same.
    """
    after = joined + term
    if lanes(fmt) == lanes(F64):
        share = after - joined
        rest = rest + ((joined - (after - share)) + (term - share))
    return after, rest


@jit.inlined
def completed(joined, rest):
    """A sum and what its roundings lost, which is nan where the sum is infinite.

    A float64 sum is joined from many parts: half a million planes of two pixels of 0.1, one by one,
    were 80542 roundings off.
    """
    return joined if np.isnan(rest) else joined + rest


@jit.inner
def sums(fmt, dy, x, dy_step, x_step, segments, length, mean):
    """The sums of dy and of dy * (x - mean) over segments at an even distance, in float64."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    centre = splat(fmt, mean)
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
            prefetch(dy + _AHEAD * dy_step)
            prefetch(x + _AHEAD * x_step)
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
                q0 = fma(d0, t0 - centre, q0)
                q1 = fma(d1, t1 - centre, q1)
                q2 = fma(d2, t2 - centre, q2)
                q3 = fma(d3, t3 - centre, q3)
                p0 = p0 + d0
                p1 = p1 + d1
                p2 = p2 + d2
                p3 = p3 + d3
                prefetch(at + FAR)
                prefetch(at + FAR + 2 * step)
                prefetch(at_x + FAR)
                prefetch(at_x + FAR + 2 * step)
                at += 4 * step
                at_x += 4 * step
            left -= rounds * 4 * width
            depth -= rounds
            if left < 4 * width:
                depth -= 1
                if left >= width:
                    d0 = load(fmt, at)
                    q0 = fma(d0, load(fmt, at_x) - centre, q0)
                    p0 = p0 + d0
                if left >= 2 * width:
                    d1 = load(fmt, at + step)
                    q1 = fma(d1, load(fmt, at_x + step) - centre, q1)
                    p1 = p1 + d1
                if left >= 3 * width:
                    d2 = load(fmt, at + 2 * step)
                    q2 = fma(d2, load(fmt, at_x + 2 * step) - centre, q2)
                    p2 = p2 + d2
                rest = left % width
                if rest > 0:
                    last = (left - rest) * size_of(fmt)
                    d3 = load_part(fmt, at + last, rest)
                    # Lanes without an element hold 0 - mean; their dy is 0.
                    q3 = fma(d3, load_part(fmt, at_x + last, rest) - centre, q3)
                    p3 = p3 + d3
                left = 0
            if depth <= 0:
                one, other = total((p0 + p1) + (p2 + p3)), total((q0 + q1) + (q2 + q3))
                sum_dy, rest_dy = plus(fmt, sum_dy, rest_dy, one)
                sum_xmu, rest_xmu = plus(fmt, sum_xmu, rest_xmu, other)
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
    return completed(sum_dy, rest_dy), completed(sum_xmu, rest_xmu)


@jit.inlined
def lane_sums(fmt, dy, x, length, centre):
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
        p0 = p0 + d0
        p1 = p1 + d1
        q0 = fma(d0, t0 - centre, q0)
        q1 = fma(d1, t1 - centre, q1)
        prefetch(dy + FAR)
        prefetch(x + FAR)
        dy += 2 * step
        x += 2 * step
        left -= 2 * width
    while left > 0:
        part = min(left, width)
        d0 = load_part(fmt, dy, part)
        p0 = p0 + d0
        q0 = fma(d0, load_part(fmt, x, part) - centre, q0)
        dy += step
        x += step
        left -= part
    return p0 + p1, q0 + q1


@jit.inlined
def four_sums(fmt, dy, x, dy_step, x_step, length, c0, c1, c2, c3):
    """The sums of each of four short segments, whose lanes are added up together."""
    p0, q0 = lane_sums(fmt, dy, x, length, c0)
    p1, q1 = lane_sums(fmt, dy + dy_step, x + x_step, length, c1)
    p2, q2 = lane_sums(fmt, dy + 2 * dy_step, x + 2 * x_step, length, c2)
    p3, q3 = lane_sums(fmt, dy + 3 * dy_step, x + 3 * x_step, length, c3)
    return four_totals(p0, p1, p2, p3), four_totals(q0, q1, q2, q3)


@jit.inlined
def both_sums(fmt, dy, x, length, centre):
    """The sums of a short segment, with the bits that it has among four."""
    p, q = lane_sums(fmt, dy, x, length, centre)
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
            sum_dy, rest = plus(fmt, sum_dy, rest, total((p0 + p1) + (p2 + p3)))
        dy += dy_step
    return completed(sum_dy, rest)


@jit.inner
def near_segment(fmt, dy, x, dx, left, centre, va, vb, vc):
    """``dx = a * dy + b * (x - mean) + c`` over a segment, through the cache."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    while left >= 2 * width:
        d0, d1 = load_pair(fmt, dy)
        t0, t1 = load_pair(fmt, x)
        r0 = fma(va, d0, fma(vb, t0 - centre, vc))
        r1 = fma(va, d1, fma(vb, t1 - centre, vc))
        store_pair(fmt, dx, r0, r1)
        dy += 2 * step
        x += 2 * step
        dx += 2 * step
        left -= 2 * width
    if left >= width:
        store(fmt, dx, fma(va, load(fmt, dy), fma(vb, load(fmt, x) - centre, vc)))
        dy += step
        x += step
        dx += step
        left -= width
    if left > 0:
        t = load_part(fmt, x, left) - centre
        store_part(fmt, dx, fma(va, load_part(fmt, dy, left), fma(vb, t, vc)), left)


@jit.inner
def gradients(
    fmt, dy, x, dx, dy_step, x_step, dx_step, segments, length, mean, a, b, c, streaming, far,
    ask_dy, ask_x,
):  # fmt: skip
    """``dx = a * dy + b * (x - mean) + c`` over segments at an even distance.

    Data that far away (``ask_dy``, ``ask_x``) are asked for meanwhile; 0: none.
    """
    width = lanes(fmt)
    step = width * size_of(fmt)
    centre = splat(fmt, mean)
    va = splat(fmt, a)
    vb = splat(fmt, b)
    vc = splat(fmt, c)
    for _ in range(segments):
        left = length
        at = dy
        at_x = x
        to = dx
        if streaming:
            head = min((-to & 63) // size_of(fmt), left)
            while head > 0:
                part = min(head, width)
                t = load_part(fmt, at_x, part) - centre
                store_part(fmt, to, fma(va, load_part(fmt, at, part), fma(vb, t, vc)), part)
                at += part * size_of(fmt)
                at_x += part * size_of(fmt)
                to += part * size_of(fmt)
                head -= part
                left -= part
            # A loop of its own: in one with plain stores LLVM made these plain for float16.
            while left >= 2 * width:
                d0, d1 = load_pair(fmt, at)
                t0, t1 = load_pair(fmt, at_x)
                r0 = fma(va, d0, fma(vb, t0 - centre, vc))
                r1 = fma(va, d1, fma(vb, t1 - centre, vc))
                stream_pair(fmt, to, r0, r1)
                if ask_x != 0:
                    prefetch(at + ask_dy)
                    prefetch(at_x + ask_x)
                    if fills_line(fmt):
                        prefetch(at + ask_dy + step)
                        prefetch(at_x + ask_x + step)
                if far:
                    prefetch(at + FAR)
                    prefetch(at_x + FAR)
                    if fills_line(fmt):
                        prefetch(at + FAR + step)
                        prefetch(at_x + FAR + step)
                at += 2 * step
                at_x += 2 * step
                to += 2 * step
                left -= 2 * width
            if left >= width:
                t = load(fmt, at_x) - centre
                stream_line(fmt, to, fma(va, load(fmt, at), fma(vb, t, vc)))
                at += step
                at_x += step
                to += step
                left -= width
        near_segment(fmt, at, at_x, to, left, centre, va, vb, vc)
        dy += dy_step
        x += x_step
        dx += dx_step


@jit.inner
def part_gradients(fmt, dy, x, dx, length, mean, a, b, c):
    """``dx = a * dy + b * (x - mean) + c`` over less than a line, through the cache."""
    width = lanes(fmt)
    while length > 0:
        part = min(length, width)
        s = fma(splat(fmt, b), load_part(fmt, x, part) - splat(fmt, mean), splat(fmt, c))
        store_part(fmt, dx, fma(splat(fmt, a), load_part(fmt, dy, part), s), part)
        dy += part * size_of(fmt)
        x += part * size_of(fmt)
        dx += part * size_of(fmt)
        length -= part


@jit.inner
def scaled(fmt, dy, dx, dy_step, dx_step, segments, length, a, streaming):
    """``dx = a * dy`` over segments at an even distance; x is not read."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    va = splat(fmt, a)
    for _ in range(segments):
        left = length
        at = dy
        to = dx
        if streaming:
            head = min((-to & 63) // size_of(fmt), left)
            left -= head
            while head > 0:
                part = min(head, width)
                store_part(fmt, to, va * load_part(fmt, at, part), part)
                at += part * size_of(fmt)
                to += part * size_of(fmt)
                head -= part
            while left >= 2 * width:
                d0, d1 = load_pair(fmt, at)
                stream_pair(fmt, to, va * d0, va * d1)
                at += 2 * step
                to += 2 * step
                left -= 2 * width
        while left >= width:
            store(fmt, to, va * load(fmt, at))
            at += step
            to += step
            left -= width
        if left > 0:
            store_part(fmt, to, va * load_part(fmt, at, left), left)
        dy += dy_step
        dx += dx_step
