"""Every rule about a request, in one place.

The order is fixed: what must be given, types, options, ranks and shapes of the data (``dx`` among
them), of the vectors, of the other results.
"""

import contextlib
import functools
import math
from collections.abc import Iterator

from normgrad.arrays.host_memory import byte_range
from normgrad.core import options
from normgrad.core.dtypes import COUNTS, FLOATS, ITEMSIZE
from normgrad.core.errors import ArgumentError, DtypeError, OptionError, OverlapError, ShapeError
from normgrad.core.operators import ACTIVATIONS, DATA, OPERATORS, STATISTICS, SWISH, Op
from normgrad.core.spec import (
    STATISTIC_KINDS,
    Spec,
    StatisticKind,
    TensorSpec,
    channels_together,
    has_sample_axis,
    row_major,
)
from normgrad.core.strides import overlaps_itself

MAX_RANK = 8
# No processor's addresses have more bits. What is computed from sizes and strides fits in int64.
_ADDRESS_BITS = 57
_OTHER_TYPES = {"counter": COUNTS, "mask": ("uint8",)}
# The names of the functional API; an interface with other names passes its own to `render`.
_NAMES = {
    "dy": "grad_out",
    "x": "input",
    "gamma": "weight",
    "beta": "bias",
    "counter": "count",
    "dx": "grad_input",
    "dgamma": "grad_weight",
    "dbeta": "grad_bias",
    "y": "output",
    "dsum": "grad_sum",
    "dshortcut": "grad_shortcut",
}


@functools.cache
def public_names(op: Op, rstd_is: StatisticKind) -> dict[str, str]:
    """How the functional API calls the roles of a request."""
    return (
        _NAMES | ({"rstd": "variance"} if rstd_is == "variance" else {}) | dict(OPERATORS[op].names)
    )


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
        error.names = public_names(spec.op, spec.rstd_is)
        raise


def _check_given(spec: Spec) -> None:
    for role in spec.operator.needs:
        if spec.tensor(role) is None:
            raise OptionError(role, "must be given", None)


def _check_dtypes(spec: Spec) -> None:
    named = [(role, spec.present(role)) for role in (*spec.operands, *spec.wanted)]
    for role, tensor in (*named, *spec.unread):
        allowed = _OTHER_TYPES.get(role, tuple(FLOATS))
        if tensor.dtype not in allowed:
            raise DtypeError(role, f"must be of type {', '.join(allowed)}", tensor.dtype)


def _check_options(spec: Spec) -> None:
    if not (math.isfinite(spec.eps) and spec.eps >= 0):
        raise OptionError("eps", "must be finite and not negative", spec.eps)
    for name, value in (
        ("weight_offset", spec.weight_offset),
        ("momentum", spec.momentum),
        ("negative_slope", spec.negative_slope),
    ):
        if not math.isfinite(value):
            raise OptionError(name, "must be finite", value)
    options.choice("rstd_is", spec.rstd_is, STATISTIC_KINDS)
    options.choice("activation", spec.activation, (*ACTIVATIONS, SWISH), none=True)
    if spec.operator.axes == "rows" and not spec.normalized_shape:
        raise OptionError("normalized_shape", "must have at least one axis", spec.normalized_shape)
    if spec.operator.axes == "groups" and spec.num_groups <= 0:
        raise OptionError("num_groups", "must be positive", spec.num_groups)
    if spec.extents is not None and min(spec.extents) < 0:
        raise OptionError("extents", "must not be negative", spec.extents)


def _check_data(spec: Spec) -> None:
    axes = spec.operator.axes
    least = 0 if spec.extents else spec.operator.least_rank
    rank = len(spec.x.shape)
    if not least <= rank <= MAX_RANK:
        raise ShapeError("x", f"must have {least} to {MAX_RANK} axes", f"shape {spec.x.shape}")
    if spec.counter is not None:
        _check_counter(spec, spec.counter)
    if not spec.extents and axes != "rows":
        _check_channel_axis(spec)
    for role in spec.data_in:
        tensor = spec.present(role)
        if spec.extents:
            expected = math.prod(spec.extents)
            _check_size(role, tensor, expected, f"N*C*HxW = {expected} elements")
        elif tensor.shape != spec.x.shape:
            rule = f"must have the shape of {{x}}, {spec.x.shape}"
            raise ShapeError(role, rule, f"shape {tensor.shape}")
    if axes == "rows":
        tail = spec.x.shape[rank - len(spec.normalized_shape) :]
        if len(spec.normalized_shape) > rank or tail != spec.normalized_shape:
            rule = f"must be the tail of {{x}}'s shape {spec.x.shape}"
            raise ShapeError("normalized_shape", rule, spec.normalized_shape)
    elif axes == "groups":
        channels = spec.extents[1] if spec.extents else spec.x.shape[1]
        if channels % spec.num_groups:
            rule = f"must divide the number of channels, {channels}"
            raise OptionError("num_groups", rule, spec.num_groups)
    for role in spec.operator.data_out:  # they belong to the data: looked at before the vectors
        if spec.tensor(role) is not None:
            _check_result(spec, role)
    _check_fused(spec)


