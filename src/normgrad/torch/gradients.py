"""Derivatives of the forward operators: what each keeps, and the call of its backward operator.

The statistics are differentiable results: what flows to the input through them is added.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

import normgrad.torch.backward_ops  # noqa: F401  (defines the operators)
from normgrad.core.validate import MAX_RANK
from normgrad.torch.forward import Normalized, Scaled
from normgrad.torch.library import (
    Tensor,
    few_axes,
    memory_format,
    note_bias_type,
    shortcut,
    weight_like_bias,
)

_batch_norm_backward = shortcut("batch_norm_backward")
_batch_norm_add_backward = shortcut("batch_norm_add_backward")
_layer_norm_backward = shortcut("layer_norm_backward")
_rms_norm_backward = shortcut("rms_norm_backward")
_group_norm_backward = shortcut("group_norm_backward")


def _setup(
    ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, *saved: Tensor | None
) -> None:
    note_bias_type(ctx, x, bias)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, *saved)


def _setup_batch(ctx: Any, inputs: tuple[Any, ...], output: Normalized) -> None:
    _setup_channels(ctx, inputs[0], None, inputs[1:], output, None)


def _setup_batch_add(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, added, *rest = inputs
    mask: Tensor | None = output[3]
    ctx.mark_non_differentiable(mask)
    assert mask is not None
    # A program that is compiled packs no bits of ReLU if nobody reads them: the result says the
    # same, and most often is kept by others too.
    ctx.by_result = rest[7] == "relu" and rest[4] and isinstance(x, FunctionalTensor)
    if rest[7] is None:
        added = mask = None
    elif ctx.by_result:
        added, mask = output[0], None
    elif mask.numel():
        added = None
    else:
        mask = None
    _setup_channels(ctx, x, added, rest, output, mask)


def _setup_channels(
    ctx: Any,
    x: Tensor,
    added: Tensor | None,
    inputs: Sequence[Any],
    output: Sequence[Tensor],
    mask: Tensor | None,
) -> None:
    weight, bias, running_mean, running_var, ctx.training, _, ctx.eps, *ctx.after = inputs
    kept = None if ctx.after[0] is None else bias
    saved: Sequence[Tensor | None]
    if ctx.training:
        saved = (None, None, output[1], output[2])
    else:
        # Nothing was saved; the buffers may change before the backward pass, as with torch.
        ctx.mark_non_differentiable(*output[1:])
        saved = (running_mean, running_var, None, None)
    _setup(ctx, x, weight, bias, kept, added, mask, *saved)


def _backward_batch(
    ctx: Any, dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None
) -> tuple[Any, ...]:
    x, weight, bias, _, _, *statistics = ctx.saved_tensors
    _check_buffers(ctx, 3)
    weight = weight_like_bias(ctx, x, weight, x.shape[1:2])
    dx = dgamma = dbeta = None
    if dy is not None:
        mask = ctx.needs_input_grad[:3]
        settings = (ctx.training, ctx.eps, mask)
        if ctx.after[0] is not None:
            settings = (*settings, 1, bias, *ctx.after)
        dx, dgamma, dbeta = _batch_norm_backward(
            few_axes(dy), few_axes(x), weight, *statistics, *settings
        )
        dx = _like(x, dx)
    dx = _through_batch(ctx, dx, x, statistics, (dmean, drstd))
    return dx, dgamma, dbeta, *(None,) * 7


def _backward_batch_add(
    ctx: Any,
    dy: Tensor | None,
    dmean: Tensor | None,
    drstd: Tensor | None,
    _: Tensor | None,
) -> tuple[Any, ...]:
    x, weight, bias, added, opened, *statistics = ctx.saved_tensors
    _check_buffers(ctx, 4)
    weight = weight_like_bias(ctx, x, weight, x.shape[1:2])
    dx = dadded = dgamma = dbeta = None
    if dy is not None:
        needed = [ctx.needs_input_grad[place] for place in (0, 2, 3, 1)]
        settings = (ctx.training, ctx.eps, needed)
        if ctx.after[0] is None or ctx.by_result:
            if ctx.by_result:
                dy = torch.ops.aten.threshold_backward(dy, added, 0.0)
            dx, dgamma, dbeta = _batch_norm_backward(
                few_axes(dy), few_axes(x), weight, *statistics, *settings[:2], needed[:3]
            )
            dadded = dy if needed[3] else None
        else:
            # As the forward pass read them: a mask's bits are in that order.
            data = few_axes(x.contiguous(memory_format=memory_format(x)))
            after = None if added is None else few_axes(added)
            operands = (after, opened, weight, bias, *statistics)
            dx, dgamma, dbeta, dadded = _batch_norm_add_backward(
                few_axes(dy), data, *operands, *settings, 1, *ctx.after
            )
            dadded = _like(x, dadded)
        dx = _like(x, dx)
    dx = _through_batch(ctx, dx, x, statistics, (dmean, drstd))
    return dx, dadded, dgamma, dbeta, *(None,) * 7


def _check_buffers(ctx: Any, first: int) -> None:
    """Training does not read them: there the gradient is none."""
    if not ctx.training:
        running_mean, running_var = ctx.needs_input_grad[first : first + 2]
        _check_constant(running_mean=running_mean, running_var=running_var)


def _through_batch(
    ctx: Any,
    dx: Tensor | None,
    x: Tensor,
    statistics: Sequence[Tensor],
    grads: tuple[Tensor | None, Tensor | None],
) -> Tensor | None:
    if not (ctx.needs_input_grad[0] and ctx.training):
        return dx
    shape = (-1, *(1,) * (x.dim() - 2))
    return _through_statistics(dx, x, shape, (statistics[2], statistics[3]), grads)


def _check_constant(**needed: bool) -> None:
    """Refuse to be asked for gradients of these: None would be taken for 0."""
    for name, wanted in needed.items():
        if wanted:
            msg = f"{name} must not require grad: batch norm has no gradient for it, nor torch's"
            raise RuntimeError(msg)


def _setup_layer(ctx: Any, inputs: tuple[Any, ...], output: Normalized) -> None:
    x, ctx.shape, weight, bias, _ = inputs
    _setup(ctx, x, weight, bias, bias, output[1], output[2])


def _setup_add_layer(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, ctx.shape, weight, bias, _ = inputs
    _setup(ctx, output[1], weight, bias, bias, output[2], output[3])


def _backward_layer(
    ctx: Any, dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None
) -> tuple[Any, ...]:
    needed = [ctx.needs_input_grad[index] for index in (0, 2, 3)]
    dx, dgamma, dbeta = _layer_gradients(ctx, dy, None, (dmean, drstd), needed)
    return dx, None, dgamma, dbeta, None


def _backward_add_layer(
    ctx: Any,
    dy: Tensor | None,
    dsum: Tensor | None,
    dmean: Tensor | None,
    drstd: Tensor | None,
) -> tuple[Any, ...]:
    first, second, _, *parameters, _ = ctx.needs_input_grad
    needed = [first or second, *parameters]
    dx, dgamma, dbeta = _layer_gradients(ctx, dy, dsum, (dmean, drstd), needed)
    return dx if first else None, dx if second else None, None, dgamma, dbeta, None


def _layer_gradients(
    ctx: Any,
    dy: Tensor | None,
    dsum: Tensor | None,
    grads: tuple[Tensor | None, Tensor | None],
    needed: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight, bias, mean, rstd = ctx.saved_tensors
    weight = weight_like_bias(ctx, x, weight, ctx.shape)
    dx, dgamma, dbeta = dsum, None, None
    if dy is not None:
        operands = ((mean, rstd), (weight, bias), needed)
        dx, dgamma, dbeta = _over_rows(_layer_norm_backward, dy, x, ctx.shape, *operands, dsum=dsum)
    if needed[0]:
        dx = _through_statistics(dx, x, mean.shape, (mean, rstd), grads)
    return dx, dgamma, dbeta


def _setup_rms(ctx: Any, inputs: tuple[Any, ...], output: Scaled) -> None:
    x, ctx.shape, weight, _, ctx.offset = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])


def _setup_add_rms(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, ctx.shape, weight, _, ctx.offset = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1], weight, output[2])


def _backward_rms(ctx: Any, dy: Tensor | None, drstd: Tensor | None) -> tuple[Any, ...]:
    needed = [ctx.needs_input_grad[index] for index in (0, 2)]
    dx, dgamma = _rms_gradients(ctx, dy, None, drstd, needed)
    return dx, None, dgamma, None, None


def _backward_add_rms(
    ctx: Any, dy: Tensor | None, dsum: Tensor | None, drstd: Tensor | None
) -> tuple[Any, ...]:
    first, second, _, weight, *_ = ctx.needs_input_grad
    dx, dgamma = _rms_gradients(ctx, dy, dsum, drstd, [first or second, weight])
    return dx if first else None, dx if second else None, None, dgamma, None, None


def _rms_gradients(
    ctx: Any, dy: Tensor | None, dsum: Tensor | None, drstd: Tensor | None, needed: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    x, weight, rstd = ctx.saved_tensors
    dx, dgamma = dsum, None
    if dy is not None:
        operands = ((rstd,), (weight,), needed, ctx.offset)
        dx, dgamma = _over_rows(_rms_norm_backward, dy, x, ctx.shape, *operands, dsum=dsum)
    if needed[0]:
        dx = _through_statistics(dx, x, rstd.shape, (None, rstd), (None, drstd))
    return dx, dgamma


def _over_rows(
    call: Callable[..., Any],
    dy: Tensor,
    x: Tensor,
    shape: Sequence[int],
    statistics: Sequence[Tensor],
    parameters: Sequence[Tensor | None],
    *rest: Any,
    dsum: Tensor | None,
) -> Any:
    """Gradients of a norm over the last axes; of more axes than the core takes, as rows."""
    if x.dim() <= MAX_RANK:
        rest = rest if dsum is None else (*rest, dsum)
        return call(dy, x, shape, *statistics, *parameters, *rest)
    rows, columns = statistics[0].numel(), math.prod(shape)
    if dsum is not None:
        rest = (*rest, dsum.reshape(rows, columns))
    dx, *grads = call(
        dy.reshape(rows, columns),
        x.reshape(rows, columns),
        [columns],
        *(one.reshape(rows) for one in statistics),
        *(None if one is None else one.reshape(columns) for one in parameters),
        *rest,
    )
    return _like(x, dx), *(None if one is None else one.reshape(shape) for one in grads)


def _like(x: Tensor, dx: Tensor | None) -> Tensor | None:
    """A gradient that was computed with fewer axes."""
    return dx if dx is None or dx.dim() == x.dim() else dx.reshape(x.shape)


def _setup_group(ctx: Any, inputs: tuple[Any, ...], output: Normalized) -> None:
    x, weight, bias, ctx.groups, _, *ctx.after = inputs
    kept = None if ctx.after[0] is None else bias
    _setup(ctx, x, weight, bias, kept, output[1], output[2])


def _backward_group(
    ctx: Any, dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None
) -> tuple[Any, ...]:
    x, weight, bias, mean, rstd = ctx.saved_tensors
    weight = weight_like_bias(ctx, x, weight, x.shape[1:2])
    dx = dgamma = dbeta = None
    if dy is not None:
        settings = (ctx.groups, ctx.needs_input_grad[:3])
        if ctx.after[0] is not None:
            settings = (*settings, 1, bias, *ctx.after)
        dx, dgamma, dbeta = _group_norm_backward(
            few_axes(dy), few_axes(x), mean, rstd, weight, *settings
        )
        dx = _like(x, dx)
    if ctx.needs_input_grad[0] and (dmean is not None or drstd is not None):
        grouped = x.reshape(*mean.shape, math.prod(x.shape[1:]) // ctx.groups)
        like = None if dx is None else dx.reshape(grouped.shape)
        shape = (*mean.shape, 1)
        dx = _through_statistics(like, grouped, shape, (mean, rstd), (dmean, drstd))
        dx = dx if dx is None else dx.reshape(x.shape)
    return dx, dgamma, dbeta, *(None,) * 4


def _through_statistics(
    dx: Tensor | None,
    x: Tensor,
    shape: Sequence[int],
    statistics: tuple[Tensor | None, Tensor],
    grads: tuple[Tensor | None, Tensor | None],
) -> Tensor | None:
    """Add what flows to x through mean and rstd: d mean = 1/m, d rstd = -rstd^3 (x - mean)/m."""
    dmean, drstd = grads
    if dmean is None and drstd is None:
        return dx
    mean, rstd = statistics[0], statistics[1].reshape(shape)
    count = x.numel() // max(rstd.numel(), 1)
    through = 0.0 if dmean is None else dmean.reshape(shape) / count
    if drstd is not None:
        centred = x if mean is None else x - mean.reshape(shape)
        through = through - drstd.reshape(shape) * rstd**3 * centred / count
    if dx is not None:
        through = through + dx
    return torch.as_tensor(through).to(x.dtype).expand_as(x)


def _pure_batch(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """In training the running statistics are written and not read."""
    return (*args[:3], None, None, *args[5:]) if args[5] else args


def _pure_batch_add(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (args[0], args[1], *_pure_batch((args[0], *args[2:]))[1:])


# Of each operator: what is kept, its derivative, and the arguments of a call that writes nothing.
RULES: Final[dict[str, tuple[Any, Any, Any]]] = {
    "batch_norm": (_setup_batch, _backward_batch, _pure_batch),
    "batch_norm_add": (_setup_batch_add, _backward_batch_add, _pure_batch_add),
    "layer_norm": (_setup_layer, _backward_layer, tuple),
    "add_layer_norm": (_setup_add_layer, _backward_add_layer, tuple),
    "rms_norm": (_setup_rms, _backward_rms, tuple),
    "add_rms_norm": (_setup_add_rms, _backward_add_rms, tuple),
    "group_norm": (_setup_group, _backward_group, tuple),
}
