"""Vectors of statistics and parameters, eight numbers at a time.

Batch norm of 8x4096 in float32 takes 30 us so, 66 one by one.
"""

import numpy as np

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.schedules.scalar import place, put, read_any, update, write_any
from normgrad.backends.cpu.vectors import (
    float_of,
    lane_of,
    load_part,
    size_of,
    splat,
    square_root,
    store_rounded,
    traced,
    with_lane,
    zero,
)
from normgrad.backends.cpu.vectors.formats import (
    BF16,
    BF16_CODE,
    BF16_WIDE,
    F16,
    F16_CODE,
    F16_WIDE,
    F32,
    F32_CODE,
    F32_WIDE,
    F64,
    F64_CODE,
)


@traced
def load_wide(flat, address, part):
    """The first of eight numbers of the compute type, in float64 lanes."""
    if size_of(flat) == 8:
        return load_part(F64, address, part)
    return load_part(F32_WIDE, address, part)


@jit.inlined
def entries(params, addresses, workspace, slot, first, apart, part, default):
    """Elements of a vector, so far apart, in float64 lanes, or the default of one not given."""
    code = params[slot + slots.CODE]
    if code < 0:
        return splat(F64, default)
    step = params[slot + slots.STRIDE]
    source = place(params, addresses, workspace, slot) + first * step
    step *= apart
    if code == F32_CODE and step == 4:
        return load_part(F32_WIDE, source, part)
    if code == BF16_CODE and step == 2:
        return load_part(BF16_WIDE, source, part)
    if code == F16_CODE and step == 2:
        return load_part(F16_WIDE, source, part)
    if code == F64_CODE and step == 8:
        return load_part(F64, source, part)
    values = zero(F64)
    for lane in range(part):
        values = with_lane(values, lane, read_any(code, source + lane * step))
    return values


@jit.inlined
def put_entries(params, addresses, workspace, slot, first, values, part):
    """Write some elements of a result from float64 lanes, if it is wanted."""
    code = params[slot + slots.CODE]
    if code < 0:
        return
    step = params[slot + slots.STRIDE]
    target = place(params, addresses, workspace, slot) + first * step
    if code == F32_CODE and step == 4:
        store_rounded(F32, target, values, part)
    elif code == BF16_CODE and step == 2:
        store_rounded(BF16, target, values, part)
    elif code == F16_CODE and step == 2:
        store_rounded(F16, target, values, part)
    elif code == F64_CODE and step == 8:
        store_rounded(F64, target, values, part)
    else:
        for lane in range(part):
            write_any(code, target + lane * step, lane_of(values, lane))


@jit.inner
def put_column(params, addresses, workspace, slot, first, values, part):
    """The same where it is not called for each slab or row: one body of it."""
    put_entries(params, addresses, workspace, slot, first, values, part)


@jit.inlined
def channel_results(params, addresses, workspace, first, part, rstd, sum_dy, sum_xmu):
    """What batch norm returns of the sums of some channels."""
    put_entries(params, addresses, workspace, slots.SUM_DY_VECTOR, first, sum_dy, part)
    put_entries(params, addresses, workspace, slots.SUM_XMU_VECTOR, first, sum_xmu, part)
    put_entries(params, addresses, workspace, slots.DGAMMA, first, sum_xmu * rstd, part)
    put_entries(params, addresses, workspace, slots.DBETA, first, sum_dy, part)


@jit.inner
def own_statistics(params, addresses, workspace, first, apart, part, mean, squares):
    """Write the statistics of some groups so far apart, and what keeps running ones; their rstd."""
    elements = np.float64(params[slots.COUNT])
    variance = squares / splat(F64, elements)
    eps = splat(F64, float_of(params[slots.EPS]))
    rstd = splat(F64, 1.0) / square_root(variance + eps)
    second = variance if params[slots.FROM_VARIANCE] else rstd
    if apart == 1:
        put_entries(params, addresses, workspace, slots.MEAN, first, mean, part)
        put_entries(params, addresses, workspace, slots.RSTD, first, second, part)
    else:
        for lane in range(part):
            at = first + lane * apart
            put(params, addresses, workspace, slots.MEAN, at, lane_of(mean, lane))
            put(params, addresses, workspace, slots.RSTD, at, lane_of(second, lane))
    if params[slots.RUNNING_MEAN + slots.CODE] >= 0 or params[slots.RUNNING_VAR + slots.CODE] >= 0:
        for lane in range(part):
            one, other = lane_of(mean, lane), lane_of(variance, lane)
            update(params, addresses, workspace, first + lane, elements, one, other)
    return rstd


@jit.inlined
def inverse_deviations(params, addresses, workspace, first, apart, part):
    """The statistics that multiply: as given, or from variances."""
    values = entries(params, addresses, workspace, slots.RSTD, first, apart, part, 1.0)
    if params[slots.FROM_VARIANCE]:
        eps = splat(F64, float_of(params[slots.EPS]))
        values = splat(F64, 1.0) / square_root(values + eps)
    return values
