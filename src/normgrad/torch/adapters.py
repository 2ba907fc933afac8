"""Torch's backward operators in terms of ours: argument for argument. Forward: see beside it.

Options have the types that torch's schemas say and go to the core unread. A case that we do not
take raises a NormgradError; the caller hands it to torch.
"""

from collections.abc import Sequence
from typing import Any

import torch

from normgrad.calls.dispatch import compute
from normgrad.core.errors import ShapeError
from normgrad.core.spec import Op, dense_like
from normgrad.torch.forward import group_format
from normgrad.torch.library import Tensor, described, memory_format, statistics_dtype

Mask = Sequence[bool]


def _for_torchs_layout(input: Tensor, wanted: torch.memory_format) -> Tensor:
    """Input such that its gradient, which follows it, has the layout of torch's.

    Compiled programs rely on that. The caller has looked whether input is contiguous.
    """
    if input.is_contiguous(memory_format=wanted):
        return input
    dense = dense_like(described(input))
    grad = torch.empty_strided(dense.shape, dense.strides, device="meta")
    if grad.is_contiguous(memory_format=wanted):
        return input
    return input.contiguous(memory_format=wanted)


def _parameter_type(weight: Tensor | None, other: Tensor | None) -> torch.dtype | None:
    """What parameters' gradients are made in where there is no weight: the type of another.

    Torch goes by the statistics, which are float32 beside a float32 bias of 16-bit data.
    """
    return None if weight is not None or other is None else other.dtype


def native_batch_norm_backward(
    backend: str,
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Mask,
) -> Any:
    """Batch norm on the CPU, and by torch's own kernels on CUDA."""
    x = input if input.is_contiguous() else _for_torchs_layout(input, memory_format(input))
    if train:
        arrays, settings = (
            (grad_out, x, save_mean, save_invstd, weight),
            (True, eps, "invstd", 1),
        )
    else:
        arrays = (grad_out, x, running_mean, running_var, weight)
        settings = (False, eps, "variance", 1)
    wished = _parameter_type(weight, arrays[2])
    return compute(Op.BATCH_NORM_BACKWARD, arrays, (), settings, output_mask, wished, None, backend)


def batch_norm_backward(
    backend: str,
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    update: bool,
    eps: float,
    output_mask: Mask,
    reserve: Tensor,
) -> Any:
    """Batch norm of ``_batch_norm_with_update``, of exported programs; ``save_var`` is 1/std."""
    statistics = (running_mean, running_var, save_mean, save_var)
    return native_batch_norm_backward(
        backend, grad_out, input, weight, *statistics, update, eps, output_mask
    )


def cudnn_batch_norm_backward(
    backend: str,
    input: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    epsilon: float,
    reserve: Tensor,
) -> Any:
    """Batch norm that went forward through cuDNN; its ``save_var`` holds 1/std."""
    x = input if input.is_contiguous() else _for_torchs_layout(input, memory_format(input))
    arrays = (grad_output, x, save_mean, save_var, weight)
    settings = (True, epsilon, "invstd", 1)
    return compute(
        Op.BATCH_NORM_BACKWARD, arrays, (), settings, (True, True, True), None, None, backend
    )


def native_layer_norm_backward(
    backend: str,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Mask,
) -> Any:
    """Layer norm."""
    x = input if input.is_contiguous() else _for_torchs_layout(input, torch.contiguous_format)
    arrays = (grad_out, x, mean, rstd, weight)
    settings = (tuple(normalized_shape),)
    wished = _parameter_type(weight, bias)
    return compute(Op.LAYER_NORM_BACKWARD, arrays, (), settings, output_mask, wished, None, backend)


def native_group_norm_backward(
    backend: str,
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    samples: int,
    channels: int,
    positions: int,
    group: int,
    output_mask: Mask,
) -> Any:
    """Group norm; torch's operator takes its sizes beside the data."""
    check_sizes(input, samples, channels, positions)
    wished = _parameter_type(weight, mean)
    x, out = input, None
    if not input.is_contiguous():
        if input.is_cuda and output_mask[0]:
            out = _contiguous_results(input, mean if weight is None else weight, output_mask)
        else:
            x = _for_torchs_layout(input, group_format(input))
    arrays = (grad_out, x, mean, rstd, weight)
    return compute(
        Op.GROUP_NORM_BACKWARD, arrays, (), (group, 1), output_mask, wished, out, backend
    )


def check_sizes(input: Tensor, samples: int, channels: int, positions: int) -> None:
    """Group norm's sizes beside the data are those of the data."""
    shape = input.shape
    if shape[:2] != (samples, channels) or input.numel() != samples * channels * positions:
        rule = f"must have shape ({samples}, {channels}, ...) as N and C say"
        raise ShapeError("input", rule, tuple(shape))


def _contiguous_results(input: Tensor, like: Tensor, mask: Mask) -> tuple[Tensor | None, ...]:
    """Torch's gradients of images on CUDA, however those lie.

    Channels last, 64x256x56x56 in bfloat16 on an H200: input made contiguous takes 301 us.
    """
    parameters = (like.new_empty(input.shape[1]) if wanted else None for wanted in mask[1:])
    return torch.empty(input.shape, dtype=input.dtype, device=input.device), *parameters


def fused_rms_norm_backward(
    backend: str,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Mask,
) -> Any:
    """RMS norm."""
    x = input if input.is_contiguous() else _for_torchs_layout(input, torch.contiguous_format)
    arrays = (grad_out, x, None, rstd, weight)
    settings = (tuple(normalized_shape),)
    return compute(Op.RMS_NORM_BACKWARD, arrays, (), settings, output_mask, None, None, backend)


def rms_norm_backward_in_pieces(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Mask,
) -> tuple[Tensor | None, Tensor | None]:
    """RMS norm by torch's other operators, for the CPU, where torch has none of this name."""
    wide = statistics_dtype(input.dtype)
    axes = list(range(input.dim() - len(normalized_shape), input.dim()))
    dy, xhat = grad_out.to(wide), input.to(wide) * rstd.to(wide)
    grad_input = grad_weight = None
    if output_mask[0]:
        g = dy if weight is None else dy * weight.to(wide)
        grad_input = (rstd * (g - xhat * (g * xhat).mean(axes, keepdim=True))).to(input.dtype)
    if output_mask[1] and weight is not None:
        rows = (dy * xhat).reshape(-1, *normalized_shape)
        grad_weight = rows.sum(0).to(weight.dtype)
    return grad_input, grad_weight


def batch_norm_backward_reduce(
    backend: str,
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> Any:
    """The first half of synchronized batch norm."""
    arrays = (grad_out, input, mean, invstd, weight)
    mask = (input_g, input_g, weight_g, bias_g)
    wished = _parameter_type(weight, mean)
    return compute(Op.BATCH_NORM_REDUCE_BACKWARD, arrays, (), (1,), mask, wished, None, backend)


def batch_norm_backward_elemt(
    backend: str,
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Any:
    """The second half of synchronized batch norm."""
    arrays = (grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count)
    return compute(Op.BATCH_NORM_ELEMT_BACKWARD, arrays, (), (1,), (True,), None, None, backend)[0]
