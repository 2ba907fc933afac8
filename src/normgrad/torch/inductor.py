"""What inductor, the compiler behind ``torch.compile``, makes of normalization.

An operator that it does not know stays a call, and nothing around it is fused with it. So it gets
our forward passes in terms of torch's, which it takes apart. Backward passes stay calls of ours:
those of our modules always, torch's own while ``enable(compiled=True)`` holds.

It looks operators up in tables, which learn of ours when ``torch.compile`` asks for their shapes
without data: importing inductor takes a second, and most programs compile nothing.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from normgrad.torch.forward import Normalized, group_format, normalize_batch
from normgrad.torch.library import Tensor, memory_format, wide
from normgrad.validate import MAX_RANK

_aten: Final = torch.ops.aten
_Rule = Callable[..., Any]
# Compiled programs are kept on disk by what they were made from, of which tables are no part.
_TAG: Final = "+normgrad"
_replaced: Final[list[tuple[dict[Any, _Rule], Any, _Rule]]] = []


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Normalized:
    parameters = (wide(weight, x.dtype), wide(bias, x.dtype))
    y, mean, rstd = torch.native_layer_norm(_wide_data(x), shape, *parameters, eps)
    return y.to(x.dtype), mean, rstd


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> Normalized:
    samples, channels = x.shape[:2]
    y, mean, rstd = torch.native_group_norm(
        _wide_data(x).contiguous(),
        wide(weight, x.dtype),
        wide(bias, x.dtype),
        samples,
        channels,
        math.prod(x.shape[2:]),
        groups,
        eps,
    )
    return y.to(x.dtype).contiguous(memory_format=group_format(x)), mean, rstd


def traced_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Normalized:
    """Batch norm whose new running statistics can be seen, for who traces it."""
    if not x.numel():  # nothing is written
        return normalize_batch(x, weight, bias, None, None, training, momentum, eps)
    data, buffers = _wide_data(x), (running_mean, running_var)
    parameters = (wide(weight, x.dtype), wide(bias, x.dtype))
    mean, var = (wide(one, x.dtype) for one in buffers)
    none = x.new_zeros(0, dtype=data.dtype)
    if not training:
        y = _aten._native_batch_norm_legit_no_training(data, *parameters, mean, var, momentum, eps)
        return _as_laid_out(y[0], x), none, none.clone()
    if mean is None:  # nobody asks for new ones
        mean = var = x.new_zeros(x.shape[1], dtype=data.dtype)
    y, *statistics, new_mean, new_var = _aten._native_batch_norm_legit_functional(
        data, *parameters, mean, var, training, momentum, eps
    )
    for buffer, new in zip(buffers, (new_mean, new_var), strict=True):
        if buffer is not None:
            buffer.copy_(new)
    return _as_laid_out(y, x), statistics[0], statistics[1]


def _as_laid_out(y: Tensor, x: Tensor) -> Tensor:
    return y.to(x.dtype).contiguous(memory_format=memory_format(x))


def _wide_data(x: Tensor) -> Tensor:
    """Data of 16 bits in float32: what is made of them then has float32 statistics."""
    data = wide(x, x.dtype)
    assert data is not None
    return data


def _batch_norm_backward(
    torchs: _Rule,
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> Any:
    statistics = (running_mean, running_var, mean, rstd)
    if not _ours(x, weight, mask):
        return torchs(dy, x, weight, *statistics, training, eps, mask)
    return torch.ops.normgrad.batch_norm_backward(dy, x, weight, *statistics, training, eps, mask)


def _layer_norm_backward(
    torchs: _Rule,
    dy: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> Any:
    if not _ours(x, weight, mask):
        return torchs(dy, x, shape, mean, rstd, weight, bias, mask)
    return torch.ops.normgrad.layer_norm_backward(dy, x, shape, mean, rstd, weight, bias, mask)


def _group_norm_backward(
    torchs: _Rule,
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    samples: int,
    channels: int,
    positions: int,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    if not _ours(x, weight, mask):
        return torchs(dy, x, mean, rstd, weight, samples, channels, positions, groups, mask)
    return torch.ops.normgrad.group_norm_backward(dy, x, mean, rstd, weight, groups, mask)


def _ours(x: Tensor, weight: Tensor | None, mask: Sequence[bool]) -> bool:
    """Whether we take a call, whose gradients of parameters have the weight's type."""
    return (
        x.device.type in {"cpu", "cuda"}
        and 2 <= x.dim() <= MAX_RANK
        and (weight is not None or not any(mask[1:]))
    )


_BACKWARD: Final[dict[Any, _Rule]] = {
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.native_layer_norm_backward.default: _layer_norm_backward,
    _aten.native_group_norm_backward.default: _group_norm_backward,
}


def _tables() -> list[dict[Any, _Rule]]:
    """Where inductor looks, with and without its own random numbers. Loads it: 1 s."""
    module: Any = importlib.import_module("torch._inductor.decomposition")
    return [module.decompositions, module.fast_random_decomps()]


def offer() -> None:
    """Tell inductor what our forward passes are, if a program is being compiled.

    Before it is at work, since it reads its tables first.
    """
    if torch._guards.TracingContext.try_get() is None:
        return
    with unset_fake_temporarily():  # what modules make when they are loaded is real
        tables = _tables()
    for table in tables:
        if torch.ops.normgrad.layer_norm.default not in table:
            table[torch.ops.normgrad.layer_norm.default] = _layer_norm
            table[torch.ops.normgrad.group_norm.default] = _group_norm


def take_over() -> None:
    """Have programs that are compiled from now on call our backward passes of torch's norms."""
    if _replaced:
        return
    for table in _tables():
        for op, rule in _BACKWARD.items():
            torchs = table[op]
            _replaced.append((table, op, torchs))
            table[op] = _bound(rule, torchs)
    torch.compiler.config.cache_key_tag += _TAG


def _bound(rule: _Rule, torchs: _Rule) -> _Rule:
    return lambda *args: rule(torchs, *args)


def give_back() -> None:
    """Undo ``take_over``; what was compiled stays as it is."""
    if not _replaced:
        return
    for table, op, torchs in _replaced:
        table[op] = torchs
    _replaced.clear()
    tag = torch.compiler.config.cache_key_tag
    torch.compiler.config.cache_key_tag = tag.removesuffix(_TAG)
