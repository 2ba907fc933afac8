"""Channels first: small slabs of one segment each, eight at a time.

Instance norm, and batch norm of one sample. What is per slab costs as much as its few vectors of
data, so it is computed in lanes: instance norm of 16x64x8x8 in float32 takes 16 us, 35 as `slabs`.
"""

import numpy as np

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.plan.tuned import EIGHT
from normgrad.backends.cpu.schedules.entries import (
    channel_results,
    entries,
    inverse_deviations,
    load_wide,
    own_statistics,
)
from normgrad.backends.cpu.schedules.scalar import count, not_negative, share_of_dy
from normgrad.backends.cpu.schedules.segments import both_sums, four_sums, near_segment, splats
from normgrad.backends.cpu.schedules.slab_units import parameters_of, slab_place, slab_start
from normgrad.backends.cpu.schedules.slabs import sums_address
from normgrad.backends.cpu.vectors import (
    float_of,
    hidden_constant,
    lane_of,
    lanes,
    read,
    size_of,
    splat,
    store_rounded,
    traced,
    with_lane,
    write,
    zero,
)
from normgrad.backends.cpu.vectors.formats import F64


@jit.inlined
def distance(params, role):
    """How far the slabs of a sample are from each other."""
    return params[role + (slots.BY_GROUP if params[slots.BY_ROW] else slots.BY_CHANNEL)]


@traced
def factors_of(fmt, flat, factors, lane):
    """The factors of one of eight slabs, in every lane."""
    at = factors + lane * size_of(flat)
    return splats(
        fmt,
        (
            read(flat, at),
            read(flat, at + EIGHT),
            read(flat, at + 2 * EIGHT),
            read(flat, at + 3 * EIGHT),
            read(flat, at + 4 * EIGHT),
        ),
    )


@jit.inner
def eight_sums(form, fmt, flat, params, dy, x, part, factors):
    """The sums of up to eight slabs, in lanes."""
    dy_step = distance(params, slots.DY)
    x_step = distance(params, slots.X)
    length = params[slots.INNER]
    together = part // 4 * 4
    sum_dy, sum_xmu = zero(F64), zero(F64)
    for four in range(0, together, 4):
        ones, others = four_sums(
            form,
            fmt,
            dy + four * dy_step,
            x + four * x_step,
            dy_step,
            x_step,
            length,
            factors_of(fmt, flat, factors, four),
            factors_of(fmt, flat, factors, four + 1),
            factors_of(fmt, flat, factors, four + 2),
            factors_of(fmt, flat, factors, four + 3),
        )
        for one in range(4):
            sum_dy = with_lane(sum_dy, four + one, ones[one])
            sum_xmu = with_lane(sum_xmu, four + one, others[one])
    for lane in range(together, part):
        v = factors_of(fmt, flat, factors, lane)
        one, other = both_sums(form, fmt, dy + lane * dy_step, x + lane * x_step, length, v)
        sum_dy = with_lane(sum_dy, lane, one)
        sum_xmu = with_lane(sum_xmu, lane, other)
    return sum_dy, sum_xmu


@jit.inner
def write_eight(form, fmt, flat, params, dy, x, dx, part, factors):
    """What is written of up to eight slabs."""
    length = params[slots.INNER]
    for lane in range(part):
        near_segment(form, fmt, dy, x, dx, length, factors_of(fmt, flat, factors, lane))
        dy += distance(params, slots.DY)
        x += distance(params, slots.X)
        dx += distance(params, slots.DX)


@jit.inner
def eight_known(form, flat, params, addresses, workspace, slab, group, part, factors):
    """What the sums of up to eight slabs know of their factors."""
    one = hidden_constant(1)  # they lie side by side
    mean = entries(params, addresses, workspace, slots.MEAN, slab, one, part, 0.0)
    store_rounded(flat, factors, mean, lanes(F64))
    if form.fused():
        rstd = inverse_deviations(params, addresses, workspace, slab, one, part)
        gamma = entries(params, addresses, workspace, slots.GAMMA, group, one, part, 1.0)
        beta = entries(params, addresses, workspace, slots.BETA, group, one, part, 0.0)
        store_rounded(flat, factors + EIGHT, rstd * gamma, lanes(F64))
        store_rounded(flat, factors + 2 * EIGHT, beta, lanes(F64))


