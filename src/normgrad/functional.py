"""The functional API: arrays in, gradients out."""

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from normgrad.arrays import Array, Kind, View, kind_of
from normgrad.dtypes import FLOATS, compute_dtype
from normgrad.errors import ArgumentError, ArrayTypeError, DeviceError, DtypeError, OptionError
from normgrad.overlap import needs_bounce
from normgrad.plan import Plan, make_plan
from normgrad.spec import RESULTS, ROLES, Op, Spec, StatisticKind, TensorSpec, dense_like
from normgrad.validate import public_names, result_shape

_ALL = (True, True, True)
_CACHED_CALLS = 4096


class Gradients(NamedTuple):
    """What a backward pass gives; None where the mask is False."""

    grad_input: Array
    grad_weight: Array
    grad_bias: Array


class ReducedSums(NamedTuple):
    """The first half of synchronized batch norm: two sums to add over ranks, two local results."""

    sum_dy: Array
    sum_dy_xmu: Array
    grad_weight: Array
    grad_bias: Array


def batch_norm_backward(
    grad_out: Array,
    input: Array,
    weight: Array | None = None,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    save_mean: Array | None = None,
    save_invstd: Array | None = None,
    *,
    training: bool = True,
    eps: float = 1e-5,
    output_mask: Sequence[bool] = _ALL,
    channel_axis: int = 1,
    save_invstd_is: StatisticKind = "invstd",
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Gradients:
    """Gradients of batch normalization with respect to input, weight and bias.

    In training the saved statistics are used (0 and 1 where None), in inference the running ones
    (0 and 1 where None) with ``eps``. ``save_invstd_is="variance"`` reads ``save_invstd`` as a
    variance to which ``eps`` is added.
    """
    saved = {"save_mean": save_mean, "save_invstd": save_invstd}
    running = {"running_mean": running_mean, "running_var": running_var}
    used, unread = (saved, running) if training else (running, saved)
    mean, rstd = used.values()
    return Gradients(
        *_compute(
            Op.BATCH_NORM,
            {"dy": grad_out, "x": input, "mean": mean, "rstd": rstd, "gamma": weight},
            unread,
            {
                "training": bool(training),
                "eps": _number("eps", eps),
                "rstd_is": save_invstd_is if training else "variance",
                "channel_axis": _integer("channel_axis", channel_axis),
            },
            output_mask,
            param_grad_dtype,
            out,
            backend,
        )
    )


def batch_norm_reduce_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    invstd: Array,
    weight: Array | None = None,
    *,
    output_mask: Sequence[bool] = (True, True, True, True),
    channel_axis: int = 1,
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> ReducedSums:
    """The sums that synchronized batch norm adds over all ranks, and the local parameter gradients.

    ``sum_dy`` and ``sum_dy_xmu`` come in float32, or float64 where an operand is float64.
    """
    return ReducedSums(
        *_compute(
            Op.BATCH_NORM_REDUCE,
            {"dy": grad_out, "x": input, "mean": mean, "rstd": invstd, "gamma": weight},
            {},
            {"channel_axis": _integer("channel_axis", channel_axis)},
            output_mask,
            param_grad_dtype,
            out,
            backend,
        )
    )


def batch_norm_elemt_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    invstd: Array,
    weight: Array | None,
    sum_dy: Array,
    sum_dy_xmu: Array,
    counter: Array,
    *,
    channel_axis: int = 1,
    out: Array | None = None,
    backend: str | None = None,
) -> Array:
    """The input gradient from sums over all ranks; ``counter`` holds their element counts."""
    (grad_input,) = _compute(
        Op.BATCH_NORM_ELEMT,
        {
            "dy": grad_out,
            "x": input,
            "mean": mean,
            "rstd": invstd,
            "gamma": weight,
            "sum_dy": sum_dy,
            "sum_dy_xmu": sum_dy_xmu,
            "counter": counter,
        },
        {},
        {"channel_axis": _integer("channel_axis", channel_axis)},
        (True,),
        None,
        None if out is None else (out,),
        backend,
    )
    return grad_input


