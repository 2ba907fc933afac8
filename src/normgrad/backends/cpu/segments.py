"""Channels first: a slab is all that shares a statistic, a set of contiguous segments.

Batch norm's slab is a channel, a segment in each sample; group norm's is a group of a sample, a
segment for each of its channels. A slab is summed and then written while it is in the cache.
"""

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.formats import F64
from normgrad.backends.cpu.scalar import (
    count,
    entry,
    inverse_deviation,
    place,
    put,
    slope_and_offset,
)
from normgrad.backends.cpu.vector import (
    fence,
    fma,
    lanes,
    load,
    load_part,
    read,
    size_of,
    splat,
    store,
    store_part,
    stream,
    total,
    write,
    zero,
)

# Vectors that one accumulator takes before it is added up in float64: 4 accumulators of 16 lanes
# make blocks of 8192 numbers.
_DEPTH = 128


@jit.inner
def sums(fmt, dy, x, length, mean):
    """The sums of dy and of dy * (x - mean) over contiguous elements, in float64."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    centre = splat(fmt, mean)
    sum_dy = 0.0
    sum_xmu = 0.0
    left = length
    while left > 0:
        p0 = zero(fmt)
        p1 = zero(fmt)
        p2 = zero(fmt)
        p3 = zero(fmt)
        q0 = zero(fmt)
        q1 = zero(fmt)
        q2 = zero(fmt)
        q3 = zero(fmt)
        rounds = min(left // (4 * width), _DEPTH)
        for _ in range(rounds):
            d0 = load(fmt, dy)
            d1 = load(fmt, dy + step)
            d2 = load(fmt, dy + 2 * step)
            d3 = load(fmt, dy + 3 * step)
            q0 = fma(d0, load(fmt, x) - centre, q0)
            q1 = fma(d1, load(fmt, x + step) - centre, q1)
            q2 = fma(d2, load(fmt, x + 2 * step) - centre, q2)
            q3 = fma(d3, load(fmt, x + 3 * step) - centre, q3)
            p0 = p0 + d0
            p1 = p1 + d1
            p2 = p2 + d2
            p3 = p3 + d3
            dy += 4 * step
            x += 4 * step
        left -= rounds * 4 * width
        if rounds < _DEPTH:
            while left >= width:
                d0 = load(fmt, dy)
                q1 = fma(d0, load(fmt, x) - centre, q1)
                p1 = p1 + d0
                dy += step
                x += step
                left -= width
            if left > 0:
                d0 = load_part(fmt, dy, left)
                q2 = fma(d0, load_part(fmt, x, left) - centre, q2)
                p2 = p2 + d0
                left = 0
        sum_dy += total((p0 + p1) + (p2 + p3))
        sum_xmu += total((q0 + q1) + (q2 + q3))
    return sum_dy, sum_xmu


@jit.inner
def sums_of_dy(fmt, dy, length):
    """The sum of dy alone; x is not read."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    sum_dy = 0.0
    left = length
    while left > 0:
        p0 = zero(fmt)
        p1 = zero(fmt)
        p2 = zero(fmt)
        p3 = zero(fmt)
        rounds = min(left // (4 * width), _DEPTH)
        for _ in range(rounds):
            p0 = p0 + load(fmt, dy)
            p1 = p1 + load(fmt, dy + step)
            p2 = p2 + load(fmt, dy + 2 * step)
            p3 = p3 + load(fmt, dy + 3 * step)
            dy += 4 * step
        left -= rounds * 4 * width
        if rounds < _DEPTH:
            while left >= width:
                p1 = p1 + load(fmt, dy)
                dy += step
                left -= width
            if left > 0:
                p2 = p2 + load_part(fmt, dy, left)
                left = 0
        sum_dy += total((p0 + p1) + (p2 + p3))
    return sum_dy


@jit.inner
def gradient(fmt, dy, x, dx, length, mean, a, b, c, streaming):
    """``dx = a * dy + b * (x - mean) + c`` over contiguous elements."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    centre = splat(fmt, mean)
    va = splat(fmt, a)
    vb = splat(fmt, b)
    vc = splat(fmt, c)
    left = length
    if streaming:
        head = min((-dx & 63) // size_of(fmt), left)
        while head > 0:
            part = min(head, width)
            t = load_part(fmt, x, part) - centre
            store_part(fmt, dx, fma(va, load_part(fmt, dy, part), fma(vb, t, vc)), part)
            dy += part * size_of(fmt)
            x += part * size_of(fmt)
            dx += part * size_of(fmt)
            head -= part
            left -= part
        while left >= width:
            stream(fmt, dx, fma(va, load(fmt, dy), fma(vb, load(fmt, x) - centre, vc)))
            dy += step
            x += step
            dx += step
            left -= width
    else:
        while left >= width:
            store(fmt, dx, fma(va, load(fmt, dy), fma(vb, load(fmt, x) - centre, vc)))
            dy += step
            x += step
            dx += step
            left -= width
    if left > 0:
        t = load_part(fmt, x, left) - centre
        store_part(fmt, dx, fma(va, load_part(fmt, dy, left), fma(vb, t, vc)), left)


@jit.inner
def scaled(fmt, dy, dx, length, a):
    """``dx = a * dy`` over contiguous elements; x is not read."""
    width = lanes(fmt)
    step = width * size_of(fmt)
    va = splat(fmt, a)
    left = length
    while left >= width:
        store(fmt, dx, va * load(fmt, dy))
        dy += step
        dx += step
        left -= width
    if left > 0:
        store_part(fmt, dx, va * load_part(fmt, dy, left), left)


@jit.inner
def segment_sums(fmt, params, dy, x, length, mean):
    """The sums that are needed of one segment."""
    if params[slots.SUM_XMU]:
        return sums(fmt, dy, x, length, mean)
    return sums_of_dy(fmt, dy, length), 0.0


@jit.inner
def segment_gradient(fmt, params, dy, x, dx, length, mean, a, b, c):
    """The gradient of one segment, by its correction."""
    if params[slots.CORRECTION]:
        gradient(fmt, dy, x, dx, length, mean, a, b, c, params[slots.STREAM_DX] != 0)
    else:
        scaled(fmt, dy, dx, length, a)


@jit.inner
def slab_start(params, addresses, workspace, role, slab):
    """The address of a slab's first segment."""
    start = place(params, addresses, workspace, role)
    if params[slots.BY_ROW]:
        outer = slab // params[slots.GROUPS]
        group = slab - outer * params[slots.GROUPS]
        return start + outer * params[role + slots.BY_OUTER] + group * params[role + slots.BY_GROUP]
    return start + slab * params[role + slots.BY_CHANNEL]


@jit.inner
def slab_step(params, role):
    """The distance between a slab's segments."""
    by_row = params[slots.BY_ROW]
    return params[role + slots.BY_CHANNEL] if by_row else params[role + slots.BY_OUTER]


@jit.inner
def parameter(params, slab, segment):
    """Which gamma a segment has."""
    if params[slots.BY_ROW]:
        return slab % params[slots.GROUPS] * params[slots.CHANNELS] + segment
    return slab


@jit.inner
def gathered(params, addresses, workspace, slab, segment, rstd, sum_dy, sum_xmu):
    """One segment's sums as its slab adds them; group norm keeps them for its parameters."""
    if not params[slots.BY_ROW]:
        return sum_dy, sum_xmu
    column = parameter(params, slab, segment)
    columns = params[slots.COLUMNS]
    sample = slab // params[slots.GROUPS]
    kept = workspace + params[slots.AT_SUMS] + (sample * 2 * columns + column) * 8
    write(F64, kept, sum_dy)
    write(F64, kept + columns * 8, sum_xmu * rstd)
    gamma = entry(params, addresses, workspace, slots.GAMMA, column, 1.0)
    return gamma * sum_dy, gamma * sum_xmu


@jit.inner
def slab_results(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu):
    """What batch norm returns of a slab's sums."""
    if params[slots.CORRECTION] != slots.GIVEN_CORRECTION:
        put(params, addresses, workspace, slots.SUM_DY_VECTOR, slab, sum_dy)
        put(params, addresses, workspace, slots.SUM_XMU_VECTOR, slab, sum_xmu)
    put(params, addresses, workspace, slots.DGAMMA, slab, sum_xmu * rstd)
    put(params, addresses, workspace, slots.DBETA, slab, sum_dy)


@jit.inner
def slab_factors(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu):
    """The factors b and c of a slab, from its own sums or from those given."""
    if params[slots.CORRECTION] == slots.GIVEN_CORRECTION:
        sum_dy = entry(params, addresses, workspace, slots.SUM_DY_VECTOR, slab, 0.0)
        sum_xmu = entry(params, addresses, workspace, slots.SUM_XMU_VECTOR, slab, 0.0)
    by_row = params[slots.BY_ROW] != 0
    gamma = 1.0
    if not by_row:
        gamma = entry(params, addresses, workspace, slots.GAMMA, slab, 1.0)
    elements = count(params, workspace)
    return slope_and_offset(params, by_row, rstd, gamma, elements, sum_dy, sum_xmu)


@jit.inner
def whole_slabs(fmt, params, addresses, workspace, index):
    """A few slabs from sums to gradients."""
    inner = params[slots.INNER]
    segments = params[slots.SEGMENTS]
    dy_step = slab_step(params, slots.DY)
    x_step = slab_step(params, slots.X)
    dx_step = slab_step(params, slots.DX)
    first = index * params[slots.PER_TASK]
    for slab in range(first, min(first + params[slots.PER_TASK], params[slots.SLABS])):
        dy = slab_start(params, addresses, workspace, slots.DY, slab)
        x = slab_start(params, addresses, workspace, slots.X, slab)
        mean = entry(params, addresses, workspace, slots.MEAN, slab, 0.0)
        rstd = inverse_deviation(params, addresses, workspace, slab)
        sum_dy = 0.0
        sum_xmu = 0.0
        if params[slots.SUM_DY]:
            for segment in range(segments):
                one, other = segment_sums(
                    fmt, params, dy + segment * dy_step, x + segment * x_step, inner, mean
                )
                one, other = gathered(
                    params, addresses, workspace, slab, segment, rstd, one, other
                )
                sum_dy += one
                sum_xmu += other
            if not params[slots.BY_ROW]:
                slab_results(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
        if params[slots.WRITE_DX]:
            dx = slab_start(params, addresses, workspace, slots.DX, slab)
            b, c = slab_factors(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
            # Backwards: what was read last is nearest.
            for back in range(segments):
                segment = segments - 1 - back
                gamma = entry(
                    params,
                    addresses,
                    workspace,
                    slots.GAMMA,
                    parameter(params, slab, segment),
                    1.0,
                )
                segment_gradient(
                    fmt,
                    params,
                    dy + segment * dy_step,
                    x + segment * x_step,
                    dx + segment * dx_step,
                    inner,
                    mean,
                    rstd * gamma,
                    b,
                    c,
                )
    if params[slots.STREAM_DX]:
        fence()
    return 0


@jit.inner
def unit_sums(fmt, params, addresses, workspace, index):
    """The sums of one unit of a slab that is split: part of a segment, or some segments."""
    pieces = params[slots.PIECES]
    inner = params[slots.INNER]
    slab = index // pieces
    unit = index - slab * pieces
    mean = entry(params, addresses, workspace, slots.MEAN, slab, 0.0)
    per_segment = -(-inner // params[slots.PIECE])
    segment = unit // per_segment * params[slots.GATHERED]
    first = unit % per_segment * params[slots.PIECE]
    length = min(params[slots.PIECE], inner - first)
    dy = slab_start(params, addresses, workspace, slots.DY, slab) + first * size_of(fmt)
    x = slab_start(params, addresses, workspace, slots.X, slab) + first * size_of(fmt)
    sum_dy = 0.0
    sum_xmu = 0.0
    for one in range(segment, min(segment + params[slots.GATHERED], params[slots.SEGMENTS])):
        part, part_xmu = segment_sums(
            fmt,
            params,
            dy + one * slab_step(params, slots.DY),
            x + one * slab_step(params, slots.X),
            length,
            mean,
        )
        sum_dy += part
        sum_xmu += part_xmu
    parts = workspace + params[slots.AT_PARTS] + index * 16
    write(F64, parts, sum_dy)
    write(F64, parts + 8, sum_xmu)
    return 0


@jit.inner
def unit_gradients(fmt, params, addresses, workspace, index):
    """The gradients of one unit of a slab that is split."""
    pieces = params[slots.PIECES]
    inner = params[slots.INNER]
    # Backwards: what was summed last may still be in the cache.
    index = params[slots.SLABS] * pieces - 1 - index
    slab = index // pieces
    unit = index - slab * pieces
    per_segment = -(-inner // params[slots.PIECE])
    segment = unit // per_segment * params[slots.GATHERED]
    first = unit % per_segment * params[slots.PIECE]
    length = min(params[slots.PIECE], inner - first)
    mean = entry(params, addresses, workspace, slots.MEAN, slab, 0.0)
    rstd = inverse_deviation(params, addresses, workspace, slab)
    factors = workspace + params[slots.AT_COEFFICIENTS] + slab * 16
    b = read(F64, factors)
    c = read(F64, factors + 8)
    dy = slab_start(params, addresses, workspace, slots.DY, slab) + first * size_of(fmt)
    x = slab_start(params, addresses, workspace, slots.X, slab) + first * size_of(fmt)
    dx = slab_start(params, addresses, workspace, slots.DX, slab) + first * size_of(fmt)
    for one in range(segment, min(segment + params[slots.GATHERED], params[slots.SEGMENTS])):
        gamma = entry(
            params, addresses, workspace, slots.GAMMA, parameter(params, slab, one), 1.0
        )
        segment_gradient(
            fmt,
            params,
            dy + one * slab_step(params, slots.DY),
            x + one * slab_step(params, slots.X),
            dx + one * slab_step(params, slots.DX),
            length,
            mean,
            rstd * gamma,
            b,
            c,
        )
    if params[slots.STREAM_DX]:
        fence()
    return 0


def slabs(fmt):
    """The task for slabs that one thread takes whole."""

    def slabs_task(params, addresses, workspace, argument, index):
        return whole_slabs(fmt, params, addresses, workspace, index)

    return slabs_task


def units_in(fmt):
    """The task that sums a unit."""

    def units_in_task(params, addresses, workspace, argument, index):
        return unit_sums(fmt, params, addresses, workspace, index)

    return units_in_task


def units_out(fmt):
    """The task that writes a unit."""

    def units_out_task(params, addresses, workspace, argument, index):
        return unit_gradients(fmt, params, addresses, workspace, index)

    return units_out_task


def join_units():
    """The task that adds the units of one slab and leaves its factors for the second pass."""

    def join_units_task(params, addresses, workspace, argument, slab):
        pieces = params[slots.PIECES]
        rstd = inverse_deviation(params, addresses, workspace, slab)
        parts = workspace + params[slots.AT_PARTS] + slab * pieces * 16
        sum_dy = 0.0
        sum_xmu = 0.0
        if params[slots.SUM_DY]:
            by_row = params[slots.BY_ROW] != 0
            per_segment = pieces // params[slots.SEGMENTS] if by_row else pieces
            for segment in range(pieces // max(per_segment, 1)):
                one = 0.0
                other = 0.0
                for piece in range(segment * per_segment, (segment + 1) * per_segment):
                    one += read(F64, parts + piece * 16)
                    other += read(F64, parts + piece * 16 + 8)
                one, other = gathered(
                    params, addresses, workspace, slab, segment, rstd, one, other
                )
                sum_dy += one
                sum_xmu += other
            if not by_row:
                slab_results(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
        if params[slots.WRITE_DX]:
            b, c = slab_factors(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
            factors = workspace + params[slots.AT_COEFFICIENTS] + slab * 16
            write(F64, factors, b)
            write(F64, factors + 8, c)
        return 0

    return join_units_task