@jit.inner
def eight_moments(form, fmt, flat, params, addresses, workspace, slab, group, x, part, factors):
    """Statistics of up to eight slabs, and their factors."""
    step, length = distance(params, slots.X), params[slots.INNER]
    elements, one = splat(F64, np.float64(length)), hidden_constant(1)
    for lane in range(part):
        write(flat, factors + lane * size_of(flat), form.start(read(fmt, x + lane * step)))
    start = load_wide(flat, factors, part)
    p, q = eight_sums(form, fmt, flat, params, x, x, part, factors)
    mean, squares = form.moments(start, p, q, elements)
    if form.lost(q, squares):
        for lane in range(part):
            if form.lost(lane_of(q, lane), lane_of(squares, lane)):
                at = factors + lane * size_of(flat)
                write(flat, at, lane_of(mean, lane))
                nearer = read(flat, at)
                v = factors_of(fmt, flat, factors, lane)
                there = x + lane * step
                sums = both_sums(form, fmt, there, there, length, v)
                centre, rest = form.moments(nearer, sums[0], sums[1], np.float64(length))
                mean = with_lane(mean, lane, centre)
                squares = with_lane(squares, lane, not_negative(rest))
    rstd = own_statistics(params, addresses, workspace, slab, one, part, mean, squares)
    rstd = form.given(rstd)
    gamma = entries(params, addresses, workspace, slots.GAMMA, group, one, part, 1.0)
    beta = entries(params, addresses, workspace, slots.BETA, group, one, part, 0.0)
    store_rounded(flat, factors, mean, lanes(F64))
    store_rounded(flat, factors + EIGHT, rstd * gamma, lanes(F64))
    store_rounded(flat, factors + 2 * EIGHT, beta, lanes(F64))


@jit.inner
def eight_factors(
    form, flat, params, addresses, workspace, slab, outer, group, part, sum_dy, sum_xmu, factors
):  # fmt: skip
    """Results of up to eight slabs from their sums, and the factors that these make."""
    one, own_group = hidden_constant(1), parameters_of(params, outer, group)
    rstd = inverse_deviations(params, addresses, workspace, slab, one, part)
    gamma = entries(params, addresses, workspace, slots.GAMMA, own_group, one, part, 1.0)
    dy_factor = rstd * gamma
    factor = dy_factor
    if params[slots.BY_ROW]:
        kept = sums_address(params, workspace, outer, group)
        store_rounded(F64, kept, sum_dy, part)
        store_rounded(F64, kept + params[slots.COLUMNS] * 8, sum_xmu * rstd, part)
        sum_dy, sum_xmu, factor = sum_dy * gamma, sum_xmu * gamma, rstd
    else:
        channel_results(params, addresses, workspace, slab, part, rstd, sum_dy, sum_xmu)
    if params[slots.WRITE_DX]:
        elements = splat(F64, count(params, workspace))
        share = splat(F64, share_of_dy(params))
        x_factor, constant = form.coefficients(factor, rstd, elements, sum_dy * share, sum_xmu)
        store_rounded(flat, factors + EIGHT, dy_factor * share, lanes(F64))
        store_rounded(flat, factors + 3 * EIGHT, x_factor, lanes(F64))
        store_rounded(flat, factors + 4 * EIGHT, constant, lanes(F64))


def single_segment_slabs(formula, fmt, flat):
    """The task for a few slabs of one short segment each."""
    own = formula.own_statistics()  # a constant: Numba compiles one of two branches

    def single_segment_slabs_task(params, addresses, workspace, argument, index, after):
        form = formula.with_slope(float_of(params[slots.NEGATIVE_SLOPE]))
        factors = workspace + params[slots.AT_COEFFICIENTS] + index * 5 * EIGHT
        slab = index * params[slots.PER_TASK]
        end = min(slab + params[slots.PER_TASK], params[slots.SLABS])
        while slab < end:
            # Of one sample: they lie at an even distance, and so do their parameters.
            outer, group = slab_place(params, slab)
            part = min(lanes(F64), end - slab, params[slots.COLUMNS] - group)
            own_group = parameters_of(params, outer, group)
            dy = slab_start(params, addresses, workspace, slots.DY, outer, group)
            x = slab_start(params, addresses, workspace, slots.X, outer, group)
            if own:
                eight_moments(
                    form, fmt, flat, params, addresses, workspace, slab, own_group, x, part, factors
                )
            else:
                eight_known(
                    form, flat, params, addresses, workspace, slab, own_group, part, factors
                )
                sum_dy, sum_xmu = eight_sums(form, fmt, flat, params, dy, x, part, factors)
                eight_factors(
                    form, flat, params, addresses, workspace, slab, outer, group, part, sum_dy,
                    sum_xmu, factors,
                )  # fmt: skip
            if params[slots.WRITE_DX]:
                dx = slab_start(params, addresses, workspace, slots.DX, outer, group)
                write_eight(form, fmt, flat, params, dy, x, dx, part, factors)
            slab += part
        return 0

    return single_segment_slabs_task