def layer_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: int | Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    output_mask: Sequence[bool] = _ALL,
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Gradients:
    """Gradients of layer normalization over the last axes. ``bias`` does not change the numbers."""
    return Gradients(
        *_compute(
            Op.LAYER_NORM,
            {"dy": grad_out, "x": input, "mean": mean, "rstd": rstd, "gamma": weight},
            {"beta": bias},
            {"normalized_shape": _sizes("normalized_shape", normalized_shape)},
            output_mask,
            param_grad_dtype,
            out,
            backend,
        )
    )


def group_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    *,
    num_groups: int = 32,
    output_mask: Sequence[bool] = _ALL,
    channel_axis: int = 1,
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Gradients:
    """Gradients of group normalization. The first axis that is not the channels' is the samples'.

    ``mean`` and ``rstd`` have one element for each sample and group, in any shape.
    """
    return Gradients(
        *_compute(
            Op.GROUP_NORM,
            {"dy": grad_out, "x": input, "mean": mean, "rstd": rstd, "gamma": weight},
            {},
            {
                "num_groups": _integer("num_groups", num_groups),
                "channel_axis": _integer("channel_axis", channel_axis),
            },
            output_mask,
            param_grad_dtype,
            out,
            backend,
        )
    )


class _Call(NamedTuple):
    """What a call needs besides its arrays: the plan, and each result as the caller sees it."""

    plan: Plan
    results: tuple[TensorSpec | None, ...]


def _compute(
    op: Op,
    arrays: Mapping[str, Array | None],
    unread: Mapping[str, Array | None],
    options: Mapping[str, object],
    mask: Sequence[bool],
    param_grad_dtype: Any,
    out: Sequence[Array | None] | None,
    backend: str | None,
) -> tuple[Array | None, ...]:
    """The road that all functions share."""
    names = public_names(op, bool(options.get("training", True)))
    like = arrays["x"]
    kind = kind_of(like, "input")
    views = {
        role: kind_of(array, names.get(role, role)).view(array, names.get(role, role))
        for role, array in arrays.items()
        if array is not None or role in ("dy", "x")
    }
    spare = tuple(
        (role, kind_of(array, names.get(role, role)).view(array, names.get(role, role)).tensor)
        for role, array in unread.items()
        if array is not None
    )
    device = _common_device(views, names)
    wanted = _mask(op, mask)
    given = None if out is None else _given(op, out, wanted, device, names)
    call = _prepare(
        op,
        tuple((role, view.tensor) for role, view in views.items()),
        spare,
        tuple(options.items()),
        wanted,
        None if given is None else tuple((role, view.tensor) for role, view in given.items()),
        None if param_grad_dtype is None else _dtype_name(param_grad_dtype),
        device,
        backend,
    )
    if given is None or out is None:
        return _into_new(call, kind, views, like, device)
    bounce = needs_bounce(given, views, names)
    _into_given(call, kind, views, given, bounce, dict(zip(RESULTS[op], out, strict=True)))
    return tuple(out)


def _into_new(
    call: _Call, kind: Kind, views: Mapping[str, View], like: Array, device: str
) -> tuple[Array | None, ...]:
    addresses = {role: view.address for role, view in views.items()}
    made: list[Array | None] = []
    for role, tensor in zip(RESULTS[call.plan.spec.op], call.results, strict=True):
        if tensor is None:
            made.append(None)
            continue
        array, addresses[role] = kind.empty(tensor, device, like)
        made.append(array)
    _launch(call.plan, kind, addresses)
    return tuple(None if array is None else kind.finish(array, like) for array in made)


