"""The request: which operator, on tensors of which shapes, strides and types. No data."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, Self, get_args

from normgrad.core.dtypes import compute_dtype
from normgrad.core.operators import (
    DATA,
    OPERATORS,
    RESULTS,
    ROLES,
    SLOT,
    STATISTICS,
    Op,
    Operator,
)

__all__ = ["DATA", "RESULTS", "ROLES", "SLOT", "Op", "Spec", "TensorSpec"]

StatisticKind = Literal["invstd", "variance"]
STATISTIC_KINDS: Final[tuple[str, ...]] = get_args(StatisticKind)


class TensorSpec(NamedTuple):
    """A strided view without its address. Strides count elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def contiguous(cls, shape: tuple[int, ...], dtype: str) -> Self:
        """A row-major tensor."""
        return cls(shape, row_major(shape), dtype)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def move_axis(self, source: int, target: int) -> "TensorSpec":
        """The same elements with one axis moved; the address stays."""
        if source == target:
            return self
        order = [axis for axis in range(len(self.shape)) if axis != source]
        order.insert(target, source)
        return TensorSpec(
            tuple(self.shape[axis] for axis in order),
            tuple(self.strides[axis] for axis in order),
            self.dtype,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One request. A result that is None is not wanted; an operand that is None has its default.

    ``mean`` and ``rstd`` are the statistics in use, operands or results; ``rstd_is`` says how to
    read or write the second. ``variances`` are those of ranks whose means are ``x``, or as
    ``variances_are`` says. What
    an operator takes but does not read (statistics of the other mode, layer norm's bias) is in
    ``unread``: it is validated only. ``residual`` is added before the norm, ``sum`` what that gives
    and ``dsum`` its gradient; ``shortcut`` is added after it, before the activation, ``mask`` has a
    bit for each element, 1 where ReLU is open. ``extents`` are the sizes (samples, channels,
    positions) that group norm reads its data as, where they are not those of the shape.
    """

    op: Op
    x: TensorSpec
    dy: TensorSpec | None = None
    mean: TensorSpec | None = None
    rstd: TensorSpec | None = None
    gamma: TensorSpec | None = None
    sum_dy: TensorSpec | None = None
    sum_dy_xmu: TensorSpec | None = None
    counter: TensorSpec | None = None
    dx: TensorSpec | None = None
    dgamma: TensorSpec | None = None
    dbeta: TensorSpec | None = None
    beta: TensorSpec | None = None
    y: TensorSpec | None = None
    running_mean: TensorSpec | None = None
    running_var: TensorSpec | None = None
    variances: TensorSpec | None = None
    residual: TensorSpec | None = None
    sum: TensorSpec | None = None
    dsum: TensorSpec | None = None
    shortcut: TensorSpec | None = None
    mask: TensorSpec | None = None
    dshortcut: TensorSpec | None = None
    unread: tuple[tuple[str, TensorSpec], ...] = ()
    training: bool = True
    rstd_is: StatisticKind = "invstd"
    eps: float = 0.0
    channel_axis: int = 1
    normalized_shape: tuple[int, ...] = ()
    num_groups: int = 1
    variances_are: StatisticKind = "variance"
    momentum: float = 0.1  # the share of these data in the running statistics
    biased: bool = False  # the running variance is updated by the biased one
    weight_offset: float = 0.0  # what is added to gamma: 1 where a model stores gamma - 1
    activation: str | None = None  # what follows the norm
    negative_slope: float = 0.01  # leaky ReLU's; of swish the scale
    extents: tuple[int, int, int] | None = None
    device: str = "cpu"

    def tensor(self, role: str) -> TensorSpec | None:
        """The tensor in one slot."""
        tensor: TensorSpec | None = getattr(self, role)
        return tensor

    def present(self, role: str) -> TensorSpec:
        """The tensor in a slot that has one."""
        tensor = self.tensor(role)
        assert tensor is not None
        return tensor

    def with_tensors(self, tensors: Mapping[str, TensorSpec | None]) -> "Spec":
        """The same request with other tensors in some slots."""
        return replace(self, **tensors)  # type: ignore[arg-type]

    @property
    def operator(self) -> Operator:
        """The row of the operators' table."""
        return OPERATORS[self.op]

    @property
    def data_in(self) -> tuple[str, ...]:
        """The operands in the shape of the data that are given."""
        return tuple(
            role for role in self.operator.takes if role in DATA and self.tensor(role) is not None
        )

    @property
    def samples(self) -> int:
        """How many sets of parameters there are: one, or one for each sample."""
        for role in ("gamma", "beta"):
            tensor = self.tensor(role)
            if tensor is not None and has_sample_axis(self, tensor):
                return (self.extents or self.x.shape)[0]
        return 1

    @property
    def results(self) -> tuple[str, ...]:
        """The roles that the operator would write, wanted or not."""
        return RESULTS[self.op]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The roles that will be written."""
        return tuple(role for role in self.results if self.tensor(role) is not None)

    @property
    def updated(self) -> tuple[str, ...]:
        """The operands that will be written in place."""
        return tuple(role for role in self.operator.updates if self.tensor(role) is not None)

    def of_nothing(self, role: str) -> float:
        """What a result is where there are no data: a sum of nothing, a variance of 0."""
        if role != "rstd" or self.rstd_is == "variance":
            return 0.0
        return 1.0 / math.sqrt(self.eps) if self.eps else math.inf

    @property
    def operands(self) -> tuple[str, ...]:
        """The roles that are given and read."""
        return tuple(
            role for role in ROLES if role not in self.results and self.tensor(role) is not None
        )


def has_sample_axis(spec: Spec, parameter: TensorSpec) -> bool:
    """Whether gamma or beta is one of a sample: a modulated norm."""
    if spec.operator.axes == "rows":
        return len(parameter.shape) == len(spec.x.shape) > len(spec.normalized_shape)
    if spec.operator.axes == "channels" or spec.extents is not None:
        return False
    return len(parameter.shape) >= 2 and parameter.size != spec.x.shape[1]


def result_dtype(role: str, data: str, parameters: str, compute: str) -> str:
    """The type of a new result: sums have that of the arithmetic, statistics the wider of ours."""
    if role in DATA:
        return data
    if role == "mask":
        return "uint8"
    if role in STATISTICS:
        return compute_dtype((data,))
    return compute if role in ("sum_dy", "sum_dy_xmu") else parameters


@functools.cache
def device_index(device: str) -> int:
    """The number of a GPU; the first one where its name has none."""
    return int(device.partition(":")[2] or 0)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor of this shape."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def channels_together(tensor: TensorSpec, axis: int) -> bool:
    """Whether the channels of one position lie beside each other in memory, as in channels last."""
    steps = [abs(step) for step, size in zip(tensor.strides, tensor.shape, strict=True) if size > 1]
    return tensor.shape[axis] > 1 and abs(tensor.strides[axis]) <= min(steps)


def dense_like(tensor: TensorSpec) -> TensorSpec:
    """A dense tensor of the same shape whose axes lie in memory in the same order.

    A channels-last tensor gives a channels-last one; a slice or a flipped view gives one without
    gaps and with positive strides; axes of stride 0 come out as the slowest ones do in row-major
    order.
    """
    axes = sorted(range(len(tensor.shape)), key=lambda axis: (abs(tensor.strides[axis]), -axis))
    if any(tensor.strides[axis] == 0 and tensor.shape[axis] > 1 for axis in axes):
        return TensorSpec.contiguous(tensor.shape, tensor.dtype)
    strides = [0] * len(tensor.shape)
    step = 1
    for axis in axes:
        strides[axis] = step
        step *= max(tensor.shape[axis], 1)
    # What is dense already keeps every stride, those of axes of size 1 too: torch reads the
    # memory format from them.
    if all(
        stride == own or (size == 1 and own > 0)
        for size, stride, own in zip(tensor.shape, strides, tensor.strides, strict=True)
    ):
        return tensor
    return TensorSpec(tensor.shape, tuple(strides), tensor.dtype)