def _check_fused(spec: Spec) -> None:
    """What goes together with a shortcut or a residual."""
    given = None if spec.operator.forward else spec.mask
    if given is not None:
        if spec.activation != "relu":
            rule = "must be None without activation='relu' (shortcut= serves any activation)"
            raise OptionError("mask", rule, options.described(given))
        if spec.shortcut is not None:
            rule = "must be None where shortcut is given: one of the two says all"
            raise OptionError("mask", rule, options.described(given))
        expected = mask_shape(spec)
        if given.shape != expected or (given.size and given.strides != row_major(expected)):
            rule = (
                f"must be what the forward pass of an {{x}} that lies so returned, contiguous and "
                f"of shape {expected}"
            )
            raise ShapeError("mask", rule, f"shape {given.shape}, strides {given.strides}")
    elif spec.mask is not None and (spec.shortcut is None or spec.activation != "relu"):
        rule = "must not be asked for without shortcut and activation='relu'"
        raise OptionError("mask", rule, options.described(spec.mask))
    if spec.dshortcut is not None and given is None and spec.shortcut is None:
        rule = "must not be asked for without mask or shortcut"
        raise OptionError("dshortcut", rule, options.described(spec.dshortcut))
    if spec.sum is not None and spec.residual is None:
        rule = "must not be asked for without residual"
        raise OptionError("sum", rule, options.described(spec.sum))


def _check_counter(spec: Spec, counter: TensorSpec) -> None:
    if len(counter.shape) > MAX_RANK:
        got = f"shape {counter.shape}"
        raise ShapeError("counter", f"must have at most {MAX_RANK} axes", got)
    if spec.variances is not None:  # a count for each rank, whose means are x
        ranks = spec.x.shape[0] if len(spec.x.shape) == 2 else None
        if ranks is None or spec.x.shape[1] == 0 or ranks == 0:
            raise ShapeError("x", "must be of shape (ranks, channels)", f"shape {spec.x.shape}")
        _check_size("counter", counter, ranks, f"one element for each of the {ranks} ranks")


def _check_channel_axis(spec: Spec) -> None:
    if not 0 <= spec.channel_axis < len(spec.x.shape):
        rule = f"must be an axis of {{x}}, whose shape is {spec.x.shape}"
        raise OptionError("channel_axis", rule, spec.channel_axis)
    # With no channels the sums of the element stage belong to nothing: its contract says error.
    if spec.counter is not None and spec.x.shape[spec.channel_axis] == 0:
        raise ShapeError("x", "must have at least one channel", f"shape {spec.x.shape}")


