"""The one view that serves all operators: (outer, groups, channels, inner).

Batch norm is (samples, 1, C, positions) with a statistic per channel; layer norm (rows, 1, N, 1)
and group norm (samples, G, C/G, positions) have one per (outer, group). A parameter always belongs
to a (group, channel).
"""

import math
from dataclasses import dataclass
from typing import Literal

from normgrad.core.operators import DATA, STATISTICS
from normgrad.core.spec import Spec, TensorSpec

Shape4 = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of the four axes, and which of them share a statistic."""

    outer: int
    groups: int
    channels: int
    inner: int
    statistic: Literal["channel", "row"]
    samples: int = 1  # sets of parameters: each is of so many rows of `outer` in turn

    @property
    def shape(self) -> Shape4:
        """The four sizes."""
        return (self.outer, self.groups, self.channels, self.inner)

    @property
    def statistic_axes(self) -> tuple[int, int]:
        """The axes that one statistic sums over."""
        return (0, 3) if self.statistic == "channel" else (2, 3)

    @property
    def statistic_shape(self) -> Shape4:
        """The statistics as they broadcast against the data."""
        if self.statistic == "channel":
            return (1, self.groups, self.channels, 1)
        return (self.outer, self.groups, 1, 1)

    @property
    def parameter_axes(self) -> tuple[int, int]:
        """The axes that one parameter gradient sums over; of `outer` the rows of one sample."""
        return (0, 3)

    @property
    def parameter_shape(self) -> Shape4:
        """The parameters as they broadcast against the data, of one sample or of all."""
        return (self.samples, self.groups, self.channels, 1)

    @property
    def size(self) -> int:
        """The number of data elements."""
        return math.prod(self.shape)

    @property
    def count(self) -> int:
        """The number of elements that share one statistic."""
        first, second = self.statistic_axes
        return self.shape[first] * self.shape[second]

    @property
    def statistics(self) -> int:
        """The number of statistics."""
        return math.prod(self.statistic_shape)

    @property
    def parameters(self) -> int:
        """The number of parameters of a sample."""
        return self.groups * self.channels

    def shape_of(self, role: str) -> Shape4:
        """The shape under which a role's tensor meets the others."""
        if role in DATA:
            return self.shape
        return self.statistic_shape if role in STATISTICS else self.parameter_shape


def geometry_of(spec: Spec) -> Geometry:
    """The canonical sizes of a valid request."""
    shape = spec.x.shape
    axes = spec.operator.axes
    if axes == "rows":
        split = len(shape) - len(spec.normalized_shape)
        rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
        return Geometry(rows, 1, columns, 1, "row", spec.samples)
    if axes == "groups":
        samples, channels, positions = spec.extents or (shape[0], shape[1], math.prod(shape[2:]))
        inside = channels // spec.num_groups
        return Geometry(samples, spec.num_groups, inside, positions, "row", spec.samples)
    axis = spec.channel_axis
    return Geometry(
        math.prod(shape[:axis]), 1, shape[axis], math.prod(shape[axis + 1 :]), "channel"
    )


def has_channel_axis(spec: Spec) -> bool:
    """Whether an axis of x and dy is the channels'.

    Group norm may read its data as other sizes than those of their shapes, dy's and x's each its
    own: then a copy can only be made in the order of the elements. dx has the shape of x.
    """
    return spec.extents is None or all(
        spec.present(role).shape[:2] == spec.extents[:2] for role in spec.data_in
    )


def channels_at_the_end(spec: Spec, tensor: TensorSpec) -> TensorSpec:
    """Data with their channels as the last axis; the request must have an axis of those."""
    channel = 1 if spec.operator.axes == "groups" else spec.channel_axis
    return tensor.move_axis(channel, len(tensor.shape) - 1)


def joined_axes(
    shape: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]
) -> list[tuple[int, int, int]]:
    """Axes as (size, stride, stride), those made one that are one in memory by both strides."""
    axes: list[tuple[int, int, int]] = []
    for size, one, two in zip(shape, first, second, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1:] == (size * one, size * two):
            axes[-1] = (axes[-1][0] * size, one, two)
        else:
            axes.append((size, one, two))
    return axes


def reshaped_strides(tensor: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides that read ``tensor`` in row-major order as ``shape``; None where a copy is needed."""
    if tensor.size == 0:
        return (0,) * len(shape)
    # Runs of source axes that step evenly, as (size, stride) from the fastest.
    runs: list[list[int]] = []
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size == 1:
            continue
        if runs and stride == runs[-1][1] * runs[-1][0]:
            runs[-1][0] *= size
        else:
            runs.append([size, stride])
    strides = []
    for size in reversed(shape):
        if size == 1:
            strides.append(0)
            continue
        if not runs or runs[0][0] % size:
            return None
        strides.append(runs[0][1])
        runs[0][0] //= size
        runs[0][1] *= size
        if runs[0][0] == 1:
            del runs[0]
    return tuple(reversed(strides))
