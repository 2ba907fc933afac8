"""What rows share: gamma and beta laid out beside them, and their parameter gradients joined."""

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.schedules.column_joins import four_joined, joined, paired
from normgrad.backends.cpu.schedules.columns import fill
from normgrad.backends.cpu.schedules.entries import put_column
from normgrad.backends.cpu.schedules.scalar import entry, place, put
from normgrad.backends.cpu.vectors import (
    float_of,
    lanes,
    load_part,
    size_of,
    store_rounded,
    total,
    widen,
    zero,
)
from normgrad.backends.cpu.vectors.formats import BF16, BF16_CODE, F16, F16_CODE


@jit.inner
def widen_run(fmt, flat, source, target, length):
    """Elements without gaps as another type, which holds them."""
    width = lanes(fmt)
    for first in range(0, length, width):
        part = min(width, length - first)
        values = widen(load_part(fmt, source + first * size_of(fmt), part))
        store_rounded(flat, target + first * size_of(flat), values, part)


def spread_parameter(flat):
    """The task that lays gamma or beta out as the compute type, as if one were given.

    One for each column, group by group: a channel has as many as pixels.
    """

    def spread_parameter_task(params, addresses, workspace, argument, index, after):
        target = place(params, addresses, workspace, argument)
        vector = params[argument + 1]
        default, offset = 0.0, 0.0
        if vector == slots.GAMMA:
            default, offset = 1.0, float_of(params[slots.WEIGHT_OFFSET])
        pixels, channels = params[slots.INNER], params[slots.CHANNELS]
        target += index * channels * pixels * size_of(flat)
        code, step = params[vector + slots.CODE], params[vector + slots.STRIDE]
        if pixels == 1 and step == 2 and offset == 0.0 and code in (F16_CODE, BF16_CODE):
            # One by one, and so their gradients, a row of 768 took 13 us, 8 so.
            source = place(params, addresses, workspace, vector) + index * channels * step
            if code == F16_CODE:
                widen_run(F16, flat, source, target, channels)
            else:
                widen_run(BF16, flat, source, target, channels)
            return 0
        for channel in range(index * channels, (index + 1) * channels):
            value = entry(params, addresses, workspace, vector, channel, default)
            fill(flat, target, value + offset, pixels)
            target += pixels * size_of(flat)
        return 0

    return spread_parameter_task


def join_rows(flat):
    """The task that joins the blocks of some columns and writes their parameter gradients."""

    def join_rows_task(params, addresses, workspace, argument, index, after):
        columns = params[slots.WIDTH]
        blocks = params[slots.BLOCKS]
        group = index // params[slots.JOIN_TASKS]  # of all samples that have their own
        sample = group // params[slots.GROUPS]
        stride = params[slots.GROUPS] * 2 * params[slots.DGAMMA_OFFSET]
        first = index % params[slots.JOIN_TASKS] * params[slots.JOIN_COLUMNS]
        last = min(first + params[slots.JOIN_COLUMNS], columns)
        before = group * columns  # columns of other groups
        at = workspace + params[slots.AT_PARTS] + sample * blocks * stride
        at += (group - sample * params[slots.GROUPS]) * 2 * params[slots.DGAMMA_OFFSET]
        width = lanes(flat)
        for slot in (slots.DBETA, slots.DGAMMA):
            column = first if params[slot + slots.CODE] >= 0 else last  # nobody wants it
            left = paired(flat, at + column * size_of(flat), blocks, stride, last - column)
            while last - column >= 4 * width:
                here = at + column * size_of(flat)
                for one in four_joined(flat, here, left, stride):
                    put_column(params, addresses, workspace, slot, before + column, one, width)
                    column += width
            while column < last:
                part = min(width, last - column)
                one = joined(flat, at + column * size_of(flat), left, stride, part)
                put_column(params, addresses, workspace, slot, before + column, one, part)
                column += width
            at += params[slots.DGAMMA_OFFSET]
        return 0

    return join_rows_task


def join_channels(flat):
    """The task that joins the blocks of some channels, whose columns lie side by side."""

    def join_channels_task(params, addresses, workspace, argument, index, after):
        pixels = params[slots.INNER]
        stride = params[slots.GROUPS] * 2 * params[slots.DGAMMA_OFFSET]
        width = lanes(flat)
        first = index * params[slots.JOIN_COLUMNS]
        for channel in range(first, min(first + params[slots.JOIN_COLUMNS], params[slots.COLUMNS])):
            group = channel // params[slots.CHANNELS]
            before = channel % params[slots.CHANNELS] * pixels
            at = workspace + params[slots.AT_PARTS] + group * 2 * params[slots.DGAMMA_OFFSET]
            at += before * size_of(flat)
            for slot in (slots.DBETA, slots.DGAMMA):
                sums = widen(zero(flat))
                wanted = pixels if params[slot + slots.CODE] >= 0 else 0
                left = paired(flat, at, params[slots.BLOCKS], stride, wanted)
                for column in range(0, wanted, width):
                    here = at + column * size_of(flat)
                    part = min(width, pixels - column)
                    sums = sums + joined(flat, here, left, stride, part)
                put(params, addresses, workspace, slot, channel, total(sums))
                at += params[slots.DGAMMA_OFFSET]
        return 0

    return join_channels_task
