"""Forward passes by our kernels, with statistics in float32 (float64 for float64 data).

What those do not take goes to torch's: types that torch refuses in words of its own, data without
elements, GPUs on which our backend does not work.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from normgrad.calls.dispatch import compute
from normgrad.calls.fused import NEGATIVE_SLOPE, after_norm, fused_operands
from normgrad.core import options
from normgrad.core.errors import NormgradError, ShapeError
from normgrad.core.operators import Op
from normgrad.core.spec import Spec
from normgrad.core.validate import MAX_RANK, mask_shape
from normgrad.forward import operands
from normgrad.torch.activations import NO_ACTIVATION, activated
from normgrad.torch.library import (
    NARROW,
    Tensor,
    described,
    few_axes,
    memory_format,
    require,
    statistics_dtype,
    suggested_format,
)

Normalized = tuple[Tensor, Tensor, Tensor]  # y, mean, rstd
Scaled = tuple[Tensor, Tensor]  # y, rstd
_FLOATS = (*NARROW, torch.float32, torch.float64)


def normalize_batch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    activation: str | None = None,
    slope: float = NEGATIVE_SLOPE,
) -> Normalized:
    """Batch norm over axis 1; updates the running statistics in training."""
    after = after_norm(activation, slope)
    x = x.contiguous(memory_format=memory_format(x))
    if not x.numel():  # torch's kernels update the buffers with nan
        vectors = {"weight": weight, "bias": bias}
        check_vectors(x, **vectors, running_mean=running_mean, running_var=running_var)
        return torch.empty_like(x), *_zeros(x, x.shape[1] if training else 0)
    arguments = (x, weight, bias, running_mean, running_var)
    if (running_mean is None) is (running_var is None) and of_our_types(*arguments):
        try:
            if training:
                y, mean, rstd = _train_batch(*arguments, momentum, eps, after)
                return y, mean, rstd
            return normalize_channels(*arguments, "variance", eps, after), *_zeros(x, 0)
        except NormgradError:
            pass
    # Torch's own choice between its kernels and cuDNN's: the same numbers as torch.nn.
    y, mean, rstd, *_ = torch._batch_norm_impl_index(
        *arguments, training, momentum, eps, torch.backends.cudnn.enabled
    )
    y = activated(y.contiguous(memory_format=memory_format(x)), *after)
    # What inference says of statistics depends on the kernel: nothing, here.
    return (y, mean, rstd) if training else (y, *_zeros(x, 0))


def normalize_batch_and_add(
    x: Tensor,
    shortcut: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    activation: str | None = None,
    slope: float = NEGATIVE_SLOPE,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Batch norm, then a sum with the shortcut, then the activation; last a bit an element.

    The bits are none where the backward pass does not take them: then it takes the shortcut.
    """
    x = x.contiguous(memory_format=memory_format(x))
    arguments = (x, weight, bias, running_mean, running_var)
    after = after_norm(activation, slope)
    if shortcut.dtype is not x.dtype:
        check_like(x, "shortcut", shortcut)
    if x.numel() and (running_mean is None) is (running_var is None) and of_our_types(*arguments):
        try:
            if training:
                made = _train_batch(*arguments, momentum, eps, after, shortcut)
                return made if len(made) == 4 else (*made, no_mask(x))
            y = normalize_channels(*arguments, "variance", eps, after, shortcut)
            return y, *_zeros(x, 0), no_mask(x)
        except NormgradError:
            pass
    check_like(x, "shortcut", shortcut)
    y, mean, rstd = normalize_batch(*arguments, training, momentum, eps)
    z = y.add_(shortcut)
    masked = training and activation == "relu" and x.numel() > 0
    return activated(z, *after), mean, rstd, packed_mask(z) if masked else no_mask(x)


