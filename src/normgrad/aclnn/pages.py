"""Every operator's page, in the order of the docs."""

from typing import Final

from normgrad.aclnn import (
    add_norm,
    batch_norm,
    deep_norm,
    group_norm,
    group_norm_silu,
    layer_norm,
    rms_norm,
    sync_batch_norm,
)
from normgrad.aclnn.table import Page

PAGES: Final[tuple[Page, ...]] = (
    batch_norm.BATCH_NORM,
    batch_norm.BATCH_NORM_BACKWARD,
    layer_norm.LAYER_NORM,
    layer_norm.LAYER_NORM_WITH_IMPL_MODE,
    layer_norm.LAYER_NORM_BACKWARD,
    group_norm.GROUP_NORM,
    group_norm.GROUP_NORM_BACKWARD,
    group_norm_silu.GROUP_NORM_SILU,
    group_norm_silu.GROUP_NORM_SILU_V2,
    group_norm_silu.GROUP_NORM_SWISH,
    group_norm_silu.GROUP_NORM_SWISH_GRAD,
    rms_norm.RMS_NORM,
    rms_norm.GEMMA_RMS_NORM,
    rms_norm.RMS_NORM_GRAD,
    add_norm.ADD_RMS_NORM,
    add_norm.INPLACE_ADD_RMS_NORM,
    add_norm.ADD_LAYER_NORM,
    add_norm.ADD_LAYER_NORM_GRAD,
    deep_norm.DEEP_NORM,
    deep_norm.DEEP_NORM_GRAD,
    sync_batch_norm.STATS,
    sync_batch_norm.GATHER,
    sync_batch_norm.ELEMT,
    sync_batch_norm.REDUCE_BACKWARD,
    sync_batch_norm.ELEMT_BACKWARD,
)
