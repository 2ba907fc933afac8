"""``torch.ops.normgrad.*_backward``: the six functions as operators of torch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from normgrad.calls.dispatch import compute
from normgrad.calls.fused import NEGATIVE_SLOPE, after_norm, fused_operands
from normgrad.core.errors import ArgumentError, BackendError, OptionError
from normgrad.core.spec import Op
from normgrad.torch import batching
from normgrad.torch.derivative import Request, by_formula, differentiate
from normgrad.torch.library import (
    Tensor,
    Three,
    define,
    differentiable,
    empty_dense,
    empty_gradients,
    statistics_dtype,
)

Four = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
Mask = Sequence[bool]

# Arguments in the order of torch's own operators, then what they have not.
_ACTIVATION = "str? activation=None, float negative_slope=0.01"
_BATCH = (
    "(Tensor grad_out, Tensor input, Tensor? weight=None, Tensor? running_mean=None, "
    "Tensor? running_var=None, Tensor? save_mean=None, Tensor? save_invstd=None, "
    "bool training=True, float eps=1e-05, bool[3] output_mask=[True, True, True], "
    f"int channel_axis=1, Tensor? bias=None, {_ACTIVATION}) -> (Tensor, Tensor, Tensor)"
)
_ADD = (
    "(Tensor grad_out, Tensor input, Tensor? shortcut=None, Tensor? mask=None, "
    "Tensor? weight=None, Tensor? bias=None, Tensor? running_mean=None, "
    "Tensor? running_var=None, Tensor? save_mean=None, Tensor? save_invstd=None, "
    "bool training=True, float eps=1e-05, bool[4] output_mask=[True, True, True, True], "
    "int channel_axis=1, str activation='relu', float negative_slope=0.01) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
_REDUCE = (
    "(Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, Tensor? weight=None, "
    "bool[4] output_mask=[True, True, True, True], int channel_axis=1) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
_ELEMT = (
    "(Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, Tensor? weight, Tensor sum_dy, "
    "Tensor sum_dy_xmu, Tensor counter, int channel_axis=1) -> Tensor"
)
_LAYER = (
    "(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, "
    "Tensor? weight=None, Tensor? bias=None, bool[3] output_mask=[True, True, True], "
    "Tensor? grad_sum=None) -> (Tensor, Tensor, Tensor)"
)
_RMS = (
    "(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor rstd, "
    "Tensor? weight=None, bool[2] output_mask=[True, True], float weight_offset=0.0, "
    "Tensor? grad_sum=None) -> (Tensor, Tensor)"
)
_GROUP = (
    "(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight=None, "
    "int num_groups=32, bool[3] output_mask=[True, True, True], int channel_axis=1, "
    f"Tensor? bias=None, {_ACTIVATION}) -> (Tensor, Tensor, Tensor)"
)


_ALL = (True, True, True)
_SAVED = {"mean": "save_mean", "rstd": "save_invstd", "variance": "save_invstd"}
_RUNNING = {"mean": "running_mean", "rstd": "running_var", "variance": "running_var"}


def _batch(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    save_mean: Tensor | None = None,
    save_invstd: Tensor | None = None,
    training: bool = True,
    eps: float = 1e-5,
    mask: Mask = _ALL,
    axis: int = 1,
    bias: Tensor | None = None,
    activation: str | None = None,
    slope: float = NEGATIVE_SLOPE,
) -> Any:
    statistics = (running_mean, running_var, save_mean, save_invstd)
    more: dict[str, Tensor | None] = {} if activation is None else {"beta": bias}
    after = after_norm(activation, slope)
    return _of_channels(dy, x, weight, statistics, (training, eps, mask, axis), more, after)


def _add(
    dy: Tensor,
    x: Tensor,
    shortcut: Tensor | None = None,
    opened: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    save_mean: Tensor | None = None,
    save_invstd: Tensor | None = None,
    training: bool = True,
    eps: float = 1e-5,
    mask: Mask = (True, *_ALL),
    axis: int = 1,
    activation: str = "relu",
    slope: float = NEGATIVE_SLOPE,
) -> Any:
    statistics = (running_mean, running_var, save_mean, save_invstd)
    more = {"beta": bias, "shortcut": shortcut, "mask": opened}
    after = after_norm(activation, slope)
    return _of_channels(dy, x, weight, statistics, (training, eps, mask, axis), more, after)


def _of_channels(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    statistics: Sequence[Tensor | None],
    settings: tuple[bool, float, Mask, int],
    more: dict[str, Tensor | None],
    after: tuple[str | None, float],
) -> Any:
    """Batch norm's backward pass, with the statistics of its mode."""
    training, eps, wanted, axis = settings
    if training:
        (mean, rstd), other, kind, names = statistics[2:], statistics[:2], "invstd", _SAVED
        kinds = ("running_mean", "running_var")
    else:
        (mean, rstd), other, kind, names = statistics[:2], statistics[2:], "variance", _RUNNING
        kinds = ("save_mean", "save_invstd")
    for name, one in (("mean", mean), ("rstd", rstd)):
        if one is None:
            mode = "training" if training else "inference"
            raise OptionError(names[name], f"must be given in {mode}", None)
    absent = other[0] is None and other[1] is None
    unread = () if absent else tuple(zip(kinds, other, strict=True))
    arrays, options = (dy, x, mean, rstd, weight), (training, eps, kind, axis)
    try:
        if not more:
            op = Op.BATCH_NORM_BACKWARD
            return compute(op, arrays, unread, options, wanted, None, None, None)
        return _fused(Op.BATCH_NORM_BACKWARD, arrays, unread, options, wanted, more, after)
    except ArgumentError as error:
        error.names = {**error.names, **names}
        raise


