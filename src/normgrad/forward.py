"""The functional API, forward: arrays in, normalized arrays and their statistics out.

What ``x_norm`` returns ``x_norm_backward`` takes.
"""

import sys
from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from normgrad.arrays.kinds import Array
from normgrad.calls.dispatch import compute
from normgrad.calls.fused import after_norm, fused_operands
from normgrad.calls.signatures import explained, one_of_rstd_and_variance
from normgrad.core import options
from normgrad.core.errors import ArgumentError, ArrayTypeError, OptionError
from normgrad.core.operators import SLOT, Op

A = TypeVar("A")  # the kind of `input`: torch tensors in, torch tensors out


class Normalized(NamedTuple, Generic[A]):
    """What a forward function returns, by name; members that an operator does not have are None.

    Attributes:
        output: Like ``input``.
        mean: What the backward function takes, in float32 or for float64 data in float64. None of
            RMS norm, which has no mean.
        rstd: ``1 / sqrt(variance + eps)``, likewise.
        sum: With a ``residual`` what was normalized, in the type of ``input``.
        mask: With a ``shortcut`` and "relu" a bit for each element, for the backward function.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> output, mean, rstd, *_ = ng.layer_norm(np.ones((2, 3), np.float32), 3)
        >>> mean.shape
        (2, 1)
    """

    output: A
    mean: A | None = None
    rstd: A | None = None
    sum: A | None = None
    mask: A | None = None


class Statistics(NamedTuple, Generic[A]):
    """One rank's part of a synchronized batch norm's statistics: what ``batch_norm_stats`` returns.

    Attributes:
        mean: Shape (C,), in float32 or for float64 data in float64.
        variance: The biased variance, likewise.
        count: How many elements each of them is of.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> ng.batch_norm_stats(np.ones((4, 2, 3), np.float32)).count
        12
    """

    mean: A
    variance: A
    count: int  # type: ignore[assignment]  # hides the method of tuples, which nobody needs here


_MEMBERS: Final = ("output", "mean", "rstd")


