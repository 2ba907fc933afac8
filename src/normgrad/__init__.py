"""Backward operators of batch, layer and group normalization."""

from normgrad.errors import (
    ArgumentError,
    ArrayTypeError,
    BackendError,
    DeviceError,
    DtypeError,
    NormgradError,
    OptionError,
    OverlapError,
    ReadOnlyError,
    ShapeError,
)
from normgrad.functional import (
    Gradients,
    ReducedSums,
    batch_norm_backward,
    batch_norm_elemt_backward,
    batch_norm_reduce_backward,
    group_norm_backward,
    layer_norm_backward,
)

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArrayTypeError",
    "BackendError",
    "DeviceError",
    "DtypeError",
    "Gradients",
    "NormgradError",
    "OptionError",
    "OverlapError",
    "ReadOnlyError",
    "ReducedSums",
    "ShapeError",
    "__version__",
    "batch_norm_backward",
    "batch_norm_elemt_backward",
    "batch_norm_reduce_backward",
    "group_norm_backward",
    "layer_norm_backward",
]
