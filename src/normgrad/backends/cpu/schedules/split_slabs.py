"""Channels first: large slabs, of which there are few, split into units for several threads.

All units are summed, the sums of a slab's units are joined, then all units are written.
"""

from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.schedules.scalar import entry, inverse_deviation, own_statistic
from normgrad.backends.cpu.schedules.segments import two_sum_result, two_sum_step
from normgrad.backends.cpu.schedules.slab_units import (
    parameter,
    parameters_of,
    pieces_of_segment,
    slab_place,
    slab_start,
    slab_step,
    unit_moments,
    unit_place,
    with_unit,
)
from normgrad.backends.cpu.schedules.slabs import (
    all_factors,
    gamma_weighted_sums,
    known,
    needed_sums,
    segment_sums,
    slab_factors,
    slab_results,
    sums_address,
    write_cached,
    write_segments,
)
from normgrad.backends.cpu.vectors import fence, float_of, hidden_constant, read, size_of, write
from normgrad.backends.cpu.vectors.formats import F64


def sum_pieces(formula, fmt, by_row):
    """The task that sums a unit: part of a segment, or some segments.

    Group norm has the sums of each segment apart. ``argument`` is the first unit's number.
    """
    # A constant, as by_row is: Numba compiles one of two branches.
    own = formula.own_statistics()

    def sum_pieces_task(params, addresses, workspace, argument, index, after):
        form = formula.with_slope(float_of(params[slots.NEGATIVE_SLOPE]))
        unit = argument + index
        slab, segment, segments, first, length = unit_place(params, unit)
        outer, group = slab_place(params, slab)
        at = workspace + params[slots.AT_PARTS] + unit * 16
        if own:
            start = slab_start(params, addresses, workspace, slots.X, outer, group)
            mean, squares = unit_moments(form, fmt, params, start, segment, segments, first, length)
            write(F64, at, mean)
            write(F64, at + 8, squares)
            return 0
        mean = entry(params, addresses, workspace, slots.MEAN, slab, 0.0)
        rstd = inverse_deviation(params, addresses, workspace, slab) if form.fused() else 1.0
        column = parameter(params, parameters_of(params, outer, group), segment)
        dy = slab_start(params, addresses, workspace, slots.DY, outer, group) + first * size_of(fmt)
        x = slab_start(params, addresses, workspace, slots.X, outer, group) + first * size_of(fmt)
        dy += segment * slab_step(params, slots.DY)
        x += segment * slab_step(params, slots.X)
        parts = workspace + params[slots.AT_PARTS]
        if by_row:
            per_segment = pieces_of_segment(params)
            part = (slab * params[slots.SEGMENTS] + segment) * per_segment
            to = parts + (part + first // params[slots.SPLIT_ELEMENTS]) * 16
            segment_sums(
                form, fmt, params, addresses, workspace, column, dy, x, segments, length, mean,
                rstd, to, per_segment * 16, hidden_constant(8),
            )  # fmt: skip
        else:
            factors = known(form, params, addresses, workspace, mean, rstd, column)
            sum_dy, sum_xmu = needed_sums(form, fmt, params, dy, x, segments, length, factors)
            write(F64, at, sum_dy)
            write(F64, at + 8, sum_xmu)
        return 0

    return sum_pieces_task


def write_pieces(formula, fmt, by_row):
    """The task that writes a unit; ``argument`` is one more than the last one's number."""
    own = formula.own_statistics()

    def write_pieces_task(params, addresses, workspace, argument, index, after):
        form = formula.with_slope(float_of(params[slots.NEGATIVE_SLOPE]))
        # Backwards: what was summed last may still be in the cache.
        unit = argument - 1 - index
        slab, segment, segments, first, length = unit_place(params, unit)
        outer, group = slab_place(params, slab)
        factors = workspace + params[slots.AT_COEFFICIENTS] + slab * 16
        x_factor = read(F64, factors)
        constant = read(F64, factors + 8)
        if own:
            mean, rstd = x_factor, constant
        else:
            mean = entry(params, addresses, workspace, slots.MEAN, slab, 0.0)
            rstd = inverse_deviation(params, addresses, workspace, slab)
        dy = slab_start(params, addresses, workspace, slots.DY, outer, group) + first * size_of(fmt)
        x = slab_start(params, addresses, workspace, slots.X, outer, group) + first * size_of(fmt)
        dx = slab_start(params, addresses, workspace, slots.DX, outer, group) + first * size_of(fmt)
        own_group = parameters_of(params, outer, group)
        if by_row and not params[slots.STREAM_DX]:
            write_cached(
                form, fmt, params, addresses, workspace, own_group, dy, x, dx, segment, segments,
                length, mean, rstd, x_factor, constant,
            )  # fmt: skip
            return 0
        together = 1 if by_row else segments  # segments with one gamma
        for one in range(segment, segment + segments, together):
            column = parameter(params, own_group, one)
            v = all_factors(
                form, params, addresses, workspace, mean, rstd, column, x_factor, constant
            )
            write_segments(
                form,
                fmt,
                params,
                dy,
                x,
                dx,
                one,
                together,
                length,
                v,
                hidden_constant(0),
                hidden_constant(0),
            )
        if params[slots.STREAM_DX]:
            fence()
        return 0

    return write_pieces_task


def combine_pieces(form, flat, by_row):
    """The task that adds the units of one slab and leaves its factors for the second pass."""
    own = form.own_statistics()

    def combine_pieces_task(params, addresses, workspace, argument, index, after):
        slab = argument + index
        if own:
            n, mean, squares = 0.0, 0.0, 0.0
            first = slab * params[slots.SPLIT_COUNT]
            for unit in range(first, first + params[slots.SPLIT_COUNT]):
                at = workspace + params[slots.AT_PARTS] + unit * 16
                other, others = read(F64, at), read(F64, at + 8)
                n, mean, squares = with_unit(form, params, unit, n, mean, squares, other, others)
            rstd = own_statistic(params, addresses, workspace, slab, mean, squares)
            rstd = form.given(rstd)
            factors = workspace + params[slots.AT_COEFFICIENTS] + slab * 16
            write(F64, factors, mean)
            write(F64, factors + 8, rstd)
            return 0
        rstd = inverse_deviation(params, addresses, workspace, slab)
        sum_dy, sum_xmu = 0.0, 0.0
        if params[slots.SUM_DY]:
            segments = params[slots.SEGMENTS] if by_row else 1
            per_segment = pieces_of_segment(params) if by_row else params[slots.SPLIT_COUNT]
            outer, group = slab_place(params, slab)
            kept = sums_address(params, workspace, outer, group)
            parts = workspace + params[slots.AT_PARTS] + slab * segments * per_segment * 16
            for segment in range(segments):
                one, rest = 0.0, 0.0
                other, other_rest = 0.0, 0.0
                for piece in range(segment * per_segment, (segment + 1) * per_segment):
                    at = parts + piece * 16
                    one, rest = two_sum_step(flat, one, rest, read(F64, at))
                    other, other_rest = two_sum_step(flat, other, other_rest, read(F64, at + 8))
                sum_dy, sum_xmu = two_sum_result(one, rest), two_sum_result(other, other_rest)
                if by_row:
                    write(F64, kept + segment * 8, sum_dy)
                    write(F64, kept + segment * 8 + params[slots.COLUMNS] * 8, sum_xmu)
            if by_row:
                own_group = parameters_of(params, outer, group)
                sum_dy, sum_xmu = gamma_weighted_sums(
                    flat, params, addresses, workspace, own_group, kept, rstd
                )
            else:
                slab_results(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
        if params[slots.WRITE_DX]:
            x_factor, constant = slab_factors(
                form, params, addresses, workspace, slab, rstd, sum_dy, sum_xmu
            )
            factors = workspace + params[slots.AT_COEFFICIENTS] + slab * 16
            write(F64, factors, x_factor)
            write(F64, factors + 8, constant)
        return 0

    return combine_pieces_task