def _fused(
    op: Op,
    arrays: Sequence[Tensor | None],
    unread: tuple[tuple[str, Tensor | None], ...],
    settings: tuple[Any, ...],
    wanted: Mask,
    more: dict[str, Tensor | None],
    after: tuple[str | None, float] | None = None,
) -> Any:
    """What the fast backend has no kernel for is torch's, by the formula."""
    operands = fused_operands(arrays, **more)
    settings = settings if after is None else (*settings, *after)
    try:
        fast = arrays[1].device.type  # type: ignore[union-attr]  # the data, which are there
        return compute(op, operands, unread, settings, wanted, None, None, fast)
    except BackendError:
        return by_formula(op, operands, settings, wanted)


def _reduce(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None = None,
    mask: Mask = (True, *_ALL),
    axis: int = 1,
) -> Any:
    arrays = (dy, x, mean, rstd, weight)
    return compute(Op.BATCH_NORM_REDUCE_BACKWARD, arrays, (), (axis,), mask, None, None, None)


def _elemt(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
    axis: int = 1,
) -> Any:
    arrays = (dy, x, mean, rstd, weight, sum_dy, sum_dy_xmu, count)
    return compute(Op.BATCH_NORM_ELEMT_BACKWARD, arrays, (), (axis,), (True,), None, None, None)[0]


def _layer(
    dy: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Mask = _ALL,
    dsum: Tensor | None = None,
) -> Any:
    op, settings = Op.LAYER_NORM_BACKWARD, (tuple(shape),)
    arrays, unread = (dy, x, mean, rstd, weight), (("beta", bias),)
    if dsum is not None:
        return _fused(op, arrays, unread, settings, mask, {"dsum": dsum})
    return compute(op, arrays, unread, settings, mask, None, None, None)


def _rms(
    dy: Tensor,
    x: Tensor,
    shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None = None,
    mask: Mask = _ALL[:2],
    offset: float = 0.0,
    dsum: Tensor | None = None,
) -> Any:
    arrays, settings = (dy, x, None, rstd, weight), (tuple(shape), 0.0, "invstd", offset)
    if dsum is not None:
        return _fused(Op.RMS_NORM_BACKWARD, arrays, (), settings, mask, {"dsum": dsum})
    return compute(Op.RMS_NORM_BACKWARD, arrays, (), settings, mask, None, None, None)


