"""Channels first: large slabs, of which there are few, split into units for several threads.

All units are summed, the sums of a slab's units are joined, then all units are written.
"""

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.kernels.scalar import entry, inverse_deviation
from normgrad.backends.cpu.kernels.segments import completed, plus
from normgrad.backends.cpu.kernels.slabs import (
    kept_sums,
    near_gradients,
    needed_sums,
    parameter,
    segment_sums,
    slab_factors,
    slab_place,
    slab_results,
    slab_start,
    slab_step,
    weighed_sums,
    write_gradients,
)
from normgrad.backends.cpu.vectors import fence, plain, read, size_of, write
from normgrad.backends.cpu.vectors.formats import F64


@jit.inner
def unit_place(params, index):
    """A unit's slab, its segments (first, count) and what it has of each (first, count)."""
    pieces = params[slots.PIECES]
    inner = params[slots.INNER]
    slab = index // pieces
    unit = index - slab * pieces
    per_segment = pieces_of_segment(params)
    segment = unit // per_segment * params[slots.GATHERED]
    segments = min(params[slots.GATHERED], params[slots.SEGMENTS] - segment)
    first = unit % per_segment * params[slots.PIECE]
    length = min(params[slots.PIECE], inner - first)
    return slab, segment, segments, first, length


@jit.inner
def pieces_of_segment(params):
    """How many pieces a segment is cut into."""
    return -(-params[slots.INNER] // params[slots.PIECE])


def units_in(fmt):
    """The task that sums a unit: part of a segment, or some segments.

    Group norm has the sums of each segment apart. ``argument`` is the first unit's number.
    """

    def units_in_task(params, addresses, workspace, argument, index, after):
        unit = argument + index
        slab, segment, segments, first, length = unit_place(params, unit)
        outer, group = slab_place(params, slab)
        mean = entry(params, addresses, workspace, slots.MEAN, slab, 0.0)
        dy = slab_start(params, addresses, workspace, slots.DY, outer, group) + first * size_of(fmt)
        x = slab_start(params, addresses, workspace, slots.X, outer, group) + first * size_of(fmt)
        dy += segment * slab_step(params, slots.DY)
        x += segment * slab_step(params, slots.X)
        parts = workspace + params[slots.AT_PARTS]
        if params[slots.BY_ROW]:
            per_segment = pieces_of_segment(params)
            part = (slab * params[slots.SEGMENTS] + segment) * per_segment
            to = parts + (part + first // params[slots.PIECE]) * 16
            segment_sums(fmt, params, dy, x, segments, length, mean, to, per_segment * 16, plain(8))
            return 0
        sum_dy, sum_xmu = needed_sums(fmt, params, dy, x, segments, length, mean)
        write(F64, parts + unit * 16, sum_dy)
        write(F64, parts + unit * 16 + 8, sum_xmu)
        return 0

    return units_in_task


def units_out(fmt):
    """The task that writes a unit; ``argument`` is one more than the last one's number."""

    def units_out_task(params, addresses, workspace, argument, index, after):
        # Backwards: what was summed last may still be in the cache.
        unit = argument - 1 - index
        slab, segment, segments, first, length = unit_place(params, unit)
        outer, group = slab_place(params, slab)
        mean = entry(params, addresses, workspace, slots.MEAN, slab, 0.0)
        rstd = inverse_deviation(params, addresses, workspace, slab)
        factors = workspace + params[slots.AT_COEFFICIENTS] + slab * 16
        b = read(F64, factors)
        c = read(F64, factors + 8)
        dy = slab_start(params, addresses, workspace, slots.DY, outer, group) + first * size_of(fmt)
        x = slab_start(params, addresses, workspace, slots.X, outer, group) + first * size_of(fmt)
        dx = slab_start(params, addresses, workspace, slots.DX, outer, group) + first * size_of(fmt)
        by_row = params[slots.BY_ROW] != 0
        if by_row and params[slots.CORRECTION] and not params[slots.STREAM_DX]:
            near_gradients(
                fmt, params, addresses, workspace, group, dy, x, dx, segment, segments, length,
                mean, rstd, b, c,
            )  # fmt: skip
            return 0
        together = 1 if by_row else segments  # segments with one gamma
        for one in range(segment, segment + segments, together):
            column = parameter(params, group, one)
            a = rstd * entry(params, addresses, workspace, slots.GAMMA, column, 1.0)
            write_gradients(
                fmt, params, dy, x, dx, one, together, length, mean, a, b, c, plain(0), plain(0)
            )
        if params[slots.STREAM_DX]:
            fence()
        return 0

    return units_out_task


def join_units(flat):
    """The task that adds the units of one slab and leaves its factors for the second pass."""

    def join_units_task(params, addresses, workspace, argument, index, after):
        slab = argument + index
        rstd = inverse_deviation(params, addresses, workspace, slab)
        sum_dy, sum_xmu = 0.0, 0.0
        if params[slots.SUM_DY]:
            by_row = params[slots.BY_ROW] != 0
            segments = params[slots.SEGMENTS] if by_row else 1
            per_segment = pieces_of_segment(params) if by_row else params[slots.PIECES]
            outer, group = slab_place(params, slab)
            kept = kept_sums(params, workspace, outer, group)
            parts = workspace + params[slots.AT_PARTS] + slab * segments * per_segment * 16
            for segment in range(segments):
                one, rest = 0.0, 0.0
                other, other_rest = 0.0, 0.0
                for piece in range(segment * per_segment, (segment + 1) * per_segment):
                    at = parts + piece * 16
                    one, rest = plus(flat, one, rest, read(F64, at))
                    other, other_rest = plus(flat, other, other_rest, read(F64, at + 8))
                sum_dy, sum_xmu = completed(one, rest), completed(other, other_rest)
                if by_row:
                    write(F64, kept + segment * 8, sum_dy)
                    write(F64, kept + segment * 8 + params[slots.COLUMNS] * 8, sum_xmu)
            if by_row:
                sum_dy, sum_xmu = weighed_sums(
                    flat, params, addresses, workspace, group, kept, rstd
                )
            else:
                slab_results(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
        if params[slots.WRITE_DX]:
            b, c = slab_factors(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
            factors = workspace + params[slots.AT_COEFFICIENTS] + slab * 16
            write(F64, factors, b)
            write(F64, factors + 8, c)
        return 0

    return join_units_task