def packed_mask(z: Tensor) -> Tensor:
    """A bit for each element that ReLU lets pass, by torch; ``z`` lies as the data do."""
    shape = mask_shape(Spec(op=Op.BATCH_NORM, x=described(z)))
    opened = ~(z <= 0)  # of NaN too
    runs = opened.flatten(2) if len(shape) == 3 else opened.movedim(1, -1).flatten(0, -2)
    bits = torch.nn.functional.pad(runs.to(torch.uint8), (0, -runs.shape[-1] % 8))
    powers = 1 << torch.arange(8, dtype=torch.uint8, device=z.device)
    eights: Tensor = bits.unflatten(-1, (-1, 8)) * powers
    return eights.sum(-1, dtype=torch.uint8)


def no_mask(x: Tensor) -> Tensor:
    """What stands for a mask where there is none."""
    return x.new_empty(0, dtype=torch.uint8)


def _train_batch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    after: tuple[str | None, float],
    shortcut: Tensor | None = None,
) -> Any:
    # By `data`: autograd does not count the change, as with torch's kernels.
    buffers = [None if one is None else one.data for one in (running_mean, running_var)]
    arrays = (*operands(few_axes(x), weight, bias), *buffers)
    settings: tuple[Any, ...] = (eps, momentum, 1)
    wanted: tuple[bool, ...] = options.ALL
    if after[0] is not None:
        settings = (*settings, *after)
    if shortcut is not None:
        arrays = fused_operands(arrays, shortcut=few_axes(shortcut))
        if after[0] == "relu":
            wanted = (*wanted, True)
    fused = after[0] is not None or shortcut is not None
    y, *rest = _made(Op.BATCH_NORM, arrays, settings, wanted, fused=fused)
    return _in_shape(y, x.shape), *rest


def normalize_channels(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    kind: str = "invstd",
    eps: float = 0.0,
    after: tuple[str | None, float] = NO_ACTIVATION,
    shortcut: Tensor | None = None,
) -> Tensor:
    """``(x - mean) * (rstd * weight) + bias`` for each channel; ``rstd`` may be a variance."""
    x = x.contiguous(memory_format=memory_format(x))
    arrays = operands(few_axes(x), weight, bias, mean, rstd)
    settings: tuple[Any, ...] = (1, eps, kind)
    if after[0] is not None:
        settings = (*settings, *after)
    if shortcut is not None:
        arrays = fused_operands(arrays, shortcut=few_axes(shortcut))
    fused = after[0] is not None or shortcut is not None
    made = _made(Op.BATCH_NORM_ELEMT, arrays, settings, (True,), fused=fused)
    return _in_shape(made[0], x.shape)


def _in_shape(made: Tensor, shape: Sequence[int]) -> Tensor:
    """A new result with more axes; no view, which nobody could change in place under autograd."""
    return made if made.dim() == len(shape) else made.resize_(tuple(shape))


def _made(
    op: Op,
    arrays: tuple[Any, ...],
    settings: tuple[Any, ...],
    wanted: tuple[bool, ...] = options.ALL,
    out: Any = None,
    *,
    fused: bool,
) -> Any:
    """Output and statistics of an operator; of a fused one by a fast backend or not at all."""
    backend = arrays[1].device.type if fused else None
    return compute(op, arrays, (), settings, wanted, None, out, backend)


