"""The aclnn interface: its functions under their own names, on a machine without the accelerator.

Functions with out-pointers return ``(status, results...)``, the others a status; none of them
raises. ``aclCreate*`` return a handle, or None. Pointers are integers, 0 or None is null.
"""

from normgrad.aclnn.batch_norm import (
    aclnnBatchNormBackward,
    aclnnBatchNormBackwardGetWorkspaceSize,
)
from normgrad.aclnn.batch_norm_elemt import (
    aclnnBatchNormElemtBackward,
    aclnnBatchNormElemtBackwardGetWorkspaceSize,
)
from normgrad.aclnn.constants import *
from normgrad.aclnn.executor import (
    aclDestroyAclOpExecutor,
    aclOpExecutor,
    aclSetAclOpExecutorRepeatable,
)
from normgrad.aclnn.group_norm import (
    aclnnGroupNormBackward,
    aclnnGroupNormBackwardGetWorkspaceSize,
)
from normgrad.aclnn.layer_norm import (
    aclnnLayerNormBackward,
    aclnnLayerNormBackwardGetWorkspaceSize,
)
from normgrad.aclnn.memory import (
    aclrtFree,
    aclrtFreeHost,
    aclrtMalloc,
    aclrtMallocHost,
    aclrtMemcpy,
    aclrtMemcpyAsync,
    aclrtMemset,
)
from normgrad.aclnn.products import PRODUCTS, get_product, set_product, set_save_invstd_is
from normgrad.aclnn.runtime import (
    aclFinalize,
    aclInit,
    aclrtContext,
    aclrtCreateContext,
    aclrtCreateStream,
    aclrtCtxGetSysParamOpt,
    aclrtCtxSetSysParamOpt,
    aclrtDestroyContext,
    aclrtDestroyStream,
    aclrtGetCurrentContext,
    aclrtGetDevice,
    aclrtGetDeviceCount,
    aclrtGetSocName,
    aclrtResetDevice,
    aclrtSetCurrentContext,
    aclrtSetDevice,
    aclrtStream,
    aclrtSynchronizeDevice,
    aclrtSynchronizeStream,
)
from normgrad.aclnn.status import (
    ACL_SUCCESS,
    ACLNN_SUCCESS,
    SENTENCES,
    Status,
    aclGetRecentErrMsg,
)
from normgrad.aclnn.tensors import (
    aclBoolArray,
    aclCreateBoolArray,
    aclCreateIntArray,
    aclCreateTensor,
    aclDestroyBoolArray,
    aclDestroyIntArray,
    aclDestroyTensor,
    aclGetDataType,
    aclGetFormat,
    aclGetStorageShape,
    aclGetViewOffset,
    aclGetViewShape,
    aclGetViewStrides,
    aclIntArray,
    aclTensor,
    tensor,
)
