"""``activation(norm(x) + shortcut)`` as one node, in the place of two or three of a model's.

What stands in the norm's place may also be a row that ends in one.

What is in the place of the norm, whether somebody hooks on to it, how large the data are: all is
looked at in each call. Where one node cannot be, or would not gain, the modules are called as the
model would call them.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules import module as torchs

from normgrad import backends
from normgrad.core.geometry import geometry_of
from normgrad.core.operators import ACTIVATIONS, OPERATORS
from normgrad.core.spec import Op, Spec, TensorSpec
from normgrad.torch import modules
from normgrad.torch.activations import NO_ACTIVATION, After, activation_of
from normgrad.torch.forward import of_our_types
from normgrad.torch.library import Tensor
from normgrad.torch.rows import is_idle, parts_of
from normgrad.torch.sync_module import SyncBatchNorm, sync_batch_norm
from normgrad.torch.too_small import LEAST

_BATCH: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_OURS: Final = (modules.BatchNorm1d, modules.BatchNorm2d, modules.BatchNorm3d)
_KINDS: Final[dict[type, str]] = {
    **dict.fromkeys((*_BATCH, *_OURS), "batch"),
    **dict.fromkeys((nn.GroupNorm, modules.GroupNorm), "group"),
    SyncBatchNorm: "sync",
}
_FORMS: Final = {
    "batch": (Op.BATCH_NORM, Op.BATCH_NORM_BACKWARD),
    "group": (Op.GROUP_NORM, Op.GROUP_NORM_BACKWARD),
    "sync": (Op.BATCH_NORM_ELEMT, Op.BATCH_NORM_REDUCE_BACKWARD, Op.BATCH_NORM_ELEMT_BACKWARD),
}
# Classes with an activation of their own, which norms that have none take in: timm's.
ACTIVATED: Final[dict[type, str]] = {}


class Small:
    """Which calls that do not gain are taken too; for tests and comparisons."""

    taken = False
    compiled = False  # on a CPU


def kind_of(norm: Any) -> str | None:
    """``batch``, ``group`` or ``sync`` for a module that a node can stand for; None for others."""
    kind = _KINDS.get(type(norm))
    if kind == "sync":
        return None if norm.after[0] is not None else kind
    if kind is None and type(norm) in ACTIVATED:
        bare = all(type(one) is nn.Identity and unhooked(one) for one in (norm.drop, norm.act))
        return ACTIVATED[type(norm)] if bare else None
    return kind


def last_of(module: Any) -> Any:
    """The norm that a module is, or that ends what it calls in a row; else None."""
    while module is not None and kind_of(module) is None:
        parts = parts_of(module)
        module = parts[-1] if parts else None
    return module


def row(children: Sequence[Any], x: Any) -> Any:
    """``torch.nn.Sequential``'s forward pass, with nodes for neighbours."""
    place = 0
    while place < len(children):
        one = children[place]
        place += 1
        if place < len(children) and are_neighbours(one, children[place]):
            x = node(one, children[place], x)
            place += 1
        else:
            x = one(x)
    return x


def are_neighbours(one: Any, other: Any) -> bool:
    """Whether the second is the activation of the first."""
    return kind_of(one) is not None and activation_of(other) is not None


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
    """``act(between(norm(x)) + shortcut, **options)``; ``act`` may be None."""
    kind = kind_of(norm)
    if kind is None and last_of(norm) is not None:
        while kind is None and unhooked(norm):
            parts = parts_of(norm) or [norm]
            norm = parts.pop()
            x, kind = row(parts, x), kind_of(norm)
    after = NO_ACTIVATION if act is None else activation_of(act)
    if kind is not None and after is not None and fits(norm, kind, after, x, shortcut):
        idle = all(one is None or (is_idle(one) and unhooked(one)) for one in between)
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
    return z if act is None else act(z, **options)


def one_node(norm: Any, kind: str, after: After, x: Tensor, shortcut: Tensor | None) -> Tensor:
    """The node of a norm, which is not called itself."""
    if kind == "batch":
        return modules.batch_norm(norm, x, after, shortcut)
    if kind == "sync":
        return sync_batch_norm(norm, x, after)
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
    if not plain(x, LEAST["cpu"]) or x.dim() < 2:
        return False
    if shortcut is not None and (
        kind != "batch"
        or shortcut.__class__ is not Tensor
        or shortcut.shape != x.shape
        or shortcut.dtype is not x.dtype
        or shortcut.device != x.device
    ):
        return False
    vectors = [norm.weight, norm.bias]
    if kind != "group":
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
    compiling = torch.compiler.is_compiling()
    return _taken.get(form, False) if compiling else takes(*form)


def plain(x: Any, least: Mapping[torch.dtype, int]) -> bool:
    """Whether it is a tensor of torch's own, on a device of ours, with enough in it to gain."""
    traced = torch._C._get_tracing_state() is not None  # where sizes are tensors
    if traced or x.__class__ is not Tensor:
        return False
    compiling = torch.compiler.is_compiling()
    if x.is_cuda:
        return not (compiling and torch.compiler.is_exporting())
    if x.device.type != "cpu" or (compiling and not Small.compiled):
        return False  # inductor's own fusion is not slower there
    return Small.taken or x.numel() >= least.get(x.dtype, 0)


# By form; a compiler, which cannot look, reads what was found before.
_taken: Final[dict[tuple[str, str, str | None, bool], bool]] = {}


def look(device: str) -> None:
    """Find out what is taken on a device."""
    after = (None, *ACTIVATIONS)
    for kind, activation, shortcut in itertools.product(_FORMS, after, (False, True)):
        if (kind == "batch" or not shortcut) and (activation is not None or shortcut):
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
    statistic = TensorSpec.contiguous((4, 2), "float32") if kind == "group" else vector
    added = data if shortcut else None
    tensors = {
        **dict.fromkeys(("x", "y", "dy", "dx"), data),
        **dict.fromkeys(("mean", "rstd"), statistic),
        **dict.fromkeys(("gamma", "beta", "dgamma", "dbeta"), vector),
        **dict.fromkeys(("sum_dy", "sum_dy_xmu", "counter"), vector),
        "shortcut": added,
        # Without an activation the shortcut's gradient is that of the sum.
        "dshortcut": added if activation is not None else None,
    }
    more: dict[str, Any] = {"num_groups": 2 if kind == "group" else 1, "activation": activation}
    more["device"] = device if device == "cpu" else f"{device}:0"
    specs = []
    for op in _FORMS[kind]:
        row = OPERATORS[op]
        roles = {*row.takes, *row.gives, *row.besides}
        if not row.forward and activation is None:
            roles.discard("shortcut")
        here: Any = {role: one for role, one in tensors.items() if role in roles}
        specs.append(Spec(op=op, **more, **here))
    return all(fast.refuses(one, geometry_of(one)) is None for one in specs)
