"""Who takes part: something that can be called again and again on one problem."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from normgrad.bench.problems import DeviceProblem
from normgrad.forward import Normalized, Statistics
from normgrad.functional import Gradients
from normgrad.verify.foreign import NotOffered, members
from normgrad.verify.run import bound_call

__all__ = ["NotOffered", "Peer", "Runner", "by_role", "ours"]

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Runner:
    """One call, and how to read what it returned as results by role."""

    run: Callable[[], Any]
    read: Callable[[Any], dict[str, Tensor]]

    def results(self) -> dict[str, Tensor]:
        """Call once."""
        return self.read(self.run())


class Peer(Protocol):
    """Somebody else's implementation."""

    name: str

    def unavailable(self, device: str) -> str | None:
        """Why it cannot take part on this device, or None."""

    def prepare(self, problem: DeviceProblem) -> Runner:
        """Its call for a problem; raises ``NotOffered`` where it has none."""
        ...


def by_role(problem: DeviceProblem, arrays: Any) -> dict[str, Tensor]:
    """Results in the order of the operator, without those that were not wanted."""
    roles = problem.workload.case.results
    listed = arrays if isinstance(arrays, (tuple, list)) else (arrays,)
    if isinstance(listed, Gradients):  # with a place for the gradient of a shortcut
        listed = listed[: len(roles)]
    elif isinstance(listed, Normalized):
        listed = members(listed, roles)
    elif isinstance(listed, Statistics):  # the last one is no array
        listed = listed[: len(roles)]
    named = zip(roles, listed, strict=True)
    return {role: array for role, array in named if role in problem.result_dtypes}


def ours(problem: DeviceProblem, backend: str, reuse: bool) -> Runner:
    """The functional API, into given results or into new ones."""
    out = problem.poisoned() if reuse else None
    run = bound_call(problem.host_problem, problem.operands, out, backend)
    return Runner(run, lambda arrays: by_role(problem, arrays))
