"""The words in which the pages' rules are written; each rule raises 161002 with its sentence."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from normgrad.aclnn.constants import (
    ACL_FORMAT_FRACTAL_NZ,
    ACL_FORMAT_FRACTAL_Z,
    ACL_FORMAT_NC1HWC0,
    ACL_FORMAT_NDC1HWC0,
    ACL_FRACTAL_Z_3D,
    dtype_name,
    format_name,
)
from normgrad.aclnn.products import Product
from normgrad.aclnn.status import INVALID, fail
from normgrad.aclnn.tensors import TensorKind
from normgrad.spec import Spec, StatisticKind

PRIVATE_FORMATS: Final = (
    ACL_FORMAT_NC1HWC0,
    ACL_FORMAT_FRACTAL_Z,
    ACL_FORMAT_FRACTAL_NZ,
    ACL_FORMAT_NDC1HWC0,
    ACL_FRACTAL_Z_3D,
)


@dataclass(frozen=True, slots=True)
class Call:
    """What a stage 1 was asked, without memory: the tensors that are given and not masked off."""

    product: Product
    saved: StatisticKind
    tensors: Mapping[str, TensorKind]
    mask: tuple[bool, ...]
    options: tuple[Any, ...]

    def given(self, *names: str) -> Iterable[tuple[str, TensorKind]]:
        """Those of the named tensors that are there, in order."""
        return [(name, self.tensors[name]) for name in names if name in self.tensors]


Rule = Callable[[Call], None]


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: there are four
class Page:
    """An operator's: its arguments, its rules in their order, the request it means to the core."""

    name: str
    tensors: tuple[str, ...]  # every tensor argument, in the order of the signature
    required: tuple[str, ...]
    outputs: tuple[str, ...]  # the last of the tensors, in the order of the mask
    rules: tuple[Rule, ...]
    request: Callable[[Call], tuple[Spec, Mapping[str, str]]]  # with the roles' aclnn names


def mask_has_three(call: Call) -> None:
    """OutputMask is of length 3."""
    if len(call.mask) != 3:
        fail(INVALID, f"outputMask must have 3 elements, got {len(call.mask)}")


def floats(*names: str) -> Rule:
    """The product's float types, for the named tensors."""

    def rule(call: Call) -> None:
        for name, kind in call.given(*names):
            one_of(name, kind, call.product.floats, f" on {call.product.title}")

    return rule


def types(names: tuple[str, ...], allowed: tuple[int, ...]) -> Rule:
    """A fixed set of types, for the named tensors."""

    def rule(call: Call) -> None:
        for name, kind in call.given(*names):
            one_of(name, kind, allowed)

    return rule


def same_type(first: str, *others: str) -> Rule:
    """All of one type, where given."""

    def rule(call: Call) -> None:
        for name, kind in call.given(*others):
            for model_name, model in call.given(first):
                if kind.dtype != model.dtype:
                    got = dtype_name(kind.dtype)
                    rule = f"must have the type of {model_name}, {dtype_name(model.dtype)}"
                    fail(INVALID, f"{name} {rule}, got {got}")

    return rule


def no_private_format(*names: str) -> Rule:
    """No blocked storage."""

    def rule(call: Call) -> None:
        for name, kind in call.given(*names):
            if kind.format in PRIVATE_FORMATS:
                got = format_name(kind.format)
                fail(INVALID, f"{name} must not have a private format, got {got}")

    return rule


def one_of(name: str, kind: TensorKind, allowed: Iterable[int], where: str = "") -> None:
    """A tensor's type is among some."""
    allowed = tuple(allowed)
    if kind.dtype not in allowed:
        listed = " or ".join(dtype_name(value) for value in allowed)
        fail(INVALID, f"{name} must be of type {listed}{where}, got {dtype_name(kind.dtype)}")