@explained
def batch_norm(
    input: A,
    *,
    weight: Array | None = None,
    bias: Array | None = None,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    channel_axis: int = 1,
    activation: str | None = None,
    negative_slope: float = 0.01,
    shortcut: Array | None = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Normalized[A]:
    """Batch normalization: ``(input - mean) * (rstd * weight) + bias`` for each channel.

    Args:
        input: 2 to 8 axes; any strides.
        weight: Shape (C,); None means ones.
        bias: Shape (C,); None means zeros.
        running_mean: Shape (C,). In training it is updated in place where it is given; in
            inference it is the mean in use and must be given.
        running_var: Shape (C,), likewise; it holds the unbiased variance.
        training: Whether the statistics are those of ``input``.
        momentum: The share of ``input``'s statistics in the updated running ones. torch's None
            (a cumulative average) needs a count of batches, which modules have.
        eps: What is added to the variance.
        channel_axis: Which axis of ``input`` the channels are.
        activation: What follows the norm: "relu", "relu6", "leaky_relu", "silu", "gelu",
            "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        shortcut: What is added after the norm and before the activation, in ``input``'s shape.
        out: Arrays for output, mean and rstd (and the sum or the mask); what is None is not
            computed. The output may be ``input`` itself.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``output`` like ``input``; in training ``mean`` and ``rstd`` of shape (C,), in float32 or
        for float64 data in float64. In inference they are None: the backward function takes
        ``running_mean`` and ``variance=running_var``. In training with ``shortcut`` and "relu"
        ``mask`` has a bit for each element, for the backward function.

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
        >>> y = ng.batch_norm(x)
        >>> y.mean
        array([1.5, 5.5], dtype=float32)
        >>> grads = ng.batch_norm_backward(x * x, x, y.mean, y.rstd)
    """
    training = training if training.__class__ is bool else options.flag("training", training)
    if eps.__class__ is not float:
        eps = options.number("eps", eps)
    if momentum.__class__ is not float:
        momentum = _momentum(momentum)
    if channel_axis.__class__ is not int:
        channel_axis = options.integer("channel_axis", channel_axis)
    given = _given(out, fused="mask")
    after = after_norm(activation, negative_slope)
    if training:
        arrays = (*_of(input, weight, bias), running_mean, running_var)
        settings = (eps, momentum, channel_axis)
        return _normalized(
            Op.BATCH_NORM, arrays, settings, after, ("shortcut", shortcut), given, backend
        )
    for name, array in (("running_mean", running_mean), ("running_var", running_var)):
        if array is None:
            rule = "must be given in inference (or training=True uses the statistics of input)"
            raise OptionError(name, rule, None)
    if given is not None:
        for name, array in zip((*_MEMBERS[1:], "mask"), given[1:], strict=False):
            if array is not None:
                rule = "must be None in inference, whose statistics are the running ones"
                raise OptionError(f"out's {name}", rule, options.described(array))
    try:
        (output,) = compute(
            Op.BATCH_NORM_ELEMT,
            _with(_of(input, weight, bias, running_mean, running_var), "shortcut", shortcut),
            (),
            (channel_axis, eps, "variance", *after),
            _ONE,
            None,
            None if given is None else given[:1],
            backend,
        )
    except ArgumentError as error:
        error.names = {**error.names, "mean": "running_mean", "rstd": "running_var"}
        raise
    return Normalized(output)  # type: ignore[arg-type]  # nothing masks it


@explained
def layer_norm(
    input: A,
    normalized_shape: int | Sequence[int],
    *,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    activation: str | None = None,
    negative_slope: float = 0.01,
    residual: Array | None = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Normalized[A]:
    """Layer normalization over the last axes: ``(input - mean) * (rstd * weight) + bias``.

    Args:
        input: 1 to 8 axes; any strides.
        normalized_shape: The sizes of the last axes that are normalized together, or the size of
            the last one.
        weight: In the shape that ``normalized_shape`` says; None means ones. For each
            sample apart (a modulated norm) of shape (N, 1, ..., C).
        bias: In the same shape; None means zeros.
        eps: What is added to the variance.
        activation: What follows the norm: "relu", "relu6", "leaky_relu", "silu", "gelu",
            "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        residual: What is added before the norm, in ``input``'s shape. The ``sum``, rounded to
            ``input``'s type, is what is normalized, and is handed out.
        out: Arrays for output, mean and rstd (and the sum or the mask); what is None is not
            computed. The output may be ``input`` itself.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``output`` like ``input``; ``mean`` and ``rstd`` with an element for each row, of the shape
        of ``input`` with ones in the place of the normalized axes, in float32 or for float64 data
        in float64.

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.array([[2, 3], [4, 5]], np.float32)
        >>> y = ng.layer_norm(x, 2)
        >>> y.mean.ravel()
        array([2.5, 4.5], dtype=float32)
        >>> grads = ng.layer_norm_backward(x * x, x, y.mean, y.rstd, 2)
    """
    if eps.__class__ is not float:
        eps = options.number("eps", eps)
    shape = options.sizes("normalized_shape", normalized_shape)
    after = after_norm(activation, negative_slope)
    arrays, besides = _of(input, weight, bias), ("residual", residual)
    given = _given(out, fused="sum")
    return _normalized(Op.LAYER_NORM, arrays, (shape, eps), after, besides, given, backend)


@explained
def rms_norm(
    input: A,
    normalized_shape: int | Sequence[int],
    *,
    weight: Array | None = None,
    weight_offset: float = 0.0,
    eps: float | None = None,
    activation: str | None = None,
    negative_slope: float = 0.01,
    residual: Array | None = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Normalized[A]:
    """Root mean square normalization over the last axes: ``input * (rstd * weight)``.

    Args:
        input: 1 to 8 axes; any strides.
        normalized_shape: The sizes of the last axes that are normalized together, or the size of
            the last one.
        weight: In the shape that ``normalized_shape`` says; None means ones. For each
            sample apart (a modulated norm) of shape (N, 1, ..., C).
        weight_offset: What is added to the weight: 1.0 for models that store ``weight - 1``.
        eps: What is added to ``mean(input**2)``; by default the step of ``input``'s type at 1.
        activation: What follows the norm: "relu", "relu6", "leaky_relu", "silu", "gelu",
            "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        residual: What is added before the norm, in ``input``'s shape. The ``sum``, rounded to
            ``input``'s type, is what is normalized, and is handed out.
        out: Arrays for output and rstd, and with a residual the sum; or a ``Normalized``. What is
            None is not computed. The output may be ``input`` itself.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``output`` like ``input``; ``rstd`` with an element for each row, of the shape of ``input``
        with ones in the place of the normalized axes, in float32 or for float64 data in float64.
        ``mean`` is None.

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.array([[3, 4], [6, 8]], np.float32)
        >>> y = ng.rms_norm(x, 2)
        >>> y.output[0] / y.output[1]
        array([1., 1.], dtype=float32)
        >>> grads = ng.rms_norm_backward(x * x, x, y.rstd, 2)
    """
    if eps.__class__ is not float:
        eps = options.step_at_1(input) if eps is None else options.number("eps", eps)
    if weight_offset.__class__ is not float:
        weight_offset = options.number("weight_offset", weight_offset)
    shape = options.sizes("normalized_shape", normalized_shape)
    # Without the mean that there is none of, as the operator has its results, or with it.
    given: Sequence[Array | None] | None = out
    if out is not None and (isinstance(out, Normalized) or len(out) != 2 + (residual is not None)):
        given = _given(out, fused="sum")
        if given is not None and given[1] is not None:
            raise OptionError("out's mean", "must be None: rms_norm has no mean", "an array")
        given = given and (given[0], *given[2:])
    return _normalized(
        Op.RMS_NORM,
        _of(input, weight, None)[: SLOT["gamma"] + 1],
        (shape, eps, weight_offset),
        after_norm(activation, negative_slope),
        ("residual", residual),
        given,
        backend,
    )


@explained
def group_norm(
    input: A,
    num_groups: int,
    *,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    channel_axis: int = 1,
    activation: str | None = None,
    negative_slope: float = 0.01,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Normalized[A]:
    """Group normalization; with a group for each channel, instance normalization.

    Args:
        input: 2 to 8 axes; any strides. The first axis that is not the channels' is the samples'.
        num_groups: How many groups the channels form.
        weight: Shape (C,); None means ones. For each sample apart (a modulated norm) (N, C).
        bias: In the same shape; None means zeros.
        eps: What is added to the variance.
        channel_axis: Which axis of ``input`` the channels are.
        activation: What follows the norm: "relu", "relu6", "leaky_relu", "silu", "gelu",
            "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        out: Arrays for output, mean and rstd (and the sum or the mask); what is None is not
            computed. The output may be ``input`` itself.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``output`` like ``input``; ``mean`` and ``rstd`` of shape (N, num_groups), in float32 or
        for float64 data in float64.

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.arange(8, dtype=np.float32).reshape(1, 4, 2)
        >>> y = ng.group_norm(x, 2)
        >>> y.mean
        array([[1.5, 5.5]], dtype=float32)
        >>> grads = ng.group_norm_backward(x * x, x, y.mean, y.rstd, 2)
    """
    if eps.__class__ is not float:
        eps = options.number("eps", eps)
    if num_groups.__class__ is not int:
        num_groups = options.integer("num_groups", num_groups)
    if channel_axis.__class__ is not int:
        channel_axis = options.integer("channel_axis", channel_axis)
    arrays = _of(input, weight, bias)
    settings = (num_groups, channel_axis, eps)
    after = after_norm(activation, negative_slope)
    return _normalized(Op.GROUP_NORM, arrays, settings, after, None, _given(out), backend)


@explained
def batch_norm_stats(
    input: A,
    *,
    channel_axis: int = 1,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Statistics[A]:
    """Mean and biased variance of each channel: one rank's part of a synchronized batch norm.

    Args:
        input: This rank's part of the batch, 2 to 8 axes; any strides.
        channel_axis: Which axis of ``input`` the channels are.
        out: Arrays for mean and variance; what is None is not computed.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``mean`` and ``variance`` of shape (C,), in float32 or for float64 data in float64, and
        ``count``, how many elements each of them is of.

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
        >>> ng.batch_norm_stats(x)
        Statistics(mean=array([1.5, 5.5], dtype=float32), variance=array([1.25, 1.25], dtype=float32), count=4)
    """  # noqa: E501 - as Python prints it
    channel_axis = options.integer("channel_axis", channel_axis)
    _check_recorded((input,))
    given = _given(out, ("mean", "variance"))
    mean, variance = compute(
        Op.BATCH_NORM_STATS,
        (None, input),
        (),
        (channel_axis, "variance"),
        options.BOTH if given is None else _wanted(given),
        None,
        given,
        backend,
    )
    shape = tuple(getattr(input, "shape", ()))
    channels = shape[channel_axis]
    count = 1
    for size in shape:
        count *= size
    return Statistics(mean, variance, count // channels if channels else 0)  # type: ignore[arg-type]


@explained
def batch_norm_gather_stats(
    mean: A,
    variance: Array,
    count: Array,
    *,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> tuple[A, A]:
    """Mean and rstd over all ranks of a synchronized batch norm, from those of each rank.

    Args:
        mean: Shape (ranks, C).
        variance: The biased variances, shape (ranks, C).
        count: How many elements each rank has for a channel, an array of shape (ranks,).
        running_mean: Shape (C,), updated in place where it is given.
        running_var: Shape (C,), likewise, by the unbiased variance.
        momentum: The share of these statistics in the updated running ones.
        eps: What is added to the variance.
        out: Arrays for mean and rstd; what is None is not computed.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``mean`` and ``rstd`` of shape (C,).

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
        >>> parts = [ng.batch_norm_stats(x[rank : rank + 1]) for rank in range(2)]
        >>> means = np.stack([part.mean for part in parts])
        >>> variances = np.stack([part.variance for part in parts])
        >>> mean, rstd = ng.batch_norm_gather_stats(means, variances, np.array([2, 2]))
        >>> mean
        array([2.5, 4.5], dtype=float32)
    """
    eps, momentum = options.number("eps", eps), _momentum(momentum)
    given = _given(out, ("mean", "rstd"))
    arrays = operands_of_ranks(mean, variance, count, running_mean, running_var)
    return compute(  # type: ignore[return-value]  # two, and nothing masks them
        Op.BATCH_NORM_GATHER_STATS,
        arrays,
        (),
        (eps, momentum, "invstd"),
        options.BOTH if given is None else _wanted(given),
        None,
        given,
        backend,
    )


@explained
def batch_norm_elemt(
    input: A,
    mean: Array,
    rstd: Array | None = None,
    *,
    variance: Array | None = None,
    eps: float = 1e-5,
    weight: Array | None = None,
    bias: Array | None = None,
    channel_axis: int = 1,
    activation: str | None = None,
    negative_slope: float = 0.01,
    shortcut: Array | None = None,
    out: Array | None = None,
    backend: str | None = None,
) -> A:
    """The output of a batch norm whose statistics are known.

    Args:
        input: 2 to 8 axes; any strides.
        mean: One element for each channel, shape (C,).
        rstd: ``1 / sqrt(variance + eps)``, shape (C,); None where ``variance`` is given.
        variance: The biased variance in the place of ``rstd``, shape (C,).
        eps: What is added to ``variance``; not used with ``rstd``.
        weight: Shape (C,); None means ones.
        bias: Shape (C,); None means zeros.
        channel_axis: Which axis of ``input`` the channels are.
        activation: What follows the norm: "relu", "relu6", "leaky_relu", "silu", "gelu",
            "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        shortcut: What is added after the norm and before the activation, in ``input``'s shape.
        out: An array for the output; it may be ``input`` itself.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``(input - mean) * (rstd * weight) + bias``, like ``input``.

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
        >>> ng.batch_norm_elemt(x, np.array([1, 5], "f4"), np.array([2, 1], "f4"))
        array([[[-2.,  0.,  2.,  4.],
                [-1.,  0.,  1.,  2.]]], dtype=float32)
    """
    if eps.__class__ is not float:
        eps = options.number("eps", eps)
    if channel_axis.__class__ is not int:
        channel_axis = options.integer("channel_axis", channel_axis)
    deviation, kind = one_of_rstd_and_variance(Op.BATCH_NORM_ELEMT, mean, rstd, variance)
    (output,) = compute(
        Op.BATCH_NORM_ELEMT,
        _with(_of(input, weight, bias, mean, deviation), "shortcut", shortcut),
        (),
        (channel_axis, eps, kind, *after_norm(activation, negative_slope)),
        _ONE,
        None,
        None if out is None else (out,),
        backend,
    )
    return output  # type: ignore[return-value]  # nothing masks it


def operands_of_ranks(
    mean: Array,
    variance: Array,
    count: Array,
    running_mean: Array | None = None,
    running_var: Array | None = None,
) -> tuple[Array | None, ...]:
    """Operands in the order of the roles, as far as the last one's slot."""
    arrays = [None, mean, *[None] * (SLOT["variances"] - 1)]
    arrays[SLOT["counter"]], arrays[SLOT["variances"]] = count, variance
    arrays[SLOT["running_mean"]], arrays[SLOT["running_var"]] = running_mean, running_var
    return tuple(arrays)


_ONE: Final = (True,)


def _of(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Array | None, ...]:
    _check_recorded((input, weight, bias))
    return operands(input, weight, bias, mean, rstd)


def operands(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Array | None, ...]:
    """Operands in the order of the roles, as far as the output's slot."""
    return (None, input, mean, rstd, weight, None, None, None, None, None, None, bias, None)


def _check_recorded(
    arrays: tuple[Array | None, ...], names: tuple[str, ...] = ("input", "weight", "bias")
) -> None:
    """An output that autograd knows nothing of would cut a model in two without a word."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return
    for name, array in zip(names, arrays, strict=False):
        if getattr(array, "requires_grad", False):
            rule = (
                "must not require grad here: functions of normgrad record no gradients (call it "
                "under torch.no_grad(), or use torch.ops.normgrad and the modules of "
                "normgrad.torch, which do)"
            )
            raise OptionError(name, rule, "a tensor that requires grad")


def _normalized(
    op: Op,
    arrays: tuple[Array | None, ...],
    settings: tuple[Any, ...],
    after: tuple[str | None, float],
    besides: tuple[str, Array | None] | None,
    given: Sequence[Array | None] | None,
    backend: str | None,
) -> Normalized[Any]:
    """A norm, and what a fused one has besides: its operand by role, its result if that is there.

    Settings of an activation are left out where there is none: so the call is known by less.
    """
    wanted: tuple[bool, ...] = options.BOTH if op is Op.RMS_NORM else options.ALL
    if after[0] is not None:
        settings += after
    if besides is not None and besides[1] is not None:
        arrays = _with(arrays, *besides)
        if besides[0] == "residual" or after[0] == "relu":
            wanted = (*wanted, True)
    if given is not None:
        wanted = _wanted(given)
    results = compute(op, arrays, (), settings, wanted, None, given, backend)
    output, *statistics = results
    if op is Op.RMS_NORM:
        statistics.insert(0, None)
    mean, rstd, *last = statistics
    if last and op is Op.BATCH_NORM:
        return Normalized(output, mean, rstd, None, last[0])
    return Normalized(output, mean, rstd, *last)


def _with(
    arrays: tuple[Array | None, ...], role: str, array: Array | None
) -> tuple[Array | None, ...]:
    if array is None:
        return arrays
    _check_recorded((array,), (role,))
    return fused_operands(arrays, **{role: array})


def _wanted(given: Sequence[Array | None]) -> tuple[bool, ...]:
    return tuple([array is not None for array in given])


def _given(
    out: Any, names: Sequence[str] = _MEMBERS, fused: str | None = None
) -> tuple[Array | None, ...] | None:
    """The arrays for results, as many as are named, and that of the result of fused calls.

    A ``Normalized`` has all members; in a tuple the fused one comes last.
    """
    if out is None:
        return None
    members = len(names)
    usual, more = (), ()
    if isinstance(out, (tuple, list)):
        usual, more = tuple(out[:members]), tuple(out[members:])
        if isinstance(out, Normalized) and fused == "mask":
            more = more[::-1]
    spare = more if fused is None else more[1:]
    if len(usual) < members or _any_given(spare):
        kind = "a Normalized or a tuple" if names is _MEMBERS else "a tuple"
        also = f" and {fused}" if fused else ""
        rule = f"must be {kind} of {members}: {', '.join(names)}{also}"
        got = f"{len(out)} of them" if isinstance(out, (tuple, list)) else type(out).__name__
        raise ArrayTypeError("out", rule, got)
    return (*usual, *more[:1]) if _any_given(more) else usual


def _any_given(arrays: Sequence[Array | None]) -> bool:
    """Whether one is there."""
    return any(one is not None for one in arrays)


def _momentum(value: Any) -> float:
    if value is None:
        rule = "must be a number (a cumulative average, torch's None, needs a count of batches)"
        raise OptionError("momentum", rule, None)
    return options.number("momentum", value)


__all__ = [
    "Normalized",
    "Statistics",
    "batch_norm",
    "batch_norm_elemt",
    "batch_norm_gather_stats",
    "batch_norm_stats",
    "group_norm",
    "layer_norm",
    "rms_norm",
]