def _check_vectors(spec: Spec) -> None:
    axes = spec.operator.axes
    if axes == "rows":
        rows = math.prod(spec.x.shape[: len(spec.x.shape) - len(spec.normalized_shape)])
        _check_statistics(spec, rows, f"one element for each of the {rows} rows of {{x}}")
        expected = parameter_shape(spec)
        parameters = [("gamma", spec.gamma), ("beta", spec.beta), *spec.unread]
        for role, tensor in parameters:
            if tensor is not None and tensor.shape != expected:
                rule = f"must have the shape {expected} of {{normalized_shape}}"
                if len(expected) > len(spec.normalized_shape):
                    rule = f"must have the shape {expected}: one for each sample"
                raise ShapeError(role, rule, f"shape {tensor.shape}")
        return
    if axes == "groups":
        samples, channels = (spec.extents or spec.x.shape)[:2]
        statistics = samples * spec.num_groups
        _check_statistics(spec, statistics, f"{statistics} elements, one for each sample and group")
        wording = f"{channels} elements, one for each channel"
        if spec.samples > 1:
            wording = f"the shape ({samples}, {channels}), also with axes of size 1 more"
        for role, tensor in (("gamma", spec.gamma), ("beta", spec.beta)):
            if tensor is not None:
                _check_size(role, tensor, spec.samples * channels, wording)
                if spec.samples > 1 and (
                    tensor.shape[0] != samples or channels not in tensor.shape[1:]
                ):
                    raise ShapeError(role, f"must have {wording}", f"shape {tensor.shape}")
        return
    channels = spec.x.shape[spec.channel_axis]
    vectors = [role for role in spec.operator.takes if role not in (*DATA, "counter", "mask")]
    named = [(role, spec.tensor(role)) for role in vectors]
    for role, tensor in (*named, *spec.unread):
        if tensor is None:
            continue
        # Inference may come with empty saved statistics: nothing was saved.
        if role.startswith("save_") and tensor.shape == (0,):
            continue
        _check_channels(role, tensor, channels)
    alone = spec.variances is None and spec.x.size == channels > 0
    if spec.running_var is not None and alone and not spec.biased:
        rule = "must have more than one element for each channel where {running_var} is given"
        raise ShapeError("x", rule, f"shape {spec.x.shape}")


def _check_statistics(spec: Spec, expected: int, wording: str) -> None:
    given = spec.operator.statistics
    for role in given:
        _check_size(role, spec.present(role), expected, wording)
    mean, rstd = spec.mean, spec.rstd
    if not given or rstd is None:
        return
    if mean is not None and spec.extents is None and mean.shape != rstd.shape:
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
        if role not in DATA:  # was looked at with the data
            _check_result(spec, role)
    for role in spec.operator.updates:
        if spec.tensor(role) is not None:
            _check_apart(spec, role)


def _check_result(spec: Spec, role: str) -> None:
    tensor = spec.present(role)
    expected = result_shape(spec, role)
    if role in STATISTICS:  # in any shape, as where they are operands
        size = math.prod(expected)
        _check_size(role, tensor, size, f"{size} elements, as in the shape {expected}")
    elif tensor.shape != expected:
        raise ShapeError(role, f"must have the shape {expected}", f"shape {tensor.shape}")
    _check_span(spec, role)
    _check_apart(spec, role)


def _check_apart(spec: Spec, role: str) -> None:
    tensor = spec.present(role)
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


def parameter_shape(spec: Spec) -> tuple[int, ...]:
    """The shape of weight and bias where rows are normalized, of all samples or for each."""
    if spec.samples == 1 and not any(
        tensor is not None and has_sample_axis(spec, tensor) for tensor in (spec.gamma, spec.beta)
    ):
        return spec.normalized_shape
    between = len(spec.x.shape) - len(spec.normalized_shape) - 1
    return (spec.x.shape[0], *(1,) * between, *spec.normalized_shape)


def mask_shape(spec: Spec) -> tuple[int, ...]:
    """The shape of a mask with a bit for each element, in bytes that begin with each run.

    A run is of one sample's channel, or where channels lie together in memory, of one position's
    channels; so the shape says which of both, and a mask of another layout is refused. Bit 0 of a
    byte is the first element.
    """
    axis = spec.channel_axis
    outer, channels, inner = (
        math.prod(spec.x.shape[:axis]),
        spec.x.shape[axis],
        math.prod(spec.x.shape[axis + 1 :]),
    )
    if inner == 1 or channels_together(spec.x, axis):
        return (outer * inner, -(-channels // 8))
    return (outer, channels, -(-inner // 8))


def result_shape(spec: Spec, role: str) -> tuple[int, ...]:
    """The shape a result must have."""
    if role in DATA:
        return spec.x.shape
    if role == "mask":
        return mask_shape(spec)
    if spec.operator.axes == "rows":
        if role in STATISTICS:
            ones = len(spec.normalized_shape)
            return spec.x.shape[: len(spec.x.shape) - ones] + (1,) * ones
        return parameter_shape(spec)
    if spec.operator.axes == "groups":
        if role in STATISTICS:
            return ((spec.extents or spec.x.shape)[0], spec.num_groups)
        parameter = spec.gamma or spec.beta
        if parameter is not None:
            return parameter.shape
        return ((spec.extents or spec.x.shape)[1],)
    return (spec.x.shape[spec.channel_axis],)
