"""Swap ``torch.nn``'s normalization modules for ours in a whole model, and back."""

from typing import Final, TypeVar

from torch import nn

from normgrad.torch import modules
from normgrad.torch.sync_module import SyncBatchNorm

Model = TypeVar("Model", bound=nn.Module)

_NAMES: Final = (
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "LayerNorm",
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


def convert(model: Model) -> Model:
    """Give every normalization module of a model our backward pass, in place; returns the model.

    A module keeps its identity, parameters, buffers and hooks: only its class changes. Subclasses
    of torch's modules are left alone, as they may compute something else.
    """
    return _swap(model, OURS)


def revert(model: Model) -> Model:
    """Undo ``convert``, in place; returns the model."""
    return _swap(model, TORCHS)


def _swap(model: Model, classes: dict[type, type]) -> Model:
    for module in model.modules():
        cls = classes.get(type(module))
        if cls is not None:
            object.__setattr__(module, "__class__", cls)
    return model
