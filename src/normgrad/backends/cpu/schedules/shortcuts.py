"""A shortcut behind batch norm, element by element: what is written, and the gradient before it.

A run is what lies together: positions of a channel of a sample, or all channels of a position. A
mask has a bit for each element, in bytes that begin with each run.
"""

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.schedules.entries import entries, inverse_deviations
from normgrad.backends.cpu.schedules.scalar import entry, inverse_deviation, place
from normgrad.backends.cpu.schedules.segments import splats
from normgrad.backends.cpu.vectors import (
    fence,
    float_of,
    hidden_constant,
    lanes,
    load,
    load_part,
    put_byte,
    size_of,
    splat,
    store,
    store_part,
    store_rounded,
    stream,
    take_byte,
)
from normgrad.backends.cpu.vectors.formats import F64


@jit.inlined
def factors_of_run(fmt, flat, last, factors, span, v, done, part):
    """Mean, a and beta of some lanes: those of their columns, or of all."""
    if last:
        at = factors + done * size_of(flat)
        return (
            load_part(flat, at, part),
            load_part(flat, at + span, part),
            load_part(flat, at + 2 * span, part),
            v[3],
            v[4],
        )
    return v


@jit.inlined
def put_bits(address, step, bits, part):
    """A bit for each of some elements."""
    for first in range(0, part, 8):
        left = part - first
        byte = (bits >> first) & 255
        put_byte(address + first // 8 * step, byte if left >= 8 else byte & ((1 << left) - 1))


@jit.inlined
def take_bits(address, step, part):
    """The same, read."""
    bits = 0
    for first in range(0, part, 8):
        bits |= take_byte(address + first // 8 * step) << first
    return bits


@jit.inlined
def result(form, fmt, forward, masked, d, x, r, v, mask, step, part):
    """What is written of a vector."""
    if forward:
        z = form.joined(x, r, v)
        if masked:
            put_bits(mask, step, form.open_bits(z), part)
        return form.after(z, x)
    if masked:
        return form.kept_where(d, take_bits(mask, step, part))
    return form.opened(d, x, r, v)


@jit.inlined
def write_run(
    form, fmt, flat, last, forward, masked, dy, x, r, to, mask, step, length, factors, span, v,
    streaming,
):  # fmt: skip
    """What is written of a run; tensors that are not read are another that is."""
    width = lanes(fmt)
    done = 0
    while streaming and length - done >= 2 * width:
        here, there = done * size_of(fmt), (done + width) * size_of(fmt)
        f0 = factors_of_run(fmt, flat, last, factors, span, v, done, width)
        f1 = factors_of_run(fmt, flat, last, factors, span, v, done + width, width)
        at = mask + done // 8 * step
        d0, x0, r0 = load(fmt, dy + here), load(fmt, x + here), load(fmt, r + here)
        y0 = result(form, fmt, forward, masked, d0, x0, r0, f0, at, step, width)
        d1, x1, r1 = load(fmt, dy + there), load(fmt, x + there), load(fmt, r + there)
        at += width // 8 * step
        y1 = result(form, fmt, forward, masked, d1, x1, r1, f1, at, step, width)
        stream(fmt, to + here, y0, y1)
        done += 2 * width
    while length - done >= width:
        here = done * size_of(fmt)
        f = factors_of_run(fmt, flat, last, factors, span, v, done, width)
        d, t, e = load(fmt, dy + here), load(fmt, x + here), load(fmt, r + here)
        at = mask + done // 8 * step
        store(fmt, to + here, result(form, fmt, forward, masked, d, t, e, f, at, step, width))
        done += width
    left = length - done
    if left > 0:
        here = done * size_of(fmt)
        f = factors_of_run(fmt, flat, last, factors, span, v, done, left)
        d, t = load_part(fmt, dy + here, left), load_part(fmt, x + here, left)
        e = load_part(fmt, r + here, left)
        at = mask + done // 8 * step
        y = result(form, fmt, forward, masked, d, t, e, f, at, step, left)
        store_part(fmt, to + here, y, left)


@jit.inlined
def at_run(params, addresses, workspace, tensor, outer, channel, inner):
    """Where a run of a tensor begins."""
    start = place(params, addresses, workspace, tensor)
    start += outer * params[tensor + 1] + channel * params[tensor + 2]
    return start + inner * params[tensor + 3]


def shortcut_factors(flat):
    """The task that lays mean, a and beta out for every channel."""

    def shortcut_factors_task(params, addresses, workspace, argument, index, after):
        one, columns = hidden_constant(1), params[slots.CHANNELS]
        span = columns * size_of(flat)
        target = workspace + params[argument + slots.AFTER_FACTORS]
        for column in range(0, columns, lanes(F64)):
            part = min(lanes(F64), columns - column)
            mean = entries(params, addresses, workspace, slots.MEAN, column, one, part, 0.0)
            dy_factor = inverse_deviations(params, addresses, workspace, column, one, part)
            dy_factor = dy_factor * entries(
                params, addresses, workspace, slots.GAMMA, column, one, part, 1.0
            )
            beta = entries(params, addresses, workspace, slots.BETA, column, one, part, 0.0)
            at = target + column * size_of(flat)
            store_rounded(flat, at, mean, part)
            store_rounded(flat, at + span, dy_factor, part)
            store_rounded(flat, at + 2 * span, beta, part)
        return 0

    return shortcut_factors_task


def with_shortcut(formula, fmt, flat, last, forward, masked):
    """The task for some runs, of channels where they come ``last``."""

    def with_shortcut_task(params, addresses, workspace, argument, index, after):
        form = formula.with_slope(float_of(params[slots.NEGATIVE_SLOPE]))
        channels, inner = params[slots.CHANNELS], params[slots.INNER]
        # Pieces of a run, and where each is: of bytes of a mask.
        length = params[argument + slots.AFTER_LENGTH]
        piece = params[argument + slots.AFTER_PIECE]
        pieces = -(-length // piece)
        factors = workspace + params[argument + slots.AFTER_FACTORS]
        step = params[argument + slots.AFTER_MASK_STEP]
        none = splat(fmt, 0.0)
        v = none, none, none, none, none
        first = index * params[argument + slots.AFTER_PER_TASK]
        end = first + params[argument + slots.AFTER_PER_TASK]
        for one in range(first, min(end, params[argument + slots.AFTER_RUNS])):
            run = one // pieces
            begin = (one - run * pieces) * piece
            outer = run // (inner if last else channels)
            channel = 0 if last else run - outer * channels
            position = run - outer * inner if last else 0
            if not last:
                rstd = inverse_deviation(params, addresses, workspace, channel)
                dy_factor = rstd * entry(params, addresses, workspace, slots.GAMMA, channel, 1.0)
                mean = entry(params, addresses, workspace, slots.MEAN, channel, 0.0)
                beta = entry(params, addresses, workspace, slots.BETA, channel, 0.0)
                v = splats(fmt, (mean, dy_factor, beta, 0.0, 0.0))
            there = outer, channel, position
            begun = begin * size_of(fmt)
            dy = at_run(params, addresses, workspace, argument + slots.AFTER_DY, *there) + begun
            x = at_run(params, addresses, workspace, argument + slots.AFTER_X, *there) + begun
            r = at_run(params, addresses, workspace, argument + slots.AFTER_R, *there) + begun
            to = at_run(params, addresses, workspace, argument + slots.AFTER_OUT, *there) + begun
            mask = begin // 8 * step
            if masked:
                mask += at_run(
                    params, addresses, workspace, argument + slots.AFTER_MASK, *there
                )  # fmt: skip
            write_run(
                form, fmt, flat, last, forward, masked, dy, x, r, to, mask, step,
                min(piece, length - begin), factors, channels * size_of(flat), v,
                params[argument + slots.AFTER_STREAM] != 0 and to & 63 == 0,
            )  # fmt: skip
        if params[argument + slots.AFTER_STREAM]:
            fence()
        return 0

    return with_shortcut_task
