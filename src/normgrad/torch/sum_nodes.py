"""``norm(x + residual)`` and the sum as one node, as transformers have them side by side."""

from typing import Any, Final

import torch
from torch import nn

from normgrad.torch import modules
from normgrad.torch.forward import of_our_types
from normgrad.torch.library import Tensor, shortcut
from normgrad.torch.nodes import plain, unhooked
from normgrad.torch.others_norms import RootMeanSquare, StandIn, root_mean_square
from normgrad.torch.too_small import LEAST, LEAST_RMS_NORM

_add_layer_norm = shortcut("add_layer_norm")
_add_rms_norm = shortcut("add_rms_norm")
_LAYER: Final = (nn.LayerNorm, modules.LayerNorm)
_RMS: Final = (nn.RMSNorm, modules.RMSNorm)
# RMS norms that models wrote in Python; what no trial was made of is not here.
_written: Final[dict[type, RootMeanSquare | None]] = {}


def look(module: nn.Module) -> None:
    """Find out what a norm of somebody else's computes: by trial, once for each class."""
    cls = type(module)
    if cls in _written or not ("RMSNorm" in cls.__name__ or "RmsNorm" in cls.__name__):
        return
    if issubclass(cls, StandIn):
        recipe = cls.recipe
        _written[cls] = recipe if isinstance(recipe, RootMeanSquare) else None
    elif cls not in _RMS and "forward" not in vars(module):
        _written[cls] = root_mean_square(module)


def takes_sum(norm: Any) -> bool:
    """Whether a node can stand for a sum and this norm."""
    cls = type(norm)
    return cls in _LAYER or cls in _RMS or _written.get(cls) is not None


def sum_node(norm: Any, x: Any, residual: Any) -> tuple[Any, Any]:
    """``x + residual``, and the norm of it."""
    if not torch.compiler.is_compiling():
        look(norm)  # of a pickled model nothing is known yet
    if (
        takes_sum(norm)
        and x.__class__ is Tensor
        and residual.__class__ is Tensor
        and x.shape == residual.shape
        and x.dtype is residual.dtype
        and x.device == residual.device
        and unhooked(norm)
    ):
        made = _made(norm, x, residual)
        if made is not None:
            return made
    total = x + residual
    return total, norm(total)


def _made(norm: Any, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor] | None:
    cls = type(norm)
    weight, bias = norm._parameters.get("weight"), norm._parameters.get("bias")
    for one in (weight, bias):
        if one is not None and (one.__class__ is not nn.Parameter or one.device != x.device):
            return None
    if (weight is None) is not (getattr(norm, "weight", None) is None):  # parametrized
        return None
    recipe = _written.get(cls)
    if recipe is None:
        shape = list(norm.normalized_shape)
    else:
        shape = list(x.shape[-1:] if weight is None else weight.shape)
    least = LEAST if cls in _LAYER else LEAST_RMS_NORM
    if not plain(x, least["cpu"]) or list(x.shape[-len(shape) :]) != shape:
        return None  # if for its shape, then with an error of the model's
    if cls in _LAYER:
        if not of_our_types(x, weight, bias):
            return None
        y, total, *_ = _add_layer_norm(x, residual, shape, weight, bias, norm.eps)
        return total, y
    if recipe is None:
        y, total, _ = _add_rms_norm(x, residual, shape, weight, norm.eps)
        return total, y
    wanted = {(data, of): result for data, of, result in recipe.results}
    if wanted.get((x.dtype, None if weight is None else weight.dtype)) is not x.dtype:
        return None
    settings = (shape, weight, getattr(norm, recipe.eps), recipe.offset)
    if x.is_cuda and torch.is_autocast_enabled("cuda"):  # under which ours is float32
        with torch.autocast("cuda", enabled=False):
            y, total, _ = _add_rms_norm(x, residual, *settings)
    else:
        y, total, _ = _add_rms_norm(x, residual, *settings)
    return total, y
