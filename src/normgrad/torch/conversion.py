"""Swap ``torch.nn``'s normalization modules for ours in a whole model, and back."""

import logging
import re
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from torch import nn

from normgrad.calls.signatures import explained
from normgrad.torch import modules
from normgrad.torch.others_norms import StandIn, stand_in_for
from normgrad.torch.sync_module import SyncBatchNorm, check_module

Model = TypeVar("Model", bound=nn.Module)

_NAMES: Final = (
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "LayerNorm",
    "RMSNorm",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
)
OURS: Final[dict[type, type]] = {
    **{getattr(nn, name): getattr(modules, name) for name in _NAMES},
    nn.SyncBatchNorm: SyncBatchNorm,
}
TORCHS: Final[dict[type, type]] = {ours: torchs for torchs, ours in OURS.items()}


_LOGGER: Final = logging.getLogger("normgrad.torch")
# What others call their normalization: RMSNorm, LayerNorm2d, BatchNormAct2d, ...
_LOOKS_LIKE_ONE: Final = re.compile(r"[Nn]orm(Act)?(\d[dD])?$")


@explained
def convert(model: Model) -> Model:
    """Give every normalization module of a model our kernels, in place.

    A module keeps its identity, parameters, buffers and hooks: only its class changes. An RMS norm
    that a model wrote in Python, as Llama, Qwen, Mistral, Gemma and T5 do, is taken if a trial on
    random numbers says that it is one; of timm ``LayerNorm``, ``LayerNorm2d``, ``RmsNorm``,
    ``GroupNorm``, ``GroupNorm1`` and the norms of ``GroupNormAct`` and ``BatchNormAct2d``. Other
    subclasses of torch's modules are left alone, as they may compute something else.

    The logger ``normgrad.torch`` gets one line: how many modules of which class were changed, and
    which that look like a normalization were left alone. It is a warning, which Python prints if
    nobody set up logging, where some were left alone or none is there; else an info.

    Args:
        model: A model, or one normalization module.

    Returns:
        The model itself.

    Raises:
        ArrayTypeError: ``model`` is no ``torch.nn.Module``.

    Example:
        >>> import torch, normgrad.torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))
        >>> type(normgrad.torch.convert(model)[1])
        <class 'normgrad.torch.modules.LayerNorm'>
    """
    changed = _swap(model, lambda one: OURS.get(type(one)) or stand_in_for(one))
    strange = Counter(type(one).__name__ for one in model.modules() if _is_strange(one))
    left = f"; left alone, as it is not known what they compute: {_listed(strange)}"
    ours = any(map(_is_ours, model.modules()))
    level = logging.INFO if ours and not strange else logging.WARNING
    _LOGGER.log(level, "convert changed %s%s", _listed(changed), left if strange else "")
    return model


@explained
def revert(model: Model) -> Model:
    """Undo ``convert``, in place; the logger ``normgrad.torch`` gets a line of what was changed.

    Args:
        model: A model, or one normalization module.

    Returns:
        The model itself.

    Raises:
        ArrayTypeError: ``model`` is no ``torch.nn.Module``.

    Example:
        >>> import torch, normgrad.torch
        >>> model = normgrad.torch.convert(torch.nn.LayerNorm(8))
        >>> type(normgrad.torch.revert(model))
        <class 'torch.nn.modules.normalization.LayerNorm'>
    """
    _LOGGER.info("revert changed %s", _listed(_swap(model, _original)))
    return model


def _original(module: nn.Module) -> type | None:
    """What a module of ours was before."""
    return module.original if isinstance(module, StandIn) else TORCHS.get(type(module))


def _is_ours(module: nn.Module) -> bool:
    return isinstance(module, StandIn) or type(module) in TORCHS


def _swap(model: Model, class_for: Callable[[nn.Module], type | None]) -> Counter[str]:
    """Change the classes of modules; how many of which were."""
    check_module(model)
    changed: Counter[str] = Counter()
    for module in model.modules():
        cls = class_for(module)
        if cls is not None:
            object.__setattr__(module, "__class__", cls)
            changed[cls.__name__] += 1
    return changed


def _is_strange(module: nn.Module) -> bool:
    """Whether a module that is not ours normalizes, going by its base or its name."""
    cls = type(module)
    if _is_ours(module):
        return False
    if isinstance(module, tuple(OURS)):
        return True
    # A name that also those have that hold a norm, or change a weight.
    holds = any(isinstance(one, (*OURS, *TORCHS)) for one in module.modules())
    looks = _LOOKS_LIKE_ONE.search(cls.__name__) and not cls.__module__.startswith("torch.nn.utils")
    return bool(looks) and not holds


def _listed(classes: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in classes.items()) or "nothing"
