"""``norm(x + residual)`` and the sum as one node, as transformers have them side by side."""

from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import nn

from normgrad.torch import modules
from normgrad.torch.forward import of_our_types
from normgrad.torch.library import Tensor, shortcut
from normgrad.torch.nodes import plain, unhooked
from normgrad.torch.others_norms import (
    Around,
    RootMeanSquare,
    StandIn,
    alone,
    root_mean_square,
    timms,
)
from normgrad.torch.too_small import LEAST, LEAST_RMS_NORM

_add_layer_norm = shortcut("add_layer_norm")
_add_rms_norm = shortcut("add_rms_norm")
_KINDS: Final = {nn.LayerNorm: "layer", nn.RMSNorm: "rms"}
_TIMMS: Final = {"LayerNorm": "layer", "RmsNorm": "rms"}
# What a class computes: torch's layer norm or RMS norm, or an RMS norm that somebody wrote.
_known: Final[dict[type, str | RootMeanSquare | None]] = {
    **_KINDS,
    modules.LayerNorm: "layer",
    modules.RMSNorm: "rms",
}


def look(module: nn.Module) -> None:
    """Find out what a norm of somebody else's computes: by trial, once for each class."""
    cls = type(module)
    if cls in _known or "forward" in vars(module):
        return
    if issubclass(cls, StandIn):
        recipe = cls.recipe
        if isinstance(recipe, Around):
            _known[cls] = _KINDS.get(recipe.base) if recipe.around is alone else None
        else:
            _known[cls] = recipe
    elif cls.__module__.startswith("timm.") and cls.__name__ in _TIMMS:
        _known[cls] = _TIMMS[cls.__name__] if timms(module) is not None else None
    elif "RMSNorm" in cls.__name__ or "LayerNorm" in cls.__name__:  # T5's is no layer norm
        _known[cls] = root_mean_square(module)


def takes_sum(norm: Any) -> bool:
    """Whether a node can stand for a sum and this norm."""
    return _known.get(type(norm)) is not None


def sum_node(norm: Any, x: Any, residual: Any) -> tuple[Any, Any]:
    """``x + residual``, and the norm of it."""
    if not torch.compiler.is_compiling():
        look(norm)  # of a pickled model nothing is known yet
    if (
        takes_sum(norm)
        and x.__class__ is Tensor
        and residual.__class__ is Tensor
        and x.shape == residual.shape
        and x.device == residual.device
        and unhooked(norm)
    ):
        wide, made = torch.promote_types(x.dtype, residual.dtype), None
        if wide.is_floating_point:  # as torch adds: under autocast a residual may be the wider
            made = _made(norm, x.to(wide), residual.to(wide))
        if made is not None:
            return made
    total = x + residual
    return total, norm(total)


def _made(norm: Any, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor] | None:
    form = _known[type(norm)]
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    for one in (weight, bias):
        if one is not None and (
            one.__class__ not in (nn.Parameter, Tensor) or one.device != x.device
        ):
            return None
    if getattr(norm, "_fast_norm", False):  # timm's own types under autocast
        return None
    if isinstance(form, str):
        shape = list(norm.normalized_shape)
    else:
        shape = list(x.shape[-1:] if weight is None else weight.shape)
    least = LEAST if form == "layer" else LEAST_RMS_NORM
    if not plain(x, least["cpu"]) or list(x.shape[-len(shape) :]) != shape:
        return None  # if for its shape, then with an error of the model's
    if form == "layer":
        if not of_our_types(x, weight, bias):
            return None
        y, total, *_ = _add_layer_norm(x, residual, shape, weight, bias, norm.eps)
        return total, y
    if not isinstance(form, RootMeanSquare):
        y, total, _ = _add_rms_norm(x, residual, shape, weight, norm.eps)
        return total, y
    if (x.dtype, None if weight is None else weight.dtype, x.dtype) not in form.results:
        return None
    cast = x.is_cuda and torch.is_autocast_enabled("cuda")  # under which ours is float32
    with torch.autocast("cuda", enabled=False) if cast else nullcontext():
        eps = getattr(norm, form.eps)
        y, total, _ = _add_rms_norm(x, residual, shape, weight, eps, form.offset)
    return total, y
