"""Batch norm, channels first, short planes: neighbouring channels of a sample as one long row.

A strip is some channels of all samples, few enough to stay in the cache between sums and
gradients. Its rows are the samples; every element of a row is a column with factors of its own,
so planes of 7x7 are read and written in whole lines.
"""

import numpy as np

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.schedules.columns import add_rows, fill, write_rows
from normgrad.backends.cpu.schedules.scalar import (
    entry,
    inverse_deviation,
    not_negative,
    own_statistic,
)
from normgrad.backends.cpu.schedules.slab_units import slab_start, slab_step
from normgrad.backends.cpu.schedules.slabs import all_factors, known, slab_factors, slab_results
from normgrad.backends.cpu.vectors import (
    fence,
    float_of,
    hidden_constant,
    lanes,
    load_part,
    read,
    size_of,
    total,
    widen,
    write,
    zero,
)
from normgrad.backends.cpu.vectors.formats import F64


@jit.inner
def plane_sum(flat, address, length):
    """The sum of some float32 sums, in float64."""
    sums = widen(zero(flat))
    while length > 0:
        part = min(lanes(flat), length)
        sums = sums + widen(load_part(flat, address, part))
        address += part * size_of(flat)
        length -= part
    return total(sums)


@jit.inner
def strip_sums(form, fmt, flat, params, dy, x, columns, channels, factors, sums, joined):
    """The sums of a strip's channels, in float64: two rows of them."""
    inner = params[slots.INNER]
    dy_step = slab_step(params, slots.DY)
    x_step = slab_step(params, slots.X)
    with_x = params[slots.SUM_XMU] != 0
    for channel in range(2 * channels):
        write(F64, joined + channel * 8, 0.0)
    row = 0
    while row < params[slots.OUTER]:
        rows = min(params[slots.BLOCK], params[slots.OUTER] - row)
        fill(flat, sums, 0.0, 2 * columns)
        add_rows(
            form, fmt, flat, dy, x, dy_step, x_step, rows, columns, factors, sums, with_x,
            hidden_constant(True), params[slots.PREFETCH_AHEAD] != 0,
        )  # fmt: skip
        # Two rows of sums follow each other, and so do two rows of joined ones.
        at = sums
        for channel in range(2 * channels):
            one = read(F64, joined + channel * 8) + plane_sum(flat, at, inner)
            write(F64, joined + channel * 8, one)
            at += inner * size_of(flat)
        row += rows
        dy += rows * dy_step
        x += rows * x_step


@jit.inner
def plane_moments(form, flat, params, factors, joined, channels, channel):
    """Mean of a channel and the squared distances from it, of its sums."""
    start = read(flat, factors)
    p, q = read(F64, joined + channel * 8), read(F64, joined + (channels + channel) * 8)
    mean, squares = form.moments(start, p, q, np.float64(params[slots.COUNT]))
    return mean, not_negative(squares)


@jit.inner
def strip_lost(form, flat, params, channels, factors, joined):
    """Whether a channel was summed from far away; it is summed from its mean then."""
    plane = params[slots.INNER] * size_of(flat)
    lost = False
    for channel in range(channels):
        at = factors + channel * plane
        mean, squares = plane_moments(form, flat, params, at, joined, channels, channel)
        if form.lost(read(F64, joined + (channels + channel) * 8), squares):
            lost = True
            fill(flat, at, mean, params[slots.INNER])
    return lost


