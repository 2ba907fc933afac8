"""JAX: the formula under ``jax.jit``."""

from typing import Any

import torch

from normgrad.backends.base import missing
from normgrad.backends.reference.backend import evaluate
from normgrad.bench.contender import NotOffered, Runner
from normgrad.bench.problems import DeviceProblem


class JaxJit:
    """What XLA makes of the plain text, on the CPU."""

    name = "jax"

    def unavailable(self, device: str) -> str | None:
        """The package; on a GPU it has a stream of its own, which torch's events do not see."""
        if device != "cpu":
            return "only on the CPU: its stream cannot be timed here"
        return missing("jax")

    def prepare(self, problem: DeviceProblem) -> Runner:
        """Arrays over torch's memory where JAX takes it; waits for every result."""
        import jax

        if problem.workload.dtype == "float64":
            raise NotOffered("JAX computes in float32 unless a switch is set")
        spec, geometry = problem.spec, problem.geometry
        roles = tuple(problem.canonical)
        wanted = tuple(problem.result_dtypes)
        arrays = [jax.dlpack.from_dlpack(problem.canonical[role].contiguous()) for role in roles]
        types = dict(problem.result_dtypes)

        def backward(*operands: Any) -> Any:
            wide = {
                role: operand.astype("float32")
                for role, operand in zip(roles, operands, strict=True)
            }
            values = evaluate(spec, geometry, wide)
            return tuple(values[role].astype(types[role]) for role in wanted)

        function = jax.jit(backward)
        return Runner(
            lambda: jax.block_until_ready(function(*arrays)),
            lambda found: {
                role: torch.utils.dlpack.from_dlpack(array).reshape(geometry.shape_of(role))
                for role, array in zip(wanted, found, strict=True)
            },
        )


PEER = JaxJit()
