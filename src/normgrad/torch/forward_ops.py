"""``torch.ops.normgrad.batch_norm``, ``layer_norm``, ``group_norm``: torch's forward, our backward.

Each returns (y, mean, rstd). The statistics are differentiable results, so that a second backward
pass sees how they depend on the input.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

import normgrad.torch.backward_ops  # noqa: F401  (defines the operators)
from normgrad.torch import batching, inductor
from normgrad.torch.forward import (
    Normalized,
    check_vectors,
    group_format,
    normalize_batch,
    normalize_groups,
    normalize_rows,
)
from normgrad.torch.library import (
    LIBRARY,
    Tensor,
    define,
    differentiable,
    few_axes,
    memory_format,
    note_bias_type,
    on_one_device,
    require,
    shortcut,
    statistics_dtype,
    weight_like_bias,
)
from normgrad.validate import MAX_RANK

_STATISTICS = "-> (Tensor, Tensor, Tensor)"
_BATCH = (
    "(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, "
    f"Tensor(b!)? running_var, bool training, float momentum, float eps) {_STATISTICS}"
)
_LAYER = (
    "(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) "
    f"{_STATISTICS}"
)
_GROUP = f"(Tensor input, Tensor? weight, Tensor? bias, int num_groups, float eps) {_STATISTICS}"


def _fake(x: Tensor, y_format: torch.memory_format, shape: Sequence[int]) -> Normalized:
    inductor.offer()
    dtype = statistics_dtype(x.dtype)
    y = torch.empty_like(x, memory_format=y_format)
    return y, x.new_empty(shape, dtype=dtype), x.new_empty(shape, dtype=dtype)


def _check_batch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *rest: Any,
) -> None:
    check_vectors(x, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    words = "running_mean and running_var belong together: one of them is None, the other is not"
    require((running_mean is None) == (running_var is None), words)


def _fake_batch(x: Tensor, *rest: Any) -> Normalized:
    _check_batch(x, *rest)
    training = rest[4]
    return _fake(x, memory_format(x), (x.shape[1] if training else 0,))


def _traced_batch(*args: Any) -> Normalized:
    """What tracers see; they do not ask for shapes without data before."""
    _check_traced(*args)
    return inductor.traced_batch_norm(*args)


def _fake_layer(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Normalized:
    first = x.dim() - len(shape)
    tails = {"input": x.shape[max(first, 0) :]}
    tails |= {
        name: one.shape for name, one in (("weight", weight), ("bias", bias)) if one is not None
    }
    for name, tail in tails.items():
        words = f"Given normalized_shape={list(shape)}, {name} ends in {list(tail)}"
        require(len(tail) == len(shape), words)
        for size, wanted in zip(tail, shape, strict=True):
            require(size == wanted, words)
    return _fake(x, torch.contiguous_format, (*x.shape[:first], *(1,) * len(shape)))


def _fake_group(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> Normalized:
    check_vectors(x, weight=weight, bias=bias)
    words = f"Expected number of channels {x.shape[1]} to be divisible by num_groups, got {groups}"
    require(groups > 0, words)
    require(x.shape[1] % groups == 0, words)
    return _fake(x, group_format(x), (x.shape[0], groups))


_batch_norm_backward = shortcut("batch_norm_backward")
_layer_norm_backward = shortcut("layer_norm_backward")
_group_norm_backward = shortcut("group_norm_backward")


def _setup(
    ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, *saved: Tensor | None
) -> None:
    note_bias_type(ctx, x, bias)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, *saved)


def _setup_batch(ctx: Any, inputs: tuple[Any, ...], output: Normalized) -> None:
    x, weight, bias, running_mean, running_var, ctx.training, _, ctx.eps = inputs
    if ctx.training:
        _setup(ctx, x, weight, bias, None, None, output[1], output[2])
    else:
        # Nothing was saved; the buffers may change before the backward pass, as with torch.
        ctx.mark_non_differentiable(output[1], output[2])
        _setup(ctx, x, weight, bias, running_mean, running_var, None, None)


def _backward_batch(
    ctx: Any, dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None
) -> tuple[Any, ...]:
    x, weight, running_mean, running_var, mean, rstd = ctx.saved_tensors
    if not ctx.training:  # training does not read them: there the gradient is none
        _check_constant(running_mean=ctx.needs_input_grad[3], running_var=ctx.needs_input_grad[4])
    weight = weight_like_bias(ctx, x, weight, x.shape[1:2])
    dx = dgamma = dbeta = None
    if dy is not None:
        mask = ctx.needs_input_grad[:3]
        statistics = (running_mean, running_var, mean, rstd)
        dx, dgamma, dbeta = _batch_norm_backward(
            few_axes(dy), few_axes(x), weight, *statistics, ctx.training, ctx.eps, mask
        )
        dx = _like(x, dx)
    if ctx.needs_input_grad[0] and ctx.training:
        shape = (-1, *(1,) * (x.dim() - 2))
        dx = _through_statistics(dx, x, shape, (mean, rstd), (dmean, drstd))
    return dx, dgamma, dbeta, None, None, None, None, None


def _check_constant(**needed: bool) -> None:
    """Refuse to be asked for gradients of these: None would be taken for 0."""
    for name, wanted in needed.items():
        if wanted:
            msg = f"{name} must not require grad: batch norm has no gradient for it, nor torch's"
            raise RuntimeError(msg)


def _setup_layer(ctx: Any, inputs: tuple[Any, ...], output: Normalized) -> None:
    x, ctx.shape, weight, bias, _ = inputs
    _setup(ctx, x, weight, bias, bias, output[1], output[2])


def _backward_layer(
    ctx: Any, dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None
) -> tuple[Any, ...]:
    x, weight, bias, mean, rstd = ctx.saved_tensors
    weight = weight_like_bias(ctx, x, weight, ctx.shape)
    dx = dgamma = dbeta = None
    if dy is not None:
        mask = [ctx.needs_input_grad[index] for index in (0, 2, 3)]
        call = _as_rows if x.dim() > MAX_RANK else _layer_norm_backward
        dx, dgamma, dbeta = call(dy, x, ctx.shape, mean, rstd, weight, bias, mask)
    if ctx.needs_input_grad[0]:
        dx = _through_statistics(dx, x, mean.shape, (mean, rstd), (dmean, drstd))
    return dx, None, dgamma, dbeta, None


def _as_rows(
    dy: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> tuple[Any, ...]:
    """Layer norm of more axes than the core takes."""
    rows, columns = mean.numel(), math.prod(shape)
    dx, dgamma, dbeta = _layer_norm_backward(
        dy.reshape(rows, columns),
        x.reshape(rows, columns),
        [columns],
        mean.reshape(rows),
        rstd.reshape(rows),
        None if weight is None else weight.reshape(columns),
        None if bias is None else bias.reshape(columns),
        mask,
    )
    parameters = (None if one is None else one.reshape(shape) for one in (dgamma, dbeta))
    return _like(x, dx), *parameters


def _like(x: Tensor, dx: Tensor | None) -> Tensor | None:
    """A gradient that was computed with fewer axes."""
    return dx if dx is None or dx.dim() == x.dim() else dx.reshape(x.shape)


def _setup_group(ctx: Any, inputs: tuple[Any, ...], output: Normalized) -> None:
    x, weight, bias, ctx.groups, _ = inputs
    _setup(ctx, x, weight, bias, output[1], output[2])


def _backward_group(
    ctx: Any, dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None
) -> tuple[Any, ...]:
    x, weight, mean, rstd = ctx.saved_tensors
    weight = weight_like_bias(ctx, x, weight, x.shape[1:2])
    dx = dgamma = dbeta = None
    if dy is not None:
        mask = ctx.needs_input_grad[:3]
        dx, dgamma, dbeta = _group_norm_backward(
            few_axes(dy), few_axes(x), mean, rstd, weight, ctx.groups, mask
        )
        dx = _like(x, dx)
    if ctx.needs_input_grad[0] and (dmean is not None or drstd is not None):
        grouped = x.reshape(*mean.shape, math.prod(x.shape[1:]) // ctx.groups)
        like = None if dx is None else dx.reshape(grouped.shape)
        shape = (*mean.shape, 1)
        dx = _through_statistics(like, grouped, shape, (mean, rstd), (dmean, drstd))
        dx = dx if dx is None else dx.reshape(x.shape)
    return dx, dgamma, dbeta, None, None


def _through_statistics(
    dx: Tensor | None,
    x: Tensor,
    shape: Sequence[int],
    statistics: tuple[Tensor, Tensor],
    grads: tuple[Tensor | None, Tensor | None],
) -> Tensor | None:
    """Add what flows to x through mean and rstd: d mean = 1/m, d rstd = -rstd^3 (x - mean)/m."""
    dmean, drstd = grads
    if dmean is None and drstd is None:
        return dx
    mean, rstd = (one.reshape(shape) for one in statistics)
    count = x.numel() // max(mean.numel(), 1)
    through = 0.0 if dmean is None else dmean.reshape(shape) / count
    if drstd is not None:
        through = through - drstd.reshape(shape) * rstd**3 * (x - mean) / count
    if dx is not None:
        through = through + dx
    return torch.as_tensor(through).to(x.dtype).expand_as(x)


def _pure_batch(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """In training the running statistics are written and not read."""
    return (*args[:3], None, None, *args[5:]) if args[5] else args


define("batch_norm", _BATCH, normalize_batch, _fake_batch)
define("layer_norm", _LAYER, normalize_rows, _fake_layer)
define("group_norm", _GROUP, normalize_groups, _fake_group)
# Left whole, what writes buffers is a call that no compiler fuses with anything.
_check_traced = on_one_device("batch_norm", _check_batch)
_composite: Any = torch._C.DispatchKey.CompositeImplicitAutograd
torch.ops.normgrad.batch_norm.default.py_impl(_composite)(_traced_batch)
differentiable("batch_norm", _setup_batch, _backward_batch, batching.batch_norm, _pure_batch)
differentiable("layer_norm", _setup_layer, _backward_layer, batching.layer_norm, tuple)
differentiable("group_norm", _setup_group, _backward_group, batching.group_norm, tuple)
# As torch does for its own on CUDA; on the CPU, and for batch norm, it leaves the types alone.
torch.library.register_autocast("normgrad::layer_norm", "cuda", torch.float32, lib=LIBRARY)
torch.library.register_autocast("normgrad::group_norm", "cuda", torch.float32, lib=LIBRARY)
