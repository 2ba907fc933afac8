"""The infiniop interface of BatchNormBackward, and the infinirt functions that it needs.

Functions with out-pointers return ``(status, results...)``, the others a status; none of them
raises. Pointers are integers, 0 or None is null.
"""

from normgrad.infiniop.batch_norm import (
    infiniopBatchNormBackward,
    infiniopBatchNormBackwardDescriptor_t,
    infiniopCreateBatchNormBackwardDescriptor,
    infiniopDestroyBatchNormBackwardDescriptor,
    infiniopGetBatchNormBackwardWorkspaceSize,
)
from normgrad.infiniop.constants import *
from normgrad.infiniop.descriptors import (
    infiniopCreateHandle,
    infiniopCreateTensorDescriptor,
    infiniopDestroyHandle,
    infiniopDestroyTensorDescriptor,
    infiniopHandle_t,
    infiniopTensorDescriptor_t,
)
from normgrad.infiniop.runtime import (
    infinirtDeviceSynchronize,
    infinirtFree,
    infinirtGetDevice,
    infinirtGetDeviceCount,
    infinirtInit,
    infinirtMalloc,
    infinirtMemcpy,
    infinirtMemcpyAsync,
    infinirtSetDevice,
    infinirtStream_t,
    infinirtStreamCreate,
    infinirtStreamDestroy,
    infinirtStreamSynchronize,
)
from normgrad.infiniop.status import SENTENCES, recent_error
