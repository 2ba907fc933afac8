"""The CPU backend as plans see it. Numba is imported with the first plan."""

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from normgrad.backends.base import Compiled, fused_form, not_on_host, unknown_to_fast, unusable
from normgrad.backends.cpu.compiling import COMPILING
from normgrad.calls.generated_call import CallSource
from normgrad.core.geometry import Geometry
from normgrad.core.operators import OPERATORS, Op
from normgrad.core.spec import Spec

if TYPE_CHECKING:
    from normgrad.core.plan import Plan


# Forms of fused requests that its kernels take.
_FUSED: tuple[str, ...] = ("activation", "residual", "shortcut", "weights of each sample")
_OTHERS = (Op.RMS_NORM_BACKWARD, *(op for op in Op if OPERATORS[op].forward))


class CpuBackend:
    """Vector kernels compiled by Numba, on host memory, on all cores."""

    name = "cpu"

    def unavailable(self) -> str | None:
        """Only without its compiler, which the first plan needs anyway."""
        if sys.byteorder != "little":
            return "it knows little-endian machines only"
        return unusable("numba")

    def refuses(self, spec: Spec, geometry: Geometry) -> str | None:
        """Memory that the host cannot read, and operators to come."""
        return (
            not_on_host(spec.device)
            or unknown_to_fast(spec.op, _OTHERS)
            or fused_form(spec, _FUSED)
        )

    def configure(self, spec: Spec, geometry: Geometry, compute: str) -> tuple[object, int]:
        """Partition, phases and workspace; compiles what the request needs and was not cached."""
        from normgrad.backends.cpu.plan.program import program

        COMPILING.request = f"{spec.op} {spec.x.dtype}"
        return program(spec, geometry, compute)

    def run(
        self, plan: "Plan", addresses: Sequence[int | None], workspace: int | None, stream: int
    ) -> None:
        """Through the compiled entry, with as many threads as the size is worth."""
        _engine().run(plan, addresses, workspace)

    def generate_call(
        self,
        plan: "Plan",
        source: Callable[[], CallSource],
        scratch: Callable[[int, int], int],
    ) -> Callable[..., tuple[Any, ...]] | None:
        """A call on plain tensors, written out; None where scratch memory is not kept."""
        made: Callable[..., tuple[Any, ...]] | None
        made = _engine().generate_call(plan, source)
        return made

    def compiled(self, plan: "Plan") -> Compiled | None:
        """The entry for callers outside Python; none where kernels are interpreted."""
        offer: Compiled | None = _engine().compiled(plan)
        return offer


@functools.cache
def _engine() -> ModuleType:
    return importlib.import_module("normgrad.backends.cpu.engine")


BACKEND = CpuBackend()
