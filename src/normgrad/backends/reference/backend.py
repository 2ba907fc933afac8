"""Runs the formula on host memory and rounds each result once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from normgrad.arrays import host_memory
from normgrad.backends.base import not_on_host
from normgrad.backends.reference import activations, formula
from normgrad.core.geometry import Geometry
from normgrad.core.plan import Plan
from normgrad.core.spec import SLOT, Spec
from normgrad.core.validate import mask_shape

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
                    empty = host_memory.narrow(np.array(plan.spec.of_nothing(role)), tensor.dtype)
                    host_memory.view(addresses[SLOT[role]], tensor)[...] = empty
            return
        with np.errstate(all="ignore"):  # inf and nan flow through
            operands = {
                role: _read(plan, role, addresses[SLOT[role]]) for role in plan.spec.operands
            }
            values = evaluate(plan.spec, plan.geometry, operands)
        for role in (*plan.spec.wanted, *plan.spec.updated):
            tensor = plan.spec.present(role)
            target = host_memory.view(addresses[SLOT[role]], tensor)
            target[...] = host_memory.narrow(values[role].reshape(tensor.shape), tensor.dtype)


def evaluate(
    spec: Spec, geometry: Geometry, operands: dict[str, formula.Array]
) -> dict[str, formula.Array]:
    """Every wanted result in the operands' own precision, in canonical shapes."""
    if spec.operator.forward:
        results = _normalize(spec, geometry, operands)
        return {role: results[role] for role in (*spec.wanted, *spec.updated)}
    x = operands["x"]
    mean = operands.get("mean", 0.0)
    gamma = weights(operands.get("gamma", 1.0), geometry) + spec.weight_offset
    rstd = operands.get("rstd", 1.0)
    if spec.rstd_is == "variance":
        rstd = formula.inverse_deviation(rstd, spec.eps)
    dy = operands["dy"]
    if spec.activation is not None and geometry.size:
        dy = dy * slope(
            spec, geometry, operands, before_activation(operands, x, mean, rstd, gamma, geometry)
        )
    results = {"dshortcut": dy}
    if "sum_dy" in spec.results:
        sum_dy_xmu, sum_dy = formula.parameter_sums(dy, x - mean, geometry)
        results["sum_dy"], results["sum_dy_xmu"] = sum_dy, sum_dy_xmu
        # Without data a sum is 0, whatever the statistics: 0 * nan would not be.
        results["dgamma"] = sum_dy_xmu * rstd if geometry.size else sum_dy_xmu
        results["dbeta"] = sum_dy
        return {role: results[role] for role in spec.wanted}
    xhat = formula.normalized(x, mean, rstd)
    if spec.operator.sums != "given":
        results["dgamma"], results["dbeta"] = formula.parameter_sums(dy, xhat, geometry)
    if spec.dx is not None and geometry.size:
        weight, factor = formula.factors(rstd, gamma, geometry)
        g = dy * weight
        correction = None
        if spec.operator.sums == "given":
            total = operands["counter"].sum()
            correction = formula.joined_correction(
                operands["sum_dy"], operands["sum_dy_xmu"], rstd, total
            )
        elif spec.training:
            correction = formula.own_correction(g, xhat, geometry, centred=spec.operator.centred)
        results["dx"] = formula.input_gradient(g, xhat, factor, correction)
        results["dx"] = results["dx"] + operands.get("dsum", 0.0)
    elif spec.dx is not None:
        results["dx"] = dy  # as empty as dx is
    return {role: results[role] for role in spec.wanted}


def weights(parameter: formula.Array, geometry: Geometry) -> formula.Array:
    """A parameter as it meets the data: each sample's for all of its rows."""
    if isinstance(parameter, float) or geometry.samples == 1:
        return parameter
    rows = geometry.outer // geometry.samples
    size = (geometry.samples, rows, geometry.groups, geometry.channels, 1)
    apart = parameter.reshape(size[0], 1, *size[2:])
    known = isinstance(apart, np.ndarray)
    each = np.broadcast_to(apart, size) if known else apart.broadcast_to(size)
    return each.reshape(-1, *size[2:])


