"""``torch.ops.normgrad.*_backward``: the five functions as operators of torch."""

from collections.abc import Callable, Sequence
from typing import Any

from normgrad import functional
from normgrad.spec import Op
from normgrad.torch import batching
from normgrad.torch.derivative import Request, differentiate
from normgrad.torch.library import Tensor, define, differentiable, empty_dense, statistics_dtype

Three = tuple[Tensor | None, Tensor | None, Tensor | None]
Four = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
Mask = Sequence[bool]


def _batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    save_mean: Tensor | None = None,
    save_invstd: Tensor | None = None,
    training: bool = True,
    eps: float = 1e-5,
    output_mask: Mask = (True, True, True),
    channel_axis: int = 1,
) -> Three:
    return functional.batch_norm_backward(
        grad_out,
        input,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_invstd,
        training=training,
        eps=eps,
        output_mask=output_mask,
        channel_axis=channel_axis,
    )


def _batch_norm_reduce_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None = None,
    output_mask: Mask = (True, True, True, True),
    channel_axis: int = 1,
) -> Four:
    return functional.batch_norm_reduce_backward(
        grad_out, input, mean, invstd, weight, output_mask=output_mask, channel_axis=channel_axis
    )


def _batch_norm_elemt_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    counter: Tensor,
    channel_axis: int = 1,
) -> Tensor:
    grad_input: Tensor = functional.batch_norm_elemt_backward(
        grad_out,
        input,
        mean,
        invstd,
        weight,
        sum_dy,
        sum_dy_xmu,
        counter,
        channel_axis=channel_axis,
    )
    return grad_input


def _layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    output_mask: Mask = (True, True, True),
) -> Three:
    return functional.layer_norm_backward(
        grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask=output_mask
    )


def _group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None = None,
    num_groups: int = 32,
    output_mask: Mask = (True, True, True),
    channel_axis: int = 1,
) -> Three:
    return functional.group_norm_backward(
        grad_out,
        input,
        mean,
        rstd,
        weight,
        num_groups=num_groups,
        output_mask=output_mask,
        channel_axis=channel_axis,
    )


def _fake_three(
    input: Tensor, weight: Tensor | None, shape: Sequence[int], output_mask: Mask
) -> Three:
    of = input if weight is None else weight
    return (
        empty_dense(input) if output_mask[0] else None,
        of.new_empty(shape) if output_mask[1] else None,
        of.new_empty(shape) if output_mask[2] else None,
    )


def _fake_batch(grad_out: Tensor, input: Tensor, weight: Tensor | None = None, *rest: Any) -> Three:
    mask = rest[6] if len(rest) > 6 else (True, True, True)
    axis = rest[7] if len(rest) > 7 else 1
    return _fake_three(input, weight, (input.shape[axis],), mask)


def _fake_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None = None,
    output_mask: Mask = (True, True, True, True),
    channel_axis: int = 1,
) -> Four:
    shape = (input.shape[channel_axis],)
    operands = (grad_out, input, mean, invstd, *(() if weight is None else (weight,)))
    dtype = statistics_dtype(*(tensor.dtype for tensor in operands))
    sums = [input.new_empty(shape, dtype=dtype) if want else None for want in output_mask[:2]]
    _, dgamma, dbeta = _fake_three(input, weight, shape, (False, *output_mask[2:]))
    return sums[0], sums[1], dgamma, dbeta


def _fake_elemt(grad_out: Tensor, input: Tensor, *rest: Any) -> Tensor:
    return empty_dense(input)


def _fake_layer(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    output_mask: Mask = (True, True, True),
) -> Three:
    return _fake_three(input, weight, normalized_shape, output_mask)


def _fake_group(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None = None,
    num_groups: int = 32,
    output_mask: Mask = (True, True, True),
    channel_axis: int = 1,
) -> Three:
    shape = (input.shape[channel_axis],) if weight is None else weight.shape
    return _fake_three(input, weight, shape, output_mask)


# Each operator's schema, with the roles of its tensor arguments in order (None: no role).
_BATCH = (
    "(Tensor grad_out, Tensor input, Tensor? weight=None, Tensor? running_mean=None, "
    "Tensor? running_var=None, Tensor? save_mean=None, Tensor? save_invstd=None, "
    "bool training=True, float eps=1e-05, bool[3] output_mask=[True, True, True], "
    "int channel_axis=1) -> (Tensor, Tensor, Tensor)"
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
    "Tensor? weight=None, Tensor? bias=None, bool[3] output_mask=[True, True, True]) "
    "-> (Tensor, Tensor, Tensor)"
)
_GROUP = (
    "(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight=None, "
    "int num_groups=32, bool[3] output_mask=[True, True, True], int channel_axis=1) "
    "-> (Tensor, Tensor, Tensor)"
)


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
    return Request(Op.BATCH_NORM, options), roles


def _reduce_request(inputs: tuple[Any, ...]) -> tuple[Request, dict[int, str]]:
    roles = {0: "dy", 1: "x", 2: "mean", 3: "rstd", 4: "gamma"}
    options = {"channel_axis": inputs[6]}
    return Request(Op.BATCH_NORM_REDUCE, options), roles


def _elemt_request(inputs: tuple[Any, ...]) -> tuple[Request, dict[int, str]]:
    names = ("dy", "x", "mean", "rstd", "gamma", "sum_dy", "sum_dy_xmu", "counter")
    options = {"channel_axis": inputs[8]}
    return Request(Op.BATCH_NORM_ELEMT, options), dict(enumerate(names))


def _layer_request(inputs: tuple[Any, ...]) -> tuple[Request, dict[int, str]]:
    roles = {0: "dy", 1: "x", 3: "mean", 4: "rstd", 5: "gamma"}
    options = {"normalized_shape": tuple(inputs[2])}
    return Request(Op.LAYER_NORM, options), roles


def _group_request(inputs: tuple[Any, ...]) -> tuple[Request, dict[int, str]]:
    roles = {0: "dy", 1: "x", 2: "mean", 3: "rstd", 4: "gamma"}
    options = {"num_groups": inputs[5], "channel_axis": inputs[7]}
    return Request(Op.GROUP_NORM, options), roles


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


_TABLE: tuple[tuple[Any, ...], ...] = (
    ("batch_norm_backward", _BATCH, _batch_norm_backward, _fake_batch, _batch_request),
    (
        "batch_norm_reduce_backward",
        _REDUCE,
        _batch_norm_reduce_backward,
        _fake_reduce,
        _reduce_request,
    ),
    ("batch_norm_elemt_backward", _ELEMT, _batch_norm_elemt_backward, _fake_elemt, _elemt_request),
    ("layer_norm_backward", _LAYER, _layer_norm_backward, _fake_layer, _layer_request),
    ("group_norm_backward", _GROUP, _group_norm_backward, _fake_group, _group_request),
)
for _name, _schema, _kernel, _fake, _request_of in _TABLE:
    define(_name, _schema, _kernel, _fake)
    differentiable(_name, *_derivative(_request_of), getattr(batching, _name), tuple)
