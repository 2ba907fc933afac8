"""Vectors of statistics and parameters, read and written one number at a time in any type."""

import numpy as np

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
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
def not_negative(squares):
    """Squares of which roundings have left nothing are none; nan stays."""
    if squares < 0.0:
        return 0.0
    return squares


@jit.inner
def own_statistic(params, addresses, workspace, index, mean, squares):
    """Write the statistics of what shares one, and what keeps running ones; its rstd."""
    elements = np.float64(params[slots.COUNT])
    variance = squares / elements
    rstd = 1.0 / np.sqrt(variance + float_of(params[slots.EPS]))
    put(params, addresses, workspace, slots.MEAN, index, mean)
    second = variance if params[slots.FROM_VARIANCE] else rstd
    put(params, addresses, workspace, slots.RSTD, index, second)
    update(params, addresses, workspace, index, elements, mean, variance)
    return rstd


@jit.inner
def update(params, addresses, workspace, index, elements, mean, variance):
    """Give these data their share in the running statistics."""
    momentum = float_of(params[slots.MOMENTUM])
    if params[slots.RUNNING_MEAN + slots.CODE] >= 0:
        before = entry(params, addresses, workspace, slots.RUNNING_MEAN, index, 0.0)
        after = (1.0 - momentum) * before + momentum * mean
        put(params, addresses, workspace, slots.RUNNING_MEAN, index, after)
    if params[slots.RUNNING_VAR + slots.CODE] >= 0:
        unbiased = variance
        if elements != 1.0 and not params[slots.BIASED]:
            unbiased = variance * (elements / (elements - 1.0))
        before = entry(params, addresses, workspace, slots.RUNNING_VAR, index, 0.0)
        after = (1.0 - momentum) * before + momentum * unbiased
        put(params, addresses, workspace, slots.RUNNING_VAR, index, after)


def statistics_of_nothing():
    """The task that writes the statistics of no data: mean and variance are 0."""

    def statistics_of_nothing_task(params, addresses, workspace, statistics, index, after):
        rstd = 1.0 / np.sqrt(np.float64(float_of(params[slots.EPS])))
        for one in range(statistics):
            put(params, addresses, workspace, slots.MEAN, one, 0.0)
            second = 0.0 if params[slots.FROM_VARIANCE] else rstd
            put(params, addresses, workspace, slots.RSTD, one, second)
        return 0

    return statistics_of_nothing_task


def gather_statistics():
    """The task that joins the statistics of ranks, for a channel."""

    def gather_statistics_task(params, addresses, workspace, argument, channel, after):
        means = place(params, addresses, workspace, slots.X)
        means += channel * params[slots.X + slots.BY_CHANNEL]
        variances = place(params, addresses, workspace, slots.DY)
        variances += channel * params[slots.DY + slots.BY_CHANNEL]
        first = read_any(params[slots.X + slots.DATA_CODE], means)
        total, distances = 0.0, 0.0
        for rank in range(params[slots.OUTER]):
            elements = entry(params, addresses, workspace, slots.COUNTER, rank, 0.0)
            at = means + rank * params[slots.X + slots.BY_OUTER]
            total += elements
            distances += elements * (read_any(params[slots.X + slots.DATA_CODE], at) - first)
        mean = first + distances / total
        squares = 0.0
        for rank in range(params[slots.OUTER]):
            elements = entry(params, addresses, workspace, slots.COUNTER, rank, 0.0)
            at = means + rank * params[slots.X + slots.BY_OUTER]
            apart = read_any(params[slots.X + slots.DATA_CODE], at) - mean
            at = variances + rank * params[slots.DY + slots.BY_OUTER]
            variance = read_any(params[slots.DY + slots.DATA_CODE], at)
            if params[slots.FROM_INVSTD]:
                variance = 1.0 / (variance * variance) - float_of(params[slots.EPS])
            squares += elements * (variance + apart * apart)
        variance = squares / total
        rstd = 1.0 / np.sqrt(variance + float_of(params[slots.EPS]))
        put(params, addresses, workspace, slots.MEAN, channel, mean)
        second = variance if params[slots.FROM_VARIANCE] else rstd
        put(params, addresses, workspace, slots.RSTD, channel, second)
        update(params, addresses, workspace, channel, total, mean, variance)
        return 0

    return gather_statistics_task


@jit.inlined
def count(params, workspace):
    """By how much sums are divided: the elements of a statistic, on all ranks together."""
    if params[slots.CORRECTION] == slots.GIVEN_CORRECTION:
        return read(F64, workspace + params[slots.AT_COUNT])
    return np.float64(params[slots.COUNT])


@jit.inlined
def share_of_dy(params):
    """What a and c are multiplied by: 1, or 0 where a statistic has a single element.

    Its dy and the mean of all dy are then the same number. As products with factors in float32
    they would differ by a rounding, and the gradient is 0 where the statistic is the element.
    """
    return 0.0 if params[slots.ALONE] else 1.0


def add_counts():
    """The task that adds the counts of all ranks, in float64."""

    def add_counts_task(params, addresses, workspace, argument, index, after):
        joined = 0.0
        for rank in range(params[slots.COUNTER + slots.LENGTH]):
            joined += entry(params, addresses, workspace, slots.COUNTER, rank, 0.0)
        write(F64, workspace + params[slots.AT_COUNT], joined)
        return 0

    return add_counts_task
