"""The request: which operator, on tensors of which shapes, strides and types. No data."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal, NamedTuple, Self, get_args

StatisticKind = Literal["invstd", "variance"]
STATISTIC_KINDS: Final[tuple[str, ...]] = get_args(StatisticKind)


class Op(StrEnum):
    """The five operators."""

    BATCH_NORM = "batch_norm"
    BATCH_NORM_REDUCE = "batch_norm_reduce"
    BATCH_NORM_ELEMT = "batch_norm_elemt"
    LAYER_NORM = "layer_norm"
    GROUP_NORM = "group_norm"


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


# The slots of a call, in the order in which addresses are handed to a backend.
ROLES: Final = (
    "dy",
    "x",
    "mean",
    "rstd",
    "gamma",
    "sum_dy",
    "sum_dy_xmu",
    "counter",
    "dx",
    "dgamma",
    "dbeta",
)
SLOT: Final = {role: slot for slot, role in enumerate(ROLES)}
DATA: Final = ("dy", "x", "dx")  # what has the shape of the data
RESULTS: Final[dict[Op, tuple[str, ...]]] = {
    Op.BATCH_NORM: ("dx", "dgamma", "dbeta"),
    Op.BATCH_NORM_REDUCE: ("sum_dy", "sum_dy_xmu", "dgamma", "dbeta"),
    Op.BATCH_NORM_ELEMT: ("dx",),
    Op.LAYER_NORM: ("dx", "dgamma", "dbeta"),
    Op.GROUP_NORM: ("dx", "dgamma", "dbeta"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One request. A result that is None is not wanted; an operand that is None has its default.

    ``mean`` and ``rstd`` are the statistics in use; ``rstd_is`` says how to read the second. What
    an operator takes but does not read (statistics of the other mode, layer norm's bias) is in
    ``unread``: it is validated only. ``extents`` are the sizes (samples, channels, positions) that
    group norm reads its data as, where they are not those of the shape.
    """

    op: Op
    dy: TensorSpec
    x: TensorSpec
    mean: TensorSpec | None = None
    rstd: TensorSpec | None = None
    gamma: TensorSpec | None = None
    sum_dy: TensorSpec | None = None
    sum_dy_xmu: TensorSpec | None = None
    counter: TensorSpec | None = None
    dx: TensorSpec | None = None
    dgamma: TensorSpec | None = None
    dbeta: TensorSpec | None = None
    unread: tuple[tuple[str, TensorSpec], ...] = ()
    training: bool = True
    rstd_is: StatisticKind = "invstd"
    eps: float = 0.0
    channel_axis: int = 1
    normalized_shape: tuple[int, ...] = ()
    num_groups: int = 1
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
    def results(self) -> tuple[str, ...]:
        """The roles that the operator would write, wanted or not."""
        return RESULTS[self.op]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The roles that will be written."""
        return tuple(role for role in self.results if self.tensor(role) is not None)

    @property
    def operands(self) -> tuple[str, ...]:
        """The roles that are given and read."""
        return tuple(
            role for role in ROLES if role not in self.results and self.tensor(role) is not None
        )


def result_dtype(role: str, data: str, parameters: str, compute: str) -> str:
    """The type of a new result: sums have that of the arithmetic."""
    if role == "dx":
        return data
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
