"""``activation(norm(x) + shortcut)`` as one node, in the place of two or three of a model's.

What is in the place of the norm, whether somebody hooks on to it, how large the data are: all is
looked at in each call. Where one node cannot be, or would not gain, the modules are called as the
model would call them.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules import module as torchs

from normgrad import backends
from normgrad.core.geometry import geometry_of
from normgrad.core.operators import ACTIVATIONS
from normgrad.core.spec import Op, Spec, TensorSpec
from normgrad.torch import modules
from normgrad.torch.activations import After, activation_of
from normgrad.torch.forward import of_our_types
from normgrad.torch.library import Tensor
from normgrad.torch.too_small import LEAST

_BATCH: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_OURS: Final = (modules.BatchNorm1d, modules.BatchNorm2d, modules.BatchNorm3d)
_KINDS: Final[dict[type, str]] = {
    **dict.fromkeys((*_BATCH, *_OURS), "batch"),
    nn.GroupNorm: "group",
    modules.GroupNorm: "group",
}
_OP: Final = {"batch": Op.BATCH_NORM, "group": Op.GROUP_NORM}
_BACKWARD: Final = {"batch": Op.BATCH_NORM_BACKWARD, "group": Op.GROUP_NORM_BACKWARD}


class Small:
    """Which calls that do not gain are taken too; for tests and comparisons."""

    taken = False
    compiled = False  # on a CPU


def kind_of(norm: Any) -> str | None:
    """``batch`` or ``group`` for a module that a node can stand for; None for others."""
    return _KINDS.get(type(norm))


def node(
    norm: Any,
    act: Any,
    x: Any,
    shortcut: Any = None,
    between: Sequence[Any] = (),
    *,
    in_place: bool = False,
    **options: Any,
) -> Any:
    """``act(between(norm(x)) + shortcut, **options)``."""
    kind = _KINDS.get(type(norm))
    after = activation_of(act)
    if kind is not None and after is not None and fits(norm, kind, after, x, shortcut):
        idle = all(one is None or (type(one) is nn.Identity and unhooked(one)) for one in between)
        if idle and unhooked(norm) and (not isinstance(act, nn.Module) or unhooked(act)):
            return one_node(norm, kind, after, x, shortcut)
    z = norm(x)
    for one in between:
        if one is not None:
            z = one(z)
    if shortcut is not None:
        if in_place:
            z += shortcut
        else:
            z = z + shortcut
    return act(z, **options)


def one_node(norm: Any, kind: str, after: After, x: Tensor, shortcut: Tensor | None) -> Tensor:
    """The node of a norm, which is not called itself."""
    if kind == "batch":
        return modules.batch_norm(norm, x, after, shortcut)
    return modules.group_norm(x, norm.num_groups, norm.weight, norm.bias, norm.eps, after)


def unhooked(module: nn.Module) -> bool:
    """Whether nothing but its forward pass happens when a module is called."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or module._compiled_call_impl is not None
        or torchs._global_forward_hooks
        or torchs._global_forward_pre_hooks
        or torchs._global_backward_hooks
        or torchs._global_backward_pre_hooks
    )


def fits(norm: Any, kind: str, after: After, x: Any, shortcut: Any) -> bool:
    """Whether the data and the parameters are what a kernel takes, and enough to gain."""
    traced = torch._C._get_tracing_state() is not None  # where sizes are tensors
    if traced or x.__class__ is not Tensor or x.dim() < 2:
        return False
    compiling = torch.compiler.is_compiling()
    if x.is_cuda:
        if compiling and torch.compiler.is_exporting():
            return False
    elif x.device.type != "cpu" or not _large(x) or (compiling and not Small.compiled):
        return False  # inductor's own fusion is not slower there
    if shortcut is not None and (
        kind != "batch"
        or shortcut.__class__ is not Tensor
        or shortcut.shape != x.shape
        or shortcut.dtype is not x.dtype
        or shortcut.device != x.device
    ):
        return False
    vectors = [norm.weight, norm.bias]
    if kind == "batch":
        if not norm.training and torch.is_grad_enabled():
            return False  # its statistics may change until the backward pass
        vectors += [norm.running_mean, norm.running_var]
    for one in vectors:
        if one is not None and (
            one.__class__ not in (nn.Parameter, Tensor) or one.device != x.device
        ):
            return False
    if not of_our_types(x, *vectors):
        return False
    form = (kind, x.device.type, after[0], shortcut is not None)
    return _taken.get(form, False) if compiling else takes(*form)


def _large(x: Tensor) -> bool:
    return Small.taken or x.numel() >= LEAST["cpu"].get(x.dtype, 0)


# By form; a compiler, which cannot look, reads what was found before.
_taken: Final[dict[tuple[str, str, str | None, bool], bool]] = {}


def look(device: str) -> None:
    """Find out what is taken on a device."""
    for kind, activation, shortcut in itertools.product(_OP, ACTIVATIONS, (False, True)):
        if kind == "batch" or not shortcut:
            _taken[kind, device, activation, shortcut] = taken(kind, device, activation, shortcut)


def takes(*form: Any) -> bool:
    """``taken``, which is asked once for each form."""
    known = _taken.get(form)
    if known is None:
        known = _taken[form] = taken(*form)
    return known


def taken(kind: str, device: str, activation: str | None, shortcut: bool) -> bool:
    """Whether the device's fast backend has kernels of this form, forward and backward."""
    fast = backends.get(backends.preference("cpu" if device == "cpu" else f"{device}:0")[0])
    if fast.unavailable() is not None:
        return False
    data = TensorSpec.contiguous((4, 8, 4, 4), "float32")
    vector = TensorSpec.contiguous((8,), "float32")
    statistic = vector if kind == "batch" else TensorSpec.contiguous((4, 2), "float32")
    more: dict[str, Any] = {"num_groups": 1 if kind == "batch" else 2, "activation": activation}
    common: dict[str, Any] = {
        **more,
        "x": data,
        "mean": statistic,
        "rstd": statistic,
        "gamma": vector,
        "beta": vector,
        "device": device if device == "cpu" else f"{device}:0",
    }
    forward = Spec(op=_OP[kind], y=data, shortcut=data if shortcut else None, **common)
    backward = Spec(
        op=_BACKWARD[kind],
        dy=data,
        dx=data,
        dgamma=vector,
        dbeta=vector,
        shortcut=data if shortcut else None,
        dshortcut=data if shortcut else None,
        **common,
    )
    return all(fast.refuses(one, geometry_of(one)) is None for one in (forward, backward))