def _into_given(
    call: _Call,
    kind: Kind,
    views: Mapping[str, View],
    given: Mapping[str, View],
    bounce: set[str],
    out: Mapping[str, Array],
) -> None:
    if bounce:
        # Results that lie over operands are computed into new memory of their own layout first.
        device = call.plan.spec.device
        moved = {role: dense_like(given[role].tensor) for role in bounce}
        plan = make_plan(_with_results(call.plan.spec, moved), call.plan.backend.name)
        call = _Call(plan, call.results)
        fresh = {
            role: kind_of(out[role], role).empty(tensor, device, out[role])
            for role, tensor in moved.items()
        }
    else:
        fresh = {}
    addresses = {role: view.address for role, view in (*views.items(), *given.items())}
    addresses.update({role: address for role, (_, address) in fresh.items()})
    _launch(call.plan, kind, addresses)
    for role, (array, _) in fresh.items():
        kind_of(out[role], role).copy(out[role], array)


def _launch(plan: Plan, kind: Kind, addresses: Mapping[str, int]) -> None:
    workspace = None
    owner: object = None  # keeps the scratch memory alive until the call returns
    if plan.workspace_bytes:
        owner, workspace = kind.scratch(plan.workspace_bytes, plan.spec.device)
    plan.run([addresses.get(role) for role in ROLES], workspace, kind.stream(plan.spec.device))
    del owner


@functools.lru_cache(maxsize=_CACHED_CALLS)
def _prepare(
    op: Op,
    tensors: tuple[tuple[str, TensorSpec], ...],
    unread: tuple[tuple[str, TensorSpec], ...],
    options: tuple[tuple[str, Any], ...],
    wanted: tuple[bool, ...],
    given: tuple[tuple[str, TensorSpec], ...] | None,
    param_grad_dtype: str | None,
    device: str,
    backend: str | None,
) -> _Call:
    """Everything about a call that depends on shapes, types and options alone."""
    operands = dict(tensors)
    settings = dict(options)
    names = public_names(op, bool(settings.get("training", True)))
    axis = _channel_axis(op, operands["x"], settings)
    seen = {role: _sample_major(op, role, tensor, axis) for role, tensor in operands.items()}
    if op is Op.GROUP_NORM:
        del settings["channel_axis"]
    elif axis is not None:
        settings["channel_axis"] = axis
    arguments: dict[str, Any] = {**seen, **settings}
    bare = Spec(op=op, unread=unread, device=device, **arguments)
    roles = [role for role, want in zip(RESULTS[op], wanted, strict=True) if want]
    results = (
        dict(given)
        if given is not None
        else {role: _new_result(bare, operands, role, param_grad_dtype) for role in roles}
    )
    if given is not None:
        _check_result_types(bare, results, param_grad_dtype, names)
    spec = _with_results(
        bare, {role: _sample_major(op, role, tensor, axis) for role, tensor in results.items()}
    )
    plan = make_plan(spec, backend)
    return _Call(plan, tuple(results.get(role) for role in RESULTS[op]))


def _with_results(spec: Spec, results: Mapping[str, TensorSpec]) -> Spec:
    return dataclasses.replace(spec, **results)  # type: ignore[arg-type]


def _channel_axis(op: Op, x: TensorSpec, options: Mapping[str, Any]) -> int | None:
    if op is Op.LAYER_NORM:
        return None
    axis: int = options["channel_axis"]
    rank = len(x.shape)
    if not -rank <= axis < rank and rank:
        rule = f"must be an axis of input, whose shape is {x.shape}"
        raise OptionError("channel_axis", rule, axis)
    return axis % rank if rank else axis


def _sample_major(op: Op, role: str, tensor: TensorSpec, axis: int | None) -> TensorSpec:
    """Group norm's data with the channels at axis 1; all else as it is."""
    if op is not Op.GROUP_NORM or role not in ("dy", "x", "dx") or len(tensor.shape) < 2:
        return tensor
    assert axis is not None
    return tensor.move_axis(axis, 1) if axis < len(tensor.shape) else tensor


