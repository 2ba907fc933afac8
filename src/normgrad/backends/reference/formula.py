"""The gradients, once, for all five operators.

Written for arrays of any library whose operators and ``sum(axis=, keepdims=)`` are NumPy's: the
reference backend runs it on NumPy, the judge of GPU results on torch, both in float64. Arrays have
the four axes of ``Geometry`` or broadcast against them.
"""

from typing import Any, NamedTuple

from normgrad.geometry import Geometry

Array = Any


class Correction(NamedTuple):
    """What batch statistics take away from dy: ``offset + xhat * slope``."""

    offset: Array
    slope: Array


def inverse_deviation(variance: Array, eps: float) -> Array:
    """``rstd`` where the second statistic is a variance."""
    # Arrays of NumPy and of torch take a root here: a power of -0.5 would give -inf a deviation.
    return 1.0 / (variance + eps) ** 0.5


def normalized(x: Array, mean: Array, rstd: Array) -> Array:
    """Xhat, what the forward pass multiplied by gamma."""
    return (x - mean) * rstd


def parameter_sums(dy: Array, xhat: Array, geometry: Geometry) -> tuple[Array, Array]:
    """``dgamma`` and ``dbeta``, with the summed axes kept."""
    axes = geometry.parameter_axes
    return (dy * xhat).sum(axis=axes, keepdims=True), dy.sum(axis=axes, keepdims=True)


def own_correction(g: Array, xhat: Array, geometry: Geometry) -> Correction:
    """The correction when the statistics came from these very data."""
    axes = geometry.statistic_axes
    return Correction(
        g.sum(axis=axes, keepdims=True) / geometry.count,
        (g * xhat).sum(axis=axes, keepdims=True) / geometry.count,
    )


def joined_correction(
    sum_dy: Array, sum_dy_xmu: Array, rstd: Array, count: Array | float
) -> Correction:
    """The correction from sums over all ranks, ``count`` elements together."""
    return Correction(sum_dy / count, sum_dy_xmu / count * rstd)


def factors(rstd: Array, gamma: Array, geometry: Geometry) -> tuple[Array | float, Array]:
    """Gamma goes outside the sums of a statistic where it is constant over them, else inside.

    Returns the factor of dy inside and the factor of the whole difference.
    """
    return (1.0, rstd * gamma) if geometry.statistic == "channel" else (gamma, rstd)


def input_gradient(g: Array, xhat: Array, outside: Array, correction: Correction | None) -> Array:
    """``dx``; without a correction the statistics were constants (inference)."""
    if correction is None:
        return g * outside
    return (g - correction.offset - xhat * correction.slope) * outside
