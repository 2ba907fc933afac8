"""The infiniop interface of BatchNormBackward, and the infinirt functions that it needs.

Functions with out-pointers return ``(status, results...)``, the others a status; none of them
raises. Pointers are integers, 0 or None is null.
"""

from normgrad.infiniop.batch_norm import (
    infiniopBatchNorm as infiniopBatchNorm,
    infiniopBatchNormDescriptor_t as infiniopBatchNormDescriptor_t,
    infiniopCreateBatchNormDescriptor as infiniopCreateBatchNormDescriptor,
    infiniopDestroyBatchNormDescriptor as infiniopDestroyBatchNormDescriptor,
    infiniopGetBatchNormWorkspaceSize as infiniopGetBatchNormWorkspaceSize,
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
from normgrad.infiniop.events import (
    infinirtEventCreate as infinirtEventCreate,
    infinirtEventCreateWithFlags as infinirtEventCreateWithFlags,
    infinirtEventDestroy as infinirtEventDestroy,
    infinirtEventElapsedTime as infinirtEventElapsedTime,
    infinirtEventQuery as infinirtEventQuery,
    infinirtEventRecord as infinirtEventRecord,
    infinirtEventSynchronize as infinirtEventSynchronize,
    infinirtEvent_t as infinirtEvent_t,
    infinirtStreamWaitEvent as infinirtStreamWaitEvent,
)
from normgrad.infiniop.layer_norm import (
    infiniopCreateLayerNormDescriptor as infiniopCreateLayerNormDescriptor,
    infiniopDestroyLayerNormDescriptor as infiniopDestroyLayerNormDescriptor,
    infiniopGetLayerNormWorkspaceSize as infiniopGetLayerNormWorkspaceSize,
    infiniopLayerNorm as infiniopLayerNorm,
    infiniopLayerNormDescriptor_t as infiniopLayerNormDescriptor_t,
)
from normgrad.infiniop.memory import (
    infinirtFree as infinirtFree,
    infinirtFreeAsync as infinirtFreeAsync,
    infinirtFreeHost as infinirtFreeHost,
    infinirtMalloc as infinirtMalloc,
    infinirtMallocAsync as infinirtMallocAsync,
    infinirtMallocHost as infinirtMallocHost,
    infinirtMemcpy as infinirtMemcpy,
    infinirtMemcpyAsync as infinirtMemcpyAsync,
)
from normgrad.infiniop.runtime import (
    infinirtDeviceSynchronize as infinirtDeviceSynchronize,
    infinirtGetAllDeviceCount as infinirtGetAllDeviceCount,
    infinirtGetDevice as infinirtGetDevice,
    infinirtGetDeviceCount as infinirtGetDeviceCount,
    infinirtInit as infinirtInit,
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
from normgrad.infiniop.rms_norm import (
    infiniopAddRMSNorm as infiniopAddRMSNorm,
    infiniopAddRMSNormDescriptor_t as infiniopAddRMSNormDescriptor_t,
    infiniopCreateAddRMSNormDescriptor as infiniopCreateAddRMSNormDescriptor,
    infiniopDestroyAddRMSNormDescriptor as infiniopDestroyAddRMSNormDescriptor,
    infiniopGetAddRMSNormWorkspaceSize as infiniopGetAddRMSNormWorkspaceSize,
    infiniopCreateRMSNormDescriptor as infiniopCreateRMSNormDescriptor,
    infiniopDestroyRMSNormDescriptor as infiniopDestroyRMSNormDescriptor,
    infiniopGetRMSNormWorkspaceSize as infiniopGetRMSNormWorkspaceSize,
    infiniopRMSNorm as infiniopRMSNorm,
    infiniopRMSNormDescriptor_t as infiniopRMSNormDescriptor_t,
)