def _zeros(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    dtype = statistics_dtype(x.dtype)
    return x.new_zeros(size, dtype=dtype), x.new_zeros(size, dtype=dtype)


def normalize_rows(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Normalized:
    """Layer norm over the last axes."""
    if of_our_types(x, weight, bias):
        try:
            y, mean, rstd = _rows(Op.LAYER_NORM, x, tuple(shape), weight, bias, (eps,))
            return y, mean, rstd
        except NormgradError:
            pass
    y, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, eps)
    dtype = statistics_dtype(x.dtype)
    return y, mean.to(dtype), rstd.to(dtype)


def scale_rows(
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    weight_offset: float = 0.0,
) -> Scaled:
    """RMS norm over the last axes, with parameters of any floating type, as torch's."""
    eps = default_eps(x) if eps is None else eps
    try:
        y, rstd = _rows(Op.RMS_NORM, x, tuple(shape), weight, None, (eps, weight_offset))
    except NormgradError:
        check_rows(x, shape, weight=weight)
        if weight_offset and weight is not None:
            weight = weight + weight_offset
        y, rstd = torch.ops.aten._fused_rms_norm.default(x, shape, weight, eps)
    return y, rstd


def default_eps(x: Tensor) -> float:
    """What torch's RMS norm adds where nobody says: the step of its arithmetic at 1."""
    return torch.finfo(statistics_dtype(x.dtype)).eps


def add_and_normalize_rows(
    x: Tensor,
    residual: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Layer norm of ``x + residual``, and that sum in the type of both."""
    if residual.dtype is not x.dtype:
        check_like(x, "residual", residual)
    if of_our_types(x, weight, bias):
        try:
            op, more = Op.LAYER_NORM, (eps,)
            y, mean, rstd, added = _rows(op, x, tuple(shape), weight, bias, more, residual)
            return y, added, mean, rstd
        except NormgradError:
            pass
    check_like(x, "residual", residual)
    added = x + residual
    y, mean, rstd = normalize_rows(added, shape, weight, bias, eps)
    return y, added, mean, rstd


def add_and_scale_rows(
    x: Tensor,
    residual: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm of ``x + residual``, and that sum in the type of both."""
    if residual.dtype is not x.dtype:
        check_like(x, "residual", residual)
    more = (default_eps(x) if eps is None else eps, weight_offset)
    try:
        y, rstd, added = _rows(Op.RMS_NORM, x, tuple(shape), weight, None, more, residual)
    except NormgradError:
        check_like(x, "residual", residual)
        added = x + residual
        y, rstd = scale_rows(added, shape, weight, eps, weight_offset)
    return y, added, rstd


def check_like(x: Tensor, name: str, other: Tensor) -> None:
    """What is added has the shape and the type of the data: a sum has that of both."""
    words = f"{name} should have the input's shape {list(x.shape)}, not {list(other.shape)}"
    require(x.dim() == other.dim(), words)
    for size, wanted in zip(other.shape, x.shape, strict=True):
        require(size == wanted, words)
    words = f"{name} should have the input's type {x.dtype}, not {other.dtype}"
    require(x.dtype == other.dtype, words)


def check_rows(x: Tensor, shape: Sequence[int], **parameters: Tensor | None) -> None:
    """Data and parameters end in ``shape``; where sizes are symbols, they will."""
    tails = {name: one.shape for name, one in parameters.items() if one is not None}
    tails["input"] = x.shape[max(x.dim() - len(shape), 0) :]
    for name, tail in tails.items():
        words = f"Given normalized_shape={list(shape)}, {name} ends in {list(tail)}"
        require(len(tail) == len(shape), words)
        for size, wanted in zip(tail, shape, strict=True):
            require(size == wanted, words)


def _rows(
    op: Op,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    more: tuple[float, ...],
    residual: Tensor | None = None,
) -> list[Tensor]:
    """Results of an operator over the last axes; with more axes than the core takes, as rows."""
    wanted: tuple[bool, ...] = options.BOTH if op is Op.RMS_NORM else options.ALL
    if residual is not None:
        wanted = (*wanted, True)
    made: Any
    if x.dim() <= MAX_RANK:
        arrays = operands(x.contiguous(), weight, bias)
        if residual is not None:
            arrays = fused_operands(arrays, residual=residual)
        made = _made(op, arrays, (shape, *more), wanted, fused=residual is not None)
        return made  # type: ignore[no-any-return]
    first = x.dim() - len(shape)
    if x.shape[first:] != shape:
        raise ShapeError("normalized_shape", "must be the tail of input's shape", shape)
    columns = math.prod(shape)
    rows = x.reshape(math.prod(x.shape[:first]), columns)
    arrays = operands(rows, *(None if one is None else one.view(-1) for one in (weight, bias)))
    if residual is not None:
        arrays = fused_operands(arrays, residual=residual.reshape(rows.shape))
    made = _made(op, arrays, ((columns,), *more), wanted, fused=residual is not None)
    ones = (*x.shape[:first], *(1,) * len(shape))
    full = [x.shape, *[ones] * (len(made) - 1)]
    if residual is not None:
        full[-1] = x.shape
    return [_in_shape(one, own) for one, own in zip(made, full, strict=True)]


def normalize_groups(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    activation: str | None = None,
    slope: float = NEGATIVE_SLOPE,
) -> Normalized:
    """Group norm of the channels at axis 1."""
    check_channels(x)
    after = after_norm(activation, slope)
    y_format = group_format(x)
    if of_our_types(x, weight, bias):
        few, out = few_axes(x), None
        if not few.is_contiguous(memory_format=y_format):
            shape, dtype = (x.shape[0], groups), statistics_dtype(x.dtype)
            statistics = (x.new_empty(shape, dtype=dtype) for _ in range(2))
            out = (torch.empty_like(few, memory_format=y_format), *statistics)
        try:
            arrays = operands(few, weight, bias)
            settings: tuple[Any, ...] = (groups, 1, eps)
            if activation is not None:
                settings = (*settings, *after)
            y, mean, rstd = _made(
                Op.GROUP_NORM, arrays, settings, out=out, fused=activation is not None
            )
            return _in_shape(y, x.shape), mean, rstd
        except NormgradError:
            pass
    samples, channels = x.shape[:2]
    positions = math.prod(x.shape[2:])
    # Torch's kernel reads their elements side by side, whatever their strides.
    weight, bias = (None if one is None else one.contiguous() for one in (weight, bias))
    y, mean, rstd = torch.native_group_norm(
        x.contiguous(), weight, bias, samples, channels, positions, groups, eps
    )
    dtype = statistics_dtype(x.dtype)
    y = activated(y.contiguous(memory_format=y_format), *after)
    return y, mean.to(dtype), rstd.to(dtype)


def check_channels(x: Tensor) -> None:
    """Data have samples and channels."""
    if x.dim() < 2:
        raise ShapeError("input", "must have 2 axes or more", f"shape {tuple(x.shape)}")


def check_vectors(x: Tensor, **vectors: Tensor | None) -> None:
    """Parameters and buffers have an element for each channel, in the words of torch's kernels."""
    check_channels(x)
    for name, one in vectors.items():
        if one is not None and one.numel() != x.shape[1]:
            msg = f"{name} should contain {x.shape[1]} elements not {one.numel()}"
            raise RuntimeError(msg)


def of_our_types(x: Tensor, *vectors: Tensor | None) -> bool:
    """Whether parameters and buffers have the type of the data or that of their statistics.

    Torch's kernels refuse others.
    """
    wide = statistics_dtype(x.dtype)
    return x.dtype in _FLOATS and all(
        one is None or one.dtype is x.dtype or one.dtype is wide for one in vectors
    )


def check_types(x: Tensor, **parameters: Tensor | None) -> None:
    """Raise what torch's kernels would, before a collective is under way."""
    if of_our_types(x, *parameters.values()):
        return
    if x.dtype not in _FLOATS:
        msg = f"input should have a floating type of 16, 32 or 64 bits, not {x.dtype}"
        raise RuntimeError(msg)
    for name, one in parameters.items():
        if one is not None and not of_our_types(x, one):
            wide = statistics_dtype(x.dtype)
            msg = f"{name} of {x.dtype} data should have type {wide}, not {one.dtype}"
            raise RuntimeError(msg)


def group_format(x: Tensor) -> torch.memory_format:
    """How torch lays out group norm's result."""
    return suggested_format(x) if x.device.type == "cpu" else torch.contiguous_format
