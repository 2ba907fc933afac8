"""The infiniop interface of BatchNormBackward, and the infinirt functions that it needs.

Functions with out-pointers return ``(status, results...)``, the others a status; none of them
raises. Pointers are integers, 0 or None is null.
"""

from normgrad.infiniop.batch_norm import (
    infiniopBatchNormBackward as infiniopBatchNormBackward,
    infiniopBatchNormBackwardDescriptor_t as infiniopBatchNormBackwardDescriptor_t,
    infiniopCreateBatchNormBackwardDescriptor as infiniopCreateBatchNormBackwardDescriptor,
    infiniopDestroyBatchNormBackwardDescriptor as infiniopDestroyBatchNormBackwardDescriptor,
    infiniopGetBatchNormBackwardWorkspaceSize as infiniopGetBatchNormBackwardWorkspaceSize,
)
from normgrad.infiniop.constants import *
from normgrad.infiniop.descriptors import (
    infiniopCreateHandle as infiniopCreateHandle,
    infiniopCreateTensorDescriptor as infiniopCreateTensorDescriptor,
    infiniopDestroyHandle as infiniopDestroyHandle,
    infiniopDestroyTensorDescriptor as infiniopDestroyTensorDescriptor,
    infiniopHandle_t as infiniopHandle_t,
    infiniopTensorDescriptor_t as infiniopTensorDescriptor_t,
)
from normgrad.infiniop.runtime import (
    infinirtDeviceSynchronize as infinirtDeviceSynchronize,
    infinirtFree as infinirtFree,
    infinirtGetDevice as infinirtGetDevice,
    infinirtGetDeviceCount as infinirtGetDeviceCount,
    infinirtInit as infinirtInit,
    infinirtMalloc as infinirtMalloc,
    infinirtMemcpy as infinirtMemcpy,
    infinirtMemcpyAsync as infinirtMemcpyAsync,
    infinirtSetDevice as infinirtSetDevice,
    infinirtStream_t as infinirtStream_t,
    infinirtStreamCreate as infinirtStreamCreate,
    infinirtStreamDestroy as infinirtStreamDestroy,
    infinirtStreamSynchronize as infinirtStreamSynchronize,
)
from normgrad.infiniop.status import (
    SENTENCES as SENTENCES,
    recent_error as recent_error,
)
