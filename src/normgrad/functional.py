"""The functional API, backward: arrays in, gradients out."""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from normgrad.arrays.kinds import Array
from normgrad.calls.dispatch import compute
from normgrad.calls.fused import after_norm, fused_operands, one_more
from normgrad.calls.signatures import explained, one_of_rstd_and_variance
from normgrad.core import options
from normgrad.core.spec import Op

A = TypeVar("A")  # the kind of `input`: torch tensors in, torch tensors out

_named = tuple.__new__  # a named tuple of a tuple, without the 0.2 us of its own `_make`


class Gradients(NamedTuple, Generic[A]):
    """What a backward function returns, by name.

    A gradient that ``output_mask`` leaves out is None.

    Attributes:
        grad_input: Like ``input``.
        grad_weight: Like ``weight``, or in its shape where it was not given.
        grad_bias: Likewise. None of RMS norm, which has no bias.
        grad_shortcut: Like ``input`` where the forward pass had a shortcut, else None.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.arange(6, dtype=np.float32).reshape(2, 3)
        >>> mean, rstd = np.full((2, 1), 1, np.float32), np.full((2, 1), 2, np.float32)
        >>> dx, dw, db, _ = ng.layer_norm_backward(x, x, mean, rstd, 3)
        >>> db
        array([3., 5., 7.], dtype=float32)
    """

    grad_input: A
    grad_weight: A
    grad_bias: A
    grad_shortcut: A | None = None


class ReducedSums(NamedTuple, Generic[A]):
    """The first half of synchronized batch norm: two sums to add over ranks, two local results.

    Attributes:
        sum_dy: The sum of ``grad_out`` for each channel, in float32 (float64 where an operand is).
        sum_dy_xmu: The sum of ``grad_out * (input - mean)``, likewise.
        grad_weight: What this rank adds to the weight's gradient.
        grad_bias: What it adds to the bias's.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x, one = np.ones((4, 2, 3), np.float32), np.ones(2, np.float32)
        >>> ng.batch_norm_reduce_backward(x, x, one, one).sum_dy
        array([12., 12.], dtype=float32)
    """

    sum_dy: A
    sum_dy_xmu: A
    grad_weight: A
    grad_bias: A


