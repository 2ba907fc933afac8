"""Batch statistics in pieces: local moments, how pieces join, and what the buffers make of them."""

from typing import Any, NamedTuple

import torch

from normgrad.calls.dispatch import compute
from normgrad.core import options
from normgrad.core.operators import Op
from normgrad.forward import operands_of_ranks
from normgrad.torch.library import Tensor, few_axes, statistics_dtype


class Joined(NamedTuple):
    """Statistics of a whole batch, in float64. ``total`` counts it, in one element."""

    mean: Tensor
    variance: Tensor
    total: Tensor


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel; zeros for no data."""
    if not x.numel():
        zeros = x.new_zeros(2, x.shape[1], dtype=statistics_dtype(x.dtype))
        return zeros[0], zeros[1]
    return _two(Op.BATCH_NORM_STATS, (None, few_axes(x)), (1, "variance"))


def join(mean: Tensor, variance: Tensor, counts: Tensor) -> Joined:
    """Statistics of parts, [parts, C] each with [parts] counts, as one. Parts may be empty."""
    counts = counts.double()
    there = counts.unsqueeze(1) > 0
    # A part without data may hold anything, nan included.
    mean, variance = (torch.where(there, one.double(), 0.0) for one in (mean, variance))
    arrays, settings = operands_of_ranks(mean, variance, counts), (0.0, 0.0, "variance")
    joined = _two(Op.BATCH_NORM_GATHER_STATS, arrays, settings)
    return Joined(*joined, counts.sum().reshape(1))


def _two(op: Op, arrays: tuple[Any, ...], settings: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    made: Any = compute(op, arrays, (), settings, options.BOTH, None, None, None)
    return made[0], made[1]


def update_running(
    running_mean: Tensor, running_var: Tensor, joined: Joined, momentum: float | Tensor
) -> None:
    """Move the buffers towards a batch's statistics; a batch without data leaves them alone."""
    count = joined.total
    unbiased = joined.variance * (count / (count - 1).clamp(min=1.0))
    for buffer, value in ((running_mean, joined.mean), (running_var, unbiased)):
        # Of no data both are nan.
        moved = torch.where(count > 0, buffer + (value - buffer) * momentum, buffer)
        buffer.data.copy_(moved)  # not counted by autograd, as in torch
