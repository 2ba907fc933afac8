"""From what stage 1 was asked to the core's request."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from normgrad.aclnn.constants import ACL_FORMAT_NDHWC, ACL_FORMAT_NHWC
from normgrad.core.operators import SLOT, Op
from normgrad.core.spec import Spec, TensorSpec
from normgrad.device.chain import Step
from normgrad.device.constants import repeated

if TYPE_CHECKING:
    from normgrad.aclnn.rules import Call
    from normgrad.aclnn.table import Page
    from normgrad.aclnn.tensors import TensorKind

CHANNELS_LAST: Final = (ACL_FORMAT_NHWC, ACL_FORMAT_NDHWC)
# Batch norm in inference reads the running statistics in the place of the saved ones.
INFERENCE: Final = {
    "running_mean": "mean",
    "running_var": "rstd",
    "mean": "save_mean",
    "rstd": "save_invstd",
}


@dataclass(slots=True)
class Request:
    """The core's request before it is frozen: an operator, and the fields of its ``Spec``.

    ``names`` are the page's names of roles and fields. ``unread`` are tensors that are validated
    only, by role; ``constants`` are numbers that stand for vectors which were not given. Where one
    plan does not do, ``steps`` are made instead, and ``copies`` are their scratch tensors that are
    results.
    """

    op: Op
    fields: dict[str, Any]
    names: dict[str, str]
    unread: dict[str, TensorSpec] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    copies: dict[str, tuple[str, TensorSpec]] = field(default_factory=dict)

    def default(self, role: str, value: float, count: int) -> None:
        """A number in the place of each element of a vector, where it was not given."""
        if self.fields[role] is None:
            self.fields[role] = repeated(count)
            self.constants[role] = value

    def set_aside(self, *roles: str) -> None:
        """Tensors that this call does not read; they are validated."""
        for role in roles:
            tensor = self.fields.pop(role)
            if tensor is not None:
                self.unread[role] = tensor

    def move(self, roles: Mapping[str, str]) -> None:
        """Give tensors other roles; with one that the core does not know a tensor is unread."""
        taken = {role: (self.fields.pop(role, None), self.names.pop(role, role)) for role in roles}
        for old, new in roles.items():
            tensor, name = taken[old]
            self.names[new] = name
            if new in SLOT:
                self.fields[new] = tensor
            elif tensor is not None:
                self.unread[new] = tensor

    def touched(self, spec: Spec) -> tuple[list[str], list[str]]:
        """The roles of the caller's tensors that are read or written, and of those the latter."""
        steps = self.steps or [Step(spec, {})]
        read = [_roles_outside(step, step.spec.operands) for step in steps]
        made = [_roles_outside(step, (*step.spec.wanted, *step.spec.updated)) for step in steps]
        written = [*itertools.chain(*made), *(role for role, _ in self.copies.values())]
        roles = dict.fromkeys([*itertools.chain(*read), *written])
        return [role for role in roles if role not in self.constants], written


def _roles_outside(step: Step, roles: tuple[str, ...]) -> list[str]:
    """Those that are no scratch tensors, as the whole chain calls them."""
    return [step.roles.get(role, role) for role in roles if role not in step.scratch]


def spec_of(page: "Page", call: "Call") -> tuple[Spec, Request]:
    """The frozen request, and what it was made from."""
    request = Request(page.op, {"activation": page.activation}, {})
    for parameter in page.parameters:
        if not parameter.role:
            continue
        if parameter.is_tensor:
            kind = call.tensors.get(parameter.name)
            value: Any = None if kind is None else kind.tensor
            if parameter.writes:
                request.names[parameter.writes] = parameter.name
                request.fields[parameter.writes] = value
        else:
            value = call.options[parameter.name]
        request.names[parameter.role] = parameter.name
        request.fields[parameter.role] = value
    data = call.tensors[request.names["x"]]
    if page.channels_last:
        request.fields["channel_axis"] = _channel_axis(data)
    page.adapt(call, request)
    if request.steps:
        return request.steps[-1].spec, request
    unread = tuple(request.unread.items())
    return Spec(op=request.op, **request.fields, unread=unread, device=data.device), request


def _channel_axis(data: "TensorKind") -> int:
    """The last one for NHWC and NDHWC, at any rank as in the vendor's library; else axis 1."""
    last = len(data.tensor.shape) - 1
    return last if data.format in CHANNELS_LAST and last > 0 else 1
