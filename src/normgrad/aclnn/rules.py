"""The words in which the pages' rules are written; each rule raises 161002 with its sentence."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from normgrad.aclnn.constants import (
    ACL_FORMAT_FRACTAL_NZ,
    ACL_FORMAT_FRACTAL_Z,
    ACL_FORMAT_HWCN,
    ACL_FORMAT_NC1HWC0,
    ACL_FORMAT_NDC1HWC0,
    ACL_FORMAT_NDHWC,
    ACL_FORMAT_NHWC,
    ACL_FRACTAL_Z_3D,
)
from normgrad.aclnn.dtypes import dtype_name, format_name
from normgrad.aclnn.products import Product
from normgrad.aclnn.status import INVALID, Status, fail
from normgrad.aclnn.tensors import TensorKind
from normgrad.core.dtypes import FLOATS
from normgrad.core.spec import StatisticKind

PRIVATE_FORMATS: Final = (
    ACL_FORMAT_NC1HWC0,
    ACL_FORMAT_FRACTAL_Z,
    ACL_FORMAT_FRACTAL_NZ,
    ACL_FORMAT_NDC1HWC0,
    ACL_FRACTAL_Z_3D,
)
CHANNELS_ELSEWHERE: Final = (ACL_FORMAT_NHWC, ACL_FORMAT_NDHWC, ACL_FORMAT_HWCN)


@dataclass(frozen=True, slots=True)
class Call:
    """What a stage 1 was asked, without memory: the tensors that are given and wanted."""

    product: Product
    saved: StatisticKind
    tensors: Mapping[str, TensorKind]
    options: Mapping[str, Any]
    shape_error: Status = INVALID

    def given(self, *names: str) -> Iterable[tuple[str, TensorKind]]:
        """Those of the named tensors that are there, in order."""
        return [(name, self.tensors[name]) for name in names if name in self.tensors]


Rule = Callable[[Call], None]


def mask_has_three(call: Call) -> None:
    """OutputMask is of length 3."""
    mask = call.options["outputMask"]
    if len(mask) != 3:
        fail(INVALID, f"outputMask must have 3 elements, got {len(mask)}")


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


def same_format(first: str, *others: str) -> Rule:
    """All of one format."""

    def rule(call: Call) -> None:
        for model_name, model in call.given(first):
            for name, kind in call.given(*others):
                if kind.format != model.format:
                    rule = f"must have the format of {model_name}, {format_name(model.format)}"
                    fail(INVALID, f"{name} {rule}, got {format_name(kind.format)}")

    return rule


def channels_first(*names: str) -> Rule:
    """No blocked storage, and no format whose channels are not axis 1."""

    def rule(call: Call) -> None:
        for name, kind in call.given(*names):
            if kind.format in (*PRIVATE_FORMATS, *CHANNELS_ELSEWHERE):
                rule = "must have its channels at axis 1 and no private format"
                fail(INVALID, f"{name} {rule}, got {format_name(kind.format)}")

    return rule


def has_channels(name: str) -> Rule:
    """Axis 1 is not empty."""

    def rule(call: Call) -> None:
        shape = call.tensors[name].tensor.shape
        if len(shape) > 1 and shape[1] == 0:
            fail(INVALID, f"{name} must have at least one channel, got shape {shape}")

    return rule


def gamma_has_axes(call: Call) -> None:
    """One at least; that they are the data's last ones is the core's rule."""
    shape = call.tensors["gamma"].tensor.shape
    if not shape:
        fail(call.shape_error, f"gamma must have at least one axis, got shape {shape}")


def statistics_of_rows(data: str, *names: str) -> Rule:
    """The data's shape with ones for what gamma covers."""

    def rule(call: Call) -> None:
        shape = call.tensors[data].tensor.shape
        covered = len(call.tensors["gamma"].tensor.shape)
        expected = (*shape[: max(len(shape) - covered, 0)], *[1] * covered)
        for name, kind in call.given(*names):
            if kind.tensor.shape != expected:
                rule = f"must have the shape {expected}, {data}'s with ones for the axes of gamma"
                fail(call.shape_error, f"{name} {rule}, got shape {kind.tensor.shape}")

    return rule


def finite(name: str) -> Rule:
    """A number that float32 has, in which it is used."""

    def rule(call: Call) -> None:
        value = call.options[name]
        if not abs(value) <= FLOATS["float32"].largest:
            fail(INVALID, f"{name} must be a finite float32, got {value}")

    return rule


def positive(name: str) -> Rule:
    """A number above 0."""

    def rule(call: Call) -> None:
        value = call.options[name]
        if not value > 0:
            fail(INVALID, f"{name} must be positive, got {value}")

    return rule


def one_of(name: str, kind: TensorKind, allowed: Iterable[int], where: str = "") -> None:
    """A tensor's type is among some."""
    allowed = tuple(allowed)
    if kind.dtype not in allowed:
        listed = " or ".join(dtype_name(value) for value in allowed)
        fail(INVALID, f"{name} must be of type {listed}{where}, got {dtype_name(kind.dtype)}")
