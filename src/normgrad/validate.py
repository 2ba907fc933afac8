"""Every rule about a request, in one place.

The order is fixed: what must be given, types, options, ranks and shapes of the data (``dx`` among
them), of the vectors, of the other results.
"""

import contextlib
import math
from collections.abc import Iterator

from normgrad import options
from normgrad.dtypes import COUNTS, FLOATS, ITEMSIZE
from normgrad.errors import ArgumentError, DtypeError, OptionError, OverlapError, ShapeError
from normgrad.hostmem import byte_range
from normgrad.spec import STATISTIC_KINDS, Op, Spec, TensorSpec
from normgrad.strides import overlaps_itself

MAX_RANK = 8
# No processor's addresses have more bits. What is computed from sizes and strides fits in int64.
_ADDRESS_BITS = 57
MIN_RANK = {
    Op.BATCH_NORM: 2,
    Op.BATCH_NORM_REDUCE: 2,
    Op.BATCH_NORM_ELEMT: 2,
    Op.LAYER_NORM: 1,
    Op.GROUP_NORM: 2,
}
# What must be given although its slot may be None for other operators.
REQUIRED = {
    Op.BATCH_NORM: (),
    Op.BATCH_NORM_REDUCE: ("mean", "rstd"),
    Op.BATCH_NORM_ELEMT: ("mean", "rstd", "sum_dy", "sum_dy_xmu", "counter"),
    Op.LAYER_NORM: ("mean", "rstd"),
    Op.GROUP_NORM: ("mean", "rstd"),
}

# The names of the functional API; an interface with other names passes its own to `render`.
_DATA = {"dy": "grad_out", "x": "input", "gamma": "weight", "dx": "grad_input"}
_PARAM = {"dgamma": "grad_weight", "dbeta": "grad_bias"}
NAMES: dict[Op, dict[str, str]] = {
    Op.BATCH_NORM: {**_DATA, **_PARAM, "mean": "save_mean", "rstd": "save_invstd"},
    Op.BATCH_NORM_REDUCE: {**_DATA, **_PARAM, "rstd": "invstd"},
    Op.BATCH_NORM_ELEMT: {**_DATA, "rstd": "invstd"},
    Op.LAYER_NORM: {**_DATA, **_PARAM, "beta": "bias"},
    Op.GROUP_NORM: {**_DATA, **_PARAM},
}
_INFERENCE = NAMES[Op.BATCH_NORM] | {"mean": "running_mean", "rstd": "running_var"}


def public_names(op: Op, training: bool) -> dict[str, str]:
    """How the functional API calls the roles of a request."""
    return _INFERENCE if op is Op.BATCH_NORM and not training else NAMES[op]


def validate(spec: Spec) -> None:
    """Raise the first broken rule, with the names of the functional API."""
    validate_operands(spec)
    with _public(spec):
        _check_results(spec)


def validate_operands(spec: Spec) -> None:
    """The same for all but the results: after it their shapes are known."""
    with _public(spec):
        _check_given(spec)
        _check_dtypes(spec)
        _check_options(spec)
        _check_data(spec)
        _check_vectors(spec)
        for role in spec.operands:
            _check_span(spec, role)


def validate_data(spec: Spec) -> None:
    """The same for the options and the data alone: after it the geometry is known."""
    with _public(spec):
        _check_options(spec)
        _check_data(spec)


@contextlib.contextmanager
def _public(spec: Spec) -> Iterator[None]:
    try:
        yield
    except ArgumentError as error:
        error.names = public_names(spec.op, spec.training)
        raise


def _check_given(spec: Spec) -> None:
    for role in REQUIRED[spec.op]:
        if spec.tensor(role) is None:
            raise OptionError(role, "must be given", None)


def _check_dtypes(spec: Spec) -> None:
    named = [(role, spec.present(role)) for role in (*spec.operands, *spec.wanted)]
    for role, tensor in (*named, *spec.unread):
        allowed = COUNTS if role == "counter" else tuple(FLOATS)
        if tensor.dtype not in allowed:
            raise DtypeError(role, f"must be of type {', '.join(allowed)}", tensor.dtype)


def _check_options(spec: Spec) -> None:
    if not (math.isfinite(spec.eps) and spec.eps >= 0):
        raise OptionError("eps", "must be finite and not negative", spec.eps)
    options.choice("save_invstd_is", spec.rstd_is, STATISTIC_KINDS)
    if spec.op is Op.LAYER_NORM and not spec.normalized_shape:
        raise OptionError("normalized_shape", "must have at least one axis", spec.normalized_shape)
    if spec.op is Op.GROUP_NORM and spec.num_groups <= 0:
        raise OptionError("num_groups", "must be positive", spec.num_groups)
    if spec.extents is not None and min(spec.extents) < 0:
        raise OptionError("extents", "must not be negative", spec.extents)


def _check_data(spec: Spec) -> None:
    least = 0 if spec.extents else MIN_RANK[spec.op]
    rank = len(spec.x.shape)
    if not least <= rank <= MAX_RANK:
        raise ShapeError("x", f"must have {least} to {MAX_RANK} axes", f"shape {spec.x.shape}")
    if spec.counter is not None and len(spec.counter.shape) > MAX_RANK:
        got = f"shape {spec.counter.shape}"
        raise ShapeError("counter", f"must have at most {MAX_RANK} axes", got)
    if not spec.extents and spec.op is not Op.LAYER_NORM:
        _check_channel_axis(spec)
    if spec.extents:
        expected = math.prod(spec.extents)
        for role, tensor in (("dy", spec.dy), ("x", spec.x)):
            _check_size(role, tensor, expected, f"N*C*HxW = {expected} elements")
    elif spec.dy.shape != spec.x.shape:
        rule = f"must have the shape of {{x}}, {spec.x.shape}"
        raise ShapeError("dy", rule, f"shape {spec.dy.shape}")
    if spec.op is Op.LAYER_NORM:
        tail = spec.x.shape[rank - len(spec.normalized_shape) :]
        if len(spec.normalized_shape) > rank or tail != spec.normalized_shape:
            rule = f"must be the tail of {{x}}'s shape {spec.x.shape}"
            raise ShapeError("normalized_shape", rule, spec.normalized_shape)
    elif spec.op is Op.GROUP_NORM:
        channels = spec.extents[1] if spec.extents else spec.x.shape[1]
        if channels % spec.num_groups:
            rule = f"must divide the number of channels, {channels}"
            raise OptionError("num_groups", rule, spec.num_groups)
    if spec.dx is not None:  # it belongs to the data: looked at before the vectors
        _check_result(spec, "dx")


