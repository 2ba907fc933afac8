"""Derivatives of the backward operators, by differentiating the core's one formula with torch.

The result can be differentiated again. Nothing here is fast: second derivatives are rare.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from normgrad.backends.reference.backend import evaluate
from normgrad.geometry import Geometry, geometry_of
from normgrad.plan import arithmetic
from normgrad.spec import DATA, RESULTS, Op, Spec
from normgrad.torch.library import Tensor, described
from normgrad.torch_arrays import TYPES


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
    named = zip(RESULTS[request.op], grads, strict=True)
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


def _request(
    request: Request, given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> tuple[Spec, Geometry]:
    """The core's description of the call; sizes may be symbolic, so nothing is cached."""
    options = dict(request.options)
    tensors = {role: described(one) for role, one in (*given.items(), *wanted.items())}
    if request.op is Op.GROUP_NORM:
        axis = options.pop("channel_axis") % given["x"].dim()
        data = [role for role in DATA if role in tensors]
        tensors |= {role: tensors[role].move_axis(axis, 1) for role in data}
    elif request.op is not Op.LAYER_NORM:
        options["channel_axis"] %= given["x"].dim()
    spec = Spec(op=request.op, **tensors, **options)  # type: ignore[arg-type]
    return spec, geometry_of(spec)


def _canonical(geometry: Geometry, role: str, one: Tensor, request: Request) -> Tensor:
    if role == "counter":
        return one
    if request.op is Op.GROUP_NORM and role in DATA:
        one = one.movedim(request.options["channel_axis"], 1)
    return one.reshape(geometry.shape_of(role))
