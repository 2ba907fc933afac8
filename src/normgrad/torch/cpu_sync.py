"""The forward operators of synchronized batch norm that torch has on CUDA only, for the CPU."""

import torch

from normgrad.torch import statistics
from normgrad.torch.forward import normalize_channels
from normgrad.torch.library import Tensor, statistics_dtype


def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1/std of each channel of this rank's batch."""
    mean, variance = statistics.moments(input)
    return mean, torch.rsqrt(variance + eps)


def batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """The ranks' statistics, [ranks, C] each, as those of one batch; moves the buffers."""
    variance = invstd.double() ** -2 - eps
    joined = statistics.join(mean, variance.clamp(min=0.0), counts)
    if running_mean is not None and running_var is not None:
        statistics.update_running(running_mean, running_var, joined, momentum)
    dtype = statistics_dtype(input.dtype)
    return joined.mean.to(dtype), torch.rsqrt(joined.variance + eps).to(dtype)


def batch_norm_elemt(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    """Normalize by statistics of all ranks."""
    return normalize_channels(input, weight, bias, mean, invstd)
