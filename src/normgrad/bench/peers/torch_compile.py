"""torch.compile on the formula itself: what Inductor makes of the plain text."""

import shutil
from typing import Any

import torch

from normgrad.arrays.torch_tensors import TYPES
from normgrad.backends.reference.activations import ACTIVATIONS, rounded
from normgrad.backends.reference.backend import evaluate, weights
from normgrad.bench.contender import Runner, by_role
from normgrad.bench.problems import DeviceProblem
from normgrad.core.dtypes import compute_dtype
from normgrad.core.geometry import Geometry
from normgrad.core.operators import DATA
from normgrad.core.spec import Spec

Tensor = torch.Tensor


class TorchCompile:
    """One compiled function for each row; the compiler sees static shapes."""

    name = "compile"

    def unavailable(self, device: str) -> str | None:
        """Inductor needs a C++ compiler on the CPU, Triton and a C compiler on the GPU."""
        if device == "cpu":
            return None if shutil.which("g++") else "torch.compile needs g++ for the CPU"
        try:
            import triton  # noqa: F401
        except ImportError:
            return "torch.compile needs triton for the GPU"
        return None if shutil.which("gcc") or shutil.which("cc") else "Triton needs a C compiler"

    def prepare(self, problem: DeviceProblem) -> Runner:
        """Compiled by the first call."""
        library: Any = torch
        library._dynamo.reset()  # else the ninth shape would run uncompiled
        function = library.compile(_function(problem), dynamic=False)
        operands = [problem.operands[role] for role in problem.operands]
        return Runner(lambda: function(*operands), lambda arrays: by_role(problem, arrays))


def _function(problem: DeviceProblem) -> Any:
    spec, geometry = problem.spec, problem.geometry
    roles = tuple(problem.operands)
    results = problem.workload.case.results
    wide = TYPES[compute_dtype((problem.workload.dtype,))]
    shape = problem.workload.case.shape
    shapes = {role: geometry.shape_of(role) for role in roles}
    types = {role: TYPES[name] for role, name in problem.result_dtypes.items()}

    def backward(*arrays: Tensor) -> tuple[Tensor | None, ...]:
        operands = {
            role: array.to(wide)
            if role in ("counter", "mask")
            else array.reshape(shapes[role]).to(wide)
            for role, array in zip(roles, arrays, strict=True)
        }
        if spec.operator.forward:
            values = _normalized(spec, geometry, operands)
        else:
            values = evaluate(spec, geometry, operands)
        made: list[Tensor | None] = []
        for role in results:
            if role not in types or role == "mask":  # nobody else has one
                made.append(None)
            elif role in DATA:
                made.append(values[role].to(types[role]).reshape(shape))
            else:
                made.append(values[role].to(types[role]).flatten())
        return tuple(made)

    return backward


def _normalized(spec: Spec, geometry: Geometry, operands: dict[str, Tensor]) -> dict[str, Tensor]:
    """A forward pass in the words that Inductor knows best."""
    x = operands["x"]
    if "residual" in operands:
        x = rounded(x + operands["residual"], spec.x.dtype).to(x.dtype)
    if spec.operator.statistics:
        mean, rstd = operands["mean"], operands["rstd"]
        variance = rstd
    else:
        axes = geometry.statistic_axes
        if spec.operator.centred:
            variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
        else:
            variance, mean = x.square().mean(axes, keepdim=True), torch.zeros((), device=x.device)
        rstd = (variance + spec.eps).rsqrt()
    values = {"sum": x, "mean": mean, "rstd": variance if spec.rstd_is == "variance" else rstd}
    if "y" in spec.wanted:
        centred = x - mean if spec.operator.centred else x
        y = centred * rstd
        y = y * weights(operands["gamma"], geometry) if "gamma" in operands else y
        y = y + weights(operands["beta"], geometry) if "beta" in operands else y
        y = y + operands["shortcut"] if "shortcut" in operands else y
        if spec.activation is not None:
            seen = rounded(y, spec.x.dtype)
            y = ACTIVATIONS[spec.activation].value(y, seen, spec.negative_slope)
        values["y"] = y
    return values


PEER = TorchCompile()
