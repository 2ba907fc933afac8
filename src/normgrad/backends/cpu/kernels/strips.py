"""Batch norm, channels first, short planes: neighbouring channels of a sample as one long row.

A strip is some channels of all samples, few enough to stay in the cache between sums and
gradients. Its rows are the samples; every element of a row is a column with factors of its own,
so planes of 7x7 are read and written in whole lines.
"""

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.kernels.columns import add_rows, fill, write_rows
from normgrad.backends.cpu.kernels.scalar import entry, inverse_deviation
from normgrad.backends.cpu.kernels.slabs import slab_factors, slab_results, slab_start, slab_step
from normgrad.backends.cpu.vectors import (
    fence,
    lanes,
    load_part,
    plain,
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
def strip_sums(fmt, flat, params, dy, x, columns, channels, mean, sums, joined):
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
            fmt, flat, dy, x, dy_step, x_step, rows, columns, mean, sums, with_x, plain(True),
            params[slots.FAR] != 0,
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


def strips(fmt, flat):
    """The task for one strip, from sums to gradients."""

    def strips_task(params, addresses, workspace, argument, index, after):
        inner = params[slots.INNER]
        first = index * params[slots.PER_TASK]
        channels = min(params[slots.PER_TASK], params[slots.SLABS] - first)
        columns = channels * inner
        span = columns * size_of(flat)
        sums = workspace + params[slots.AT_PARTS] + first * inner * 2 * size_of(flat)
        mean = workspace + params[slots.AT_COEFFICIENTS] + first * inner * 4 * size_of(flat)
        joined = workspace + params[slots.AT_SUMS] + first * 16
        dy = slab_start(params, addresses, workspace, slots.DY, plain(0), first)
        x = slab_start(params, addresses, workspace, slots.X, plain(0), first)
        for channel in range(channels):
            value = entry(params, addresses, workspace, slots.MEAN, first + channel, 0.0)
            fill(flat, mean + channel * inner * size_of(flat), value, inner)
        if params[slots.SUM_DY]:
            strip_sums(fmt, flat, params, dy, x, columns, channels, mean, sums, joined)
        for channel in range(channels):
            slab = first + channel
            rstd = inverse_deviation(params, addresses, workspace, slab)
            sum_dy = 0.0
            sum_xmu = 0.0
            if params[slots.SUM_DY]:
                sum_dy = read(F64, joined + channel * 8)
                sum_xmu = read(F64, joined + (channels + channel) * 8)
                slab_results(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
            if params[slots.WRITE_DX]:
                gamma = entry(params, addresses, workspace, slots.GAMMA, slab, 1.0)
                b, c = slab_factors(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
                at = mean + channel * inner * size_of(flat) + span
                fill(flat, at, rstd * gamma, inner)
                fill(flat, at + span, b, inner)
                fill(flat, at + 2 * span, c, inner)
        if params[slots.WRITE_DX]:
            dx = slab_start(params, addresses, workspace, slots.DX, plain(0), first)
            dx_step = slab_step(params, slots.DX)
            following = after * params[slots.PER_TASK]
            ask_dy = 0
            ask_x = 0
            if params[slots.ASKS] and following > first:
                ask_dy = (
                    slab_start(params, addresses, workspace, slots.DY, plain(0), following) - dy
                )
                ask_x = slab_start(params, addresses, workspace, slots.X, plain(0), following) - x
            write_rows(
                fmt,
                flat,
                dy,
                x,
                dx,
                slab_step(params, slots.DY),
                slab_step(params, slots.X),
                dx_step,
                params[slots.OUTER],
                columns,
                mean,
                params[slots.CORRECTION] != slots.NO_CORRECTION,
                params[slots.STREAM_DX] != 0 and (dx | dx_step) & 63 == 0,
                plain(True),
                ask_dy,
                ask_x,
            )
            if params[slots.STREAM_DX]:
                fence()
        return 0

    return strips_task
