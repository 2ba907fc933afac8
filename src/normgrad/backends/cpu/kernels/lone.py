"""Channels first: small slabs of one segment each, eight at a time.

Instance norm, and batch norm of one sample. What is per slab costs as much as its few vectors of
data, so it is computed in lanes.
"""

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.kernels.entries import entries, inverse_deviations, put_entries
from normgrad.backends.cpu.kernels.scalar import count, slope_and_offset
from normgrad.backends.cpu.kernels.segments import both_sums, four_sums, near_segment
from normgrad.backends.cpu.kernels.slabs import kept_sums, slab_place, slab_start
from normgrad.backends.cpu.vectors import (
    lanes,
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
        va = spread_lane(fmt, flat, means + 64, lane)
        vb = spread_lane(fmt, flat, means + 128, lane)
        vc = spread_lane(fmt, flat, means + 192, lane)
        near_segment(fmt, dy, x, dx, length, centre, va, vb, vc)
        dy += dy_step
        x += x_step
        dx += dx_step


def lone_slabs(fmt, flat):
    """The task for a few slabs of one short segment each."""

    def lone_slabs_task(params, addresses, workspace, argument, index, after):
        by_row = params[slots.BY_ROW] != 0
        means = workspace + params[slots.AT_COEFFICIENTS] + index * slots.LONE_FACTORS
        elements = splat(F64, count(params, workspace))
        slab = index * params[slots.PER_TASK]
        end = min(slab + params[slots.PER_TASK], params[slots.SLABS])
        while slab < end:
            outer, group = slab_place(params, slab)
            part = min(lanes(F64), end - slab, params[slots.COLUMNS] - group)
            dy = slab_start(params, addresses, workspace, slots.DY, outer, group)
            x = slab_start(params, addresses, workspace, slots.X, outer, group)
            mean = entries(params, addresses, workspace, slots.MEAN, slab, part, 0.0)
            store_rounded(flat, means, mean, lanes(F64))
            rstd = inverse_deviations(params, addresses, workspace, slab, part)
            sum_dy, sum_xmu = lone_sums(fmt, flat, params, dy, x, part, means)
            gamma = entries(params, addresses, workspace, slots.GAMMA, group, part, 1.0)
            a = rstd * gamma
            outside = a
            if by_row:
                kept = kept_sums(params, workspace, outer, group)
                store_rounded(F64, kept, sum_dy, part)
                store_rounded(F64, kept + params[slots.COLUMNS] * 8, sum_xmu * rstd, part)
                sum_dy, sum_xmu, outside = sum_dy * gamma, sum_xmu * gamma, rstd
            else:
                put_entries(params, addresses, workspace, slots.SUM_DY_VECTOR, slab, sum_dy, part)
                put_entries(params, addresses, workspace, slots.SUM_XMU_VECTOR, slab, sum_xmu, part)
                put_entries(params, addresses, workspace, slots.DGAMMA, slab, sum_xmu * rstd, part)
                put_entries(params, addresses, workspace, slots.DBETA, slab, sum_dy, part)
            if params[slots.WRITE_DX]:
                b, c = slope_and_offset(outside, rstd, elements, sum_dy, sum_xmu)
                store_rounded(flat, means + 64, a, lanes(F64))
                store_rounded(flat, means + 128, b, lanes(F64))
                store_rounded(flat, means + 192, c, lanes(F64))
                dx = slab_start(params, addresses, workspace, slots.DX, outer, group)
                lone_gradients(fmt, flat, params, dy, x, dx, part, means)
            slab += part
        return 0

    return lone_slabs_task
