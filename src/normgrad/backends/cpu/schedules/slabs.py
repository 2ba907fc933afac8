"""Channels first: a slab is all that shares a statistic, a set of contiguous segments.

Batch norm's slab is a channel, a segment in each sample; group norm's is a group of a sample, a
segment for each of its channels. A slab is summed and then written while it is in the cache.
"""

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.plan.tuned import FEW_VECTORS, TASK_ELEMENTS
from normgrad.backends.cpu.schedules.entries import entries
from normgrad.backends.cpu.schedules.scalar import (
    count,
    entry,
    inverse_deviation,
    own_statistic,
    put,
    share_of_dy,
)
from normgrad.backends.cpu.schedules.segments import (
    both_sums,
    four_sums,
    near_segment,
    splats,
    sums,
    sums_of_dy,
    two_sum_result,
    two_sum_step,
    write_partial_line,
    written,
)
from normgrad.backends.cpu.schedules.slab_units import (
    parameter,
    parameters_of,
    slab_moments,
    slab_place,
    slab_start,
    slab_step,
)
from normgrad.backends.cpu.vectors import (
    fence,
    fills_line,
    float_of,
    hidden_constant,
    lanes,
    load,
    load_pair,
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


@jit.inlined
def known(form, params, addresses, workspace, mean, rstd, column):
    """What sums know of the factors: ``column`` is the parameters'."""
    if form.fused():
        gamma = entry(params, addresses, workspace, slots.GAMMA, column, 1.0)
        beta = entry(params, addresses, workspace, slots.BETA, column, 0.0)
        return mean, rstd * gamma, beta, 0.0, 0.0
    return mean, 1.0, 0.0, 0.0, 0.0


@jit.inlined
def all_factors(form, params, addresses, workspace, mean, rstd, column, x_factor, constant):
    """All factors of some elements of one slab with one gamma."""
    gamma = entry(params, addresses, workspace, slots.GAMMA, column, 1.0)
    beta = 0.0
    if form.reads_beta():
        beta = entry(params, addresses, workspace, slots.BETA, column, 0.0)
    return mean, rstd * gamma, beta, x_factor, constant


@jit.inner
def write_streamed_dense(
    form, fmt, params, addresses, workspace, group, dy, x, dx, mean, rstd, x_factor, constant
):  # fmt: skip
    """What is written past the cache, of segments without gaps.

    Lines that two segments share are written whole: in parts they cost 70 ns each.
    """
    step = lanes(fmt) * size_of(fmt)
    nbytes = params[slots.INNER] * size_of(fmt)
    segment = params[slots.SEGMENTS] - 1
    column = parameter(params, group, hidden_constant(0))
    after = mean, 0.0, 0.0, x_factor, constant
    final = True
    while segment >= 0:
        here = all_factors(
            form, params, addresses, workspace, mean, rstd, column + segment, x_factor, constant
        )
        v = splats(fmt, here)
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
            stream_pair(fmt, to, form.element(d0, t0, v), form.element(d1, t1, v))
            at += 2 * step
            at_x += 2 * step
            to += 2 * step
            left -= 2 * step
        if fills_line(fmt) and left >= step:
            stream_line(fmt, to, form.element(load(fmt, at), load(fmt, at_x), v))
            at += step
            at_x += step
            to += step
            left -= step
        if left > 0 and final:
            write_partial_line(form, fmt, at, at_x, to, left // size_of(fmt), v)
        elif left > 0:
            a0, a1 = splat_pair(fmt, here[1], after[1], left // size_of(fmt))
            beta0, beta1 = splat_pair(fmt, here[2], after[2], left // size_of(fmt))
            v0 = v[0], a0, beta0, v[3], v[4]
            if fills_line(fmt):
                stream_line(fmt, to, form.element(load(fmt, at), load(fmt, at_x), v0))
            else:
                v1 = v[0], a1, beta1, v[3], v[4]
                d0, d1 = load_pair(fmt, at)
                t0, t1 = load_pair(fmt, at_x)
                stream_pair(fmt, to, form.element(d0, t0, v0), form.element(d1, t1, v1))
        if segment == 0:
            write_partial_line(form, fmt, dy, x, dx, head // size_of(fmt), v)
        after = here
        final = False
        segment -= 1


@jit.inlined
def write_cached(
    form, fmt, params, addresses, workspace, group, dy, x, dx, first, segments, length, mean, rstd,
    x_factor, constant,
):  # fmt: skip
    """What is written through the cache, of segments with an ``dy_factor`` each."""
    column = parameter(params, group, hidden_constant(0))
    for segment in range(first, first + segments):
        factors = all_factors(
            form, params, addresses, workspace, mean, rstd, column + segment, x_factor, constant
        )
        at = dy + segment * slab_step(params, slots.DY)
        at_x = x + segment * slab_step(params, slots.X)
        to = dx + segment * slab_step(params, slots.DX)
        near_segment(form, fmt, at, at_x, to, length, splats(fmt, factors))


@jit.inner
def write_group(
    form, fmt, params, addresses, workspace, group, dy, x, dx, segments, length, mean, rstd,
    x_factor, constant
):  # fmt: skip
    """What is written of a slab of which each segment has an ``dy_factor``, the last one first."""
    none = hidden_constant(0)
    if params[slots.STREAM_ACROSS_SEGMENTS]:
        write_streamed_dense(
            form,
            fmt,
            params,
            addresses,
            workspace,
            group,
            dy,
            x,
            dx,
            mean,
            rstd,
            x_factor,
            constant,
        )
    elif not params[slots.STREAM_DX]:
        write_cached(
            form, fmt, params, addresses, workspace, group, dy, x, dx, none, segments, length,
            mean, rstd, x_factor, constant,
        )  # fmt: skip
    else:
        column = parameter(params, group, none)
        for segment in range(segments - 1, -1, -1):
            v = all_factors(
                form, params, addresses, workspace, mean, rstd, column + segment, x_factor, constant
            )
            write_segments(
                form, fmt, params, dy, x, dx, segment, hidden_constant(1), length, v, none, none
            )


@jit.inlined
def needed_sums(form, fmt, params, dy, x, segments, length, factors):
    """The sums that are needed of some segments of a slab."""
    dy_step = slab_step(params, slots.DY)
    if params[slots.SUM_XMU]:
        x_step = slab_step(params, slots.X)
        return sums(form, fmt, dy, x, dy_step, x_step, segments, length, factors)
    return sums_of_dy(fmt, dy, dy_step, segments, length), 0.0


@jit.inlined
def write_segments(
    form, fmt, params, dy, x, dx, first, segments, length, factors, ask_dy, ask_x
):  # fmt: skip
    """What is written of some segments of a slab, the last one first: it was read last."""
    dy_step = slab_step(params, slots.DY)
    x_step = slab_step(params, slots.X)
    dx_step = slab_step(params, slots.DX)
    last = first + segments - 1
    written(
        form, fmt, dy + last * dy_step, x + last * x_step, dx + last * dx_step, -dy_step, -x_step,
        -dx_step, segments, length, factors, params[slots.STREAM_DX] != 0,
        params[slots.PREFETCH_AHEAD] != 0, ask_dy, ask_x,
    )  # fmt: skip


@jit.inlined
def sums_address(params, workspace, outer, group):
    """Where group norm keeps the sums of a slab's first channel for its parameters."""
    column = outer * 2 * params[slots.COLUMNS] + parameter(params, group, hidden_constant(0))
    return workspace + params[slots.AT_SUMS] + column * 8


@jit.inlined
def segment_sums(
    form, fmt, params, addresses, workspace, column, dy, x, segments, length, mean, rstd, to, step,
    second,
):  # fmt: skip
    """Leave the sums of each segment at every ``step`` from ``to`` on, the other one behind it.

    ``column`` is the parameters' of the first.
    """
    dy_step = slab_step(params, slots.DY)
    x_step = slab_step(params, slots.X)
    if params[slots.SUM_XMU] and length <= FEW_VECTORS * lanes(fmt):
        together = segments // 4 * 4
        for four in range(0, together, 4):
            at = dy + four * dy_step
            at_x = x + four * x_step
            here = column + four
            ones, others = four_sums(
                form, fmt, at, at_x, dy_step, x_step, length,
                splats(fmt, known(form, params, addresses, workspace, mean, rstd, here)),
                splats(fmt, known(form, params, addresses, workspace, mean, rstd, here + 1)),
                splats(fmt, known(form, params, addresses, workspace, mean, rstd, here + 2)),
                splats(fmt, known(form, params, addresses, workspace, mean, rstd, here + 3)),
            )  # fmt: skip
            for one in range(4):
                place = to + (four + one) * step
                write(F64, place, ones[one])
                write(F64, place + second, others[one])
        for segment in range(together, segments):
            at = dy + segment * dy_step
            factors = known(form, params, addresses, workspace, mean, rstd, column + segment)
            at_x = x + segment * x_step
            some = both_sums(form, fmt, at, at_x, length, splats(fmt, factors))
            write(F64, to + segment * step, some[0])
            write(F64, to + segment * step + second, some[1])
        return
    for segment in range(segments):
        factors = known(form, params, addresses, workspace, mean, rstd, column + segment)
        # In the pieces that units have: it is no matter which of the two a slab is in.
        one, rest = 0.0, 0.0
        other, other_rest = 0.0, 0.0
        for first in range(0, length, TASK_ELEMENTS):
            part = min(TASK_ELEMENTS, length - first)
            at = first * size_of(fmt) + segment * dy_step
            at_x = first * size_of(fmt) + segment * x_step
            some = needed_sums(
                form, fmt, params, dy + at, x + at_x, hidden_constant(1), part, factors
            )
            one, rest = two_sum_step(fmt, one, rest, some[0])
            other, other_rest = two_sum_step(fmt, other, other_rest, some[1])
        write(F64, to + segment * step, two_sum_result(one, rest))
        write(F64, to + segment * step + second, two_sum_result(other, other_rest))


@jit.inlined
def slab_results(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu):
    """What batch norm returns of a slab's sums."""
    if params[slots.CORRECTION] != slots.GIVEN_CORRECTION:
        put(params, addresses, workspace, slots.SUM_DY_VECTOR, slab, sum_dy)
        put(params, addresses, workspace, slots.SUM_XMU_VECTOR, slab, sum_xmu)
    put(params, addresses, workspace, slots.DGAMMA, slab, sum_xmu * rstd)
    put(params, addresses, workspace, slots.DBETA, slab, sum_dy)


@jit.inlined
def slab_factors(form, params, addresses, workspace, slab, rstd, sum_dy, sum_xmu):
    """The factors b and c of a slab, from its own sums or from those given."""
    if params[slots.CORRECTION] == slots.GIVEN_CORRECTION:
        sum_dy = entry(params, addresses, workspace, slots.SUM_DY_VECTOR, slab, 0.0)
        sum_xmu = entry(params, addresses, workspace, slots.SUM_XMU_VECTOR, slab, 0.0)
    if params[slots.CORRECTION] == slots.NO_CORRECTION:
        return 0.0, 0.0
    factor = rstd
    if params[slots.BY_ROW] == 0:
        factor *= entry(params, addresses, workspace, slots.GAMMA, slab, 1.0)
    elements = count(params, workspace)
    return form.coefficients(factor, rstd, elements, sum_dy * share_of_dy(params), sum_xmu)


@jit.inlined
def load_fresh_sums(at, part):
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
def gamma_weighted_sums(fmt, params, addresses, workspace, group, kept, rstd):
    """Both sums of a slab of group norm from those of its channels, which gamma weighs."""
    sum_dy, rest_dy = zero(F64), zero(F64)
    sum_xmu, rest_xmu = zero(F64), zero(F64)
    column = parameter(params, group, hidden_constant(0))
    second = params[slots.COLUMNS] * 8
    inverse, side_by_side = splat(F64, rstd), hidden_constant(1)
    for segment in range(0, params[slots.SEGMENTS], lanes(F64)):
        part = min(lanes(F64), params[slots.SEGMENTS] - segment)
        at = kept + segment * 8
        one, other = load_fresh_sums(at, part), load_fresh_sums(at + second, part)
        # The channels' shares of the parameter gradient.
        store_rounded(F64, at + second, other * inverse, part)
        gamma = entries(
            params, addresses, workspace, slots.GAMMA, column + segment, side_by_side, part, 1.0
        )
        sum_dy, rest_dy = two_sum_step(fmt, sum_dy, rest_dy, gamma * one)
        sum_xmu, rest_xmu = two_sum_step(fmt, sum_xmu, rest_xmu, gamma * other)
    return two_sum_result(total(sum_dy), total(rest_dy)), two_sum_result(
        total(sum_xmu), total(rest_xmu)
    )


def slabs(formula, fmt, by_row):
    """The task for a few slabs that one thread takes whole, from sums to what is written."""
    # A constant, as by_row is: Numba compiles one of two branches.
    own = formula.own_statistics()

    def slabs_task(params, addresses, workspace, argument, index, after):
        form = formula.with_slope(float_of(params[slots.NEGATIVE_SLOPE]))
        inner = params[slots.INNER]
        segments = params[slots.SEGMENTS]
        first = index * params[slots.PER_TASK]
        last = min(first + params[slots.PER_TASK], params[slots.SLABS]) - 1
        outer, group = slab_place(params, first)
        for slab in range(first, last + 1):
            dy = slab_start(params, addresses, workspace, slots.DY, outer, group)
            x = slab_start(params, addresses, workspace, slots.X, outer, group)
            own_group = parameters_of(params, outer, group)
            column = parameter(params, own_group, hidden_constant(0))
            sum_dy = 0.0
            sum_xmu = 0.0
            if own:
                mean, squares = slab_moments(form, fmt, params, x, slab)
                rstd = own_statistic(params, addresses, workspace, slab, mean, squares)
                rstd = form.given(rstd)
            else:
                mean = entry(params, addresses, workspace, slots.MEAN, slab, 0.0)
                rstd = inverse_deviation(params, addresses, workspace, slab)
                if by_row:
                    kept = sums_address(params, workspace, outer, group)
                    second = params[slots.COLUMNS] * 8
                    if params[slots.SUM_DY]:
                        segment_sums(
                            form, fmt, params, addresses, workspace, column, dy, x, segments,
                            inner, mean, rstd, kept, hidden_constant(8), second,
                        )  # fmt: skip
                        sum_dy, sum_xmu = gamma_weighted_sums(
                            fmt, params, addresses, workspace, own_group, kept, rstd
                        )
                elif params[slots.SUM_DY]:
                    factors = known(form, params, addresses, workspace, mean, rstd, column)
                    sum_dy, sum_xmu = needed_sums(
                        form, fmt, params, dy, x, segments, inner, factors
                    )
                    slab_results(params, addresses, workspace, slab, rstd, sum_dy, sum_xmu)
            if params[slots.WRITE_DX]:
                dx = slab_start(params, addresses, workspace, slots.DX, outer, group)
                x_factor, constant = slab_factors(
                    form, params, addresses, workspace, slab, rstd, sum_dy, sum_xmu
                )
                if by_row:
                    share = share_of_dy(params)  # 0 for statistics of one element
                    write_group(
                        form, fmt, params, addresses, workspace, own_group, dy, x, dx, segments,
                        inner, mean, rstd * share, x_factor, constant,
                    )  # fmt: skip
                else:
                    following = slab + 1 if slab < last else after * params[slots.PER_TASK]
                    ask_dy = 0
                    ask_x = 0
                    if params[slots.PREFETCH_NEXT_TASK] and following > slab:
                        ask_dy = (following - slab) * params[slots.DY + slots.BY_CHANNEL]
                        ask_x = (following - slab) * params[slots.X + slots.BY_CHANNEL]
                    factors = all_factors(
                        form, params, addresses, workspace, mean, rstd, column, x_factor, constant
                    )
                    write_segments(
                        form, fmt, params, dy, x, dx, hidden_constant(0), segments, inner, factors,
                        ask_dy, ask_x,
                    )  # fmt: skip
            group += 1
            if by_row and group == params[slots.GROUPS]:
                group = 0
                outer += 1
        if params[slots.STREAM_DX]:
            fence()
        return 0

    return slabs_task
