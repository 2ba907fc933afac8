"""Synchronized batch norm as two operators, each with one collective.

To the compiler an operator is one opaque node, so the collectives need no tracing. Forward gathers
(mean, variance, count) of every rank in float64: counts are exact up to 2**53 and the joined
statistics do not depend on how the batch was split, up to rounding. Backward adds two sums over the
ranks. Nothing waits for the device and no shape depends on data, so a CUDA graph can capture both.
"""

from collections.abc import Sequence
from typing import Any

import torch

from normgrad import functional
from normgrad.calls.fused import NEGATIVE_SLOPE, after_norm
from normgrad.torch import statistics
from normgrad.torch.activations import NO_ACTIVATION
from normgrad.torch.forward import check_types, check_vectors, normalize_channels
from normgrad.torch.library import (
    Tensor,
    Three,
    define,
    differentiable,
    empty_dense,
    empty_gradients,
    few_axes,
    memory_format,
    note_bias_type,
    statistics_dtype,
    weight_like_bias,
)

_FORWARD = (
    "(Tensor input, Tensor? weight, Tensor? bias, float eps, str group, "
    "str? activation=None, float negative_slope=0.01) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_BACKWARD = (
    "(Tensor grad_out, Tensor input, Tensor? weight, Tensor mean, Tensor invstd, Tensor count, "
    "bool[3] output_mask, str group, Tensor? bias=None, str? activation=None, "
    "float negative_slope=0.01) -> (Tensor, Tensor, Tensor)"
)
_TRACK = (
    "(Tensor(a!) running_mean, Tensor(b!) running_var, Tensor mean, Tensor variance, Tensor count, "
    "float momentum, Tensor? batches) -> ()"
)

Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def group_of(name: str) -> Any:
    """The process group of this name."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined, arg-type]


def _sync_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    group: str,
    activation: str | None = None,
    slope: float = NEGATIVE_SLOPE,
) -> Five:
    """Returns y, then mean, invstd, variance and count of the batch of all ranks."""
    # A kernel would say so after the collective, and to ranks with data alone.
    check_vectors(x, weight=weight, bias=bias)
    check_types(x, weight=weight, bias=bias)
    after = after_norm(activation, slope)
    channels = x.shape[1]
    process_group = group_of(group)
    x = x.contiguous(memory_format=memory_format(x))
    mine = x.new_empty(2 * channels + 1, dtype=torch.float64)
    mean, variance = statistics.moments(x)
    mine[:channels] = mean
    mine[channels:-1] = variance
    mine[-1:].fill_(x.numel() // channels)
    everyone = mine.new_empty(process_group.size(), mine.numel())
    # The base collective exists in gloo and nccl alike, and on every version of torch.
    process_group._allgather_base(everyone.view(-1), mine).wait()
    joined = statistics.join(everyone[:, :channels], everyone[:, channels:-1], everyone[:, -1])
    dtype = statistics_dtype(x.dtype)
    invstd = torch.rsqrt(joined.variance + eps).to(dtype)
    mean = joined.mean.to(dtype)
    y = normalize_channels(x, weight, bias, mean, invstd, after=after)
    return y, mean, invstd, joined.variance, joined.total


def _sync_batch_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    count: Tensor,
    mask: Sequence[bool],
    group: str,
    bias: Tensor | None = None,
    activation: str | None = None,
    slope: float = NEGATIVE_SLOPE,
) -> Three:
    channels, whole = x.shape[1], x
    dy, x = few_axes(dy), few_axes(x)
    norm: dict[str, Any] = {"weight": weight}
    if activation is not None:
        norm |= {"bias": bias, "activation": activation, "negative_slope": slope}
    sums = functional.batch_norm_reduce_backward(
        dy, x, mean, invstd, output_mask=(mask[0], mask[0], mask[1], mask[2]), **norm
    )
    if not mask[0]:
        return None, sums.grad_weight, sums.grad_bias
    both = torch.cat((sums.sum_dy, sums.sum_dy_xmu))
    group_of(group).allreduce([both]).wait()
    dx = functional.batch_norm_elemt_backward(
        dy, x, mean, invstd, both[:channels], both[channels:], count, **norm
    )
    if x is not whole:
        dx = empty_dense(whole).copy_(dx.reshape(whole.shape))
    return dx, sums.grad_weight, sums.grad_bias


def _track(
    running_mean: Tensor,
    running_var: Tensor,
    mean: Tensor,
    variance: Tensor,
    count: Tensor,
    momentum: float,
    batches: Tensor | None,
) -> None:
    """Moves the buffers; ``batches``, in place of a momentum, asks for the average of so many."""
    step = momentum if batches is None else 1.0 / batches.double()
    joined = statistics.Joined(mean.double(), variance, count)
    statistics.update_running(running_mean, running_var, joined, step)


def _fake_track(*_: Any) -> None:
    pass


def _fake_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: str, *after: Any
) -> Five:
    after_norm(*(after or NO_ACTIVATION))
    check_vectors(x, weight=weight, bias=bias)
    dtype = statistics_dtype(x.dtype)
    vector = x.new_empty(x.shape[1], dtype=dtype)
    return (
        torch.empty_like(x, memory_format=memory_format(x)),
        vector,
        torch.empty_like(vector),
        torch.empty_like(vector, dtype=torch.float64),
        x.new_empty(1, dtype=torch.float64),
    )


def _fake_backward(dy: Tensor, x: Tensor, weight: Tensor | None, *rest: Any) -> Three:
    mask = rest[3]
    return empty_gradients(x, weight, (x.shape[1],), mask)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Five) -> None:
    x, weight, bias, _, ctx.group, *ctx.after = inputs
    note_bias_type(ctx, x, bias)
    _, mean, invstd, variance, count = output
    ctx.mark_non_differentiable(mean, invstd, variance, count)
    ctx.set_materialize_grads(False)
    kept = None if ctx.after[0] is None else bias
    ctx.save_for_backward(x, weight, kept, mean, invstd, count)


def _backward(ctx: Any, dy: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    x, weight, bias, mean, invstd, count = ctx.saved_tensors
    weight = weight_like_bias(ctx, x, weight, x.shape[1:2])
    if dy is None:  # other ranks wait for this one's sums
        dy = torch.zeros_like(x)
    settings = (ctx.needs_input_grad[:3], ctx.group, bias, *ctx.after)
    grads = torch.ops.normgrad.sync_batch_norm_backward.default(
        dy, x, weight, mean, invstd, count, *settings
    )
    return (*grads, *(None,) * 4)


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: Three) -> None:
    pass


def _second(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    msg = "synchronized batch norm can be differentiated once only (torch's own likewise)"
    raise NotImplementedError(msg)


define("sync_batch_norm", _FORWARD, _sync_batch_norm, _fake_forward)
define("sync_batch_norm_backward", _BACKWARD, _sync_batch_norm_backward, _fake_backward)
# An operator too, so that graphs know what it writes.
define("sync_batch_norm_track", _TRACK, _track, _fake_track)
differentiable("sync_batch_norm", _setup, _backward)
differentiable("sync_batch_norm_backward", _setup_second, _second)
