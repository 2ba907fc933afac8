"""Batch statistics in pieces: local moments, how pieces join, and the normalization by them."""

from typing import NamedTuple

import torch

from normgrad.torch.library import NARROW, Tensor, memory_format, statistics_dtype, wide


class Joined(NamedTuple):
    """Statistics of a whole batch, in float64. ``total`` counts it, in one element."""

    mean: Tensor
    variance: Tensor
    total: Tensor


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel; zeros for no data."""
    channels = x.shape[1]
    dtype = statistics_dtype(x.dtype)
    if not x.numel():
        zeros = x.new_zeros(2, channels, dtype=dtype)
        return zeros[0], zeros[1]
    if x.device.type == "cpu" and x.dtype in NARROW:
        # Buffers in float32 that momentum 0 leaves alone make torch sum and answer in float32.
        buffers = x.new_zeros(2, channels, dtype=torch.float32)
        return torch.batch_norm_update_stats(x, buffers[0], buffers[1], 0.0)
    return torch.batch_norm_update_stats(x, None, None, 0.0)


def join(mean: Tensor, variance: Tensor, counts: Tensor) -> Joined:
    """Statistics of parts, [parts, C] each with [parts] counts, as one. Parts may be empty."""
    counts = counts.double().unsqueeze(1)
    mean, variance = mean.double(), variance.double()
    total = counts.sum()
    share = counts / total.clamp(min=1.0)  # no part has data: zeros, and nobody reads them
    # A part without data may hold anything, nan included.
    mean = torch.where(counts > 0, mean, 0.0)
    variance = torch.where(counts > 0, variance, 0.0)
    joined = (share * mean).sum(0)
    spread = (share * (variance + (mean - joined) ** 2)).sum(0)
    return Joined(joined, spread, total.reshape(1))


def update_running(
    running_mean: Tensor, running_var: Tensor, joined: Joined, momentum: float | Tensor
) -> None:
    """Move the buffers towards a batch's statistics; a batch without data leaves them alone."""
    count = joined.total
    unbiased = joined.variance * (count / (count - 1).clamp(min=1.0))
    step = (count > 0).double() * momentum
    for buffer, value in ((running_mean, joined.mean), (running_var, unbiased)):
        buffer.data.copy_(buffer + (value - buffer) * step)  # not counted by autograd, as in torch


def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor
) -> Tensor:
    """(x - mean) * invstd * weight + bias for each channel."""
    y_format = memory_format(x)
    x = x.contiguous(memory_format=y_format)
    if not x.numel():
        return torch.empty_like(x)
    weight, bias = wide(weight, x.dtype), wide(bias, x.dtype)
    if x.device.type != "cpu":
        y = torch.batch_norm_elemt(x, weight, bias, mean, invstd, 0.0)
    else:
        # Torch's kernel for inference takes a variance and makes this very invstd of it.
        y = torch.native_batch_norm(x, weight, bias, mean, invstd**-2, False, 0.0, 0.0)[0]
    return y.contiguous(memory_format=y_format)