def _new_result(
    spec: Spec, operands: Mapping[str, TensorSpec], role: str, param_grad_dtype: str | None
) -> TensorSpec:
    if role == "dx":
        return dense_like(operands["x"])
    if role in ("sum_dy", "sum_dy_xmu"):
        dtype = compute_dtype(tuple(tensor.dtype for tensor in operands.values()))
    else:
        dtype = param_grad_dtype or (spec.gamma or spec.x).dtype
    rank_holds = spec.op is Op.LAYER_NORM or len(spec.x.shape) > max(spec.channel_axis, 1)
    shape = result_shape(spec, role) if rank_holds else ()
    return TensorSpec.contiguous(shape, dtype)


def _check_result_types(
    spec: Spec, results: Mapping[str, TensorSpec], wished: str | None, names: Mapping[str, str]
) -> None:
    for role, tensor in results.items():
        if role == "dx":
            allowed: tuple[str, ...] = (spec.x.dtype,)
        elif role in ("sum_dy", "sum_dy_xmu"):
            allowed = ("float32", "float64")
        elif wished is not None:
            allowed = (wished,)
        else:
            allowed = tuple(dict.fromkeys(((spec.gamma or spec.x).dtype, "float32")))
        if tensor.dtype not in allowed:
            rule = f"must be of type {' or '.join(allowed)}"
            raise DtypeError(role, rule, tensor.dtype, names)


def _common_device(views: Mapping[str, View], names: Mapping[str, str]) -> str:
    device = views["x"].device
    for role, view in views.items():
        if view.device != device:
            raise DeviceError(role, f"must be on {{x}}'s device, {device}", view.device, names)
    return device


def _given(
    op: Op,
    out: Sequence[Array | None],
    wanted: tuple[bool, ...],
    device: str,
    names: Mapping[str, str],
) -> dict[str, View]:
    roles = RESULTS[op]
    if not isinstance(out, (tuple, list)) or len(out) != len(roles):
        rule = f"must be a tuple of {len(roles)}: {', '.join(names.get(r, r) for r in roles)}"
        got = f"{len(out)} of them" if isinstance(out, (tuple, list)) else type(out).__name__
        raise ArrayTypeError("out", rule, got)
    views = {}
    for role, array, want in zip(roles, out, wanted, strict=True):
        name = f"out's {names.get(role, role)}"
        if want != (array is not None):
            rule = f"must be {'an array' if want else 'None'}, as output_mask says"
            raise OptionError(name, rule, "None" if array is None else type(array).__name__)
        if array is None:
            continue
        views[role] = kind_of(array, name).result_view(array, name)
        if views[role].device != device:
            rule = f"must be on input's device, {device}"
            raise DeviceError(name, rule, views[role].device)
    return views


def _mask(op: Op, mask: Sequence[bool]) -> tuple[bool, ...]:
    expected = len(RESULTS[op])
    bits: tuple[Any, ...] = tuple(mask) if hasattr(mask, "__iter__") else ()
    # NumPy's booleans are of a class of the same name.
    if len(bits) != expected or any(type(bit).__name__ not in ("bool", "bool_") for bit in bits):
        raise OptionError("output_mask", f"must be {expected} booleans", mask)
    return tuple(bool(bit) for bit in bits)


def _dtype_name(dtype: Any) -> str:
    name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
    name = name.removeprefix("torch.")
    if name not in FLOATS:
        raise DtypeError("param_grad_dtype", f"must be one of {', '.join(FLOATS)}", name)
    return name


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise OptionError(name, "must be a number", repr(value)) from None


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise OptionError(name, "must be an integer", repr(value)) from None


def _sizes(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)) and not hasattr(value, "__iter__"):
        value = (value,)
    try:
        return tuple(operator.index(size) for size in value)
    except TypeError:
        raise OptionError(name, "must be an integer or a tuple of integers", value) from None


__all__ = [
    "ArgumentError",
    "Gradients",
    "ReducedSums",
    "batch_norm_backward",
    "batch_norm_elemt_backward",
    "batch_norm_reduce_backward",
    "group_norm_backward",
    "layer_norm_backward",
]
