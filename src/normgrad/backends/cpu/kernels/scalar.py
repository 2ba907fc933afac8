"""Vectors of statistics and parameters, read and written one number at a time in any type."""

import numpy as np

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.vectors import float_of, read, write
from normgrad.backends.cpu.vectors.formats import (
    BF16,
    BF16_CODE,
    F16,
    F16_CODE,
    F32,
    F32_CODE,
    F64,
    F64_CODE,
    I32,
    I32_CODE,
    I64,
)


@jit.inlined
def place(params, addresses, workspace, slot):
    """The address behind a place: an offset into the workspace, or -1 - role."""
    at = params[slot]
    return workspace + at if at >= 0 else addresses[-1 - at]


@jit.inlined
def read_any(code, address):
    """One number of the type that a code names, as float64."""
    if code == F32_CODE:
        return read(F32, address)
    if code == BF16_CODE:
        return read(BF16, address)
    if code == F16_CODE:
        return read(F16, address)
    if code == F64_CODE:
        return read(F64, address)
    if code == I32_CODE:
        return read(I32, address)
    return read(I64, address)


@jit.inlined
def write_any(code, address, value):
    """One float64 rounded once into the type that a code names."""
    if code == F32_CODE:
        write(F32, address, value)
    elif code == BF16_CODE:
        write(BF16, address, value)
    elif code == F16_CODE:
        write(F16, address, value)
    else:
        write(F64, address, value)


@jit.inlined
def entry(params, addresses, workspace, slot, index, default):
    """An element of a vector, or the default of one that was not given."""
    code = params[slot + slots.CODE]
    if code < 0:
        return default
    start = place(params, addresses, workspace, slot)
    return read_any(code, start + index * params[slot + slots.STRIDE])


@jit.inlined
def put(params, addresses, workspace, slot, index, value):
    """Write an element of a result, if it is wanted."""
    code = params[slot + slots.CODE]
    if code >= 0:
        start = place(params, addresses, workspace, slot)
        write_any(code, start + index * params[slot + slots.STRIDE], value)


@jit.inlined
def inverse_deviation(params, addresses, workspace, index):
    """The statistic that multiplies: as given, or from a variance."""
    value = entry(params, addresses, workspace, slots.RSTD, index, 1.0)
    if params[slots.FROM_VARIANCE]:
        value = 1.0 / np.sqrt(value + float_of(params[slots.EPS]))
    return value


@jit.inlined
def count(params, workspace):
    """By how much sums are divided: the elements of a statistic, on all ranks together."""
    if params[slots.CORRECTION] == slots.GIVEN_CORRECTION:
        return read(F64, workspace + params[slots.AT_COUNT])
    return np.float64(params[slots.COUNT])


@jit.inlined
def slope_and_offset(outside, rstd, total, sum_dy, sum_xmu):
    """The factors b and c of ``dx = a * dy + b * (x - mean) + c``, of one statistic or of lanes.

    ``outside`` is a, rstd * gamma; where a statistic belongs to a row rstd alone: gamma is inside
    the sums already.
    """
    return -outside * (rstd * (sum_xmu * rstd / total)), -outside * (sum_dy / total)


def add_counts():
    """The task that adds the counts of all ranks, in float64."""

    def add_counts_task(params, addresses, workspace, argument, index, after):
        joined = 0.0
        for rank in range(params[slots.COUNTER + slots.LENGTH]):
            joined += entry(params, addresses, workspace, slots.COUNTER, rank, 0.0)
        write(F64, workspace + params[slots.AT_COUNT], joined)
        return 0

    return add_counts_task
