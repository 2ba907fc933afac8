"""Numbers for a case: off-centre x, dy independent of it, in the memory layout that it names."""

import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrad.arrays import host_memory
from normgrad.core.dtypes import compute_dtype
from normgrad.core.geometry import Geometry, geometry_of
from normgrad.core.operators import DATA, OPERATORS, RUNNING
from normgrad.core.spec import Spec, TensorSpec, result_dtype
from normgrad.core.validate import mask_shape, result_shape
from normgrad.verify.cases import LAYOUTS, Case, Layout

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class HostArray:
    """A strided array in host memory with its type by name (bfloat16 as its bits)."""

    array: NDArray[Any]
    dtype: str

    @property
    def tensor(self) -> TensorSpec:
        """Shape, strides and type."""
        strides = tuple(step // self.array.itemsize for step in self.array.strides)
        return TensorSpec(self.array.shape, strides, self.dtype)

    @property
    def values(self) -> Values:
        """The numbers, exactly."""
        return host_memory.widen(self.array, self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A case with numbers: operands by role, and the types of its results.

    ``unread`` are statistics that batch norm takes but does not read, by their public names.
    """

    case: Case
    dtype: str
    operands: dict[str, HostArray]
    result_dtypes: dict[str, str] = field(default_factory=dict)
    unread: dict[str, HostArray] = field(default_factory=dict)

    @property
    def spec(self) -> Spec:
        """The request, with contiguous results."""
        return request(self.case, self._tensors(), self.result_dtypes)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The roles that the case asks for."""
        return tuple(self.result_dtypes)

    @property
    def measured(self) -> tuple[str, ...]:
        """The roles that are looked at after a call: results, and operands written in place."""
        return (*self.wanted, *self.spec.updated)

    @property
    def given(self) -> dict[str, HostArray]:
        """Everything that a call hands over."""
        return self.operands | self.unread

    @property
    def geometry(self) -> Geometry:
        """Canonical sizes."""
        return geometry_of(request(self.case, self._tensors(), {}))

    def _tensors(self) -> dict[str, TensorSpec]:
        return {role: array.tensor for role, array in self.operands.items()}


def request(case: Case, tensors: dict[str, TensorSpec], result_dtypes: dict[str, str]) -> Spec:
    """A case on operands of these shapes, wherever they live, with contiguous results."""
    tensors = dict(tensors)
    axis = case.channel_axis
    operator = OPERATORS[case.op]
    if operator.axes == "groups":
        tensors |= {role: one.move_axis(axis, 1) for role, one in tensors.items() if role in DATA}
        axis = 1
    bare = Spec(
        op=case.op,
        training=case.training,
        rstd_is=case.statistic,
        momentum=case.momentum,
        biased=case.biased,
        variances_are=case.variances_are,
        eps=case.eps,
        channel_axis=axis,
        num_groups=case.num_groups,
        weight_offset=case.weight_offset,
        activation=case.activation,
        negative_slope=case.negative_slope,
        normalized_shape=case.normalized_shape if operator.axes == "rows" else (),
        **tensors,  # type: ignore[arg-type]
    )
    results = {
        role: TensorSpec.contiguous(result_shape(bare, role), dtype)
        for role, dtype in result_dtypes.items()
    }
    return bare.with_tensors(results)


def make_problem(case: Case, dtype: str, seed: int = 0) -> Problem:
    """Random numbers for a case; the same seed gives the same problem."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{case.name}/{dtype}".encode())])
    operator = OPERATORS[case.op]
    data = _data(case, dtype, rng)
    operands = {role: _lay_out(one, dtype, case.layout, role) for role, one in data.items()}
    statistics_dtype = case.statistics_dtype or dtype

    def vector(values: Values, dtype: str = statistics_dtype) -> HostArray:
        return _lay_out(values, dtype, case.vectors, "vector")

    mean, rstd = _statistics(case, operands["x"].values, rng)
    statistics = {"mean": mean, "rstd": rstd}
    operands |= {role: vector(statistics[role]) for role in operator.statistics}
    geometry = Problem(case, dtype, operands).geometry
    parameters: tuple[int, ...] = (geometry.parameters,)
    if operator.axes == "rows":
        parameters = case.normalized_shape
    if case.each_sample:
        ones = (1,) * (len(case.shape) - case.normalized - 1) if operator.axes == "rows" else ()
        parameters = (case.shape[0], *ones, *parameters)
    if case.weight and "gamma" in operator.takes:
        gamma = 1.0 + 0.5 * rng.standard_normal(parameters)
        operands["gamma"] = vector(gamma, dtype if case.own_weight else statistics_dtype)
    if case.bias and "beta" in operator.takes and (operator.forward or case.activation):
        beta = rng.standard_normal(parameters)
        operands["beta"] = vector(beta, dtype if case.own_weight else statistics_dtype)
    if case.running:
        others = _foreign_statistics(parameters, rng)
        operands |= {role: vector(one) for role, one in zip(RUNNING, others, strict=True)}
    count = max(geometry.count, 1)
    if operator.sums == "given" and "sum_dy" in operator.takes:
        sums = case.sums_dtype or compute_dtype((dtype,))
        operands["sum_dy"] = vector(count * rng.standard_normal(parameters), sums)
        operands["sum_dy_xmu"] = vector(count * rng.standard_normal(parameters), sums)
    if "counter" in operator.takes:
        ranks = case.shape[0] if "variances" in operator.takes else case.ranks
        counts = rng.integers(1, 2 * count + 1, ranks).astype(case.counts_dtype)
        operands["counter"] = HostArray(counts, case.counts_dtype)
    if case.shortcut == "mask" and not operator.forward:  # of a forward pass on other data
        shape = mask_shape(request(case, {role: one.tensor for role, one in operands.items()}, {}))
        operands["mask"] = HostArray(rng.integers(0, 256, shape, np.uint8), "uint8")
    unread: dict[str, HostArray] = {}
    if case.both_statistics:
        names = ("running_mean", "running_var") if case.training else ("save_mean", "save_invstd")
        others = _foreign_statistics(mean.shape, rng)
        unread = {name: vector(values) for name, values in zip(names, others, strict=True)}
    return Problem(case, dtype, operands, _result_dtypes(case, dtype, operands), unread)


def _data(case: Case, dtype: str, rng: np.random.Generator) -> dict[str, Values]:
    """The operands in the shape of the data."""
    operator = OPERATORS[case.op]
    # Of a far centre the nearest number of the type, so that elements of no spread are alike.
    x = centre_of(case, dtype) + case.spread * rng.standard_normal(case.shape)
    data = {"x": x}
    if "dy" in operator.takes:
        data = {"dy": rng.standard_normal(case.shape) + 0.25, "x": x}
        if case.poison is not None:
            data["dy"].flat[11] = case.poison
    if "variances" in operator.takes:
        data["variances"] = 0.5 + rng.random(case.shape)
        if case.variances_are == "invstd":
            data["variances"] = 1.0 / np.sqrt(data["variances"] + case.eps)
    if case.poison is not None:
        x.flat[7] = case.poison
    for role, there in (
        ("residual", case.residual),
        ("dsum", case.residual),
        ("shortcut", case.shortcut == "values" or (operator.forward and case.shortcut == "mask")),
    ):
        if there and role in operator.takes:
            data[role] = rng.standard_normal(case.shape)
    return data


def centre_of(case: Case, dtype: str) -> float:
    """Far from 0, so that a formula that subtracts late loses its digits: 100, deviation 3.

    In 16 bits the spacing at 100 is .06 (float16) and .5 (bfloat16), so nearer there.
    """
    return {"float16": 20.0, "bfloat16": 5.0}.get(dtype, case.centre)


def _result_dtypes(case: Case, dtype: str, operands: dict[str, HostArray]) -> dict[str, str]:
    gamma = operands.get("gamma")
    return wanted_dtypes(case, dtype, dtype if gamma is None else gamma.dtype)


def wanted_dtypes(case: Case, data: str, parameters: str) -> dict[str, str]:
    """The types of a case's wanted results."""
    wanted = zip(case.results, case.wanted, strict=True)
    compute = compute_dtype((data,))
    return {role: result_dtype(role, data, parameters, compute) for role, want in wanted if want}


def _statistics(case: Case, x: Values, rng: np.random.Generator) -> tuple[Values, Values]:
    """Mean and the second statistic as the case wants it."""
    kind = OPERATORS[case.op].axes
    if kind == "rows":
        axes = tuple(range(len(case.shape) - case.normalized, len(case.shape)))
        data = x
    elif kind == "groups":
        moved = np.moveaxis(x, case.channel_axis, 1)
        depth = moved.shape[1] // case.num_groups
        data = moved.reshape(moved.shape[0], case.num_groups, depth * math.prod(moved.shape[2:]))
        axes = (2,)
    else:
        axes = tuple(axis for axis in range(x.ndim) if axis != case.channel_axis)
        data = x
    if case.own_statistics and data.size and case.poison is None:
        mean = data.mean(axis=axes, keepdims=kind == "rows")
        variance = data.var(axis=axes, keepdims=kind == "rows")
        if not OPERATORS[case.op].centred:
            variance = np.mean(data * data, axis=axes, keepdims=kind == "rows")
    else:
        shape = np.zeros(data.shape).sum(axis=axes, keepdims=kind == "rows").shape
        mean, variance = _foreign_statistics(shape, rng)
    rstd = variance if case.statistic == "variance" else 1.0 / np.sqrt(variance + case.eps)
    return mean, rstd


def _foreign_statistics(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Values, Values]:
    """A mean and a variance that do not belong to the data."""
    return 3.0 + rng.standard_normal(shape), 0.5 + rng.random(shape)


def _lay_out(values: Values, dtype: str, layout: Layout, role: str) -> HostArray:
    """The values in memory as a layout says."""
    dense = host_memory.narrow(values, dtype)
    if layout == "mixed":  # x and dy lie differently
        other: Layout = "channels-last" if dense.ndim > 2 else "transposed"
        layout = "contiguous" if role == "x" else other
    if layout == "broadcast":  # an expanded dy: stride 0 along the first axis
        if role == "x":
            return HostArray(dense, dtype)
        return HostArray(np.broadcast_to(dense[:1].copy(), dense.shape), dtype)
    order, steps, shift = tuple(range(dense.ndim)), 1, 0
    if layout == "channels-last":
        order = (0, *range(2, dense.ndim), 1)
    elif layout == "transposed":
        order = tuple(reversed(range(dense.ndim)))
    elif layout == "sliced":
        steps = 2
    elif layout == "flipped":
        steps = -1
    elif layout == "offset":  # starts at no multiple of a vector
        shift = 3
    elif layout != "contiguous":
        msg = f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}"
        raise ValueError(msg)
    ordered = [dense.shape[axis] for axis in order]
    storage = np.zeros(math.prod(size * abs(steps) for size in ordered) + shift, dense.dtype)
    wide = storage[shift:].reshape([size * abs(steps) for size in ordered])
    view = wide[tuple(slice(None, None, steps) for _ in ordered)].transpose(np.argsort(order))
    view[...] = dense
    return HostArray(view, dtype)