def side_by_side_planes(formula, fmt, flat):
    """The task for one strip, from sums to what is written."""
    own = formula.own_statistics()  # a constant: Numba compiles one of two branches

    def side_by_side_planes_task(params, addresses, workspace, argument, index, after):
        form = formula.with_slope(float_of(params[slots.NEGATIVE_SLOPE]))
        inner = params[slots.INNER]
        first = index * params[slots.PER_TASK]
        channels = min(params[slots.PER_TASK], params[slots.SLABS] - first)
        columns = channels * inner
        span = columns * size_of(flat)
        plane = inner * size_of(flat)
        sums = workspace + params[slots.AT_PARTS] + first * 2 * plane
        factors = workspace + params[slots.AT_COEFFICIENTS] + first * 5 * plane
        joined = workspace + params[slots.AT_SUMS] + first * 16
        dy = slab_start(params, addresses, workspace, slots.DY, hidden_constant(0), first)
        x = slab_start(params, addresses, workspace, slots.X, hidden_constant(0), first)
        for channel in range(channels):
            if own:
                value = read(fmt, x + channel * inner * size_of(fmt))
            else:
                value = entry(params, addresses, workspace, slots.MEAN, first + channel, 0.0)
            fill(flat, factors + channel * plane, value, inner)
            if form.fused():
                rstd = inverse_deviation(params, addresses, workspace, first + channel)
                v = known(form, params, addresses, workspace, value, rstd, first + channel)
                fill(flat, factors + channel * plane + span, v[1], inner)
                fill(flat, factors + channel * plane + 2 * span, v[2], inner)
        if params[slots.SUM_DY]:
            strip_sums(form, fmt, flat, params, dy, x, columns, channels, factors, sums, joined)
        if own and strip_lost(form, flat, params, channels, factors, joined):
            strip_sums(form, fmt, flat, params, dy, x, columns, channels, factors, sums, joined)
        for channel in range(channels):
            slab = first + channel
            at = factors + channel * plane
            if own:
                mean, squares = plane_moments(form, flat, params, at, joined, channels, channel)
                rstd = own_statistic(params, addresses, workspace, slab, mean, squares)
                rstd = form.given(rstd)
                if params[slots.WRITE_DX]:
                    v = all_factors(form, params, addresses, workspace, mean, rstd, slab, 0.0, 0.0)
                    fill(flat, at, v[0], inner)
                    fill(flat, at + span, v[1], inner)
                    fill(flat, at + 2 * span, v[2], inner)
                continue
            rstd = inverse_deviation(params, addresses, workspace, slab)
            sum_dy = 0.0
            sum_xmu = 0.0
            if params[slots.SUM_DY]:
                sum_dy = read(F64, joined + channel * 8)
                sum_xmu = read(F64, joined + (channels + channel) * 8)
                slab_results(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
            if params[slots.WRITE_DX]:
                x_factor, constant = slab_factors(
                    form, params, addresses, workspace, slab, rstd, sum_dy, sum_xmu
                )
                v = all_factors(
                    form, params, addresses, workspace, 0.0, rstd, slab, x_factor, constant
                )
                fill(flat, at + span, v[1], inner)
                if form.reads_beta():
                    fill(flat, at + 2 * span, v[2], inner)
                fill(flat, at + 3 * span, x_factor, inner)
                fill(flat, at + 4 * span, constant, inner)
        if params[slots.WRITE_DX]:
            dx = slab_start(params, addresses, workspace, slots.DX, hidden_constant(0), first)
            dx_step = slab_step(params, slots.DX)
            following = after * params[slots.PER_TASK]
            ask_dy = 0
            ask_x = 0
            if params[slots.PREFETCH_NEXT_TASK] and following > first:
                ask_dy = (
                    slab_start(
                        params, addresses, workspace, slots.DY, hidden_constant(0), following
                    )
                    - dy
                )
                ask_x = (
                    slab_start(params, addresses, workspace, slots.X, hidden_constant(0), following)
                    - x
                )
            write_rows(
                form, fmt, flat, dy, x, dx, slab_step(params, slots.DY), slab_step(params, slots.X),
                dx_step, params[slots.OUTER], columns, factors,
                params[slots.STREAM_DX] != 0 and (dx | dx_step) & 63 == 0, hidden_constant(True),
                ask_dy, ask_x,
            )  # fmt: skip
            if params[slots.STREAM_DX]:
                fence()
        return 0

    return side_by_side_planes_task