def _group(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None = None,
    num_groups: int = 32,
    mask: Mask = _ALL,
    axis: int = 1,
    bias: Tensor | None = None,
    activation: str | None = None,
    slope: float = NEGATIVE_SLOPE,
) -> Any:
    op, arrays = Op.GROUP_NORM_BACKWARD, (dy, x, mean, rstd, weight)
    if activation is not None:
        settings, after = (num_groups, axis, 0.0, "invstd"), after_norm(activation, slope)
        return _fused(op, arrays, (), settings, mask, {"beta": bias}, after)
    return compute(op, arrays, (), (num_groups, axis), mask, None, None, None)


def _fake_batch(dy: Tensor, x: Tensor, weight: Tensor | None, *rest: Any) -> Three:
    mask, axis = rest[6:8]
    return empty_gradients(x, weight, (x.shape[axis],), mask)


def _fake_add(dy: Tensor, x: Tensor, *rest: Any) -> Four:
    weight, mask, axis = rest[2], rest[10], rest[11]
    grads = empty_gradients(x, weight, (x.shape[axis],), mask[:3])
    return *grads, empty_dense(x) if mask[3] else None


def _fake_reduce(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, mask: Mask, axis: int
) -> Four:
    shape = (x.shape[axis],)
    operands = (dy, x, mean, rstd, *(() if weight is None else (weight,)))
    dtype = statistics_dtype(*(tensor.dtype for tensor in operands))
    sums = [x.new_empty(shape, dtype=dtype) if want else None for want in mask[:2]]
    _, dgamma, dbeta = empty_gradients(x, weight, shape, (False, *mask[2:]))
    return sums[0], sums[1], dgamma, dbeta


def _fake_elemt(dy: Tensor, x: Tensor, *rest: Any) -> Tensor:
    return empty_dense(x)


def _fake_layer(dy: Tensor, x: Tensor, shape: Sequence[int], *rest: Any) -> Three:
    _, _, weight, _, mask, _ = rest
    return empty_gradients(x, weight, shape, mask)


def _fake_rms(dy: Tensor, x: Tensor, shape: Sequence[int], *rest: Any) -> Any:
    _, weight, mask, *_ = rest
    return empty_gradients(x, weight, shape, (*mask, False))[:2]


def _fake_group(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, *rest: Any
) -> Three:
    _, mask, axis, *_ = rest
    shape = (x.shape[axis],) if weight is None else weight.shape
    return empty_gradients(x, weight, shape, mask)


def _batch_request(inputs: tuple[Any, ...]) -> tuple[Request, dict[int, str]]:
    training, eps, _, axis = inputs[7:11]
    options = {
        "training": training,
        "eps": eps,
        "channel_axis": axis,
        "rstd_is": "invstd" if training else "variance",
    }
    mean, rstd = (5, 6) if training else (3, 4)
    roles = {0: "dy", 1: "x", 2: "gamma", mean: "mean", rstd: "rstd"}
    if inputs[12] is not None:
        options |= _after(*inputs[12:14])
        roles[11] = "beta"
    return Request(Op.BATCH_NORM_BACKWARD, options), roles


def _after(activation: str | None, slope: float) -> dict[str, Any]:
    name, slope = after_norm(activation, slope)
    return {"activation": name, "negative_slope": slope}


def _add_request(inputs: tuple[Any, ...]) -> tuple[Request, dict[int, str]]:
    training, eps, _, axis, activation, slope = inputs[10:16]
    options = {
        "training": training,
        "eps": eps,
        "channel_axis": axis,
        "rstd_is": "invstd" if training else "variance",
    }
    mean, rstd = (8, 9) if training else (6, 7)
    roles = {0: "dy", 1: "x", 3: "mask", 4: "gamma", mean: "mean", rstd: "rstd"}
    if inputs[3] is None:  # a mask says what these two would
        roles |= {2: "shortcut", 5: "beta"}
    return Request(Op.BATCH_NORM_BACKWARD, options | _after(activation, slope)), roles