@explained
def batch_norm_backward(
    grad_out: Array,
    input: A,
    mean: Array,
    rstd: Array | None = None,
    *,
    variance: Array | None = None,
    eps: float = 1e-5,
    weight: Array | None = None,
    bias: Array | None = None,
    training: bool = True,
    channel_axis: int = 1,
    activation: str | None = None,
    negative_slope: float = 0.01,
    shortcut: Array | None = None,
    mask: Array | None = None,
    output_mask: Sequence[bool] = options.ALL,
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Gradients[A]:
    """Gradients of batch normalization with respect to input, weight and bias.

    The statistics are those of the forward pass: the batch's in training, the running ones in
    inference (``training=False``), where they are constants. Give ``rstd`` or ``variance``.

    Args:
        grad_out: The gradient of the output, in ``input``'s shape.
        input: What the forward pass normalized, 2 to 8 axes; any strides.
        mean: One element for each channel, shape (C,).
        rstd: ``1 / sqrt(variance + eps)``, shape (C,); None where ``variance`` is given.
        variance: The biased variance in the place of ``rstd``, shape (C,).
        eps: What is added to ``variance``; not used with ``rstd``.
        weight: Shape (C,); None means ones.
        bias: Shape (C,); read only where there is an activation, which is computed again.
        training: Whether the statistics were computed from ``input``.
        channel_axis: Which axis of ``input`` the channels are.
        activation: What followed the norm in the forward pass: "relu", "relu6", "leaky_relu",
            "silu", "gelu", "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        shortcut: What the forward pass added before the activation, in ``input``'s shape.
        mask: What the forward pass with ``shortcut`` and "relu" returned, in the place of
            ``shortcut``.
        output_mask: Which of the three gradients to compute; of four with a shortcut.
        param_grad_dtype: The type of the weight's and the bias's gradients; ``weight``'s by
            default.
        out: Arrays for the three (four) results, None where the mask is False.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``grad_input`` like ``input``, ``grad_weight`` and ``grad_bias`` of shape (C,), and with a
        shortcut ``grad_shortcut`` like ``input``.

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
        >>> mean, variance = x.mean((0, 2)), x.var((0, 2))
        >>> grads = ng.batch_norm_backward(x * x, x, mean, variance=variance)
        >>> grads.grad_bias
        array([ 14., 126.], dtype=float32)
    """
    # Options as most callers give them need no closer look: four calls, 16 us with cold caches.
    training = training if training.__class__ is bool else options.flag("training", training)
    if eps.__class__ is not float:
        eps = options.number("eps", eps)
    if channel_axis.__class__ is not int:
        channel_axis = options.integer("channel_axis", channel_axis)
    deviation, kind = one_of_rstd_and_variance(Op.BATCH_NORM_BACKWARD, mean, rstd, variance)
    arrays: tuple[Any, ...] = (grad_out, input, mean, deviation, weight)
    settings: tuple[Any, ...] = (training, eps, kind, channel_axis)
    if activation is not None or shortcut is not None or mask is not None:
        arrays = fused_operands(arrays, beta=bias, shortcut=shortcut, mask=mask)
        settings += after_norm(activation, negative_slope)
        if shortcut is not None or mask is not None:
            output_mask = one_more(output_mask, 3)
    results = compute(
        Op.BATCH_NORM_BACKWARD,
        arrays,
        (),
        settings,
        output_mask,
        param_grad_dtype,
        out,
        backend,
    )
    return _named(Gradients, results if len(results) == 4 else (*results, None))


@explained
def batch_norm_reduce_backward(
    grad_out: Array,
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
    output_mask: Sequence[bool] = options.ALL_SUMS,
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> ReducedSums[A]:
    """The sums that synchronized batch norm adds over all ranks, and the local parameter gradients.

    Args:
        grad_out: The gradient of this rank's output, in ``input``'s shape.
        input: This rank's part of the batch, 2 to 8 axes; any strides.
        mean: The mean over all ranks, shape (C,).
        rstd: ``1 / sqrt(variance + eps)`` over all ranks, shape (C,); None where ``variance`` is
            given.
        variance: The biased variance over all ranks in the place of ``rstd``, shape (C,).
        eps: What is added to ``variance``; not used with ``rstd``.
        weight: Shape (C,). Its type is that of the two parameter gradients; the numbers depend on
            it only where there is an activation.
        bias: Shape (C,); read only where there is an activation, which is computed again.
        channel_axis: Which axis of ``input`` the channels are.
        activation: What followed the norm in the forward pass: "relu", "relu6", "leaky_relu",
            "silu", "gelu", "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        output_mask: Which of the four results to compute.
        param_grad_dtype: The type of the weight's and the bias's gradients; ``weight``'s by
            default.
        out: Arrays for the four results, None where the mask is False.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``sum_dy`` and ``sum_dy_xmu`` in float32 (float64 where an operand is float64): the sums of
        ``grad_out`` and of ``grad_out * (input - mean)``. ``grad_weight`` and ``grad_bias``: what
        this rank adds to the parameters' gradients. All of shape (C,).

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
        >>> one = np.ones(2, np.float32)
        >>> ng.batch_norm_reduce_backward(x, x, one, one).sum_dy_xmu
        array([  8., 104.], dtype=float32)
    """
    eps = options.number("eps", eps)
    channel_axis = options.integer("channel_axis", channel_axis)
    deviation, kind = one_of_rstd_and_variance(Op.BATCH_NORM_REDUCE_BACKWARD, mean, rstd, variance)
    arrays: tuple[Any, ...] = (grad_out, input, mean, deviation, weight)
    settings: tuple[Any, ...] = (channel_axis, eps, kind)
    if activation is not None:
        arrays = fused_operands(arrays, beta=bias)
        settings += after_norm(activation, negative_slope)
    results = compute(
        Op.BATCH_NORM_REDUCE_BACKWARD,
        arrays,
        (),
        settings,
        output_mask,
        param_grad_dtype,
        out,
        backend,
    )
    return _named(ReducedSums, results)


@explained
def batch_norm_elemt_backward(
    grad_out: Array,
    input: A,
    mean: Array,
    rstd: Array | None,
    sum_dy: Array,
    sum_dy_xmu: Array,
    count: Array,
    *,
    variance: Array | None = None,
    eps: float = 1e-5,
    weight: Array | None = None,
    bias: Array | None = None,
    channel_axis: int = 1,
    activation: str | None = None,
    negative_slope: float = 0.01,
    out: Array | None = None,
    backend: str | None = None,
) -> A:
    """The input gradient of synchronized batch norm, from sums over all ranks.

    Args:
        grad_out: The gradient of this rank's output, in ``input``'s shape.
        input: This rank's part of the batch, 2 to 8 axes; any strides.
        mean: The mean over all ranks, shape (C,).
        rstd: ``1 / sqrt(variance + eps)`` over all ranks, shape (C,); None where ``variance`` is
            given.
        sum_dy: The sum of ``grad_out`` over all ranks, shape (C,).
        sum_dy_xmu: The sum of ``grad_out * (input - mean)`` over all ranks, shape (C,).
        count: How many elements each rank has for a channel: an array of any shape, whose sum
            counts.
        variance: The biased variance over all ranks in the place of ``rstd``, shape (C,).
        eps: What is added to ``variance``; not used with ``rstd``.
        weight: Shape (C,); None means ones.
        bias: Shape (C,); read only where there is an activation, which is computed again.
        channel_axis: Which axis of ``input`` the channels are.
        activation: What followed the norm in the forward pass: "relu", "relu6", "leaky_relu",
            "silu", "gelu", "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        out: An array for the result.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``grad_input``, like ``input``.

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
        >>> one = np.ones(2, np.float32)
        >>> sums = ng.batch_norm_reduce_backward(x, x, one, one)
        >>> count = np.array([4], np.int32)  # one rank has all of the batch
        >>> ng.batch_norm_elemt_backward(x, x, one, one, sums.sum_dy, sums.sum_dy_xmu, count)
        array([[[   0.5,   -0.5,   -1.5,   -2.5],
                [ -79.5, -104.5, -129.5, -154.5]]], dtype=float32)
    """
    eps = options.number("eps", eps)
    channel_axis = options.integer("channel_axis", channel_axis)
    deviation, kind = one_of_rstd_and_variance(Op.BATCH_NORM_ELEMT_BACKWARD, mean, rstd, variance)
    arrays: tuple[Any, ...] = (
        grad_out,
        input,
        mean,
        deviation,
        weight,
        sum_dy,
        sum_dy_xmu,
        count,
    )
    settings: tuple[Any, ...] = (channel_axis, eps, kind)
    if activation is not None:
        arrays = fused_operands(arrays, beta=bias)
        settings += after_norm(activation, negative_slope)
    (grad_input,) = compute(
        Op.BATCH_NORM_ELEMT_BACKWARD,
        arrays,
        (),
        settings,
        (True,),
        None,
        None if out is None else (out,),
        backend,
    )
    return grad_input  # type: ignore[return-value]  # nothing masks it


@explained
def layer_norm_backward(
    grad_out: Array,
    input: A,
    mean: Array,
    rstd: Array | None,
    normalized_shape: int | Sequence[int],
    *,
    variance: Array | None = None,
    eps: float = 1e-5,
    weight: Array | None = None,
    bias: Array | None = None,
    activation: str | None = None,
    negative_slope: float = 0.01,
    grad_sum: Array | None = None,
    output_mask: Sequence[bool] = options.ALL,
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Gradients[A]:
    """Gradients of layer normalization over the last axes.

    Args:
        grad_out: The gradient of the output, in ``input``'s shape.
        input: What the forward pass normalized, 1 to 8 axes; any strides.
        mean: One element for each row, in any shape.
        rstd: ``1 / sqrt(variance + eps)`` in ``mean``'s shape; None where ``variance`` is given.
        normalized_shape: The sizes of the last axes that are normalized together, or the size of
            the last one.
        variance: The biased variance in the place of ``rstd``, in ``mean``'s shape.
        eps: What is added to ``variance``; not used with ``rstd``.
        weight: In the shape that ``normalized_shape`` says; None means ones.
            For each sample apart (a modulated norm) of shape (N, 1, ..., C), as its gradient is.
        bias: Like ``weight``; read only where there is an activation, which is computed again.
        activation: What followed the norm in the forward pass: "relu", "relu6", "leaky_relu",
            "silu", "gelu", "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        grad_sum: Where the forward pass had a residual, and ``input`` is the ``sum`` that it
            returned: the gradient that reaches ``sum`` from elsewhere.
        output_mask: Which of the three gradients to compute.
        param_grad_dtype: The type of the weight's and the bias's gradients; ``weight``'s by
            default.
        out: Arrays for the three results, None where the mask is False.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``grad_input`` like ``input``, ``grad_weight`` and ``grad_bias`` in the shape that
        ``normalized_shape`` says.

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.array([[2, 3], [4, 5]], np.float32)
        >>> grads = ng.layer_norm_backward(x, x, x.mean(-1), None, 2, variance=x.var(-1))
        >>> grads.grad_bias
        array([6., 8.], dtype=float32)
    """
    if eps.__class__ is not float:
        eps = options.number("eps", eps)
    shape = options.sizes("normalized_shape", normalized_shape)
    deviation, kind = one_of_rstd_and_variance(Op.LAYER_NORM_BACKWARD, mean, rstd, variance)
    arrays: tuple[Any, ...] = (grad_out, input, mean, deviation, weight)
    settings: tuple[Any, ...] = (shape, eps, kind)
    if activation is not None or grad_sum is not None or bias is not None:
        arrays = fused_operands(arrays, beta=bias, dsum=grad_sum)
        settings += after_norm(activation, negative_slope)
    results = compute(
        Op.LAYER_NORM_BACKWARD,
        arrays,
        (),
        settings,
        output_mask,
        param_grad_dtype,
        out,
        backend,
    )
    return _named(Gradients, (*results, None))


@explained
def rms_norm_backward(
    grad_out: Array,
    input: A,
    rstd: Array | None,
    normalized_shape: int | Sequence[int],
    *,
    variance: Array | None = None,
    eps: float | None = None,
    weight: Array | None = None,
    weight_offset: float = 0.0,
    activation: str | None = None,
    negative_slope: float = 0.01,
    grad_sum: Array | None = None,
    output_mask: Sequence[bool] = options.BOTH,
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Gradients[A]:
    """Gradients of root mean square normalization over the last axes.

    Args:
        grad_out: The gradient of the output, in ``input``'s shape.
        input: What the forward pass normalized, 1 to 8 axes; any strides.
        rstd: ``1 / sqrt(mean(input**2) + eps)``, one element for each row, in any shape; None
            where ``variance`` is given.
        normalized_shape: The sizes of the last axes that are normalized together, or the size of
            the last one.
        variance: ``mean(input**2)`` in the place of ``rstd``.
        eps: What is added to ``variance``; by default the step of ``input``'s type at 1. Not used
            with ``rstd``.
        weight: In the shape that ``normalized_shape`` says; None means ones.
            For each sample apart (a modulated norm) of shape (N, 1, ..., C), as its gradient is.
        weight_offset: What is added to the weight: 1.0 for models that store ``weight - 1``.
        activation: What followed the norm in the forward pass: "relu", "relu6", "leaky_relu",
            "silu", "gelu", "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        grad_sum: Where the forward pass had a residual, and ``input`` is the ``sum`` that it
            returned: the gradient that reaches ``sum`` from elsewhere.
        output_mask: Which of the two gradients to compute.
        param_grad_dtype: The type of the weight's gradient; ``weight``'s by default.
        out: Arrays for the two results, None where the mask is False.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``grad_input`` like ``input``, ``grad_weight`` in the shape that ``normalized_shape``
        says; ``grad_bias`` is None.

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.array([[3, 4], [6, 8]], np.float32)
        >>> rstd = 1 / np.sqrt(np.mean(x * x, -1))
        >>> ng.rms_norm_backward(x, x, rstd, 2).grad_weight
        array([ 7.636753, 13.57645 ], dtype=float32)
    """
    if eps.__class__ is not float:
        eps = options.step_at_1(input) if eps is None else options.number("eps", eps)
    if weight_offset.__class__ is not float:
        weight_offset = options.number("weight_offset", weight_offset)
    shape = options.sizes("normalized_shape", normalized_shape)
    deviation, kind = one_of_rstd_and_variance(Op.RMS_NORM_BACKWARD, None, rstd, variance)
    arrays: tuple[Any, ...] = (grad_out, input, None, deviation, weight)
    settings: tuple[Any, ...] = (shape, eps, kind, weight_offset)
    if activation is not None or grad_sum is not None:
        arrays = fused_operands(arrays, dsum=grad_sum)
        settings += after_norm(activation, negative_slope)
    results = compute(
        Op.RMS_NORM_BACKWARD,
        arrays,
        (),
        settings,
        output_mask,
        param_grad_dtype,
        out,
        backend,
    )
    return _named(Gradients, (*results, None, None))


@explained
def group_norm_backward(
    grad_out: Array,
    input: A,
    mean: Array,
    rstd: Array | None,
    num_groups: int,
    *,
    variance: Array | None = None,
    eps: float = 1e-5,
    weight: Array | None = None,
    bias: Array | None = None,
    channel_axis: int = 1,
    activation: str | None = None,
    negative_slope: float = 0.01,
    output_mask: Sequence[bool] = options.ALL,
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Gradients[A]:
    """Gradients of group normalization; with a group for each channel, of instance normalization.

    Args:
        grad_out: The gradient of the output, in ``input``'s shape.
        input: What the forward pass normalized, 2 to 8 axes; any strides. The first axis that is
            not the channels' is the samples'.
        mean: One element for each sample and group, usually of shape (N, G).
        rstd: ``1 / sqrt(variance + eps)`` in ``mean``'s shape; None where ``variance`` is given.
        num_groups: How many groups the channels form.
        variance: The biased variance in the place of ``rstd``, in ``mean``'s shape.
        eps: What is added to ``variance``; not used with ``rstd``.
        weight: Shape (C,); None means ones; for each sample apart (N, C).
        bias: Shape (C,); read only where there is an activation, which is computed again.
        channel_axis: Which axis of ``input`` the channels are.
        activation: What followed the norm in the forward pass: "relu", "relu6", "leaky_relu",
            "silu", "gelu", "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        output_mask: Which of the three gradients to compute.
        param_grad_dtype: The type of the weight's and the bias's gradients; ``weight``'s by
            default.
        out: Arrays for the three results, None where the mask is False.
        backend: "reference", "cpu" or "cuda"; by default the fastest that works.

    Returns:
        ``grad_input`` like ``input``, ``grad_weight`` and ``grad_bias`` in ``weight``'s shape.

    Raises:
        NormgradError: A rule is broken; nothing was written. It is a ValueError or a TypeError
            too.

    Example:
        >>> import numpy as np, normgrad as ng
        >>> x = np.arange(8, dtype=np.float32).reshape(1, 4, 2)
        >>> groups = x.reshape(1, 2, 4)
        >>> mean, variance = groups.mean(-1), groups.var(-1)
        >>> ng.group_norm_backward(x, x, mean, None, 2, variance=variance).grad_bias
        array([ 1.,  5.,  9., 13.], dtype=float32)
    """
    if eps.__class__ is not float:
        eps = options.number("eps", eps)
    if num_groups.__class__ is not int:
        num_groups = options.integer("num_groups", num_groups)
    if channel_axis.__class__ is not int:
        channel_axis = options.integer("channel_axis", channel_axis)
    deviation, kind = one_of_rstd_and_variance(Op.GROUP_NORM_BACKWARD, mean, rstd, variance)
    arrays: tuple[Any, ...] = (grad_out, input, mean, deviation, weight)
    settings: tuple[Any, ...] = (num_groups, channel_axis, eps, kind)
    if activation is not None or bias is not None:
        arrays = fused_operands(arrays, beta=bias)
        settings += after_norm(activation, negative_slope)
    results = compute(
        Op.GROUP_NORM_BACKWARD,
        arrays,
        (),
        settings,
        output_mask,
        param_grad_dtype,
        out,
        backend,
    )
    return _named(Gradients, (*results, None))


__all__ = [
    "Gradients",
    "ReducedSums",
    "batch_norm_backward",
    "batch_norm_elemt_backward",
    "batch_norm_reduce_backward",
    "group_norm_backward",
    "layer_norm_backward",
    "rms_norm_backward",
]
