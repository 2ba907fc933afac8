"""What an operator's page says, as data: parameters in order, rules, products.

Everything else about an operator is made of its `Page`: the two functions and their docstrings,
the C declarations, the docs' tables, and what `check --lib` calls.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from normgrad.aclnn.request import Request
from normgrad.aclnn.rules import Call, Rule, floats, has_channels, same_type, types
from normgrad.aclnn.status import INVALID, Status
from normgrad.core.spec import Op

# What is passed: a tensor that is read, written, or both; an array; or a number.
Kind = Literal["in", "out", "ref", "sizes", "mask", "bool", "int", "int32", "double", "text"]
TENSORS: Final = ("in", "out", "ref")
HANDLES: Final = (*TENSORS, "sizes", "mask")
C_TYPES: Final[dict[str, str]] = {
    "in": "const aclTensor*",
    "out": "aclTensor*",
    "ref": "aclTensor*",
    "sizes": "const aclIntArray*",
    "mask": "const aclBoolArray*",
    "bool": "bool",
    "int": "int64_t",
    "int32": "int32_t",
    "double": "double",
    "text": "char*",
}
# Shapes in words, and those of one problem that fits together: 2 samples, 6 channels in 3 groups,
# 4 positions or normalized elements, 3 ranks.
SHAPES: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "data": ("(N, C, ...)", (2, 6, 4)),
    "channels": ("(C,)", (6,)),
    "rows": ("(..., 1)", (2, 6, 1)),
    "tail": ("normalizedShape", (4,)),
    "groups": ("(N, group)", (2, 3)),
    "ranks": ("(ranks, C)", (3, 6)),
    "counts": ("(ranks,)", (3,)),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of stage 1.

    ``role`` is what a tensor is to the core, or which field of ``Spec`` a number is; without one it
    is for the page's own rules. ``writes`` is the result that a tensor becomes which is read first.
    ``when`` names what asks for a result: a boolean, or ``outputMask[0]``.
    """

    name: str
    kind: Kind
    about: str
    role: str = ""
    shape: str = "data"  # of a tensor: a key of `SHAPES`
    example: Any = None  # a value of anything else
    required: bool = True
    when: str = ""
    writes: str = ""
    types: tuple[int, ...] = ()  # of a tensor, where they are not the product's floats
    c_type: str = ""  # where it is not the usual one of the kind

    @property
    def declared(self) -> str:
        """The type in C."""
        return self.c_type or C_TYPES[self.kind]

    @property
    def is_tensor(self) -> bool:
        """Whether it is one tensor, read or written."""
        return self.kind in TENSORS


def operand(
    name: str,
    role: str,
    shape: str,
    about: str,
    *,
    required: bool = True,
    types: tuple[int, ...] = (),
    c_type: str = "",
) -> Parameter:
    """A tensor that is read."""
    more: dict[str, Any] = {"required": required, "types": types, "c_type": c_type}
    return Parameter(name, "in", about, role=role, shape=shape, **more)


def result(
    name: str,
    role: str,
    shape: str,
    about: str,
    *,
    when: str = "",
    required: bool = True,
    types: tuple[int, ...] = (),
    c_type: str = "",
) -> Parameter:
    """A tensor that is written."""
    more: dict[str, Any] = {"required": required, "types": types, "c_type": c_type}
    return Parameter(name, "out", about, role=role, shape=shape, when=when, **more)


def updated(
    name: str, role: str, shape: str, about: str, *, writes: str = "", required: bool = False
) -> Parameter:
    """A tensor that is read and then written."""
    return Parameter(name, "ref", about, role=role, shape=shape, writes=writes, required=required)


def option(name: str, kind: Kind, role: str, example: Any, about: str) -> Parameter:
    """A number, or an array of them."""
    return Parameter(name, kind, about, role=role, example=example, required=kind != "text")


OUTPUT_MASK: Final = option(
    "outputMask",
    "mask",
    "",
    (True, True, True),
    "Three booleans: which of the results to compute.",
)


class Asked(NamedTuple):
    """Which argument asks for a result: a boolean at a place, or one of a mask's."""

    place: int
    bit: int | None


def _unchanged(call: Call, request: Request) -> None:
    """Roles and fields are those of the parameters."""


@dataclass(frozen=True, eq=False)  # compared by identity
class Page:
    """An operator's: its name, the core's operator, its parameters in order, its rules in order.

    ``lacks`` are the products without it. ``adapt`` changes the request to the core where it does
    not follow from the roles of the parameters. With ``one_type`` all tensors without types of
    their own have one; with ``channels_last`` the format says where the channels are;
    ``needs_channels`` refuses data without any.
    """

    name: str
    op: Op
    title: str
    parameters: tuple[Parameter, ...]
    rules: tuple[Rule, ...]
    lacks: tuple[str, ...] = ("atlas-200i-500-a2", "atlas-inference")
    adapt: Callable[[Call, Request], None] = _unchanged
    one_type: bool = False
    channels_last: bool = False
    needs_channels: bool = False
    activation: str | None = None  # what follows the norm
    header: str = ""  # the file that declares it, where it is not named after the operator
    notes: str = ""
    shape_error: Status = INVALID

    @functools.cached_property
    def checks(self) -> tuple[Rule, ...]:
        """Every rule in its order: types first."""
        tensors = [one for _, one in self.tensors]
        usual = [one.name for one in tensors if not one.types]
        own = [types((one.name,), one.types) for one in tensors if one.types]
        alike = [same_type(*usual)] if self.one_type else []
        (data,) = [one.name for one in tensors if one.role == "x"]
        present = [has_channels(data)] if self.needs_channels else []
        return (floats(*usual), *own, *alike, *self.rules, *present)

    @functools.cached_property
    def pointers(self) -> tuple[tuple[int, Parameter], ...]:
        """The parameters that may be null, by place."""
        return self._places(lambda one: one.kind in HANDLES)

    @functools.cached_property
    def tensors(self) -> tuple[tuple[int, Parameter], ...]:
        """The tensors, by place."""
        return self._places(lambda one: one.is_tensor)

    @functools.cached_property
    def options(self) -> tuple[tuple[int, Parameter], ...]:
        """All else, by place."""
        return self._places(lambda one: not one.is_tensor)

    @functools.cached_property
    def asked(self) -> tuple[tuple[int, Parameter, Asked], ...]:
        """The results that are computed only if something asks for them."""
        names = [one.name for one in self.parameters]
        found = []
        for place, one in enumerate(self.parameters):
            if one.when:
                name, _, index = one.when.rstrip("]").partition("[")
                found.append((place, one, Asked(names.index(name), int(index) if index else None)))
        return tuple(found)

    @functools.cached_property
    def places(self) -> dict[str, int]:
        """Of each tensor among the tensors."""
        return {one.name: place for place, (_, one) in enumerate(self.tensors)}

    def parameter(self, name: str) -> Parameter:
        """One of them."""
        return next(one for one in self.parameters if one.name == name)

    def _places(self, keep: Callable[[Parameter], bool]) -> tuple[tuple[int, Parameter], ...]:
        return tuple((place, one) for place, one in enumerate(self.parameters) if keep(one))
