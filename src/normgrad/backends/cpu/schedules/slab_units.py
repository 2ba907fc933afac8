"""Where slabs and their segments are, the units that threads take, and statistics of both."""

import numpy as np

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.plan.tuned import FEW_VECTORS
from normgrad.backends.cpu.schedules.scalar import (
    not_negative,
    place,
)
from normgrad.backends.cpu.schedules.segments import (
    both_sums,
    rounded,
    splats,
    sums,
)
from normgrad.backends.cpu.vectors import (
    lanes,
    read,
    size_of,
)


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
def parameters_of(params, outer, group):
    """Which group of parameters a group of a sample has: every sample's own, or the same."""
    return group + outer * params[slots.OWN_GROUPS]


@jit.inlined
def parameter(params, group, segment):
    """Which gamma a segment has."""
    if params[slots.BY_ROW]:
        return group * params[slots.CHANNELS] + segment
    return group


@jit.inner
def unit_place(params, index):
    """A unit's slab, its segments (first, count) and what it has of each (first, count)."""
    pieces = params[slots.SPLIT_COUNT]
    inner = params[slots.INNER]
    slab = index // pieces
    unit = index - slab * pieces
    per_segment = pieces_of_segment(params)
    segment = unit // per_segment * params[slots.SPLIT_SEGMENTS]
    segments = min(params[slots.SPLIT_SEGMENTS], params[slots.SEGMENTS] - segment)
    first = unit % per_segment * params[slots.SPLIT_ELEMENTS]
    length = min(params[slots.SPLIT_ELEMENTS], inner - first)
    return slab, segment, segments, first, length


@jit.inner
def pieces_of_segment(params):
    """How many pieces a segment is cut into."""
    return -(-params[slots.INNER] // params[slots.SPLIT_ELEMENTS])


@jit.inner
def unit_moments(form, fmt, params, x, segment, segments, first, length):
    """Mean of a unit and the squared distances from it; ``x`` is the slab's.

    Distances are from an element, and once more from the mean if that was far away: from the
    cache, as a unit fits one.
    """
    step = slab_step(params, slots.X)
    x += segment * step + first * size_of(fmt)
    elements = np.float64(segments * length)
    start = form.start(read(fmt, x))
    p, q = unit_sums(form, fmt, x, step, segments, length, start)
    mean, squares = form.moments(start, p, q, elements)
    if form.lost(q, squares):
        start = rounded(fmt, mean)
        p, q = unit_sums(form, fmt, x, step, segments, length, start)
        mean, squares = form.moments(start, p, q, elements)
    return mean, not_negative(squares)


@jit.inner
def unit_sums(form, fmt, x, step, segments, length, start):
    """Both sums of distances; a short segment has the bits that it has among eight."""
    factors = start, 1.0, 0.0, 0.0, 0.0
    if segments == 1 and length <= FEW_VECTORS * lanes(fmt):
        return both_sums(form, fmt, x, x, length, splats(fmt, factors))
    return sums(form, fmt, x, x, step, step, segments, length, factors)


@jit.inner
def with_unit(form, params, unit, n, mean, squares, other, others):
    """Count, mean and squared distances of the units so far and one more."""
    _, _, segments, _, length = unit_place(params, unit)
    elements = np.float64(segments * length)
    share = elements / (n + elements)
    mean, squares = form.merged(mean, squares, other, others, share, n * share)
    return n + elements, mean, squares


@jit.inner
def slab_moments(form, fmt, params, x, slab):
    """The same of a slab, in the units that threads take where it is split."""
    n, mean, squares = 0.0, 0.0, 0.0
    for unit in range(slab * params[slots.SPLIT_COUNT], (slab + 1) * params[slots.SPLIT_COUNT]):
        _, segment, segments, first, length = unit_place(params, unit)
        other, others = unit_moments(form, fmt, params, x, segment, segments, first, length)
        n, mean, squares = with_unit(form, params, unit, n, mean, squares, other, others)
    return mean, squares