def _reduce_request(inputs: tuple[Any, ...]) -> tuple[Request, dict[int, str]]:
    roles = {0: "dy", 1: "x", 2: "mean", 3: "rstd", 4: "gamma"}
    options = {"channel_axis": inputs[6]}
    return Request(Op.BATCH_NORM_REDUCE_BACKWARD, options), roles


def _elemt_request(inputs: tuple[Any, ...]) -> tuple[Request, dict[int, str]]:
    names = ("dy", "x", "mean", "rstd", "gamma", "sum_dy", "sum_dy_xmu", "counter")
    options = {"channel_axis": inputs[8]}
    return Request(Op.BATCH_NORM_ELEMT_BACKWARD, options), dict(enumerate(names))


def _layer_request(inputs: tuple[Any, ...]) -> tuple[Request, dict[int, str]]:
    roles = {0: "dy", 1: "x", 3: "mean", 4: "rstd", 5: "gamma", 8: "dsum"}
    options = {"normalized_shape": tuple(inputs[2])}
    return Request(Op.LAYER_NORM_BACKWARD, options), roles


def _rms_request(inputs: tuple[Any, ...]) -> tuple[Request, dict[int, str]]:
    roles = {0: "dy", 1: "x", 3: "rstd", 4: "gamma", 7: "dsum"}
    options = {"normalized_shape": tuple(inputs[2]), "weight_offset": inputs[6]}
    return Request(Op.RMS_NORM_BACKWARD, options), roles


def _group_request(inputs: tuple[Any, ...]) -> tuple[Request, dict[int, str]]:
    roles = {0: "dy", 1: "x", 2: "mean", 3: "rstd", 4: "gamma"}
    options = {"num_groups": inputs[5], "channel_axis": inputs[7]}
    if inputs[9] is not None:
        options |= _after(*inputs[9:11])
        roles[8] = "beta"
    return Request(Op.GROUP_NORM_BACKWARD, options), roles


def _derivative(
    request_of: Callable[[tuple[Any, ...]], tuple[Request, dict[int, str]]],
) -> tuple[Callable[..., None], Callable[..., tuple[Any, ...]]]:
    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.request, ctx.roles = request_of(inputs)
        ctx.arguments = len(inputs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(inputs[index] for index in ctx.roles))

    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        operands = dict(zip(ctx.roles.values(), ctx.saved_tensors, strict=True))
        needed = [role for index, role in ctx.roles.items() if ctx.needs_input_grad[index]]
        found = differentiate(ctx.request, operands, grads, needed)
        by_index = {index: found.get(role) for index, role in ctx.roles.items()}
        return tuple(by_index.get(index) for index in range(ctx.arguments))

    return setup, backward


# In compiled programs convolutions want channels last, and the gradients of group norm come in
# either order: a step of a U-Net in bfloat16 on an H200 takes 1.34 ms if both operands are made
# contiguous, 1.67 as they come. Batch norm as it comes: a resnet 2.54, contiguous 2.76.
_ANY, _ROWS = torch.Tag.flexible_layout, torch.Tag.needs_contiguous_strides
# A mask is of data that lie as they did.
_AS_TRACED = torch.Tag.needs_exact_strides
_TABLE: tuple[tuple[Any, ...], ...] = (
    ("batch_norm_backward", _BATCH, _batch, _fake_batch, _ANY, _batch_request),
    ("batch_norm_add_backward", _ADD, _add, _fake_add, _AS_TRACED, _add_request),
    ("batch_norm_reduce_backward", _REDUCE, _reduce, _fake_reduce, _ANY, _reduce_request),
    ("batch_norm_elemt_backward", _ELEMT, _elemt, _fake_elemt, _ANY, _elemt_request),
    ("layer_norm_backward", _LAYER, _layer, _fake_layer, _ROWS, _layer_request),
    ("rms_norm_backward", _RMS, _rms, _fake_rms, _ROWS, _rms_request),
    ("group_norm_backward", _GROUP, _group, _fake_group, _ROWS, _group_request),
)
for _name, _schema, _kernel, _fake, _layout, _request_of in _TABLE:
    define(_name, _schema, _kernel, _fake, _layout)
    differentiable(_name, *_derivative(_request_of), getattr(batching, _name), tuple)
