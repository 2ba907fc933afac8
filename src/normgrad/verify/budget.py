"""The truth and how far from it a right implementation may be. Derivation: docs/math.md.

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
from normgrad.backends.reference.backend import evaluate
from normgrad.dtypes import FLOATS
from normgrad.geometry import Geometry
from normgrad.plan import arithmetic
from normgrad.spec import Op, Spec
from normgrad.verify.problem import Problem

BLOCK = 128
LAMBDA = 6.0
# Roundings on the way to a factor: a difference and a product for xhat; gamma * dy; the two
# differences, the product with the slope and the outer factor for dx (8, a count of operations).
XHAT_ROUNDINGS = 2
DX_ROUNDINGS = 8
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
        if spec.op is Op.GROUP_NORM and role in ("dy", "x"):
            values = np.moveaxis(values, problem.case.channel_axis, 1)
        operands[role] = values if role == "counter" else values.reshape(geometry.shape_of(role))
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
        info = FLOATS[spec.present(role).dtype]
        error = unit * errors[role]
        # Rounded once into the output type; below its normal range by half a subnormal step;
        # float32 intermediates may be flushed to zero below 2**-126.
        floor = info.smallest + (2.0**-126 if compute == "float32" else 0.0)
        budgets[role] = error + info.unit_roundoff * (abs(value) + error) + floor
    return Expected(values, budgets)


def _errors(spec: Spec, geometry: Geometry, operands: dict[str, Array]) -> dict[str, Array]:
    """Error of each result in units of u, from absolute values of the terms."""
    dy = abs(operands["dy"])
    mean = operands.get("mean", 0.0)
    gamma = abs(operands.get("gamma", 1.0))
    rstd = operands.get("rstd", 1.0)
    derived = 0
    if spec.rstd_is == "variance":
        rstd = formula.inverse_deviation(rstd, spec.eps)
        derived = RSTD_ROUNDINGS
    rstd = abs(rstd)
    distance = abs(operands["x"] - mean)
    per_parameter = geometry.shape[0] * geometry.shape[3]
    in_sum = sum_factor(per_parameter)
    if spec.op is Op.BATCH_NORM_REDUCE:
        xmu, plain = formula.parameter_sums(dy, distance, geometry)
        return {
            "sum_dy": in_sum * plain,
            "sum_dy_xmu": (in_sum + 2) * xmu,
            # Without data the truth is 0 whatever the statistics, and 0 * nan is no budget.
            "dgamma": (in_sum + 3) * (xmu * rstd if geometry.size else xmu),
            "dbeta": in_sum * plain,
        }
    xhat = distance * rstd
    errors: dict[str, Array] = {}
    if spec.op is not Op.BATCH_NORM_ELEMT:
        dgamma, dbeta = formula.parameter_sums(dy, xhat, geometry)
        errors["dgamma"] = (in_sum + XHAT_ROUNDINGS + derived + 1) * dgamma
        errors["dbeta"] = in_sum * dbeta
    if spec.dx is None:
        return errors
    if not geometry.size:
        errors["dx"] = dy  # as empty as dx is
        return errors
    inside, outside = formula.factors(rstd, gamma, geometry)
    g = dy * inside
    if not spec.training:
        errors["dx"] = (DX_ROUNDINGS + 2 * derived) * g * outside
        return errors
    if spec.op is Op.BATCH_NORM_ELEMT:
        correction = formula.joined_correction(
            abs(operands["sum_dy"]), abs(operands["sum_dy_xmu"]), rstd, operands["counter"].sum()
        )
        in_correction = 3.0  # two divisions and a product
    else:
        correction = formula.own_correction(g, xhat, geometry)
        in_correction = sum_factor(geometry.count) + XHAT_ROUNDINGS + derived + 3
    size = g + correction.offset + xhat * correction.slope
    drift = in_correction * (correction.offset + xhat * correction.slope)
    errors["dx"] = ((DX_ROUNDINGS + 2 * derived) * size + drift) * outside
    return errors
