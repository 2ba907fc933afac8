"""The words in which rules about tensors are written; each raises its status with a sentence."""

from collections.abc import Callable, Mapping
from typing import Final

from normgrad.core.spec import TensorSpec
from normgrad.infiniop.status import BAD_DTYPE, BAD_SHAPE, BAD_STRIDES, fail

Given = Mapping[str, TensorSpec]
Rule = Callable[[Given], None]
FLOATS: Final = ("float16", "float32", "bfloat16")


def one_of(names: tuple[str, ...], allowed: tuple[str, ...]) -> Rule:
    """A fixed set of types."""

    def rule(given: Given) -> None:
        for name in names:
            if name in given and given[name].dtype not in allowed:
                listed = ", ".join(allowed)
                fail(BAD_DTYPE, f"{name} must be of type {listed}, got {given[name].dtype}")

    return rule


def same_type(model: str, *names: str) -> Rule:
    """All of one type, where given."""

    def rule(given: Given) -> None:
        for name in names:
            if name in given and given[name].dtype != given[model].dtype:
                rule = f"must have the type of {model}, {given[model].dtype}"
                fail(BAD_DTYPE, f"{name} {rule}, got {given[name].dtype}")

    return rule


def axes(names: tuple[str, ...], counts: tuple[int, ...], words: str) -> Rule:
    """A number of axes."""

    def rule(given: Given) -> None:
        for name in names:
            if name in given and len(given[name].shape) not in counts:
                fail(BAD_SHAPE, f"{name} must have {words}, got shape {given[name].shape}")

    return rule


def contiguous(*names: str) -> Rule:
    """No gaps, row-major. Axes of size 1 may have any stride."""

    def rule(given: Given) -> None:
        for name in names:
            tensor = given[name]
            expected = TensorSpec.contiguous(tensor.shape, tensor.dtype).strides
            steps = zip(tensor.shape, tensor.strides, expected, strict=True)
            if tensor.size and any(size != 1 and step != right for size, step, right in steps):
                rule = f"must be contiguous, with strides {expected}"
                fail(BAD_STRIDES, f"{name} {rule}, got {tensor.strides}")

    return rule


def last_stride_1(*names: str) -> Rule:
    """The last axis has no gaps."""

    def rule(given: Given) -> None:
        for name in names:
            if name in given and given[name].strides[-1] != 1:
                fail(BAD_STRIDES, f"{name} must have last stride 1, got {given[name].strides}")

    return rule
