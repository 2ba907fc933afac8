"""torch.compile on the formula itself: what Inductor makes of the plain text."""

import math
import shutil
from typing import Any

import torch

from normgrad.backends.reference.backend import evaluate
from normgrad.bench.contender import Runner, by_role
from normgrad.bench.problems import DeviceProblem
from normgrad.dtypes import compute_dtype
from normgrad.spec import RESULTS
from normgrad.torch_arrays import TYPES

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
    results = RESULTS[spec.op]
    wide = TYPES[compute_dtype((problem.workload.dtype,))]
    shape = problem.workload.case.shape
    shapes = {role: geometry.shape_of(role) for role in roles}
    types = {role: TYPES[name] for role, name in problem.result_dtypes.items()}
    parameters = math.prod(geometry.parameter_shape)

    def backward(*arrays: Tensor) -> tuple[Tensor | None, ...]:
        operands = {
            role: array.to(wide) if role == "counter" else array.reshape(shapes[role]).to(wide)
            for role, array in zip(roles, arrays, strict=True)
        }
        values = evaluate(spec, geometry, operands)
        made: list[Tensor | None] = []
        for role in results:
            if role not in types:
                made.append(None)
            elif role == "dx":
                made.append(values[role].to(types[role]).reshape(shape))
            else:
                made.append(values[role].to(types[role]).reshape(parameters))
        return tuple(made)

    return backward


PEER = TorchCompile()
