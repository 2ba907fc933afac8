"""``torch.ops.normgrad.batch_norm``, ``layer_norm``, ``rms_norm``, ``group_norm``.

Each returns (y, mean, rstd), RMS norm (y, rstd). ``batch_norm_add`` has a mask besides,
``add_layer_norm`` and ``add_rms_norm`` the sum that they normalize, after y. The statistics are
differentiable results, so that a second backward pass sees how they depend on the input.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

import normgrad.torch.backward_ops  # noqa: F401  (defines the operators)
from normgrad.calls.fused import after_norm
from normgrad.core.spec import Op, Spec
from normgrad.core.validate import mask_shape
from normgrad.torch import batching, gradients, inductor
from normgrad.torch.forward import (
    Normalized,
    Scaled,
    add_and_normalize_rows,
    add_and_scale_rows,
    check_like,
    check_rows,
    check_vectors,
    group_format,
    normalize_batch,
    normalize_batch_and_add,
    normalize_groups,
    normalize_rows,
    scale_rows,
)
from normgrad.torch.library import (
    LIBRARY,
    NARROW,
    Tensor,
    define,
    described,
    differentiable,
    memory_format,
    on_one_device,
    require,
    statistics_dtype,
)

_ACTIVATION = "str? activation=None, float negative_slope=0.01"
_STATISTICS = "-> (Tensor, Tensor, Tensor)"
_BATCH = (
    "(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, "
    "Tensor(b!)? running_var, bool training, float momentum, float eps, "
    f"{_ACTIVATION}) {_STATISTICS}"
)
_BATCH_ADD = (
    "(Tensor input, Tensor shortcut, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, "
    "Tensor(b!)? running_var, bool training, float momentum, float eps, "
    f"{_ACTIVATION}) -> (Tensor, Tensor, Tensor, Tensor)"
)
_LAYER = (
    "(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) "
    f"{_STATISTICS}"
)
_RMS = (
    "(Tensor input, SymInt[] normalized_shape, Tensor? weight, float? eps, "
    "float weight_offset=0.0) -> (Tensor, Tensor)"
)
_GROUP = (
    "(Tensor input, Tensor? weight, Tensor? bias, int num_groups, float eps, "
    f"{_ACTIVATION}) {_STATISTICS}"
)
_ADD_LAYER = (
    "(Tensor input, Tensor residual, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, "
    "float eps) -> (Tensor, Tensor, Tensor, Tensor)"
)
_ADD_RMS = (
    "(Tensor input, Tensor residual, SymInt[] normalized_shape, Tensor? weight, float? eps, "
    "float weight_offset=0.0) -> (Tensor, Tensor, Tensor)"
)


def _fake(x: Tensor, y_format: torch.memory_format, shape: Sequence[int]) -> Normalized:
    inductor.offer()
    dtype = statistics_dtype(x.dtype)
    y = torch.empty_like(x, memory_format=y_format)
    return y, x.new_empty(shape, dtype=dtype), x.new_empty(shape, dtype=dtype)


def _check_batch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *rest: Any,
) -> None:
    check_vectors(x, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    words = "running_mean and running_var belong together: one of them is None, the other is not"
    require((running_mean is None) == (running_var is None), words)


def _fake_batch(x: Tensor, *rest: Any) -> Normalized:
    _check_batch(x, *rest)
    training = rest[4]
    after_norm(*rest[7:])
    return _fake(x, memory_format(x), (x.shape[1] if training else 0,))


def _fake_batch_add(x: Tensor, shortcut: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    check_like(x, "shortcut", shortcut)
    made = _fake_batch(x, *rest)
    shape: Sequence[int] = (0,)
    if rest[4] and rest[7] == "relu":
        shape = mask_shape(Spec(op=Op.BATCH_NORM, x=described(made[0])))
    return *made, x.new_empty(shape, dtype=torch.uint8)


def _traced_batch(*args: Any) -> Normalized:
    """What tracers see; they do not ask for shapes without data before."""
    _check_traced(*args)
    return inductor.traced_batch_norm(*args)


def _check_batch_add(x: Tensor, shortcut: Tensor, *rest: Any) -> None:
    check_like(x, "shortcut", shortcut)
    _check_batch(x, *rest)


def _traced_batch_add(*args: Any) -> tuple[Tensor, ...]:
    _check_traced_add(*args)
    return inductor.traced_batch_norm_add(*args)


def _fake_layer(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Normalized:
    check_rows(x, shape, weight=weight, bias=bias)
    first = x.dim() - len(shape)
    return _fake(x, torch.contiguous_format, (*x.shape[:first], *(1,) * len(shape)))


def _fake_rms(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None, offset: float
) -> Scaled:
    y, _, rstd = _fake_layer(x, shape, weight, None, 0.0)
    return y, rstd


def _fake_add_layer(
    x: Tensor,
    residual: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_like(x, "residual", residual)
    y, mean, rstd = _fake_layer(x, shape, weight, bias, eps)
    return y, torch.empty_like(y), mean, rstd


def _fake_add_rms(
    x: Tensor,
    residual: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    offset: float,
) -> tuple[Tensor, Tensor, Tensor]:
    y, added, _, rstd = _fake_add_layer(x, residual, shape, weight, None, 0.0)
    return y, added, rstd


def _fake_group(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    activation: str | None,
    slope: float,
) -> Normalized:
    after_norm(activation, slope)
    check_vectors(x, weight=weight, bias=bias)
    words = f"Expected number of channels {x.shape[1]} to be divisible by num_groups, got {groups}"
    require(groups > 0, words)
    require(x.shape[1] % groups == 0, words)
    return _fake(x, group_format(x), (x.shape[0], groups))


define("batch_norm", _BATCH, normalize_batch, _fake_batch)
define("batch_norm_add", _BATCH_ADD, normalize_batch_and_add, _fake_batch_add)
define("add_layer_norm", _ADD_LAYER, add_and_normalize_rows, _fake_add_layer)
define("add_rms_norm", _ADD_RMS, add_and_scale_rows, _fake_add_rms)
define("layer_norm", _LAYER, normalize_rows, _fake_layer)
define("rms_norm", _RMS, scale_rows, _fake_rms)
define("group_norm", _GROUP, normalize_groups, _fake_group)
# Left whole, what writes buffers is a call that no compiler fuses with anything.
_check_traced_add = on_one_device("batch_norm_add", _check_batch_add)
_check_traced = on_one_device("batch_norm", _check_batch)
_composite: Any = torch._C.DispatchKey.CompositeImplicitAutograd
torch.ops.normgrad.batch_norm.default.py_impl(_composite)(_traced_batch)
torch.ops.normgrad.batch_norm_add.default.py_impl(_composite)(_traced_batch_add)
for _name, (_keep, _gradient, _pure) in gradients.RULES.items():
    differentiable(_name, _keep, _gradient, getattr(batching, _name), _pure)
# As torch does for its own on CUDA, in newer versions for RMS norm too; on the CPU, and for batch
# norm, it leaves the types alone.
for _name in ("layer_norm", "rms_norm", "group_norm"):
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_name}", "AutocastCUDA"):
        torch.library.register_autocast(f"normgrad::{_name}", "cuda", torch.float32, lib=LIBRARY)


def _apart(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Under autocast torch's norm alone is float32, not the sum before it."""
    op, autocast = getattr(torch.ops.normgrad, f"add_{name}").default, _autocast_keys

    def call(x: Tensor, residual: Tensor, *rest: Any) -> Any:
        if x.dtype in NARROW:
            added = x + residual
            y, *statistics = plain(added, *rest)
            return y, added, *statistics
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return op(x, residual, *rest)

    return call


_autocast_keys: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
for _name in ("layer_norm", "rms_norm"):
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_name}", "AutocastCUDA"):
        _plain = getattr(torch.ops.normgrad, _name).default
        LIBRARY.impl(f"add_{_name}", _apart(_name, _plain), "AutocastCUDA")
