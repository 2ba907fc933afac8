"""What strides tell, whatever their size: whether elements lie apart, and where nobody steps."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from normgrad.core.spec import TensorSpec

# Up to here the last resort may list every offset (8 MB); the search before it may take so many
# steps (60 ms). Both are for views that no slicing, flipping or transposing of an array makes.
_LISTED: Final = 1 << 20
_STEPS: Final = 50_000
# More elements than anything has: from here on a stride may be too large to compute with.
_FAR: Final = 1 << 57


def without_idle_strides(tensor: TensorSpec) -> TensorSpec:
    """The same view. Along axes of size 1 nobody steps: their strides may be any number."""
    if all(-_FAR < stride < _FAR for stride in tensor.strides):
        return tensor
    strides = [
        0 if size == 1 else stride
        for size, stride in zip(tensor.shape, tensor.strides, strict=True)
    ]
    return TensorSpec(tensor.shape, tuple(strides), tensor.dtype)


class _TooLongError(Exception):
    """The search has used up its steps."""


def overlaps_itself(tensor: TensorSpec) -> bool | None:
    """Whether two elements of the view share an address; None where that takes too long to see."""
    if tensor.size <= 1:
        return False
    axes = sorted(
        (abs(stride), size - 1)
        for size, stride in zip(tensor.shape, tensor.strides, strict=True)
        if size > 1
    )
    reach = 0
    nested = True
    for stride, most in axes:
        if stride == 0:
            return True
        nested = nested and stride > reach
        reach += stride * most
    if nested:
        return False
    if tensor.size > reach + 1:  # more elements than addresses
        return True
    try:
        return _Search(axes).finds()
    except _TooLongError:
        return _listed(axes) if tensor.size <= _LISTED and reach < 1 << 62 else None


class _Search:
    """Two elements at one address differ by steps along the axes that add up to nothing.

    From the longest stride down: a number of steps must leave no more than the shorter strides can
    make up for, and a multiple of what divides all of them. With two axes that decides at once.
    """

    def __init__(self, axes: Sequence[tuple[int, int]]) -> None:
        self._axes = axes
        self._reach = [0]  # of all axes before one
        self._divisor = [0]  # of all their strides
        for stride, most in axes:
            self._reach.append(self._reach[-1] + stride * most)
            self._divisor.append(math.gcd(self._divisor[-1], stride))
        self._left = _STEPS

    def finds(self) -> bool:
        """Whether there are such steps; the last axis with any may be taken to go upwards."""
        for last in range(1, len(self._axes)):
            stride, most = self._axes[last]
            step = self._divisor[last] // self._divisor[last + 1]
            for count in range(step, min(most, self._reach[last] // stride) + 1, step):
                if self._made_up(last, count * stride):
                    return True
        return False

    def _made_up(self, axes: int, distance: int) -> bool:
        """Whether steps along the first axes make up for a distance."""
        if abs(distance) > self._reach[axes] or distance % self._divisor[axes]:
            return False
        if axes == 1:
            return True
        self._left -= 1
        if self._left < 0:
            raise _TooLongError
        before = axes - 1
        stride, most = self._axes[before]
        reach, divisor, common = self._reach[before], self._divisor[before], self._divisor[axes]
        low = max(-most, -((reach - distance) // stride))
        high = min(most, (distance + reach) // stride)
        # Of these counts only every so many leave what the other strides divide.
        step = divisor // common
        first = distance // common * pow(stride // common, -1, step) % step
        low += (first - low) % step
        return any(
            self._made_up(before, distance - count * stride) for count in range(low, high + 1, step)
        )


def _listed(axes: Sequence[tuple[int, int]]) -> bool:
    offsets = np.zeros(1, np.int64)
    for stride, most in axes:
        offsets = (offsets[:, None] + np.arange(most + 1) * stride).ravel()
    return len(np.unique(offsets)) != offsets.size
