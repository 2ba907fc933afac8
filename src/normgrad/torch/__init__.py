"""PyTorch: operators, modules, our kernels in place of torch's, synchronized batch norm."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    msg = "normgrad.torch needs PyTorch 2.9 or newer: pip install 'normgrad[torch]'"
    raise ImportError(msg, name="torch") from None

import normgrad.torch.backward_ops  # noqa: F401  (defines the operators)
from normgrad.core.errors import NothingTakenWarning
from normgrad.torch.conversion import convert, revert
from normgrad.torch.counting import Report, Row, report
from normgrad.torch.fused_modules import AddLayerNorm, AddRMSNorm, BatchNormAct2d, GroupNormAct
from normgrad.torch.fusion import fuse, unfuse
from normgrad.torch.modules import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from normgrad.torch.override import disable, enable, enabled
from normgrad.torch.places import Fusion, Place
from normgrad.torch.profiling import Profile, Way, profile
from normgrad.torch.sync_module import SyncBatchNorm, convert_sync_batchnorm

__all__ = [
    "AddLayerNorm",
    "AddRMSNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "BatchNormAct2d",
    "Fusion",
    "GroupNorm",
    "GroupNormAct",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "NothingTakenWarning",
    "Place",
    "Profile",
    "RMSNorm",
    "Report",
    "Row",
    "SyncBatchNorm",
    "Way",
    "convert",
    "convert_sync_batchnorm",
    "disable",
    "enable",
    "enabled",
    "fuse",
    "profile",
    "report",
    "revert",
    "unfuse",
]


def __dir__() -> list[str]:
    """What is public."""
    return sorted(__all__)
