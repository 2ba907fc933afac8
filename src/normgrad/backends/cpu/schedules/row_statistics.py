"""The first pass over rows: their sums, and what those make; statistics of their own."""

import numpy as np

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.schedules.columns import AHEAD
from normgrad.backends.cpu.schedules.entries import entries, inverse_deviations, own_statistics
from normgrad.backends.cpu.schedules.scalar import (
    entry,
    inverse_deviation,
    not_negative,
    own_statistic,
)
from normgrad.backends.cpu.schedules.segments import ask, rounded, two_sum_result, two_sum_step
from normgrad.backends.cpu.vectors import (
    four_totals,
    hidden_constant,
    lane_of,
    lanes,
    load,
    load_part,
    read,
    size_of,
    splat,
    store,
    total,
    totals_in_lanes,
    traced,
    with_lane,
    write,
    zero,
)
from normgrad.backends.cpu.vectors.formats import F64

# Columns that each of a row's two sums adds in float32 lanes before it goes on in float64, in
# vectors.
_DEPTH = 32
# Bytes of the factors of four rows: their means, rstd, b and c, each in half of a vector, and a 0.
# One row at a time made 10000x8 in float32 106 us, 94 so.
FACTORS = 320
RSTD, X_FACTOR, CONSTANT, NOTHING = 64, 128, 192, 256
# Columns of rows whose lanes are added up four rows at a time: in the cache 1024x64 takes 10 to
# 17 % less, 512x128 3 to 9, 256x256 2 to 4 in 16 bits; 90x768 and 64x1024 the same.
SHORT = 256


