"""The functional API: arrays in, gradients out."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from normgrad import options
from normgrad.arrays import Array
from normgrad.dispatch import compute
from normgrad.spec import STATISTIC_KINDS, Op, StatisticKind

_named = tuple.__new__  # a named tuple of a tuple, without the 0.2 us of its own `_make`

_INVSTD: StatisticKind = "invstd"


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
    output_mask: Sequence[bool] = options.ALL,
    channel_axis: int = 1,
    save_invstd_is: StatisticKind = _INVSTD,
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Gradients:
    """Gradients of batch normalization with respect to input, weight and bias.

    In training the saved statistics are used (0 and 1 where None), in inference the running ones
    (0 and 1 where None) with ``eps``. ``save_invstd_is="variance"`` reads ``save_invstd`` as a
    variance to which ``eps`` is added.
    """
    # Options as most callers give them need no closer look: four calls, 16 us with cold caches.
    training = training if training.__class__ is bool else options.flag("training", training)
    rstd_is = save_invstd_is
    if rstd_is is not _INVSTD:
        rstd_is = options.choice("save_invstd_is", rstd_is, STATISTIC_KINDS)
    if eps.__class__ is not float:
        eps = options.number("eps", eps)
    if channel_axis.__class__ is not int:
        channel_axis = options.integer("channel_axis", channel_axis)
    unread: tuple[tuple[str, Array | None], ...] = ()
    if training:
        mean, rstd = save_mean, save_invstd
        if running_mean is not None or running_var is not None:
            unread = (("running_mean", running_mean), ("running_var", running_var))
    else:
        mean, rstd, rstd_is = running_mean, running_var, "variance"
        unread = (("save_mean", save_mean), ("save_invstd", save_invstd))
    settings = (training, eps, rstd_is, channel_axis)
    arrays = (grad_out, input, mean, rstd, weight)
    return _named(
        Gradients,
        compute(
            Op.BATCH_NORM, arrays, unread, settings, output_mask, param_grad_dtype, out, backend
        ),
    )


def batch_norm_reduce_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    invstd: Array,
    weight: Array | None = None,
    *,
    output_mask: Sequence[bool] = options.ALL_SUMS,
    channel_axis: int = 1,
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> ReducedSums:
    """The sums that synchronized batch norm adds over all ranks, and the local parameter gradients.

    ``sum_dy`` and ``sum_dy_xmu`` come in float32, or float64 where an operand is float64.
    """
    settings = (options.integer("channel_axis", channel_axis),)
    arrays = (grad_out, input, mean, invstd, weight)
    return _named(
        ReducedSums,
        compute(
            Op.BATCH_NORM_REDUCE, arrays, (), settings, output_mask, param_grad_dtype, out, backend
        ),
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
    settings = (options.integer("channel_axis", channel_axis),)
    arrays = (grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, counter)
    given = None if out is None else (out,)
    (grad_input,) = compute(
        Op.BATCH_NORM_ELEMT, arrays, (), settings, (True,), None, given, backend
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
    output_mask: Sequence[bool] = options.ALL,
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Gradients:
    """Gradients of layer normalization over the last axes. ``bias`` does not change the numbers.

    ``mean`` and ``rstd`` have one element for each row, in any shape that the two share.
    """
    settings = (options.sizes("normalized_shape", normalized_shape),)
    arrays = (grad_out, input, mean, rstd, weight)
    unread = (("beta", bias),)
    return _named(
        Gradients,
        compute(
            Op.LAYER_NORM, arrays, unread, settings, output_mask, param_grad_dtype, out, backend
        ),
    )


def group_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None = None,
    *,
    num_groups: int = 32,
    output_mask: Sequence[bool] = options.ALL,
    channel_axis: int = 1,
    param_grad_dtype: Any = None,
    out: Sequence[Array | None] | None = None,
    backend: str | None = None,
) -> Gradients:
    """Gradients of group normalization. The first axis that is not the channels' is the samples'.

    ``mean`` and ``rstd`` have one element for each sample and group, in any shape that the two
    share.
    """
    if num_groups.__class__ is not int:
        num_groups = options.integer("num_groups", num_groups)
    if channel_axis.__class__ is not int:
        channel_axis = options.integer("channel_axis", channel_axis)
    settings = (num_groups, channel_axis)
    arrays = (grad_out, input, mean, rstd, weight)
    return _named(
        Gradients,
        compute(Op.GROUP_NORM, arrays, (), settings, output_mask, param_grad_dtype, out, backend),
    )


__all__ = [
    "Gradients",
    "ReducedSums",
    "batch_norm_backward",
    "batch_norm_elemt_backward",
    "batch_norm_reduce_backward",
    "group_norm_backward",
    "layer_norm_backward",
]
