"""Statistics of data: parts of them as (count, mean, sum of squared distances from that mean).

No part is made of sums of squares, which cancel where the mean is far. A thread adds up distances
from the first element that it met in a place of its tile: the error of their squares is at most as
many roundings as it met elements there, whatever these are. Means are kept as distances from one
element of the group, its *base*, as a far mean would be rounded by more than they differ. Parts are
merged by Chan's rule, all of an axis at once: first their mean, then their distances from it.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.pieces.common import load_or, store_as, sum_pairs


@triton.jit
def add_elements(FORMULA: tl.constexpr, found, x, there):
    """What a tile's places have met, with one tile more: count, first element, two sums."""
    count, first, sum_t, sum_tt = found
    first = FORMULA.pivot(count, x, first)
    t = tl.where(there, x - first, 0.0)
    return tl.where(there, count + 1.0, count), first, sum_t + t, sum_tt + t * t


@triton.jit
def parts_of(FORMULA: tl.constexpr, found, base):
    """What places have met, as parts."""
    count, first, sum_t, sum_tt = found
    off = sum_t * 0.0
    if FORMULA.has_mean:
        step = sum_t / tl.where(count > 0, count, 1.0)
        off = tl.where(count > 0, (first - base) + step, 0.0)
        sum_tt = sum_tt - step * sum_t
        sum_tt = tl.where(sum_tt < 0, 0.0, sum_tt)
    return tl.where(sum_tt >= 0, count, count), off, sum_tt  # of one shape


@triton.jit
def add_parts(found, count, off, apart):
    """What places have met of parts, as `add_elements` has it of elements."""
    total, first, sum_t, sum_tt = found
    first = tl.where(total == 0, off, first)
    t = tl.where(count > 0, off - first, 0.0)
    met = tl.where(count > 0, apart + count * t * t, 0.0)
    return total + count, first, sum_t + count * t, sum_tt + met


@triton.jit
def _along(value, AXIS: tl.constexpr, RANK: tl.constexpr):
    if RANK == 2 and AXIS is not None:
        value = tl.expand_dims(value, AXIS)
    return value


@triton.jit
def merged(FORMULA: tl.constexpr, parts, AXIS: tl.constexpr):
    """Parts of one base along an axis, or all, as one."""
    count, off, apart = parts
    RANK: tl.constexpr = len(count.shape)
    centre = tl.sum(off, AXIS)
    if FORMULA.has_mean:
        total, centre = sum_pairs(count, count * off, AXIS)
        centre = centre / tl.where(total > 0, total, 1.0)
        far = off - _along(centre, AXIS, RANK)
        apart = tl.sum(apart + count * far * far, AXIS)
    else:
        total, apart = sum_pairs(count, apart, AXIS)
    return total, centre, apart


@triton.jit
def store_part(partials, place, parts, base, second, mask):
    """One part, or some: counts, then means, and so on, each ``second`` behind the other."""
    count, off, apart = parts
    tl.store(partials + place, count, mask=mask)
    tl.store(partials + second + place, off, mask=mask)
    tl.store(partials + 2 * second + place, apart, mask=mask)
    tl.store(partials + 3 * second + place, base, mask=mask)


@triton.jit
def store_statistics(
    results,  # mean and rstd for kernels to come; those that are wanted; running ones before, after
    which,
    moments,  # count, mean, sum of squared distances
    momentum,
    eps,
    mask,
    VARIANCE: tl.constexpr,  # the second one wanted is the variance
    BIASED: tl.constexpr = False,  # the running variance follows the biased one
):
    """Write the statistics of some groups; returns the mean and the reciprocal deviation."""
    next_mean, next_rstd, mean, rstd, old_mean, old_variance, new_mean, new_variance = results
    count, mu, apart = moments
    variance = apart / tl.where(count > 0, count, 1.0)
    rs = 1.0 / tl.sqrt(variance + eps)
    store_as(next_mean, which, mu, mask)
    store_as(next_rstd, which, rs, mask)
    store_as(mean, which, mu, mask)
    store_as(rstd, which, variance if VARIANCE else rs, mask)
    if old_mean is not None:
        old = load_or(old_mean, which, mask, 0.0, mu.dtype)
        store_as(new_mean, which, old * (1.0 - momentum) + mu * momentum, mask)
    if old_variance is not None:
        old = load_or(old_variance, which, mask, 0.0, mu.dtype)
        wider = variance
        if not BIASED:
            wider = apart / tl.where(count > 1, count - 1.0, 1.0)
        store_as(new_variance, which, old * (1.0 - momentum) + wider * momentum, mask)
    return mu, rs
