"""Runs the formula on host memory and rounds each result once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from normgrad import hostmem
from normgrad.backends.base import not_on_host
from normgrad.backends.reference import formula
from normgrad.geometry import Geometry
from normgrad.plan import Plan
from normgrad.spec import SLOT, Op, Spec

Values = NDArray[np.float64]


class ReferenceBackend:
    """Float64 on the host; written to be read, not to be fast."""

    name = "reference"

    def unavailable(self) -> str | None:
        """It needs NumPy alone."""
        return None

    def refuses(self, spec: Spec, geometry: Geometry) -> str | None:
        """Only memory that the host cannot read."""
        return not_on_host(spec.device)

    def configure(self, spec: Spec, geometry: Geometry, compute: str) -> tuple[object, int]:
        """Nothing to decide and no scratch memory."""
        return None, 0

    def run(
        self, plan: Plan, addresses: Sequence[int | None], workspace: int | None, stream: int
    ) -> None:
        """Read everything, compute, then write: any overlap is harmless here."""
        if not plan.geometry.size:  # sums of nothing; NumPy has no array of some empty shapes
            for role in plan.spec.wanted:
                tensor = plan.spec.present(role)
                if tensor.size:
                    hostmem.view(addresses[SLOT[role]], tensor)[...] = 0
            return
        with np.errstate(all="ignore"):  # inf and nan flow through
            operands = {
                role: _read(plan, role, addresses[SLOT[role]]) for role in plan.spec.operands
            }
            values = evaluate(plan.spec, plan.geometry, operands)
        for role in plan.spec.wanted:
            tensor = plan.spec.present(role)
            target = hostmem.view(addresses[SLOT[role]], tensor)
            target[...] = hostmem.narrow(values[role].reshape(tensor.shape), tensor.dtype)


def evaluate(
    spec: Spec, geometry: Geometry, operands: dict[str, formula.Array]
) -> dict[str, formula.Array]:
    """Every wanted result in the operands' own precision, in canonical shapes."""
    dy, x = operands["dy"], operands["x"]
    mean = operands.get("mean", 0.0)
    gamma = operands.get("gamma", 1.0)
    rstd = operands.get("rstd", 1.0)
    if spec.rstd_is == "variance":
        rstd = formula.inverse_deviation(rstd, spec.eps)
    results = {}
    if spec.op is Op.BATCH_NORM_REDUCE:
        sum_dy_xmu, sum_dy = formula.parameter_sums(dy, x - mean, geometry)
        results["sum_dy"], results["sum_dy_xmu"] = sum_dy, sum_dy_xmu
        # Without data a sum is 0, whatever the statistics: 0 * nan would not be.
        results["dgamma"] = sum_dy_xmu * rstd if geometry.size else sum_dy_xmu
        results["dbeta"] = sum_dy
        return {role: results[role] for role in spec.wanted}
    xhat = formula.normalized(x, mean, rstd)
    if spec.op is not Op.BATCH_NORM_ELEMT:
        results["dgamma"], results["dbeta"] = formula.parameter_sums(dy, xhat, geometry)
    if spec.dx is not None and geometry.size:
        inside, outside = formula.factors(rstd, gamma, geometry)
        g = dy * inside
        correction = None
        if spec.op is Op.BATCH_NORM_ELEMT:
            total = operands["counter"].sum()
            correction = formula.joined_correction(
                operands["sum_dy"], operands["sum_dy_xmu"], rstd, total
            )
        elif spec.training:
            correction = formula.own_correction(g, xhat, geometry)
        results["dx"] = formula.input_gradient(g, xhat, outside, correction)
    elif spec.dx is not None:
        results["dx"] = dy  # as empty as dx is
    return {role: results[role] for role in spec.wanted}


def _read(plan: Plan, role: str, address: int | None) -> Values:
    tensor = plan.spec.present(role)
    values = hostmem.widen(hostmem.view(address, tensor), tensor.dtype)
    return values if role == "counter" else values.reshape(plan.geometry.shape_of(role))


BACKEND = ReferenceBackend()
