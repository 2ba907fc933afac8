"""Batch, layer, group and root mean square normalization, forward and backward."""

from normgrad.core.errors import (
    ArgumentError,
    ArrayTypeError,
    BackendError,
    CallError,
    DeviceError,
    DtypeError,
    FallbackWarning,
    NormgradError,
    OptionError,
    OverlapError,
    ReadOnlyError,
    ShapeError,
)
from normgrad.forward import (
    Normalized,
    Statistics,
    batch_norm,
    batch_norm_elemt,
    batch_norm_gather_stats,
    batch_norm_stats,
    group_norm,
    layer_norm,
    rms_norm,
)
from normgrad.functional import (
    Gradients,
    ReducedSums,
    batch_norm_backward,
    batch_norm_elemt_backward,
    batch_norm_reduce_backward,
    group_norm_backward,
    layer_norm_backward,
    rms_norm_backward,
)

__version__ = "0.2.0"

__all__ = [
    "ArgumentError",
    "ArrayTypeError",
    "BackendError",
    "CallError",
    "DeviceError",
    "DtypeError",
    "FallbackWarning",
    "Gradients",
    "Normalized",
    "NormgradError",
    "OptionError",
    "OverlapError",
    "ReadOnlyError",
    "ReducedSums",
    "ShapeError",
    "Statistics",
    "__version__",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_elemt",
    "batch_norm_elemt_backward",
    "batch_norm_gather_stats",
    "batch_norm_reduce_backward",
    "batch_norm_stats",
    "group_norm",
    "group_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "rms_norm",
    "rms_norm_backward",
]


def __dir__() -> list[str]:
    """What is public: the names above, and the interfaces that were imported."""
    return sorted([*__all__, *{"aclnn", "infiniop", "torch"} & set(globals())])
