"""The truth and how far from it a right implementation may be. See docs/explanation/math.md.

Every operand is exact; each operation in the compute type adds a relative error of at most u.
Sums may run sequentially over blocks of 128 terms whose results are joined pairwise (or better):
by Higham and Mary's probabilistic analysis the error then stays within lambda * sqrt(h) * u * sum
of absolute values, h the height of that tree, but for a chance of 2 h exp(-lambda^2 / 2).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgrad.backends.reference import formula
from normgrad.backends.reference.activations import rounded
from normgrad.backends.reference.backend import (
    before_activation,
    evaluate,
    packed_mask,
    weights,
)
from normgrad.core.dtypes import FLOATS
from normgrad.core.geometry import Geometry
from normgrad.core.operators import DATA
from normgrad.core.plan import arithmetic
from normgrad.core.spec import Spec
from normgrad.verify import activations
from normgrad.verify.problem import Problem

BLOCK = 128
LAMBDA = 6.0
# Roundings on the way to a factor: a difference and a product for xhat; gamma * dy; the two
# differences, the product with mean_dt and the factor of all for dx (8, a count of operations).
XHAT_ROUNDINGS = 2
DX_ROUNDINGS = 8
# Roundings on the way to y: rstd * gamma, the product with x - mean, the sum with beta, and the
# difference itself.
Y_ROUNDINGS = 4
# rstd from a variance: a sum, a root, a division, and one more for approximate roots.
RSTD_ROUNDINGS = 4

Array = Any


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """Float64 results in canonical shapes, and the absolute error that each element may have."""

    values: dict[str, Array]
    budgets: dict[str, Array]


def sum_factor(terms: int) -> float:
    """The error of a sum over u times its sum of absolute values."""
    height = min(terms, BLOCK) + math.log2(max(terms / BLOCK, 1.0))
    return LAMBDA * math.sqrt(height)


def expected(problem: Problem) -> Expected:
    """Truth and budgets of a problem in host memory."""
    geometry = problem.geometry
    spec = problem.spec
    operands: dict[str, Array] = {}
    for role, host in problem.operands.items():
        values = host.values
        if spec.operator.axes == "groups" and role in DATA:
            values = np.moveaxis(values, problem.case.channel_axis, 1)
        kept = role in ("counter", "mask")
        operands[role] = values if kept else values.reshape(geometry.shape_of(role))
    with np.errstate(all="ignore"):
        return expected_of(spec, geometry, operands)


def expected_of(spec: Spec, geometry: Geometry, operands: dict[str, Array]) -> Expected:
    """The same for operands already widened to float64, of NumPy or of torch."""
    values = evaluate(spec, geometry, operands)
    compute = arithmetic(spec)
    # The truth itself is computed in float64: for float64 kernels both sides err.
    unit = FLOATS[compute].unit_roundoff * (2 if compute == "float64" else 1)
    errors = _errors(spec, geometry, operands)
    budgets = {}
    for role, value in values.items():
        if role == "mask":  # half a bit, and those that are within the error of 0
            budgets[role] = errors[role] + 0.5
            continue
        info = FLOATS[spec.present(role).dtype]
        error = unit * errors[role]
        # Rounded once into the output type; below its normal range by half a subnormal step;
        # float32 intermediates may be flushed to zero below 2**-126.
        floor = info.smallest + (2.0**-126 if compute == "float32" else 0.0)
        budgets[role] = error + info.unit_roundoff * (abs(value) + error) + floor
    return Expected(values, budgets)


def _errors(spec: Spec, geometry: Geometry, operands: dict[str, Array]) -> dict[str, Array]:
    """Error of each result in units of u, from absolute values of the terms."""
    if spec.operator.forward:
        return _forward_errors(spec, geometry, operands)
    mean = operands.get("mean", 0.0)
    gamma = abs(weights(operands.get("gamma", 1.0), geometry) + spec.weight_offset)
    rstd = operands.get("rstd", 1.0)
    derived = 0
    if spec.rstd_is == "variance":
        rstd = formula.inverse_deviation(rstd, spec.eps)
        derived = RSTD_ROUNDINGS
    rstd = abs(rstd)
    distance = abs(operands["x"] - mean)
    per_parameter = geometry.shape[0] // geometry.samples * geometry.shape[3]
    in_sum = sum_factor(per_parameter)
    dy, in_dy = activations.gradient(spec, geometry, operands, derived)
    if "sum_dy" in spec.results:
        xmu, plain = formula.parameter_sums(dy, distance, geometry)
        more_xmu, more = formula.parameter_sums(in_dy, distance, geometry)
        in_xmu = (in_sum + 2) * xmu + more_xmu
        return {
            "sum_dy": in_sum * plain + more,
            "sum_dy_xmu": in_xmu,
            # Without data the truth is 0 whatever the statistics, and 0 * nan is no budget.
            "dgamma": (in_xmu + (1 + derived) * xmu) * rstd if geometry.size else in_xmu,
            "dbeta": in_sum * plain + more,
        }
    xhat = distance * rstd
    errors: dict[str, Array] = {"dshortcut": in_dy}
    if spec.operator.sums != "given":
        dgamma, dbeta = formula.parameter_sums(dy, xhat, geometry)
        more_gamma, more_beta = formula.parameter_sums(in_dy, xhat, geometry)
        errors["dgamma"] = (in_sum + XHAT_ROUNDINGS + derived + 1) * dgamma + more_gamma
        errors["dbeta"] = in_sum * dbeta + more_beta
    if spec.dx is None:
        return errors
    if not geometry.size:
        errors["dx"] = dy  # as empty as dx is
        return errors
    weight, factor = formula.factors(rstd, gamma, geometry)
    g, in_g = dy * weight, in_dy * weight
    if not spec.training:
        errors["dx"] = ((DX_ROUNDINGS + 2 * derived) * g + in_g) * factor
        return errors
    if spec.operator.sums == "given":
        correction = formula.joined_correction(
            abs(operands["sum_dy"]), abs(operands["sum_dy_xmu"]), rstd, operands["counter"].sum()
        )
        in_correction = 3.0 + derived  # two divisions and a product
    else:
        correction = formula.own_correction(g, xhat, geometry, centred=spec.operator.centred)
        in_correction = sum_factor(geometry.count) + XHAT_ROUNDINGS + derived + 3
    size = g + correction.mean_d + xhat * correction.mean_dt
    drift = in_correction * (correction.mean_d + xhat * correction.mean_dt)
    if spec.activation is not None:  # what comes in is off by in_g: dx is linear in it
        drift = drift + in_g
        if spec.operator.sums != "given":
            off = formula.own_correction(in_g, xhat, geometry, centred=spec.operator.centred)
            drift = drift + off.mean_d + xhat * off.mean_dt
    errors["dx"] = ((DX_ROUNDINGS + 2 * derived) * size + drift) * factor
    if "dsum" in operands:  # one more sum
        errors["dx"] = errors["dx"] + size * factor + abs(operands["dsum"])
    return errors


def _forward_errors(spec: Spec, geometry: Geometry, operands: dict[str, Array]) -> dict[str, Array]:
    """The same for a forward operator.

    A mean is off by a rounding of its own size twice (a shift taken away and added again) and by
    the sum of distances from it; where all elements are alike it is exact. A variance sums squares
    of distances from a mean that is so far off, which counts by its square alone.
    """
    x, count = operands["x"], max(geometry.count, 1)
    if "residual" in operands:
        x = rounded(x + operands["residual"], spec.x.dtype)
    unit = FLOATS[arithmetic(spec)].unit_roundoff
    derived = RSTD_ROUNDINGS if spec.rstd_is == "variance" or "rstd" not in operands else 0
    if spec.operator.statistics:
        mean, in_mean = operands["mean"], 0.0
        rstd, in_rstd = operands["rstd"], float(derived)
        if spec.rstd_is == "variance":
            rstd = formula.inverse_deviation(rstd, spec.eps)
        in_variance = 0.0
    else:
        in_given: Array = 0.0
        if spec.variances is not None:
            mean, variance, distance, in_given = _joined(spec, operands)
        else:
            mean, variance = formula.moments(x, geometry, centred=spec.operator.centred)
            distance = formula.total(abs(x - mean), geometry.statistic_axes) / count
        in_sum = sum_factor(count) + 4
        in_mean = in_sum * distance + 2 * abs(mean) * (distance > 0)
        if not spec.operator.centred:
            in_mean = 0.0
        in_variance = in_sum * variance + unit * in_mean**2 + in_given
        rstd = formula.inverse_deviation(variance, spec.eps)
        # d rstd / rstd is half of d variance / (variance + eps); 1 - eps * rstd**2 is the share of
        # the variance, also where it is infinite.
        share = 1.0 - spec.eps * rstd**2
        in_rstd = derived + 0.5 * (in_sum * share + (unit * in_mean**2 + in_given) * rstd**2)
    # The sum of two numbers of 16 or 32 bits is rounded once, in any wider type too.
    errors: dict[str, Array] = {"mean": in_mean, "rstd": in_rstd * rstd, "sum": 0.0 * x}
    if spec.rstd_is == "variance":
        errors["rstd"] = in_variance
    if spec.y is not None or spec.mask is not None:
        signed = weights(operands.get("gamma", 1.0), geometry) + spec.weight_offset
        gamma = abs(signed)
        beta = abs(weights(operands.get("beta", 0.0), geometry))
        in_distance = (in_rstd + Y_ROUNDINGS) * abs(x - mean) + in_mean
        in_z = in_distance * rstd * gamma + beta * (abs(x - mean) > 0)
        if spec.activation is not None or "shortcut" in operands:
            z = before_activation(operands, x, mean, rstd, signed, geometry)
            in_z = in_z + abs(z) + beta
            errors["y"] = activations.value(spec, z, in_z)
            if spec.mask is not None:
                near = activations.near(spec, z, in_z, 0.0)
                errors["mask"] = packed_mask(spec, geometry, near)
        else:
            errors["y"] = in_z
    if spec.updated:
        counts = operands.get("counter")
        joined = geometry.count if counts is None else float(counts.sum())
        errors |= _updates(spec, operands, (mean, in_mean), (variance, in_variance), joined)
    return errors


def _joined(spec: Spec, operands: dict[str, Array]) -> tuple[Array, Array, Array, Array]:
    """Of ranks: mean and variance, the mean distance from it, the error of their variances."""
    means, counts, variances = (operands[role] for role in ("x", "counter", "variances"))
    if spec.variances_are == "invstd":
        variances = formula.variance_of(variances, spec.eps)
    mean, variance, total = formula.joined_moments(means, variances, counts)
    shares = counts.reshape(-1, *[1] * (means.ndim - 1)) / total
    distance = (abs(means - mean) * shares).sum(axis=0, keepdims=True)
    if spec.variances_are == "variance":
        return mean, variance, distance, 0.0
    # A square, a division and a difference.
    error = 3.0 * (variances + spec.eps) + abs(variances)
    return mean, variance, distance, (error * shares).sum(axis=0, keepdims=True)


def _updates(
    spec: Spec,
    operands: dict[str, Array],
    mean: tuple[Array, Array],
    variance: tuple[Array, Array],
    count: float,
) -> dict[str, Array]:
    """Of running statistics, from the values and errors of those of these data."""
    unbiased = count / (count - 1) if count > 1 and not spec.biased else 1.0
    share, errors = abs(spec.momentum), {}
    for role, of, error in (
        ("running_mean", abs(mean[0]), mean[1]),
        ("running_var", variance[0] * unbiased, variance[1] * unbiased),
    ):
        if role in operands:
            kept = abs((1.0 - spec.momentum) * operands[role])
            errors[role] = share * error + 4 * (share * of + kept)
    return errors
