"""What inductor, the compiler behind ``torch.compile``, makes of normalization.

An operator that it does not know stays a call, and nothing around it is fused with it. So it gets
our forward passes in terms of torch's, which it takes apart. Backward passes stay calls of ours:
those of our modules always, torch's batch and group norm while ``enable(compiled=True)`` holds.

It looks operators up in tables, which learn of ours when ``torch.compile`` asks for their shapes
without data: importing inductor takes a second, and most programs compile nothing.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from normgrad import __version__
from normgrad.calls.fused import NEGATIVE_SLOPE
from normgrad.core.validate import MAX_RANK
from normgrad.torch.activations import activated
from normgrad.torch.forward import (
    Normalized,
    Scaled,
    default_eps,
    group_format,
    no_mask,
    normalize_batch,
    packed_mask,
)
from normgrad.torch.library import Tensor, memory_format, wide

_aten: Final = torch.ops.aten
_Rule = Callable[..., Any]
# Compiled programs are kept on disk by what they were made from, of which tables are no part.
_TAG: Final = f"+normgrad-{__version__}"
_replaced: Final[list[tuple[dict[Any, _Rule], Any, _Rule]]] = []


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Normalized:
    parameters = (wide(weight, x.dtype), wide(bias, x.dtype))
    y, mean, rstd = torch.native_layer_norm(_wide_data(x), shape, *parameters, eps)
    return y.to(x.dtype), mean, rstd


def _rms_norm(
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    weight_offset: float = 0.0,
) -> Scaled:
    weight = wide(weight, x.dtype)
    if weight is not None and weight_offset:
        weight = weight + weight_offset
    eps = default_eps(x) if eps is None else eps
    y, rstd = _aten._fused_rms_norm(_wide_data(x), shape, weight, eps)
    return y.to(x.dtype), rstd


def _add_layer_norm(
    x: Tensor,
    residual: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    added = (x + residual).contiguous()
    y, mean, rstd = _layer_norm(added, shape, weight, bias, eps)
    return y, added, mean, rstd


def _add_rms_norm(
    x: Tensor,
    residual: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    added = (x + residual).contiguous()
    y, rstd = _rms_norm(added, shape, weight, eps, weight_offset)
    return y, added, rstd


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    activation: str | None = None,
    slope: float = NEGATIVE_SLOPE,
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
    y = activated(y, activation, slope).to(x.dtype)
    return y.contiguous(memory_format=group_format(x)), mean, rstd


def traced_batch_norm(
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
    """Batch norm whose new running statistics can be seen, for who traces it."""
    if not x.numel():  # nothing is written
        return normalize_batch(x, weight, bias, None, None, training, momentum, eps)
    arguments = (x, weight, bias, running_mean, running_var, training, momentum, eps)
    z, *statistics = _traced_channels(*arguments)
    return _as_laid_out(activated(z, activation, slope), x), statistics[0], statistics[1]


def traced_batch_norm_add(
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
    """The same of a batch norm with a shortcut.

    The bits of ReLU are packed by hand, for who asks: its gradient does without, and the compiler
    writes that in one kernel with what comes before.
    """
    if not x.numel():
        made = normalize_batch(x, weight, bias, None, None, training, momentum, eps)
        return *made, no_mask(x)
    arguments = (x, weight, bias, running_mean, running_var, training, momentum, eps)
    z, mean, rstd = _traced_channels(*arguments)
    z = z + shortcut
    y = _as_laid_out(activated(z, activation, slope), x)
    if not training or activation != "relu":
        return y, mean, rstd, no_mask(x)
    return y, mean, rstd, packed_mask(_as_laid_out(z, x))


def _traced_channels(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Normalized:
    """What a batch norm gives before it is rounded, and its statistics."""
    data, buffers = _wide_data(x), (running_mean, running_var)
    parameters = (wide(weight, x.dtype), wide(bias, x.dtype))
    mean, var = (wide(one, x.dtype) for one in buffers)
    none = x.new_zeros(0, dtype=data.dtype)
    if not training:
        y = _aten._native_batch_norm_legit_no_training(data, *parameters, mean, var, momentum, eps)
        return y[0], none, none.clone()
    if mean is None:  # nobody asks for new ones
        mean = var = x.new_zeros(x.shape[1], dtype=data.dtype)
    y, *statistics, new_mean, new_var = _aten._native_batch_norm_legit_functional(
        data, *parameters, mean, var, training, momentum, eps
    )
    for buffer, new in zip(buffers, (new_mean, new_var), strict=True):
        if buffer is not None:
            buffer.copy_(new)
    return y, statistics[0], statistics[1]


def _as_laid_out(y: Tensor, x: Tensor) -> Tensor:
    return y.to(x.dtype).contiguous(memory_format=memory_format(x))


def _wide_data(x: Tensor) -> Tensor:
    """Data of 16 bits in float32: what is made of them then has float32 statistics."""
    data = wide(x, x.dtype)
    assert data is not None
    return data


# Our operator for torch's, which of torch's arguments it takes, and which of them is the weight.
# Layer norm's is not there: with the residual sum, which inductor takes into its own, a call of
# ours gains nothing. A transformer's step on an H200: 3.40 ms, with ours 3.46; CPU: 39.9 and 41.6.
_BACKWARD: Final[dict[Any, tuple[str, Sequence[int], int]]] = {
    _aten.native_batch_norm_backward.default: ("batch_norm_backward", range(10), 2),
    # Without its sizes, which x has.
    _aten.native_group_norm_backward.default: ("group_norm_backward", (0, 1, 2, 3, 4, 8, 9), 4),
}


def _rule(torchs: _Rule, name: str, taken: Sequence[int], weight: int) -> _Rule:
    """A call of our operator where that takes the case, else what torch makes of its own."""
    ours = getattr(torch.ops.normgrad, name)

    def rule(*args: Any) -> Any:
        x, mask = args[1], args[-1]
        typed = args[weight] is not None or not any(mask[1:])  # gradients of parameters
        if not typed or x.device.type not in {"cpu", "cuda"} or not 2 <= x.dim() <= MAX_RANK:
            return torchs(*args)
        return ours(*(args[place] for place in taken))

    return rule


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
        _tell(_tables())


def _tell(tables: list[dict[Any, _Rule]]) -> None:
    ours = torch.ops.normgrad
    for table in tables:
        if ours.layer_norm.default not in table:
            table[ours.layer_norm.default] = _layer_norm
            table[ours.rms_norm.default] = _rms_norm
            table[ours.group_norm.default] = _group_norm
            table[ours.add_layer_norm.default] = _add_layer_norm
            table[ours.add_rms_norm.default] = _add_rms_norm


def take_over() -> None:
    """Have programs that are compiled from now on call our backward passes of torch's norms."""
    if _replaced:
        return
    tables = _tables()
    _tell(tables)
    for table in tables:
        for op, ours in _BACKWARD.items():
            torchs = table.get(op)
            if torchs is not None:  # else it stays a call, which `override` answers
                _replaced.append((table, op, torchs))
                table[op] = _rule(torchs, *ours)
    torch.compiler.config.cache_key_tag += _TAG
    _graphs("install")


def _graphs(verb: str) -> None:
    """Put our pass over graphs into inductor, or take it out; not where it has no such place."""
    try:
        captured: Any = importlib.import_module("normgrad.torch.captured")
    except ImportError:  # torch's names, which are not public
        return
    getattr(captured, verb)()


def taken_over() -> bool:
    """Whether compiled programs of torch's norms are to call our backward passes now."""
    return bool(_replaced)


def give_back() -> None:
    """Undo ``take_over``; what was compiled stays as it is."""
    if not _replaced:
        return
    for table, op, torchs in _replaced:
        table[op] = torchs
    _replaced.clear()
    tag = torch.compiler.config.cache_key_tag
    torch.compiler.config.cache_key_tag = tag.removesuffix(_TAG)
    _graphs("remove")
