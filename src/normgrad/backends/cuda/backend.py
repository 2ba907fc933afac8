"""The CUDA backend: plans in pure Python, kernels in Triton, memory from whoever calls."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from normgrad.backends.base import broken, fused_form, missing, unknown_to_fast
from normgrad.backends.cuda.device import INTERPRETER, device_of
from normgrad.backends.cuda.plan import forms, strategies
from normgrad.backends.cuda.plan.program import Program
from normgrad.backends.cuda.run.exchange_areas import ExchangeAreas, areas_of
from normgrad.backends.cuda.run.generated_call import LaunchSite, write
from normgrad.backends.cuda.run.launch import (
    Aligned,
    interpreting,
    keeps_words,
    run_program,
    unsupported_triton,
)
from normgrad.calls.generated_call import CallSource
from normgrad.core.geometry import Geometry
from normgrad.core.plan import Plan
from normgrad.core.spec import Spec, device_index


class CudaBackend:
    """NVIDIA GPUs through Triton."""

    name = "cuda"
    interpreted_areas: ExchangeAreas | None = None  # for tests: on a GPU the default stream decides

    def unavailable(self) -> str | None:
        """It needs torch, Triton and a GPU, or Triton's interpreter."""
        reason = missing("torch") or missing("triton") or broken("torch")
        if reason is None and not interpreting():
            import torch

            if not torch.cuda.is_available():
                return "torch sees no NVIDIA GPU here"
        reason = reason or broken("triton")
        return reason if reason or interpreting() else unsupported_triton()

    def refuses(self, spec: Spec, geometry: Geometry) -> str | None:
        """Memory that is not on a GPU, too many statistics, and operators to come."""
        if not spec.device.startswith("cuda") and not interpreting():
            return f"it computes on NVIDIA GPUs, the arrays are on {spec.device}"
        return (
            unknown_to_fast(spec.op, forms.TAKEN)
            or fused_form(spec, forms.FUSED)
            or strategies.too_many(geometry)
        )

    def configure(self, spec: Spec, geometry: Geometry, compute: str) -> tuple[object, int]:
        """The kernel plan for the request's device."""
        device = INTERPRETER if interpreting() else device_of(device_index(spec.device))
        program = strategies.make_program(spec, geometry, compute, device)
        return program, program.workspace_bytes

    def run(
        self, plan: Plan, addresses: Sequence[int | None], workspace: int | None, stream: int
    ) -> None:
        """Enqueue the kernels on the caller's stream; nothing waits."""
        program = plan.config
        assert isinstance(program, Program)
        if interpreting():
            from normgrad.backends.cuda.run.interpret import interpret

            interpret(program, plan.spec, addresses, workspace, self.interpreted_areas)
            return
        index, bases = device_index(plan.spec.device), [*addresses, workspace]
        if _current_device()() == index:
            run_program(program, index, bases, stream)
        else:
            import torch

            with torch.cuda.device(index):
                run_program(program, index, bases, stream)

    def generate_call(
        self,
        plan: Plan,
        source: Callable[[], CallSource],
        scratch: Callable[[int, int], int],
    ) -> Callable[..., tuple[Any, ...]] | None:
        """A call on plain tensors, written out; None until the general one has compiled it."""
        program, index = plan.config, device_index(plan.spec.device)
        if interpreting() or plan.idle:
            return None
        import torch

        assert isinstance(program, Program)
        in_areas = keeps_words(program)
        steps = program.prepared.get((index, Aligned.ALL, in_areas))
        if steps is None or not all(step.arguments for step in steps):
            return None
        stream = torch._C._cuda_getCurrentRawStream
        site = LaunchSite(index, _current_device(), stream, scratch, areas_of)
        sizes = (plan.workspace_bytes, program.words if in_areas else 0)
        return write(source(), steps, program.slots, sizes, site)


@functools.cache
def _current_device() -> Callable[[], int]:
    """Torch's own, less its look at whether CUDA is up: there are tensors on it."""
    import torch

    return torch._C._cuda_getDevice


BACKEND = CudaBackend()