@jit.inner
def row_lanes(form, fmt, flat, dy, x, gamma, beta, columns, mean, rstd):
    """Lane by lane both sums over some columns, of gamma * dy."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    unit = width * size_of(flat)
    m, s = splat(fmt, mean), splat(fmt, rstd)
    p0 = zero(fmt)
    p1 = zero(fmt)
    q0 = zero(fmt)
    q1 = zero(fmt)
    pairs = columns // (2 * width)
    for _ in range(pairs):
        g, h = load(flat, gamma), load(flat, beta)
        p0, q0 = form.row_share(p0, q0, load(fmt, dy), load(fmt, x), m, s, g, h)
        g, h = load(flat, gamma + unit), load(flat, beta + unit)
        p1, q1 = form.row_share(p1, q1, load(fmt, dy + step), load(fmt, x + step), m, s, g, h)
        ask(form, dy + AHEAD, x + AHEAD)
        dy += 2 * step
        x += 2 * step
        gamma += 2 * unit
        beta += 2 * unit
    left = columns - pairs * 2 * width
    while left > 0:
        part = min(left, width)
        g, h = load_part(flat, gamma, part), load_part(flat, beta, part)
        d, t = load_part(fmt, dy, part), load_part(fmt, x, part)
        p0, q0 = form.part_row_share(p0, q0, d, t, m, s, g, h, part)
        dy += step
        x += step
        gamma += unit
        beta += unit
        left -= part
    return p0 + p1, q0 + q1


@jit.inlined
def row_statistics(params, addresses, workspace, row, factors):
    """Leave mean and rstd of a row as float64."""
    write(F64, factors, entry(params, addresses, workspace, slots.MEAN, row, 0.0))
    write(F64, factors + RSTD, inverse_deviation(params, addresses, workspace, row))


@jit.inner
def row_sums(form, fmt, flat, params, dy, x, gamma, beta, mean, rstd):
    """Both sums of a row."""
    most = 2 * lanes(fmt) * _DEPTH
    sum_g, rest_g = 0.0, 0.0
    sum_xmu, rest_xmu = 0.0, 0.0
    left = params[slots.WIDTH]
    while left > 0:
        part = min(left, most)
        p, q = row_lanes(form, fmt, flat, dy, x, gamma, beta, part, mean, rstd)
        if params[slots.WIDTH] <= SHORT:
            # As in four rows at a time: bits do not depend on how many others there are.
            sum_g, sum_xmu, _, _ = four_totals(p, q, p, q)
        else:
            sum_g, rest_g = two_sum_step(fmt, sum_g, rest_g, total(p))
            sum_xmu, rest_xmu = two_sum_step(fmt, sum_xmu, rest_xmu, total(q))
        dy += part * size_of(fmt)
        x += part * size_of(fmt)
        gamma += part * size_of(flat)
        beta += part * size_of(flat)
        left -= part
    return two_sum_result(sum_g, rest_g), two_sum_result(sum_xmu, rest_xmu)


@jit.inlined
def row_factors(
    form, fmt, flat, params, addresses, workspace, dy, x, gamma, beta, row, inverse, share, factors
):  # fmt: skip
    """Mean, rstd, b and c of a row."""
    row_statistics(params, addresses, workspace, row, factors)
    if params[slots.WRITE_DX]:
        mean, rstd = read(F64, factors), read(F64, factors + RSTD)
        sum_g, sum_xmu = row_sums(form, fmt, flat, params, dy, x, gamma, beta, mean, rstd)
        x_factor, constant = form.row_coefficients(rstd, sum_g, sum_xmu, inverse, share)
        write(F64, factors + X_FACTOR, x_factor)
        write(F64, factors + CONSTANT, constant)


@traced
def row_start(form, fmt, d, x):
    """From where distances of a row are measured."""
    return form.row_start(read(fmt, d), read(fmt, x))


@jit.inner
def row_moments(form, fmt, flat, params, addresses, workspace, d, x, gamma, row, factors):
    """Mean and rstd of a row, which are made of it; ``d`` is what is added to it, if any."""
    start = row_start(form, fmt, d, x)
    p, q = row_sums(form, fmt, flat, params, d, x, gamma, gamma, start, 1.0)
    mean, squares = form.moments(start, p, q, np.float64(params[slots.WIDTH]))
    if form.lost(q, squares):
        mean, squares = nearer_moments(form, fmt, flat, params, d, x, gamma, mean)
    rstd = own_statistic(params, addresses, workspace, row, mean, squares)
    rstd = form.given(rstd)
    write(F64, factors, mean)
    write(F64, factors + RSTD, rstd)


@jit.inner
def nearer_moments(form, fmt, flat, params, d, x, gamma, mean):
    """Mean and squared distances of a row, from near its mean."""
    start = rounded(fmt, mean)
    p, q = row_sums(form, fmt, flat, params, d, x, gamma, gamma, start, 1.0)
    mean, squares = form.moments(start, p, q, np.float64(params[slots.WIDTH]))
    return mean, not_negative(squares)


@jit.inner
def four_moments(
    form, fmt, flat, params, addresses, workspace, d, x, d_step, x_step, gamma, row, factors
):  # fmt: skip
    """Mean and rstd of four rows, which are made of them."""
    columns = params[slots.WIDTH]
    d1, d2, d3 = d + d_step, d + 2 * d_step, d + 3 * d_step
    x1, x2, x3 = x + x_step, x + 2 * x_step, x + 3 * x_step
    s0, s1 = row_start(form, fmt, d, x), row_start(form, fmt, d1, x1)
    s2, s3 = row_start(form, fmt, d2, x2), row_start(form, fmt, d3, x3)
    start, p, q = zero(F64), zero(F64), zero(F64)
    if columns <= SHORT:  # their lanes are added up together
        p0, q0 = row_lanes(form, fmt, flat, d, x, gamma, gamma, columns, s0, 1.0)
        p1, q1 = row_lanes(form, fmt, flat, d1, x1, gamma, gamma, columns, s1, 1.0)
        p2, q2 = row_lanes(form, fmt, flat, d2, x2, gamma, gamma, columns, s2, 1.0)
        p3, q3 = row_lanes(form, fmt, flat, d3, x3, gamma, gamma, columns, s3, 1.0)
        p, q = totals_in_lanes(p0, p1, p2, p3), totals_in_lanes(q0, q1, q2, q3)
    else:
        for lane, one in enumerate((s0, s1, s2, s3)):
            there, at = d + lane * d_step, x + lane * x_step
            sums = row_sums(form, fmt, flat, params, there, at, gamma, gamma, one, 1.0)
            p, q = with_lane(p, lane, sums[0]), with_lane(q, lane, sums[1])
    for lane, one in enumerate((s0, s1, s2, s3)):
        start = with_lane(start, lane, one)
    mean, squares = form.moments(start, p, q, splat(F64, np.float64(columns)))
    if form.lost(q, squares):
        for lane in range(4):
            if form.lost(lane_of(q, lane), lane_of(squares, lane)):
                there, at = d + lane * d_step, x + lane * x_step
                one = nearer_moments(form, fmt, flat, params, there, at, gamma, lane_of(mean, lane))
                mean, squares = with_lane(mean, lane, one[0]), with_lane(squares, lane, one[1])
    apart = params[slots.GROUPS]
    rstd = own_statistics(
        params, addresses, workspace, row, apart, hidden_constant(4), mean, squares
    )
    rstd = form.given(rstd)
    store(F64, factors, mean)
    store(F64, factors + RSTD, rstd)


@jit.inlined
def lanes_of_row(form, fmt, flat, dy, x, gamma, beta, columns, factors):
    """`row_lanes` of one of four rows, all its columns."""
    mean, rstd = read(F64, factors), read(F64, factors + RSTD)
    return row_lanes(form, fmt, flat, dy, x, gamma, beta, columns, mean, rstd)


@jit.inlined
def four_factors(
    form, fmt, flat, params, addresses, workspace, dy, x, dy_step, x_step, gamma, beta, row,
    inverse, share, factors,
):  # fmt: skip
    """The same of four rows that are not long: their lanes are added up together."""
    columns = params[slots.WIDTH]
    apart, four = params[slots.GROUPS], hidden_constant(4)
    store(F64, factors, entries(params, addresses, workspace, slots.MEAN, row, apart, four, 0.0))
    rstd = inverse_deviations(params, addresses, workspace, row, apart, four)
    store(F64, factors + RSTD, rstd)
    if params[slots.WRITE_DX]:
        p0, q0 = lanes_of_row(form, fmt, flat, dy, x, gamma, beta, columns, factors)
        dy += dy_step
        x += x_step
        p1, q1 = lanes_of_row(form, fmt, flat, dy, x, gamma, beta, columns, factors + 8)
        dy += dy_step
        x += x_step
        p2, q2 = lanes_of_row(form, fmt, flat, dy, x, gamma, beta, columns, factors + 16)
        dy += dy_step
        x += x_step
        p3, q3 = lanes_of_row(form, fmt, flat, dy, x, gamma, beta, columns, factors + 24)
        sums_g = totals_in_lanes(p0, p1, p2, p3)
        sums_xmu = totals_in_lanes(q0, q1, q2, q3)
        x_factor, constant = form.row_coefficients(
            rstd, sums_g, sums_xmu, splat(F64, inverse), splat(F64, share)
        )
        store(F64, factors + X_FACTOR, x_factor)
        store(F64, factors + CONSTANT, constant)