def before_activation(
    operands: dict[str, formula.Array],
    x: formula.Array,
    mean: formula.Array,
    rstd: formula.Array,
    gamma: formula.Array,
    geometry: Geometry,
) -> formula.Array:
    """What an activation gets: the norm, and the shortcut."""
    z = formula.output(x, mean, rstd, gamma, weights(operands.get("beta", 0.0), geometry))
    return z + operands.get("shortcut", 0.0)


def slope(
    spec: Spec, geometry: Geometry, operands: dict[str, formula.Array], z: formula.Array
) -> formula.Array:
    """That of the activation, from the mask where there is one."""
    if "mask" in operands:
        return opened_by(spec, geometry, operands["mask"])
    assert spec.activation is not None
    seen = activations.rounded(z, spec.x.dtype)
    return activations.ACTIVATIONS[spec.activation].slope(z, seen, spec.negative_slope)


def opened_by(spec: Spec, geometry: Geometry, mask: formula.Array) -> formula.Array:
    """1 where a mask has a bit, in the shape of the data."""
    outer, groups, channels, inner = geometry.shape
    if len(mask_shape(spec)) == 3:
        return activations.unpacked(mask, inner).reshape(geometry.shape)
    rows = activations.unpacked(mask, channels).reshape(outer, inner, channels)
    return rows.swapaxes(1, 2).reshape(outer, groups, channels, inner)


def packed_mask(spec: Spec, geometry: Geometry, opened: formula.Array) -> formula.Array:
    """The bits of a mask in the bytes of its shape."""
    outer, _, channels, inner = geometry.shape
    opened = opened.reshape(outer, channels, inner)
    if len(mask_shape(spec)) == 2:
        opened = opened.swapaxes(1, 2).reshape(outer * inner, channels)
    return activations.packed(opened)


def _normalize(
    spec: Spec, geometry: Geometry, operands: dict[str, formula.Array]
) -> dict[str, formula.Array]:
    """Results of a forward operator, and the updated statistics."""
    x, count = operands["x"], float(geometry.count)
    if "residual" in operands:
        x = activations.rounded(x + operands["residual"], spec.x.dtype)
    kind = spec.rstd_is
    if spec.variances is not None:
        variances, counts = operands["variances"], operands["counter"]
        if spec.variances_are == "invstd":
            variances = formula.variance_of(variances, spec.eps)
        mean, variance, count = formula.joined_moments(x, variances, counts)
    elif spec.operator.statistics:
        mean, variance = operands["mean"], operands["rstd"]
    else:
        mean, variance = formula.moments(x, geometry, centred=spec.operator.centred)
    given = bool(spec.operator.statistics) and kind == "invstd"
    rstd = variance if given else formula.inverse_deviation(variance, spec.eps)
    results = {"mean": mean, "rstd": variance if kind == "variance" else rstd, "sum": x}
    if spec.y is not None or spec.mask is not None:
        gamma = weights(operands.get("gamma", 1.0), geometry) + spec.weight_offset
        z = results["y"] = before_activation(operands, x, mean, rstd, gamma, geometry)
        if spec.activation is not None:
            seen = activations.rounded(z, spec.x.dtype)
            act = activations.ACTIVATIONS[spec.activation]
            results["y"] = act.value(z, seen, spec.negative_slope)
            if spec.mask is not None:
                results["mask"] = packed_mask(spec, geometry, slope(spec, geometry, operands, z))
    unbiased = variance
    if count != 1 and not spec.biased:
        unbiased = variance * (count / (count - 1.0))
    for role, statistic in (("running_mean", mean), ("running_var", unbiased)):
        if role in operands:
            share = spec.momentum if geometry.size else 0.0
            results[role] = formula.updated(operands[role], statistic, share)
    return results


def _read(plan: Plan, role: str, address: int | None) -> Values:
    tensor = plan.spec.present(role)
    values = host_memory.widen(host_memory.view(address, tensor), tensor.dtype)
    if role in ("counter", "mask"):
        return values
    return values.reshape(plan.geometry.shape_of(role))


BACKEND = ReferenceBackend()