def _check_channel_axis(spec: Spec) -> None:
    if not 0 <= spec.channel_axis < len(spec.x.shape):
        rule = f"must be an axis of {{x}}, whose shape is {spec.x.shape}"
        raise OptionError("channel_axis", rule, spec.channel_axis)
    # With no channels the sums of the element stage belong to nothing: its contract says error.
    if spec.op is Op.BATCH_NORM_ELEMT and spec.x.shape[spec.channel_axis] == 0:
        raise ShapeError("x", "must have at least one channel", f"shape {spec.x.shape}")


def _check_vectors(spec: Spec) -> None:
    if spec.op is Op.LAYER_NORM:
        rows = math.prod(spec.x.shape[: len(spec.x.shape) - len(spec.normalized_shape)])
        _check_statistics(spec, rows, f"one element for each of the {rows} rows of {{x}}")
        expected = spec.normalized_shape
        parameters = [("gamma", spec.gamma), *spec.unread]
        for role, tensor in parameters:
            if tensor is not None and tensor.shape != expected:
                rule = f"must have the shape {expected} of {{normalized_shape}}"
                raise ShapeError(role, rule, f"shape {tensor.shape}")
        return
    if spec.op is Op.GROUP_NORM:
        samples, channels = (spec.extents or spec.x.shape)[:2]
        statistics = samples * spec.num_groups
        _check_statistics(spec, statistics, f"{statistics} elements, one for each sample and group")
        if spec.gamma is not None:
            _check_size("gamma", spec.gamma, channels, f"{channels} elements, one for each channel")
        return
    channels = spec.x.shape[spec.channel_axis]
    named = [(role, spec.tensor(role)) for role in ("mean", "rstd", "gamma")]
    if spec.op is Op.BATCH_NORM_ELEMT:
        named += [("sum_dy", spec.sum_dy), ("sum_dy_xmu", spec.sum_dy_xmu)]
    for role, tensor in (*named, *spec.unread):
        if tensor is None:
            continue
        # Inference may come with empty saved statistics: nothing was saved.
        if role.startswith("save_") and tensor.shape == (0,):
            continue
        _check_channels(role, tensor, channels)


def _check_statistics(spec: Spec, expected: int, wording: str) -> None:
    mean, rstd = spec.present("mean"), spec.present("rstd")
    _check_size("mean", mean, expected, wording)
    _check_size("rstd", rstd, expected, wording)
    if spec.extents is None and mean.shape != rstd.shape:
        rule = f"must have the shape of {{mean}}, {mean.shape}"
        raise ShapeError("rstd", rule, f"shape {rstd.shape}")


def _check_size(role: str, tensor: TensorSpec, expected: int, wording: str) -> None:
    if tensor.size != expected:
        raise ShapeError(role, f"must have {wording}", f"{tensor.size} (shape {tensor.shape})")
    if len(tensor.shape) > MAX_RANK:
        raise ShapeError(role, f"must have at most {MAX_RANK} axes", f"shape {tensor.shape}")


def _check_channels(role: str, tensor: TensorSpec, channels: int) -> None:
    if tensor.shape != (channels,):
        rule = f"must be 1-d with one element for each of the {channels} channels of {{x}}"
        raise ShapeError(role, rule, f"shape {tensor.shape}")


def _check_results(spec: Spec) -> None:
    for role in spec.wanted:
        if role != "dx":  # was looked at with the data
            _check_result(spec, role)


def _check_result(spec: Spec, role: str) -> None:
    tensor = spec.present(role)
    expected = result_shape(spec, role)
    if tensor.shape != expected:
        raise ShapeError(role, f"must have the shape {expected}", f"shape {tensor.shape}")
    _check_span(spec, role)
    overlap = overlaps_itself(tensor)
    if overlap is not False:
        rule = "must not have two elements at one address"
        if overlap is None:
            rule = "must be plain enough to see that no two elements share an address"
        raise OverlapError(role, rule, f"strides {tensor.strides} for shape {tensor.shape}")


def _check_span(spec: Spec, role: str) -> None:
    tensor = spec.present(role)
    low, high = byte_range(tensor)
    # With strides of 0 there may be more elements than bytes.
    if max(high - low, tensor.size * ITEMSIZE[tensor.dtype]) >= 1 << _ADDRESS_BITS:
        got = f"shape {tensor.shape} with strides {tensor.strides}"
        raise ShapeError(role, f"must have and span less than 2**{_ADDRESS_BITS} bytes", got)


def result_shape(spec: Spec, role: str) -> tuple[int, ...]:
    """The shape a result must have."""
    if role == "dx":
        return spec.x.shape
    if spec.op is Op.LAYER_NORM:
        return spec.normalized_shape
    if spec.op is Op.GROUP_NORM:
        if spec.gamma is not None:
            return spec.gamma.shape
        return ((spec.extents or spec.x.shape)[1],)
    return (spec.x.shape[spec.channel_axis],)
