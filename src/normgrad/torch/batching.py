"""Rules for ``torch.func.vmap``: the mapped axis joins another, so one call does all.

Every parameter and statistic belongs to a channel or a group, and with the mapped axis folded into
them each mapped slice keeps its own. Layer norm becomes a group norm with a group for each slice.
A forward pass whose slices have nothing of their own but data takes them for samples.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from normgrad.torch.activations import activated
from normgrad.torch.forward import no_mask
from normgrad.torch.library import Tensor

Dims = tuple[int | None, ...]
Ruled = tuple[Any, Any]


def _front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _data(tensor: Tensor, dim: int | None, size: int, axis: int) -> Tensor:
    """Data with the mapped axis folded into the channels'."""
    return _front(tensor, dim, size).movedim(0, axis).flatten(axis, axis + 1)


def _vector(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    return None if tensor is None else _front(tensor, dim, size).reshape(-1)


def _unfold(tensor: Tensor | None, size: int, shape: Sequence[int]) -> Tensor | None:
    return None if tensor is None else tensor.reshape(size, *shape)


def _in_pieces(y: Tensor, size: int) -> Tensor:
    """A result's slices, of channels side by side, each in one piece: callers may want a view."""
    slices: Tensor = y.unflatten(1, (size, y.shape[1] // size))
    return slices.movedim(1, 0).contiguous()


def _axis(input: Tensor, dim: int | None, axis: int) -> int:
    return axis % (input.dim() - (dim is not None))


def _dims(results: Sequence[Any], dims: Sequence[int]) -> Dims:
    return tuple(None if one is None else dim for one, dim in zip(results, dims, strict=True))


def batch_norm_backward(size: int, dims: Dims, *args: Any) -> Ruled:
    """As one batch norm of size * C channels."""
    training, eps, mask, axis, bias, *after = args[7:]
    axis = _axis(args[1], dims[1], axis)
    data = [_data(one, dim, size, axis) for one, dim in zip(args[:2], dims[:2], strict=True)]
    vectors = [_vector(one, dim, size) for one, dim in zip(args[2:7], dims[2:7], strict=True)]
    bias = _vector(bias, dims[11], size)
    dx, dgamma, dbeta = torch.ops.normgrad.batch_norm_backward(
        *data, *vectors, training, eps, mask, axis, bias, *after
    )
    shape = (data[1].shape[axis] // size,)
    results = (
        None if dx is None else dx.unflatten(axis, (size, *shape)),
        _unfold(dgamma, size, shape),
        _unfold(dbeta, size, shape),
    )
    return results, _dims(results, (axis, 0, 0))


def batch_norm_add_backward(size: int, dims: Dims, *args: Any) -> Ruled:
    """Likewise; bits are not put in another order."""
    training, eps, wanted, axis, *after = args[10:]
    if args[3] is not None:
        msg = "batch_norm_add_backward under vmap takes shortcut, not mask"
        raise NotImplementedError(msg)
    axis = _axis(args[1], dims[1], axis)
    data = [_data(one, dim, size, axis) for one, dim in zip(args[:3], dims[:3], strict=True)]
    vectors = [_vector(one, dim, size) for one, dim in zip(args[4:10], dims[4:10], strict=True)]
    dx, dgamma, dbeta, dadded = torch.ops.normgrad.batch_norm_add_backward(
        *data, None, *vectors, training, eps, wanted, axis, *after
    )
    shape = (data[1].shape[axis] // size,)
    results = (
        None if dx is None else dx.unflatten(axis, (size, *shape)),
        _unfold(dgamma, size, shape),
        _unfold(dbeta, size, shape),
        None if dadded is None else dadded.unflatten(axis, (size, *shape)),
    )
    return results, _dims(results, (axis, 0, 0, axis))


def batch_norm_reduce_backward(size: int, dims: Dims, *args: Any) -> Ruled:
    """As one reduction of size * C channels."""
    mask, axis = args[5:]
    axis = _axis(args[1], dims[1], axis)
    data = [_data(one, dim, size, axis) for one, dim in zip(args[:2], dims[:2], strict=True)]
    vectors = [_vector(one, dim, size) for one, dim in zip(args[2:5], dims[2:5], strict=True)]
    sums = torch.ops.normgrad.batch_norm_reduce_backward(*data, *vectors, mask, axis)
    results = tuple(_unfold(one, size, (data[1].shape[axis] // size,)) for one in sums)
    return results, _dims(results, (0, 0, 0, 0))


def batch_norm_elemt_backward(size: int, dims: Dims, *args: Any) -> Ruled:
    """As one element stage of size * C channels; mapped counts have a call for each slice."""
    counter, axis = args[7:]
    op = torch.ops.normgrad.batch_norm_elemt_backward
    axis = _axis(args[1], dims[1], axis)
    if dims[7] is not None:
        slices = [
            [
                one if dim is None else one.select(dim, index)
                for one, dim in zip(args[:8], dims[:8], strict=True)
            ]
            for index in range(size)
        ]
        return torch.stack([op(*one, axis) for one in slices]), 0
    data = [_data(one, dim, size, axis) for one, dim in zip(args[:2], dims[:2], strict=True)]
    vectors = [_vector(one, dim, size) for one, dim in zip(args[2:7], dims[2:7], strict=True)]
    dx = op(*data, *vectors, counter, axis)
    return dx.unflatten(axis, (size, dx.shape[axis] // size)), axis


def group_norm_backward(size: int, dims: Dims, *args: Any) -> Ruled:
    """As one group norm of size * G groups."""
    dy, x, mean, rstd, weight, groups, mask, axis, bias, *after = args
    axis = _axis(x, dims[1], axis)
    data = [_data(dy, dims[0], size, axis), _data(x, dims[1], size, axis)]
    statistics = [
        _front(one, dim, size).reshape(size, -1, groups).movedim(0, 1).flatten(1)
        for one, dim in ((mean, dims[2]), (rstd, dims[3]))
    ]
    dx, dgamma, dbeta = torch.ops.normgrad.group_norm_backward(
        *(*data, *statistics, _vector(weight, dims[4], size)),
        *(size * groups, mask, axis, _vector(bias, dims[8], size), *after),
    )
    channels = data[1].shape[axis] // size
    shape = (channels,) if weight is None else _front(weight, dims[4], size).shape[1:]
    results = (
        None if dx is None else dx.unflatten(axis, (size, channels)),
        _unfold(dgamma, size, shape),
        _unfold(dbeta, size, shape),
    )
    return results, _dims(results, (axis, 0, 0))


def layer_norm_backward(size: int, dims: Dims, *args: Any) -> Ruled:
    """As a group norm: a row of each slice is one group of a sample."""
    dy, x, shape, mean, rstd, weight, _, mask, dsum = args
    columns = math.prod(shape)
    whole = _front(x, dims[1], size)
    data = [
        _front(one, dim, size).reshape(size, -1, columns).movedim(0, 1).flatten(1)
        for one, dim in ((dy, dims[0]), (x, dims[1]))
    ]
    statistics = [
        _front(one, dim, size).reshape(size, -1).movedim(0, 1)
        for one, dim in ((mean, dims[3]), (rstd, dims[4]))
    ]
    dx, dgamma, dbeta = torch.ops.normgrad.group_norm_backward(
        *data, *statistics, _vector(weight, dims[5], size), size, mask, 1
    )
    if dx is not None:
        dx = dx.unflatten(1, (size, columns)).movedim(1, 0).reshape(whole.shape)
        dx = _plus(dx, dsum, dims[8], size)
    results = (
        dx,
        _unfold(dgamma, size, shape),
        _unfold(dbeta, size, shape),
    )
    return results, _dims(results, (0, 0, 0))


def _plus(dx: Tensor, dsum: Tensor | None, dim: int | None, size: int) -> Tensor:
    """With the gradient that reaches a sum from elsewhere."""
    return dx if dsum is None else dx + _front(dsum, dim, size)


def rms_norm_backward(size: int, dims: Dims, *args: Any) -> Ruled:
    """The weight's gradients as layer norm's with a mean of 0; rows of all slices for the data's.

    A weight for each slice is multiplied into the gradient of the output before.
    """
    dy, x, shape, rstd, weight, mask, offset, dsum = args
    dgamma = dx = None
    if mask[1]:
        statistics = (torch.zeros_like(rstd), rstd, weight, None, (False, True, False), None)
        both = (dims[0], dims[1], None, dims[3], dims[3], dims[4], None, None, None)
        (_, dgamma, _), _ = layer_norm_backward(size, both, dy, x, shape, *statistics)
    if mask[0]:
        dy, x, rstd = (
            _front(one, dim, size) for one, dim in ((dy, dims[0]), (x, dims[1]), (rstd, dims[3]))
        )
        if dims[4] is not None:
            ones = (size, *(1,) * (x.dim() - 1 - len(shape)), *shape)
            factor = _front(weight, dims[4], size).reshape(ones)
            dy, weight, offset = dy * (factor.to(rstd.dtype) + offset), None, 0.0
        op = torch.ops.normgrad.rms_norm_backward
        dx = _plus(op(dy, x, shape, rstd, weight, (True, False), offset)[0], dsum, dims[7], size)
    return (dx, dgamma), _dims((dx, dgamma), (0, 0))


def batch_norm(size: int, dims: Dims, *args: Any) -> Ruled:
    """As one batch norm of size * C channels; mapped data cannot update buffers that are not."""
    x, weight, bias, running_mean, running_var, training, *rest = args
    if not training and dims[1:5] == (None,) * 4:
        y, *nothing = _as_samples(torch.ops.normgrad.batch_norm, size, dims[0], args)
        return (y, *(one.expand(size, *one.shape) for one in nothing)), (0, 0, 0)
    buffers = [(running_mean, dims[3]), (running_var, dims[4])]
    shared = any(one is not None and dim is None for one, dim in buffers)
    if training and shared and dims[0] is not None:
        msg = (
            "batch norm under vmap would update running statistics that are not mapped: "
            "pass them through vmap, or use track_running_stats=False"
        )
        raise RuntimeError(msg)
    folded = [_vector(one, dim, size) for one, dim in buffers]
    if training:  # an update must not go to a copy
        folded = [None if one is None else one.clone() for one in folded]
    y, mean, rstd = torch.ops.normgrad.batch_norm(
        _data(x, dims[0], size, 1),
        _vector(weight, dims[1], size),
        _vector(bias, dims[2], size),
        *folded,
        training,
        *rest,
    )
    if training:
        for (one, dim), update in zip(buffers, folded, strict=True):
            if one is not None and update is not None:
                each = update.reshape(size, -1)
                if dim is None:  # nor are the data: the same in every slice
                    one.copy_(each[0])
                else:
                    one.movedim(dim, 0).copy_(each)
    statistics = (mean.numel() // size,)
    results = (
        _in_pieces(y, size),
        mean.reshape(size, *statistics),
        rstd.reshape(size, *statistics),
    )
    return results, (0, 0, 0)


def batch_norm_add(size: int, dims: Dims, *args: Any) -> Ruled:
    """As batch norm, a sum and the activation: without a mask, whose bits are not put elsewhere."""
    x, added, *rest, activation, slope = args
    inner = (dims[0], *dims[2:9], None, None)
    (y, *statistics), out_dims = batch_norm(size, inner, x, *rest, None, slope)
    y = activated(y + _front(added, dims[1], size), activation, slope)
    return (y, *statistics, no_mask(x)), (*out_dims, None)


def add_layer_norm(size: int, dims: Dims, *args: Any) -> Ruled:
    """The sum, then layer norm."""
    return _sum_first(layer_norm, size, dims, *args)


def add_rms_norm(size: int, dims: Dims, *args: Any) -> Ruled:
    """The sum, then RMS norm."""
    return _sum_first(rms_norm, size, dims, *args)


def _sum_first(norm: Callable[..., Ruled], size: int, dims: Dims, *args: Any) -> Ruled:
    added = _front(args[0], dims[0], size) + _front(args[1], dims[1], size)
    (y, *statistics), (first, *others) = norm(size, (0, *dims[2:]), added, *args[2:])
    return (y, added, *statistics), (first, 0, *others)


def layer_norm(size: int, dims: Dims, *args: Any) -> Ruled:
    """The mapped axis is one more axis of rows; mapped parameters are applied after."""
    x, shape, weight, bias, eps = args
    x = _front(x, dims[0], size)
    mapped = dims[2] is not None or dims[3] is not None
    op = torch.ops.normgrad.layer_norm
    y, mean, rstd = op(x, shape, None, None, eps) if mapped else op(x, shape, weight, bias, eps)
    if mapped:
        rows = (size, *(1,) * (x.dim() - 1 - len(shape)), *shape)
        if weight is not None:
            y = y * _front(weight, dims[2], size).reshape(rows)
        if bias is not None:
            y = y + _front(bias, dims[3], size).reshape(rows)
    return (y.to(x.dtype), mean, rstd), (0, 0, 0)


def rms_norm(size: int, dims: Dims, *args: Any) -> Ruled:
    """The mapped axis is one more axis of rows; a mapped weight is applied after."""
    x, shape, weight, eps, offset = args
    x = _front(x, dims[0], size)
    op = torch.ops.normgrad.rms_norm
    if dims[2] is None:
        return op(x, shape, weight, eps, offset), (0, 0)
    y, rstd = op(x, shape, None, eps)
    rows = (size, *(1,) * (x.dim() - 1 - len(shape)), *shape)
    y = y * (_front(weight, dims[2], size).reshape(rows).to(rstd.dtype) + offset)
    return (y.to(x.dtype), rstd), (0, 0)


def _as_samples(op: Any, size: int, dim: int | None, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """The mapped axis is one more axis of samples, where all slices share their parameters."""
    x = _front(args[0], dim, size)
    y, *statistics = op(x.flatten(0, 1), *args[1:])
    return y.unflatten(0, x.shape[:2]), *statistics


def group_norm(size: int, dims: Dims, *args: Any) -> Ruled:
    """As one group norm of size * N samples or, with parameters for each slice, size * G groups."""
    x, weight, bias, *rest = args
    groups = rest[0]
    op = torch.ops.normgrad.group_norm
    if dims[1:3] == (None, None):
        y, *statistics = _as_samples(op, size, dims[0], args)
        return (y, *(one.unflatten(0, y.shape[:2]) for one in statistics)), (0, 0, 0)
    y, mean, rstd = op(
        _data(x, dims[0], size, 1),
        _vector(weight, dims[1], size),
        _vector(bias, dims[2], size),
        size * groups,
        *rest[1:],
    )
    results = (
        _in_pieces(y, size),
        mean.unflatten(1, (size, groups)),
        rstd.unflatten(1, (size, groups)),
    )
    return results, (0, 1, 1)
