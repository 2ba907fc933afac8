"""PyTorch: operators, modules, our backward pass in place of torch's, synchronized batch norm."""

import normgrad.torch.backward_ops  # noqa: F401  (defines the operators)
from normgrad.torch.conversion import convert, revert
from normgrad.torch.counting import Report, Row, report
from normgrad.torch.modules import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
)
from normgrad.torch.override import disable, enable, enabled
from normgrad.torch.sync_module import SyncBatchNorm, convert_sync_batchnorm

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "Report",
    "Row",
    "SyncBatchNorm",
    "convert",
    "convert_sync_batchnorm",
    "disable",
    "enable",
    "enabled",
    "report",
    "revert",
]
