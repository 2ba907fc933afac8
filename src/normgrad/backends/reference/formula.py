"""The gradients, once, for all operators.

Written for arrays of any library whose operators and ``sum(axis=, keepdims=)`` are NumPy's: the
reference backend runs it on NumPy, the judge of GPU results on torch, both in float64. Arrays have
the four axes of ``Geometry`` or broadcast against them.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from normgrad.core.geometry import Geometry

Array = Any


class Correction(NamedTuple):
    """What batch statistics take away from dy: ``mean_d + xhat * mean_dt``, the terms' means."""

    mean_d: Array
    mean_dt: Array


def inverse_deviation(variance: Array, eps: float) -> Array:
    """``rstd`` where the second statistic is a variance."""
    # Arrays of NumPy and of torch take a root here: a power of -0.5 would give -inf a deviation.
    return 1.0 / (variance + eps) ** 0.5


def variance_of(rstd: Array, eps: float) -> Array:
    """The variance that an inverse deviation was made of."""
    return 1.0 / (rstd * rstd) - eps


def normalized(x: Array, mean: Array, rstd: Array) -> Array:
    """Xhat, what the forward pass multiplied by gamma."""
    return (x - mean) * rstd


def total(terms: Array, axes: tuple[int, ...]) -> Array:
    """The sum over some axes, which are kept, in pairs along all of them.

    NumPy adds in pairs along a contiguous run alone, elsewhere one by one: a million rows of 0.1
    were 120055 roundings off. Others (torch) cut such sums by themselves.
    """
    if not isinstance(terms, np.ndarray):
        return terms.sum(axis=axes, keepdims=True)
    kept = [axis for axis in range(terms.ndim) if axis not in axes]
    shape = [1 if axis in axes else size for axis, size in enumerate(terms.shape)]
    runs = np.ascontiguousarray(terms.transpose(*kept, *axes))
    rows = runs.reshape(math.prod(shape), math.prod(terms.shape[axis] for axis in axes))
    return rows.sum(axis=1).reshape(shape)


def parameter_sums(dy: Array, xhat: Array, geometry: Geometry) -> tuple[Array, Array]:
    """``dgamma`` and ``dbeta``, with the summed axes kept; the rows of each sample apart."""
    axes = geometry.parameter_axes
    if geometry.samples > 1:
        apart = (geometry.samples, geometry.outer // geometry.samples, *geometry.shape[1:])
        first, second = (
            total(terms.reshape(apart), (1, 4)).reshape(geometry.parameter_shape)
            for terms in (dy * xhat, dy)
        )
        return first, second
    return total(dy * xhat, axes), total(dy, axes)


def own_correction(g: Array, xhat: Array, geometry: Geometry, *, centred: bool) -> Correction:
    """The correction when the statistics came from these very data."""
    axes = geometry.statistic_axes
    return Correction(
        total(g, axes) / geometry.count if centred else 0.0,
        total(g * xhat, axes) / geometry.count,
    )


def joined_correction(
    sum_dy: Array, sum_dy_xmu: Array, rstd: Array, count: Array | float
) -> Correction:
    """The correction from sums over all ranks, ``count`` elements together."""
    return Correction(sum_dy / count, sum_dy_xmu / count * rstd)


def factors(rstd: Array, gamma: Array, geometry: Geometry) -> tuple[Array | float, Array]:
    """The weight of dy inside the sums of a statistic, and the factor of the whole difference.

    Gamma is in the factor where it is constant over the sums, else in the weight.
    """
    return (1.0, rstd * gamma) if geometry.statistic == "channel" else (gamma, rstd)


def input_gradient(g: Array, xhat: Array, factor: Array, correction: Correction | None) -> Array:
    """``dx``; without a correction the statistics were constants (inference)."""
    if correction is None:
        return g * factor
    return (g - correction.mean_d - xhat * correction.mean_dt) * factor


def moments(x: Array, geometry: Geometry, *, centred: bool) -> tuple[Array, Array]:
    """Mean and biased variance of what shares a statistic; about 0 for root mean squares."""
    axes, count = geometry.statistic_axes, max(geometry.count, 1)
    if not geometry.size:  # whose sum has the shape and is 0
        return total(x, axes), total(x, axes)
    # From one of the elements on: a constant group has exactly its constant for a mean.
    first = x[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(4))]
    mean = first + total(x - first, axes) / count if centred else 0.0
    return mean, total((x - mean) ** 2, axes) / count


def output(x: Array, mean: Array, rstd: Array, gamma: Array, beta: Array) -> Array:
    """What a norm gives, in the order that all backends keep: a far mean goes first."""
    return (x - mean) * (rstd * gamma) + beta


def joined_moments(means: Array, variances: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Mean, biased variance and count over ranks, whose axis is the first and is kept."""
    counts = counts.reshape(-1, *[1] * (means.ndim - 1))
    count = counts.sum()
    mean = means[:1] + ((means - means[:1]) * counts).sum(axis=0, keepdims=True) / count
    spread = (counts * (variances + (means - mean) ** 2)).sum(axis=0, keepdims=True)
    return mean, spread / count, count


def updated(running: Array, statistic: Array, momentum: float) -> Array:
    """A running statistic after this batch."""
    return (1.0 - momentum) * running + momentum * statistic
