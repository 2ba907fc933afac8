"""Torch's forward operators in terms of ours: argument for argument, result for result.

Statistics have the types that torch saves them in, so that either side's backward pass may follow.
What torch refuses, and what it answers in a way of its own, raises a NormgradError; the caller
hands it to torch.
"""

from collections.abc import Sequence
from typing import Any

import torch

from normgrad.calls.dispatch import compute
from normgrad.core import options
from normgrad.core.errors import DtypeError, ShapeError
from normgrad.core.operators import Op
from normgrad.forward import operands
from normgrad.torch.adapters import check_sizes
from normgrad.torch.forward import default_eps, group_format, of_our_types
from normgrad.torch.library import Tensor, memory_format, statistics_dtype

_ONE = (True,)


def native_batch_norm(
    backend: str,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Batch norm on the CPU, and by torch's own kernels on CUDA."""
    vectors = (weight, bias, running_mean, running_var)
    # On CUDA the output lies as the input, whatever its format.
    x = input if input.is_cuda else _in_format(input)
    kept = statistics_dtype(x.dtype) if x.is_cuda else _type_on_cpu(x, vectors)
    _check(x, vectors)
    if training:
        return _train_batch(backend, x, *vectors, momentum, eps, kept)
    y = _infer_batch(backend, x, *vectors, eps)
    if not x.is_cuda:
        return y, x.new_empty(0, dtype=kept), x.new_empty(0, dtype=kept)
    mean, variance = (one.to(kept, copy=True) for one in vectors[2:] if one is not None)
    return y, mean, variance.add_(eps).rsqrt_()


def batch_norm_with_update(
    backend: str,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    """Batch norm of exported programs, on the CPU, where its reserve is always empty."""
    arguments = (input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *native_batch_norm(backend, *arguments), input.new_empty(0, dtype=torch.uint8)


def cudnn_batch_norm(
    backend: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Batch norm through cuDNN, whose own notes for its backward pass are then empty.

    That one never sees them: `kernels` answers a backward pass without notes.
    """
    vectors = (weight, bias, running_mean, running_var)
    x, reserve = _in_format(input), input.new_empty(0, dtype=torch.uint8)
    _check(x, vectors)
    if training:
        kept = statistics_dtype(x.dtype)
        return *_train_batch(backend, x, *vectors, momentum, eps, kept), reserve
    y = _infer_batch(backend, x, *vectors, eps)
    return y, weight.new_empty(0), weight.new_empty(0), reserve


def _train_batch(
    backend: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    kept: torch.dtype,
) -> tuple[Any, ...]:
    if x.numel() == x.shape[1]:
        raise ShapeError("input", "must have several elements for each channel", tuple(x.shape))
    # By `data`: autograd does not count the change, as with torch's kernels.
    mean = None if running_mean is None else running_mean.data
    var = None if running_var is None else running_var.data
    arrays, settings = (*operands(x, weight, bias), mean, var), (eps, momentum, 1)
    return _made(backend, Op.BATCH_NORM, arrays, settings, kept)


def _infer_batch(
    backend: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    eps: float,
) -> Any:
    arrays, settings = operands(x, weight, bias, mean, variance), (1, eps, "variance")
    return compute(Op.BATCH_NORM_ELEMT, arrays, (), settings, _ONE, None, None, backend)[0]


def batch_norm_stats(backend: str, input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1/std of this rank's part of a synchronized batch."""
    _check(input, ())
    arrays, settings = (None, input), (1, "variance")
    made: Any = compute(
        Op.BATCH_NORM_STATS, arrays, (), settings, options.BOTH, None, None, backend
    )
    return made[0], made[1].add_(eps).rsqrt_()


def batch_norm_elemt(
    backend: str,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Any:
    """The output of synchronized batch norm."""
    x = _in_format(input)
    _check(x, (weight, bias))
    arrays, settings = operands(x, weight, bias, mean, invstd), (1, eps, "invstd")
    return compute(Op.BATCH_NORM_ELEMT, arrays, (), settings, _ONE, None, None, backend)[0]


def native_layer_norm(
    backend: str,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    """Layer norm."""
    _check(input, (weight, bias), mixed=not input.is_cuda)
    x, shape = input.contiguous(), tuple(normalized_shape)
    kept = statistics_dtype(x.dtype) if x.is_cuda else _type_on_cpu(x, (weight, bias))
    arrays, settings = operands(x, weight, bias), (shape, eps)
    return _made(backend, Op.LAYER_NORM, arrays, settings, kept)


def native_group_norm(
    backend: str,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    samples: int,
    channels: int,
    positions: int,
    group: int,
    eps: float,
) -> Any:
    """Group norm; torch's operator takes its sizes beside the data, which it wants dense."""
    check_sizes(input, samples, channels, positions)
    _check(input, (weight, bias), mixed=not input.is_cuda)
    if not input.is_contiguous(memory_format=group_format(input)):
        raise ShapeError("input", "must lie as torch's kernel wants it", input.stride())
    kept = input.dtype if input.is_cuda else _type_on_cpu(input, (weight, bias))
    arrays, settings = operands(input, weight, bias), (group, 1, eps)
    return _made(backend, Op.GROUP_NORM, arrays, settings, kept)


def fused_rms_norm(
    backend: str,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
) -> Any:
    """RMS norm; on the CPU torch takes it apart, before autograd, where it has no kernel."""
    _check(input, (weight,), mixed=False)
    eps = default_eps(input) if eps is None else eps
    x, settings = input.contiguous(), (tuple(normalized_shape), eps, 0.0)
    arrays = operands(x, weight, None)[:5]
    return compute(Op.RMS_NORM, arrays, (), settings, options.BOTH, None, None, backend)


def _made(
    backend: str, op: Op, arrays: tuple[Any, ...], settings: tuple[Any, ...], kept: torch.dtype
) -> tuple[Any, ...]:
    """Output and statistics, those in the type that torch keeps them in."""
    made: Any = compute(op, arrays, (), settings, options.ALL, None, None, backend)
    y, mean, rstd = made
    return (y, mean, rstd) if mean.dtype is kept else (y, mean.to(kept), rstd.to(kept))


def _in_format(input: Tensor) -> Tensor:
    """Contiguous or channels last, as torch lays the output out."""
    if input.is_contiguous():
        return input
    return input.contiguous(memory_format=memory_format(input))


def _type_on_cpu(x: Tensor, vectors: Sequence[Tensor | None]) -> torch.dtype:
    """What torch's kernels for the CPU keep statistics in: the type of parameters and buffers."""
    return next((one.dtype for one in vectors if one is not None), x.dtype)


def _check(x: Tensor, vectors: Sequence[Tensor | None], *, mixed: bool = True) -> None:
    """Leave to torch what it refuses or answers in its own way: mixed types, no elements."""
    given = [one for one in vectors if one is not None]
    first = given[0].dtype if given else x.dtype
    if not of_our_types(x, *given) or any(one.dtype is not first for one in given):
        raise DtypeError("weight", "must have the type that torch's kernel wants", str(first))
    if not mixed and first is not x.dtype:
        raise DtypeError("weight", f"must be {x.dtype} as input for torch's kernel", str(first))
    if not x.numel():
        raise ShapeError("input", "must have elements", tuple(x.shape))
