"""Channels first: small slabs of one segment each, eight at a time.

Instance norm, and batch norm of one sample. What is per slab costs as much as its few vectors of
data, so it is computed in lanes: instance norm of 16x64x8x8 in float32 takes 16 us, 35 as `slabs`.
"""

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.kernels.entries import channel_results, entries, inverse_deviations
from normgrad.backends.cpu.kernels.scalar import count, slope_and_offset
from normgrad.backends.cpu.kernels.segments import both_sums, four_sums, near_segment
from normgrad.backends.cpu.kernels.slabs import kept_sums, slab_place, slab_start
from normgrad.backends.cpu.sizes import EIGHT
from normgrad.backends.cpu.vectors import (
    lanes,
    plain,
    read,
    size_of,
    splat,
    store_rounded,
    with_lane,
    zero,
)
from normgrad.backends.cpu.vectors.formats import F64


@jit.inlined
def distance(params, role):
    """How far the slabs of a sample are from each other."""
    return params[role + (slots.BY_GROUP if params[slots.BY_ROW] else slots.BY_CHANNEL)]


@jit.inlined
def spread_lane(fmt, flat, factors, lane):
    """One of eight numbers in memory, in every lane."""
    return splat(fmt, read(flat, factors + lane * size_of(flat)))


@jit.inner
def lone_sums(fmt, flat, params, dy, x, part, means):
    """The sums of up to eight slabs, in lanes."""
    dy_step = distance(params, slots.DY)
    x_step = distance(params, slots.X)
    length = params[slots.INNER]
    together = part // 4 * 4
    sum_dy, sum_xmu = zero(F64), zero(F64)
    for four in range(0, together, 4):
        ones, others = four_sums(
            fmt,
            dy + four * dy_step,
            x + four * x_step,
            dy_step,
            x_step,
            length,
            spread_lane(fmt, flat, means, four),
            spread_lane(fmt, flat, means, four + 1),
            spread_lane(fmt, flat, means, four + 2),
            spread_lane(fmt, flat, means, four + 3),
        )
        for one in range(4):
            sum_dy = with_lane(sum_dy, four + one, ones[one])
            sum_xmu = with_lane(sum_xmu, four + one, others[one])
    for lane in range(together, part):
        centre = spread_lane(fmt, flat, means, lane)
        one, other = both_sums(fmt, dy + lane * dy_step, x + lane * x_step, length, centre)
        sum_dy = with_lane(sum_dy, lane, one)
        sum_xmu = with_lane(sum_xmu, lane, other)
    return sum_dy, sum_xmu


@jit.inner
def lone_gradients(fmt, flat, params, dy, x, dx, part, means):
    """The gradients of up to eight slabs."""
    dy_step = distance(params, slots.DY)
    x_step = distance(params, slots.X)
    dx_step = distance(params, slots.DX)
    length = params[slots.INNER]
    for lane in range(part):
        centre = spread_lane(fmt, flat, means, lane)
        va = spread_lane(fmt, flat, means + EIGHT, lane)
        vb = spread_lane(fmt, flat, means + 2 * EIGHT, lane)
        vc = spread_lane(fmt, flat, means + 3 * EIGHT, lane)
        near_segment(fmt, dy, x, dx, length, centre, va, vb, vc)
        dy += dy_step
        x += x_step
        dx += dx_step


@jit.inner
def lone_factors(
    flat, params, addresses, workspace, slab, outer, group, part, sum_dy, sum_xmu, means
):
    """Results of up to eight slabs from their sums, and their factors behind their means."""
    one = plain(1)  # they lie side by side
    rstd = inverse_deviations(params, addresses, workspace, slab, one, part)
    gamma = entries(params, addresses, workspace, slots.GAMMA, group, one, part, 1.0)
    a = rstd * gamma
    outside = a
    if params[slots.BY_ROW]:
        kept = kept_sums(params, workspace, outer, group)
        store_rounded(F64, kept, sum_dy, part)
        store_rounded(F64, kept + params[slots.COLUMNS] * 8, sum_xmu * rstd, part)
        sum_dy, sum_xmu, outside = sum_dy * gamma, sum_xmu * gamma, rstd
    else:
        channel_results(params, addresses, workspace, slab, part, rstd, sum_dy, sum_xmu)
    if params[slots.WRITE_DX]:
        elements = splat(F64, count(params, workspace))
        b, c = slope_and_offset(outside, rstd, elements, sum_dy, sum_xmu)
        store_rounded(flat, means + EIGHT, a, lanes(F64))
        store_rounded(flat, means + 2 * EIGHT, b, lanes(F64))
        store_rounded(flat, means + 3 * EIGHT, c, lanes(F64))


def lone_slabs(fmt, flat):
    """The task for a few slabs of one short segment each."""

    def lone_slabs_task(params, addresses, workspace, argument, index, after):
        means = workspace + params[slots.AT_COEFFICIENTS] + index * 4 * EIGHT
        slab = index * params[slots.PER_TASK]
        end = min(slab + params[slots.PER_TASK], params[slots.SLABS])
        while slab < end:
            # Of one sample: they lie at an even distance, and so do their parameters.
            outer, group = slab_place(params, slab)
            part = min(lanes(F64), end - slab, params[slots.COLUMNS] - group)
            dy = slab_start(params, addresses, workspace, slots.DY, outer, group)
            x = slab_start(params, addresses, workspace, slots.X, outer, group)
            mean = entries(params, addresses, workspace, slots.MEAN, slab, plain(1), part, 0.0)
            store_rounded(flat, means, mean, lanes(F64))
            sum_dy, sum_xmu = lone_sums(fmt, flat, params, dy, x, part, means)
            lone_factors(
                flat, params, addresses, workspace, slab, outer, group, part, sum_dy, sum_xmu,
                means,
            )  # fmt: skip
            if params[slots.WRITE_DX]:
                dx = slab_start(params, addresses, workspace, slots.DX, outer, group)
                lone_gradients(fmt, flat, params, dy, x, dx, part, means)
            slab += part
        return 0

    return lone_slabs_task
