"""The aclnn interface: its functions under their own names, on a machine without the accelerator.

Functions with out-pointers return ``(status, results...)``, the others a status; none of them
raises. ``aclCreate*`` return a handle, or None. Pointers are integers, 0 or None is null.
"""

from normgrad.aclnn.batch_norm import (
    aclnnBatchNormBackward as aclnnBatchNormBackward,
    aclnnBatchNormBackwardGetWorkspaceSize as aclnnBatchNormBackwardGetWorkspaceSize,
)
from normgrad.aclnn.batch_norm_elemt import (
    aclnnBatchNormElemtBackward as aclnnBatchNormElemtBackward,
    aclnnBatchNormElemtBackwardGetWorkspaceSize as aclnnBatchNormElemtBackwardGetWorkspaceSize,
)
from normgrad.aclnn.constants import *
from normgrad.aclnn.executor import (
    aclDestroyAclOpExecutor as aclDestroyAclOpExecutor,
    aclOpExecutor as aclOpExecutor,
    aclSetAclOpExecutorRepeatable as aclSetAclOpExecutorRepeatable,
)
from normgrad.aclnn.group_norm import (
    aclnnGroupNormBackward as aclnnGroupNormBackward,
    aclnnGroupNormBackwardGetWorkspaceSize as aclnnGroupNormBackwardGetWorkspaceSize,
)
from normgrad.aclnn.layer_norm import (
    aclnnLayerNormBackward as aclnnLayerNormBackward,
    aclnnLayerNormBackwardGetWorkspaceSize as aclnnLayerNormBackwardGetWorkspaceSize,
)
from normgrad.aclnn.memory import (
    aclrtFree as aclrtFree,
    aclrtFreeHost as aclrtFreeHost,
    aclrtMalloc as aclrtMalloc,
    aclrtMallocHost as aclrtMallocHost,
    aclrtMemcpy as aclrtMemcpy,
    aclrtMemcpyAsync as aclrtMemcpyAsync,
    aclrtMemset as aclrtMemset,
)
from normgrad.aclnn.products import (
    PRODUCTS as PRODUCTS,
    get_product as get_product,
    set_product as set_product,
    set_save_invstd_is as set_save_invstd_is,
)
from normgrad.aclnn.runtime import (
    aclFinalize as aclFinalize,
    aclInit as aclInit,
    aclrtContext as aclrtContext,
    aclrtCreateContext as aclrtCreateContext,
    aclrtCreateStream as aclrtCreateStream,
    aclrtCtxGetSysParamOpt as aclrtCtxGetSysParamOpt,
    aclrtCtxSetSysParamOpt as aclrtCtxSetSysParamOpt,
    aclrtDestroyContext as aclrtDestroyContext,
    aclrtDestroyStream as aclrtDestroyStream,
    aclrtGetCurrentContext as aclrtGetCurrentContext,
    aclrtGetDevice as aclrtGetDevice,
    aclrtGetDeviceCount as aclrtGetDeviceCount,
    aclrtGetSocName as aclrtGetSocName,
    aclrtResetDevice as aclrtResetDevice,
    aclrtSetCurrentContext as aclrtSetCurrentContext,
    aclrtSetDevice as aclrtSetDevice,
    aclrtStream as aclrtStream,
    aclrtSynchronizeDevice as aclrtSynchronizeDevice,
    aclrtSynchronizeStream as aclrtSynchronizeStream,
)
from normgrad.aclnn.status import (
    SENTENCES as SENTENCES,
    aclGetRecentErrMsg as aclGetRecentErrMsg,
)
from normgrad.aclnn.tensors import (
    aclBoolArray as aclBoolArray,
    aclCreateBoolArray as aclCreateBoolArray,
    aclCreateIntArray as aclCreateIntArray,
    aclCreateTensor as aclCreateTensor,
    aclDestroyBoolArray as aclDestroyBoolArray,
    aclDestroyIntArray as aclDestroyIntArray,
    aclDestroyTensor as aclDestroyTensor,
    aclGetDataType as aclGetDataType,
    aclGetFormat as aclGetFormat,
    aclGetStorageShape as aclGetStorageShape,
    aclGetViewOffset as aclGetViewOffset,
    aclGetViewShape as aclGetViewShape,
    aclGetViewStrides as aclGetViewStrides,
    aclIntArray as aclIntArray,
    aclTensor as aclTensor,
    tensor as tensor,
)
