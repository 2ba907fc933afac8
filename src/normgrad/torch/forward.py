"""Forward passes by torch's own kernels, with statistics in float32 (float64 for float64 data).

Left alone, torch keeps them in the data's 16 bits on the CPU, and for group norm on CUDA too.
"""

import math
from collections.abc import Sequence

import torch

from normgrad.errors import ShapeError
from normgrad.torch.library import (
    NARROW,
    Tensor,
    memory_format,
    statistics_dtype,
    suggested_format,
    wide,
)

Normalized = tuple[Tensor, Tensor, Tensor]  # y, mean, rstd


def normalize_batch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Normalized:
    """Batch norm over axis 1; updates the running statistics in training."""
    x = x.contiguous(memory_format=memory_format(x))
    if x.device.type != "cpu" or x.dtype not in NARROW:
        return _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    buffers = (wide(running_mean, x.dtype), wide(running_var, x.dtype))
    parameters = _wide_parameters(x, x.shape[1:2], weight, bias)
    results = _batch_norm(x, *parameters, *buffers, training, momentum, eps)
    for one, update in zip((running_mean, running_var), buffers, strict=True):
        if training and one is not None and update is not None and update is not one:
            one.data.copy_(update)  # as torch's kernels: autograd does not count the change
    return results


def _wide_parameters(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Those of 16-bit data. A weight in float32 makes torch keep its statistics in float32."""
    if weight is None:
        return x.new_ones(tuple(shape), dtype=torch.float32), wide(bias, x.dtype)
    return wide(weight, x.dtype), wide(bias, x.dtype)


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Normalized:
    if not x.numel():  # torch's kernels update the buffers with nan
        vectors = {"weight": weight, "bias": bias}
        check_vectors(x, **vectors, running_mean=running_mean, running_var=running_var)
        return torch.empty_like(x), *_zeros(x, x.shape[1] if training else 0)
    # Torch's own choice between its kernels and cuDNN's: the same numbers as torch.nn.
    y, mean, rstd, *_ = torch._batch_norm_impl_index(
        x,
        weight,
        bias,
        running_mean,
        running_var,
        training,
        momentum,
        eps,
        torch.backends.cudnn.enabled,
    )
    y = y.contiguous(memory_format=memory_format(x))
    # What inference says of statistics depends on the kernel: nothing, here.
    return (y, mean, rstd) if training else (y, *_zeros(x, 0))


def _zeros(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    dtype = statistics_dtype(x.dtype)
    return x.new_zeros(size, dtype=dtype), x.new_zeros(size, dtype=dtype)


def normalize_rows(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Normalized:
    """Layer norm over the last axes."""
    if x.device.type == "cpu" and x.dtype in NARROW:
        weight, bias = _wide_parameters(x, shape, weight, bias)
    y, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, eps)
    return y, mean, rstd


def normalize_groups(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> Normalized:
    """Group norm of the channels at axis 1."""
    check_channels(x)
    samples, channels = x.shape[:2]
    positions = math.prod(x.shape[2:])
    if x.dtype in NARROW and x.device.type != "cpu" and x.numel():
        return _normalize_groups_wide(x.contiguous(), weight, bias, groups, eps)
    if x.dtype in NARROW:
        weight, bias = _wide_parameters(x, x.shape[1:2], weight, bias)
    y_format = group_format(x)
    # Torch's kernel for channels-last data takes the mean of the squares less the square of the
    # mean for the variance: with mean 1000 and deviation 1 nothing is left of it in float32. Its
    # instance norm, a group for each channel here, goes another way.
    x = x.contiguous() if groups == channels else x.contiguous(memory_format=y_format)
    # Torch 2.13's kernel reads a strided parameter as if it were dense.
    weight, bias = (None if one is None else one.contiguous() for one in (weight, bias))
    y, mean, rstd = torch.native_group_norm(
        x, weight, bias, samples, channels, positions, groups, eps
    )
    if not x.numel():  # torch's are nan: so would be the parameters' gradients
        return y, torch.zeros_like(mean), torch.zeros_like(rstd)
    return y.contiguous(memory_format=y_format), mean, rstd


def check_channels(x: Tensor) -> None:
    """Data have samples and channels."""
    if x.dim() < 2:
        raise ShapeError("input", "must have 2 axes or more", f"shape {tuple(x.shape)}")


def check_vectors(x: Tensor, **vectors: Tensor | None) -> None:
    """Parameters and buffers have an element for each channel, in the words of torch's kernels."""
    check_channels(x)
    for name, one in vectors.items():
        if one is not None and one.numel() != x.shape[1]:
            msg = f"{name} should contain {x.shape[1]} elements not {one.numel()}"
            raise RuntimeError(msg)


def check_types(x: Tensor, **parameters: Tensor | None) -> None:
    """Parameters have the type of the data or, for 16-bit data, float32, as torch's kernels ask."""
    if x.dtype not in (*NARROW, torch.float32, torch.float64):
        msg = f"input should have a floating type of 16, 32 or 64 bits, not {x.dtype}"
        raise RuntimeError(msg)
    taken = (x.dtype, statistics_dtype(x.dtype))
    for name, one in parameters.items():
        if one is not None and one.dtype not in taken:
            msg = f"{name} of {x.dtype} data should have type {taken[1]}, not {one.dtype}"
            raise RuntimeError(msg)


def group_format(x: Tensor) -> torch.memory_format:
    """How torch lays out group norm's result."""
    return suggested_format(x) if x.device.type == "cpu" else torch.contiguous_format


def _normalize_groups_wide(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> Normalized:
    # Torch's group norm kernel on CUDA stores the statistics of 16-bit data in 16 bits; its batch
    # norm kernels do not. Groups as channels give the statistics, (sample, channel) pairs as
    # channels the result: two passes over x, as many as torch's group norm makes.
    samples, channels = x.shape[:2]
    mean, rstd = torch.batch_norm_stats(x.view(1, samples * groups, -1), eps)
    each = channels // groups
    weight, bias = wide(weight, x.dtype), wide(bias, x.dtype)
    y = torch.batch_norm_elemt(
        x.view(1, samples * channels, -1),
        None if weight is None else weight.repeat(samples),
        None if bias is None else bias.repeat(samples),
        mean.repeat_interleave(each),
        rstd.repeat_interleave(each),
        eps,
    )
    return y.view(x.shape), mean.view(samples, groups), rstd.view(samples, groups)
