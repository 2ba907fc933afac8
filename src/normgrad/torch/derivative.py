"""Derivatives of the backward operators, by differentiating the core's one formula with torch.

The result can be differentiated again. Nothing here is fast: second derivatives are rare.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from normgrad.arrays.torch_tensors import TYPES
from normgrad.backends.reference.backend import evaluate
from normgrad.core.geometry import Geometry, geometry_of
from normgrad.core.operators import OPERATORS
from normgrad.core.plan import arithmetic
from normgrad.core.spec import DATA, RESULTS, ROLES, Op, Spec
from normgrad.torch.library import Tensor, described, empty_dense


@dataclass(frozen=True, slots=True)
class Request:
    """Which operator, with which options."""

    op: Op
    options: Mapping[str, Any] = field(default_factory=dict)


def differentiate(
    request: Request,
    operands: Mapping[str, Tensor | None],
    grads: Sequence[Tensor | None],
    needed: Sequence[str],
) -> dict[str, Tensor | None]:
    """The gradient with respect to each needed operand, from gradients of the results."""
    given = {role: one for role, one in operands.items() if one is not None}
    targets = [role for role in needed if role in given]
    named = zip(RESULTS[request.op], grads, strict=False)
    wanted = {role: grad for role, grad in named if grad is not None}
    if not wanted or not targets:
        return {}
    spec, geometry = _request(request, given, wanted)
    compute = TYPES[arithmetic(spec)]
    pairs = [
        (role, _canonical(geometry, role, grad, request).to(compute))
        for role, grad in wanted.items()
    ]

    def results(*some: Tensor) -> tuple[Tensor, ...]:
        full = given | dict(zip(targets, some, strict=True))
        values = evaluate(
            spec,
            geometry,
            {
                role: _canonical(geometry, role, one, request).to(compute)
                for role, one in full.items()
            },
        )
        return tuple(values[role].expand_as(grad) for role, grad in pairs)

    # Not torch.autograd.grad: inside torch.func's transforms it knows tensors of one level only.
    pull = torch.func.vjp(results, *(given[role] for role in targets))[1]
    return dict(zip(targets, pull(tuple(grad for _, grad in pairs)), strict=True))


def by_formula(
    op: Op, arrays: Sequence[Tensor | None], settings: Sequence[Any], wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """A backward operator's results in torch's own arithmetic, for what no kernel takes.

    Arrays and settings are those of `dispatch.compute`.
    """
    operands = {role: one for role, one in zip(ROLES, arrays, strict=False) if one is not None}
    options = dict(zip(OPERATORS[op].settings, settings, strict=False))
    request = Request(op, options)
    x, gamma = operands["x"], operands.get("gamma", operands["x"])
    roles = [role for role, want in zip(RESULTS[op], wanted, strict=False) if want]
    like = {role: x if role in DATA else gamma for role in roles}
    spec, geometry = _request(request, operands, like)
    compute = TYPES[arithmetic(spec)]
    values = evaluate(
        spec,
        geometry,
        {
            role: _canonical(geometry, role, one, request).to(compute)
            for role, one in operands.items()
        },
    )
    return tuple(
        _as_result(values[role], like[role], x, role, request) if want else None
        for role, want in zip(RESULTS[op], wanted, strict=False)
    )


def _as_result(value: Tensor, like: Tensor, x: Tensor, role: str, request: Request) -> Tensor:
    if role not in DATA:
        axis = request.options.get("channel_axis", 1)
        own = request.options.get("normalized_shape") or (x.shape[axis],)
        return value.reshape(own if like is x else like.shape).to(like.dtype)
    out = empty_dense(x)
    target = out
    if request.op is Op.GROUP_NORM_BACKWARD:
        target = out.movedim(request.options["channel_axis"], 1)
    target.copy_(value.reshape(target.shape))
    return out


def _request(
    request: Request, given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> tuple[Spec, Geometry]:
    """The core's description of the call; sizes may be symbolic, so nothing is cached."""
    options = dict(request.options)
    tensors = {role: described(one) for role, one in (*given.items(), *wanted.items())}
    if request.op is Op.GROUP_NORM_BACKWARD:
        axis = options.pop("channel_axis") % given["x"].dim()
        data = [role for role in DATA if role in tensors]
        tensors |= {role: tensors[role].move_axis(axis, 1) for role in data}
    elif "channel_axis" in options:
        options["channel_axis"] %= given["x"].dim()
    spec = Spec(op=request.op, **tensors, **options)  # type: ignore[arg-type]
    return spec, geometry_of(spec)


def _canonical(geometry: Geometry, role: str, one: Tensor, request: Request) -> Tensor:
    if role in ("counter", "mask"):
        return one
    if request.op is Op.GROUP_NORM_BACKWARD and role in DATA:
        one = one.movedim(request.options["channel_axis"], 1)
    return one.reshape(geometry.shape_of(role))
