"""Channels first: a slab is all that shares a statistic, a set of contiguous segments.

Batch norm's slab is a channel, a segment in each sample; group norm's is a group of a sample, a
segment for each of its channels. A slab is summed and then written while it is in the cache.
"""

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.kernels.entries import entries
from normgrad.backends.cpu.kernels.scalar import (
    count,
    entry,
    inverse_deviation,
    place,
    put,
    slope_and_offset,
)
from normgrad.backends.cpu.kernels.segments import (
    both_sums,
    completed,
    four_sums,
    gradients,
    near_segment,
    part_gradients,
    plus,
    scaled,
    sums,
    sums_of_dy,
)
from normgrad.backends.cpu.sizes import FEW_VECTORS, TASK_ELEMENTS
from normgrad.backends.cpu.vectors import (
    fence,
    fills_line,
    fma,
    lanes,
    load,
    load_pair,
    plain,
    read,
    size_of,
    splat,
    splat_pair,
    store_rounded,
    stream_line,
    stream_pair,
    total,
    with_lane,
    write,
    zero,
)
from normgrad.backends.cpu.vectors.formats import F64


@jit.inner
def dense_gradients(fmt, params, addresses, workspace, group, dy, x, dx, mean, rstd, b, c):
    """``dx = a * dy + b * (x - mean) + c`` past the cache, over segments without gaps.

    Lines that two segments share are written whole: in parts they cost 70 ns each.
    """
    width = lanes(fmt)
    step = width * size_of(fmt)
    nbytes = params[slots.INNER] * size_of(fmt)
    centre = splat(fmt, mean)
    vb = splat(fmt, b)
    vc = splat(fmt, c)
    segment = params[slots.SEGMENTS] - 1
    column = parameter(params, group, plain(0))
    after = 0.0
    final = True
    while segment >= 0:
        a = rstd * entry(params, addresses, workspace, slots.GAMMA, column + segment, 1.0)
        va = splat(fmt, a)
        start = segment * nbytes
        # A segment has the lines that begin in it; the first one has what is before them too.
        head = -(dx + start) & 63
        at = dy + start + head
        at_x = x + start + head
        to = dx + start + head
        left = nbytes - head
        while left >= 2 * step:
            d0, d1 = load_pair(fmt, at)
            t0, t1 = load_pair(fmt, at_x)
            r0 = fma(va, d0, fma(vb, t0 - centre, vc))
            r1 = fma(va, d1, fma(vb, t1 - centre, vc))
            stream_pair(fmt, to, r0, r1)
            at += 2 * step
            at_x += 2 * step
            to += 2 * step
            left -= 2 * step
        if fills_line(fmt) and left >= step:
            t0 = load(fmt, at_x) - centre
            stream_line(fmt, to, fma(va, load(fmt, at), fma(vb, t0, vc)))
            at += step
            at_x += step
            to += step
            left -= step
        if left > 0 and final:
            part_gradients(fmt, at, at_x, to, left // size_of(fmt), mean, a, b, c)
        elif left > 0:
            a0, a1 = splat_pair(fmt, a, after, left // size_of(fmt))
            if fills_line(fmt):
                t0 = load(fmt, at_x) - centre
                stream_line(fmt, to, fma(a0, load(fmt, at), fma(vb, t0, vc)))
            else:
                d0, d1 = load_pair(fmt, at)
                t0, t1 = load_pair(fmt, at_x)
                r0 = fma(a0, d0, fma(vb, t0 - centre, vc))
                r1 = fma(a1, d1, fma(vb, t1 - centre, vc))
                stream_pair(fmt, to, r0, r1)
        if segment == 0:
            part_gradients(fmt, dy, x, dx, head // size_of(fmt), mean, a, b, c)
        after = a
        final = False
        segment -= 1


@jit.inlined
def near_gradients(
    fmt, params, addresses, workspace, group, dy, x, dx, first, segments, length, mean, rstd, b, c
):  # fmt: skip
    """``dx = a * dy + b * (x - mean) + c`` through the cache, over segments with an ``a`` each."""
    dy_step = slab_step(params, slots.DY)
    x_step = slab_step(params, slots.X)
    dx_step = slab_step(params, slots.DX)
    centre = splat(fmt, mean)
    vb = splat(fmt, b)
    vc = splat(fmt, c)
    column = parameter(params, group, plain(0))
    for segment in range(first, first + segments):
        gamma = entry(params, addresses, workspace, slots.GAMMA, column + segment, 1.0)
        va = splat(fmt, rstd * gamma)
        at = dy + segment * dy_step
        at_x = x + segment * x_step
        near_segment(fmt, at, at_x, dx + segment * dx_step, length, centre, va, vb, vc)


@jit.inlined
def needed_sums(fmt, params, dy, x, segments, length, mean):
    """The sums that are needed of some segments of a slab."""
    dy_step = slab_step(params, slots.DY)
    if params[slots.SUM_XMU]:
        x_step = slab_step(params, slots.X)
        return sums(fmt, dy, x, dy_step, x_step, segments, length, mean)
    return sums_of_dy(fmt, dy, dy_step, segments, length), 0.0


@jit.inlined
def write_gradients(fmt, params, dy, x, dx, first, segments, length, mean, a, b, c, ask_dy, ask_x):
    """The gradients of some segments of a slab, the last one first: it was read last."""
    dy_step = slab_step(params, slots.DY)
    x_step = slab_step(params, slots.X)
    dx_step = slab_step(params, slots.DX)
    last = first + segments - 1
    dy += last * dy_step
    x += last * x_step
    dx += last * dx_step
    streaming = params[slots.STREAM_DX] != 0
    if params[slots.CORRECTION]:
        far = params[slots.FAR] != 0
        gradients(
            fmt, dy, x, dx, -dy_step, -x_step, -dx_step, segments, length, mean, a, b, c,
            streaming, far, ask_dy, ask_x,
        )  # fmt: skip
    else:
        scaled(fmt, dy, dx, -dy_step, -dx_step, segments, length, a, streaming)


@jit.inlined
def slab_place(params, slab):
    """The sample and the group of a slab; of batch norm's 0 and its channel."""
    if params[slots.BY_ROW]:
        outer = slab // params[slots.GROUPS]
        return outer, slab - outer * params[slots.GROUPS]
    return 0, slab


@jit.inlined
def slab_start(params, addresses, workspace, role, outer, group):
    """The address of a slab's first segment."""
    start = place(params, addresses, workspace, role)
    if params[slots.BY_ROW]:
        return start + outer * params[role + slots.BY_OUTER] + group * params[role + slots.BY_GROUP]
    return start + group * params[role + slots.BY_CHANNEL]


@jit.inlined
def slab_step(params, role):
    """The distance between a slab's segments."""
    by_row = params[slots.BY_ROW]
    return params[role + slots.BY_CHANNEL] if by_row else params[role + slots.BY_OUTER]


@jit.inlined
def parameter(params, group, segment):
    """Which gamma a segment has."""
    if params[slots.BY_ROW]:
        return group * params[slots.CHANNELS] + segment
    return group


@jit.inlined
def kept_sums(params, workspace, outer, group):
    """Where group norm keeps the sums of a slab's first channel for its parameters."""
    column = outer * 2 * params[slots.COLUMNS] + parameter(params, group, plain(0))
    return workspace + params[slots.AT_SUMS] + column * 8


@jit.inlined
def segment_sums(fmt, params, dy, x, segments, length, mean, to, step, second):
    """Leave the sums of each segment at every ``step`` from ``to`` on, the other one behind it."""
    dy_step = slab_step(params, slots.DY)
    x_step = slab_step(params, slots.X)
    if params[slots.SUM_XMU] and length <= FEW_VECTORS * lanes(fmt):
        centre = splat(fmt, mean)
        together = segments // 4 * 4
        for four in range(0, together, 4):
            at = dy + four * dy_step
            at_x = x + four * x_step
            ones, others = four_sums(
                fmt, at, at_x, dy_step, x_step, length, centre, centre, centre, centre
            )
            for one in range(4):
                place = to + (four + one) * step
                write(F64, place, ones[one])
                write(F64, place + second, others[one])
        for segment in range(together, segments):
            at = dy + segment * dy_step
            some = both_sums(fmt, at, x + segment * x_step, length, centre)
            write(F64, to + segment * step, some[0])
            write(F64, to + segment * step + second, some[1])
        return
    for segment in range(segments):
        # In the pieces that units have: it is no matter which of the two a slab is in.
        one, rest = 0.0, 0.0
        other, other_rest = 0.0, 0.0
        for first in range(0, length, TASK_ELEMENTS):
            part = min(TASK_ELEMENTS, length - first)
            at = first * size_of(fmt) + segment * dy_step
            at_x = first * size_of(fmt) + segment * x_step
            some = needed_sums(fmt, params, dy + at, x + at_x, plain(1), part, mean)
            one, rest = plus(fmt, one, rest, some[0])
            other, other_rest = plus(fmt, other, other_rest, some[1])
        write(F64, to + segment * step, completed(one, rest))
        write(F64, to + segment * step + second, completed(other, other_rest))


@jit.inlined
def slab_results(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu):
    """What batch norm returns of a slab's sums."""
    if params[slots.CORRECTION] != slots.GIVEN_CORRECTION:
        put(params, addresses, workspace, slots.SUM_DY_VECTOR, slab, sum_dy)
        put(params, addresses, workspace, slots.SUM_XMU_VECTOR, slab, sum_xmu)
    put(params, addresses, workspace, slots.DGAMMA, slab, sum_xmu * rstd)
    put(params, addresses, workspace, slots.DBETA, slab, sum_dy)


@jit.inlined
def slab_factors(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu):
    """The factors b and c of a slab, from its own sums or from those given."""
    if params[slots.CORRECTION] == slots.GIVEN_CORRECTION:
        sum_dy = entry(params, addresses, workspace, slots.SUM_DY_VECTOR, slab, 0.0)
        sum_xmu = entry(params, addresses, workspace, slots.SUM_XMU_VECTOR, slab, 0.0)
    if params[slots.CORRECTION] == slots.NO_CORRECTION:
        return 0.0, 0.0
    outside = rstd
    if params[slots.BY_ROW] == 0:
        outside *= entry(params, addresses, workspace, slots.GAMMA, slab, 1.0)
    elements = count(params, workspace)
    return slope_and_offset(outside, rstd, elements, sum_dy, sum_xmu)


@jit.inlined
def just_kept(at, part):
    """Up to eight sums that were written one by one; fewer are read so.

    A vector has to wait until they are in the cache, behind results on their way to memory:
    instance norm of 64x256x14x14 in float32 takes 1.23 ms, 1.38 with one masked load.
    """
    if part == lanes(F64):
        return load(F64, at)
    values = zero(F64)
    for lane in range(part):
        values = with_lane(values, lane, read(F64, at + lane * 8))
    return values


@jit.inlined
def weighed_sums(fmt, params, addresses, workspace, group, kept, rstd):
    """Both sums of a slab of group norm from those of its channels, which gamma weighs."""
    sum_dy, rest_dy = zero(F64), zero(F64)
    sum_xmu, rest_xmu = zero(F64), zero(F64)
    column = parameter(params, group, plain(0))
    second = params[slots.COLUMNS] * 8
    inverse, side_by_side = splat(F64, rstd), plain(1)
    for segment in range(0, params[slots.SEGMENTS], lanes(F64)):
        part = min(lanes(F64), params[slots.SEGMENTS] - segment)
        at = kept + segment * 8
        one, other = just_kept(at, part), just_kept(at + second, part)
        # The channels' shares of the parameter gradient.
        store_rounded(F64, at + second, other * inverse, part)
        gamma = entries(
            params, addresses, workspace, slots.GAMMA, column + segment, side_by_side, part, 1.0
        )
        sum_dy, rest_dy = plus(fmt, sum_dy, rest_dy, gamma * one)
        sum_xmu, rest_xmu = plus(fmt, sum_xmu, rest_xmu, gamma * other)
    return completed(total(sum_dy), total(rest_dy)), completed(total(sum_xmu), total(rest_xmu))


def slabs(fmt):
    """The task for a few slabs that one thread takes whole, from sums to gradients."""

    def slabs_task(params, addresses, workspace, argument, index, after):
        inner = params[slots.INNER]
        segments = params[slots.SEGMENTS]
        by_row = params[slots.BY_ROW] != 0
        first = index * params[slots.PER_TASK]
        last = min(first + params[slots.PER_TASK], params[slots.SLABS]) - 1
        outer, group = slab_place(params, first)
        for slab in range(first, last + 1):
            dy = slab_start(params, addresses, workspace, slots.DY, outer, group)
            x = slab_start(params, addresses, workspace, slots.X, outer, group)
            mean = entry(params, addresses, workspace, slots.MEAN, slab, 0.0)
            rstd = inverse_deviation(params, addresses, workspace, slab)
            sum_dy = 0.0
            sum_xmu = 0.0
            if params[slots.SUM_DY] and by_row:
                kept = kept_sums(params, workspace, outer, group)
                second = params[slots.COLUMNS] * 8
                segment_sums(fmt, params, dy, x, segments, inner, mean, kept, plain(8), second)
                sum_dy, sum_xmu = weighed_sums(fmt, params, addresses, workspace, group, kept, rstd)
            elif params[slots.SUM_DY]:
                sum_dy, sum_xmu = needed_sums(fmt, params, dy, x, segments, inner, mean)
                slab_results(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
            if params[slots.WRITE_DX]:
                dx = slab_start(params, addresses, workspace, slots.DX, outer, group)
                b, c = slab_factors(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
                if params[slots.DENSE]:
                    dense_gradients(
                        fmt, params, addresses, workspace, group, dy, x, dx, mean, rstd, b, c
                    )
                elif by_row and params[slots.CORRECTION] and not params[slots.STREAM_DX]:
                    near_gradients(
                        fmt, params, addresses, workspace, group, dy, x, dx, plain(0), segments,
                        inner, mean, rstd, b, c,
                    )  # fmt: skip
                else:
                    following = slab + 1 if slab < last else after * params[slots.PER_TASK]
                    ask_dy = 0
                    ask_x = 0
                    if params[slots.ASKS] and following > slab:
                        ask_dy = (following - slab) * params[slots.DY + slots.BY_CHANNEL]
                        ask_x = (following - slab) * params[slots.X + slots.BY_CHANNEL]
                    column = parameter(params, group, plain(0))
                    together = 1 if by_row else segments  # segments with one gamma
                    segment = segments - together
                    while segment >= 0:
                        gamma = entry(
                            params, addresses, workspace, slots.GAMMA, column + segment, 1.0
                        )
                        write_gradients(
                            fmt, params, dy, x, dx, segment, together, inner, mean, rstd * gamma,
                            b, c, ask_dy, ask_x,
                        )  # fmt: skip
                        segment -= max(together, 1)
            group += 1
            if by_row and group == params[slots.GROUPS]:
                group = 0
                outer += 1
        if params[slots.STREAM_DX]:
            fence()
        return 0

    return slabs_task
