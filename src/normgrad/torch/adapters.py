"""Torch's backward operators in terms of our functions: argument for argument.

A case that we do not take raises a NormgradError; the caller hands it to torch.
"""

from collections.abc import Sequence
from typing import Any

from normgrad import functional
from normgrad.errors import ShapeError
from normgrad.torch.library import Tensor

Mask = Sequence[bool]


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
    saved = (save_mean, save_invstd) if train else (None, None)
    running = (None, None) if train else (running_mean, running_var)
    return functional.batch_norm_backward(
        grad_out,
        input,
        weight,
        *running,
        *saved,
        training=train,
        eps=eps,
        output_mask=output_mask,
        backend=backend,
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
    return functional.batch_norm_backward(
        grad_output,
        input,
        weight,
        None,
        None,
        save_mean,
        save_var,
        training=True,
        eps=epsilon,
        backend=backend,
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
    return functional.layer_norm_backward(
        grad_out,
        input,
        normalized_shape,
        mean,
        rstd,
        weight,
        output_mask=output_mask,
        backend=backend,
    )


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
    if tuple(input.shape[:2]) != (samples, channels) or input.numel() != (
        samples * channels * positions
    ):
        rule = f"must have shape ({samples}, {channels}, ...) as N and C say"
        raise ShapeError("input", rule, tuple(input.shape))
    return functional.group_norm_backward(
        grad_out,
        input,
        mean,
        rstd,
        weight,
        num_groups=group,
        output_mask=output_mask,
        backend=backend,
    )


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
    return functional.batch_norm_reduce_backward(
        grad_out,
        input,
        mean,
        invstd,
        weight,
        output_mask=(input_g, input_g, weight_g, bias_g),
        backend=backend,
    )


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
    return functional.batch_norm_elemt_backward(
        grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count, backend=backend
    )
