"""What an eager torch program calls around a norm, where ours is one call."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional

from normgrad.backends.reference.backend import opened_by
from normgrad.bench.contender import NotOffered
from normgrad.bench.problems import DeviceProblem
from normgrad.verify.cases import Case

Tensor = torch.Tensor
aten = torch.ops.aten

_VALUES: Final[dict[str, Callable[[Tensor, float], Tensor]]] = {
    "relu": lambda z, s: functional.relu(z),
    "relu6": lambda z, s: functional.relu6(z),
    "leaky_relu": functional.leaky_relu,
    "silu": lambda z, s: functional.silu(z),
    "gelu": lambda z, s: functional.gelu(z),
    "gelu_tanh": lambda z, s: functional.gelu(z, approximate="tanh"),
    "hardswish": lambda z, s: functional.hardswish(z),
}
_GRADIENTS: Final[dict[str, Callable[[Tensor, Tensor, float], Tensor]]] = {
    "relu": lambda dy, z, s: aten.threshold_backward(dy, z, 0),
    "relu6": lambda dy, z, s: aten.hardtanh_backward(dy, z, 0, 6),
    "leaky_relu": lambda dy, z, s: aten.leaky_relu_backward(dy, z, s, False),
    "silu": lambda dy, z, s: aten.silu_backward(dy, z),
    "gelu": lambda dy, z, s: aten.gelu_backward(dy, z),
    "gelu_tanh": lambda dy, z, s: aten.gelu_backward(dy, z, approximate="tanh"),
    "hardswish": lambda dy, z, s: aten.hardswish_backward(dy, z),
}


def around_forward(problem: DeviceProblem, norm: Callable[[Tensor], Any]) -> Callable[[], Any]:
    """A norm of x as a function, with what comes before and after it."""
    case, operands = problem.workload.case, problem.operands
    x, residual, shortcut = (operands.get(role) for role in ("x", "residual", "shortcut"))
    assert x is not None

    def call() -> tuple[Any, ...]:
        total = x if residual is None else x + residual
        made = norm(total)
        y, *rest = made if isinstance(made, tuple) else (made,)
        if shortcut is not None:
            y = y + shortcut
        if case.activation is not None:
            y = _VALUES[case.activation](y, case.negative_slope)
        if case.shortcut == "mask":  # nobody else has one: y is kept in its place
            return (y, *rest, None)
        return (y, *rest) if residual is None else (y, *rest, total)

    return call


def around_backward(problem: DeviceProblem, norm: Callable[[Tensor], Any]) -> Callable[[], Any]:
    """A norm's gradients as a function of dy; what an activation saw was kept."""
    case, operands = problem.workload.case, problem.operands
    dy, dsum = operands["dy"], operands.get("dsum")
    z = _before_activation(problem) if case.activation is not None else None

    def call() -> Any:
        d = dy if z is None else _GRADIENTS[case.activation or ""](dy, z, case.negative_slope)
        made = norm(d)
        if dsum is not None:
            made = (made[0] + dsum, *made[1:])
        return made if case.shortcut == "none" else (*made, d)

    return call


def refuse(case: Case) -> None:
    """Forms that are no few operators around a norm."""
    if case.each_sample:
        raise NotOffered("a modulated norm is many operators of torch's")


def _before_activation(problem: DeviceProblem) -> Tensor:
    spec, geometry, of = problem.spec, problem.geometry, problem.operands
    if "mask" in of:
        bits = opened_by(spec, geometry, of["mask"].to(of["x"].dtype))
        return torch.empty_like(of["x"]).copy_(bits.reshape(spec.x.shape))
    shaped = {role: of[role].reshape(geometry.shape_of(role)) for role in of}
    mean, rstd = shaped.get("mean", 0.0), shaped["rstd"]
    z = (shaped["x"] - mean) * (rstd * shaped.get("gamma", 1.0)) + shaped.get("beta", 0.0)
    z = z + shaped.get("shortcut", 0.0)
    return torch.empty_like(of["x"]).copy_(z.reshape(spec.x.shape))
