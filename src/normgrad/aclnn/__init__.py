"""The aclnn interface: its functions under their own names, on a machine without the accelerator.

Functions with out-pointers return ``(status, results...)``, the others a status; none of them
raises. ``aclCreate*`` return a handle, or None. Pointers are integers, 0 or None is null.
"""

from normgrad.aclnn.addresses import (
    AclSetInputTensorAddr as AclSetInputTensorAddr,
    AclSetOutputTensorAddr as AclSetOutputTensorAddr,
    AclSetTensorAddr as AclSetTensorAddr,
    aclGetRawTensorAddr as aclGetRawTensorAddr,
    aclSetInputTensorAddr as aclSetInputTensorAddr,
    aclSetOutputTensorAddr as aclSetOutputTensorAddr,
    aclSetRawTensorAddr as aclSetRawTensorAddr,
    aclSetTensorAddr as aclSetTensorAddr,
)
from normgrad.aclnn.constants import *
from normgrad.aclnn.events import (
    aclrtCreateEvent as aclrtCreateEvent,
    aclrtCreateEventWithFlag as aclrtCreateEventWithFlag,
    aclrtDestroyEvent as aclrtDestroyEvent,
    aclrtEvent as aclrtEvent,
    aclrtEventElapsedTime as aclrtEventElapsedTime,
    aclrtQueryEventStatus as aclrtQueryEventStatus,
    aclrtRecordEvent as aclrtRecordEvent,
    aclrtResetEvent as aclrtResetEvent,
    aclrtStreamWaitEvent as aclrtStreamWaitEvent,
    aclrtSynchronizeEvent as aclrtSynchronizeEvent,
)
from normgrad.aclnn.executor import (
    aclDestroyAclOpExecutor as aclDestroyAclOpExecutor,
    aclnnFinalize as aclnnFinalize,
    aclnnInit as aclnnInit,
    aclOpExecutor as aclOpExecutor,
    aclSetAclOpExecutorRepeatable as aclSetAclOpExecutorRepeatable,
)
from normgrad.aclnn.lists import (
    aclCreateFloatArray as aclCreateFloatArray,
    aclCreateScalarList as aclCreateScalarList,
    aclCreateTensorList as aclCreateTensorList,
    aclDestroyFloatArray as aclDestroyFloatArray,
    aclDestroyScalarList as aclDestroyScalarList,
    aclDestroyTensorList as aclDestroyTensorList,
    aclFloatArray as aclFloatArray,
    aclGetBoolArraySize as aclGetBoolArraySize,
    aclGetFloatArraySize as aclGetFloatArraySize,
    aclGetIntArraySize as aclGetIntArraySize,
    aclGetScalarListSize as aclGetScalarListSize,
    aclGetTensorListSize as aclGetTensorListSize,
    aclScalarList as aclScalarList,
    aclTensorList as aclTensorList,
)
from normgrad.aclnn.memory import (
    aclrtFree as aclrtFree,
    aclrtFreeHost as aclrtFreeHost,
    aclrtGetMemInfo as aclrtGetMemInfo,
    aclrtMalloc as aclrtMalloc,
    aclrtMallocHost as aclrtMallocHost,
    aclrtMemcpy as aclrtMemcpy,
    aclrtMemcpyAsync as aclrtMemcpyAsync,
    aclrtMemset as aclrtMemset,
    aclrtMemsetAsync as aclrtMemsetAsync,
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
    aclrtCtxGetSysParamOpt as aclrtCtxGetSysParamOpt,
    aclrtCtxSetSysParamOpt as aclrtCtxSetSysParamOpt,
    aclrtDestroyContext as aclrtDestroyContext,
    aclrtGetCurrentContext as aclrtGetCurrentContext,
    aclrtGetDevice as aclrtGetDevice,
    aclrtGetDeviceCount as aclrtGetDeviceCount,
    aclrtGetRunMode as aclrtGetRunMode,
    aclrtGetSocName as aclrtGetSocName,
    aclrtResetDevice as aclrtResetDevice,
    aclrtSetCurrentContext as aclrtSetCurrentContext,
    aclrtSetDevice as aclrtSetDevice,
)
from normgrad.aclnn.scalars import (
    aclCreateScalar as aclCreateScalar,
    aclDataTypeSize as aclDataTypeSize,
    aclDestroyScalar as aclDestroyScalar,
    aclFloat16ToFloat as aclFloat16ToFloat,
    aclFloatToFloat16 as aclFloatToFloat16,
    aclScalar as aclScalar,
)
from normgrad.aclnn.status import (
    SENTENCES as SENTENCES,
    aclGetRecentErrMsg as aclGetRecentErrMsg,
)
from normgrad.aclnn.streams import (
    aclrtCreateStream as aclrtCreateStream,
    aclrtDestroyStream as aclrtDestroyStream,
    aclrtStream as aclrtStream,
    aclrtSynchronizeDevice as aclrtSynchronizeDevice,
    aclrtSynchronizeStream as aclrtSynchronizeStream,
    aclrtSynchronizeStreamWithTimeout as aclrtSynchronizeStreamWithTimeout,
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
from normgrad.aclnn.batch_norm import (
    aclnnBatchNorm as aclnnBatchNorm,
    aclnnBatchNormBackward as aclnnBatchNormBackward,
    aclnnBatchNormBackwardGetWorkspaceSize as aclnnBatchNormBackwardGetWorkspaceSize,
    aclnnBatchNormGetWorkspaceSize as aclnnBatchNormGetWorkspaceSize,
)
from normgrad.aclnn.group_norm import (
    aclnnGroupNorm as aclnnGroupNorm,
    aclnnGroupNormBackward as aclnnGroupNormBackward,
    aclnnGroupNormBackwardGetWorkspaceSize as aclnnGroupNormBackwardGetWorkspaceSize,
    aclnnGroupNormGetWorkspaceSize as aclnnGroupNormGetWorkspaceSize,
)
from normgrad.aclnn.layer_norm import (
    aclnnLayerNorm as aclnnLayerNorm,
    aclnnLayerNormBackward as aclnnLayerNormBackward,
    aclnnLayerNormBackwardGetWorkspaceSize as aclnnLayerNormBackwardGetWorkspaceSize,
    aclnnLayerNormGetWorkspaceSize as aclnnLayerNormGetWorkspaceSize,
    aclnnLayerNormWithImplMode as aclnnLayerNormWithImplMode,
    aclnnLayerNormWithImplModeGetWorkspaceSize as aclnnLayerNormWithImplModeGetWorkspaceSize,
)
from normgrad.aclnn.rms_norm import (
    aclnnGemmaRmsNorm as aclnnGemmaRmsNorm,
    aclnnGemmaRmsNormGetWorkspaceSize as aclnnGemmaRmsNormGetWorkspaceSize,
    aclnnRmsNorm as aclnnRmsNorm,
    aclnnRmsNormGetWorkspaceSize as aclnnRmsNormGetWorkspaceSize,
    aclnnRmsNormGrad as aclnnRmsNormGrad,
    aclnnRmsNormGradGetWorkspaceSize as aclnnRmsNormGradGetWorkspaceSize,
)
from normgrad.aclnn.sync_batch_norm import (
    aclnnBatchNormElemt as aclnnBatchNormElemt,
    aclnnBatchNormElemtBackward as aclnnBatchNormElemtBackward,
    aclnnBatchNormElemtBackwardGetWorkspaceSize as aclnnBatchNormElemtBackwardGetWorkspaceSize,
    aclnnBatchNormElemtGetWorkspaceSize as aclnnBatchNormElemtGetWorkspaceSize,
    aclnnBatchNormGatherStatsWithCounts as aclnnBatchNormGatherStatsWithCounts,
    aclnnBatchNormGatherStatsWithCountsGetWorkspaceSize as aclnnBatchNormGatherStatsWithCountsGetWorkspaceSize,  # noqa: E501 - as it is called
    aclnnBatchNormReduceBackward as aclnnBatchNormReduceBackward,
    aclnnBatchNormReduceBackwardGetWorkspaceSize as aclnnBatchNormReduceBackwardGetWorkspaceSize,
    aclnnBatchNormStats as aclnnBatchNormStats,
    aclnnBatchNormStatsGetWorkspaceSize as aclnnBatchNormStatsGetWorkspaceSize,
)
from normgrad.aclnn.add_norm import (
    aclnnAddLayerNorm as aclnnAddLayerNorm,
    aclnnAddLayerNormGrad as aclnnAddLayerNormGrad,
    aclnnAddLayerNormGradGetWorkspaceSize as aclnnAddLayerNormGradGetWorkspaceSize,
    aclnnAddLayerNormGetWorkspaceSize as aclnnAddLayerNormGetWorkspaceSize,
    aclnnAddRmsNorm as aclnnAddRmsNorm,
    aclnnAddRmsNormGetWorkspaceSize as aclnnAddRmsNormGetWorkspaceSize,
    aclnnInplaceAddRmsNorm as aclnnInplaceAddRmsNorm,
    aclnnInplaceAddRmsNormGetWorkspaceSize as aclnnInplaceAddRmsNormGetWorkspaceSize,
)
from normgrad.aclnn.deep_norm import (
    aclnnDeepNorm as aclnnDeepNorm,
    aclnnDeepNormGetWorkspaceSize as aclnnDeepNormGetWorkspaceSize,
    aclnnDeepNormGrad as aclnnDeepNormGrad,
    aclnnDeepNormGradGetWorkspaceSize as aclnnDeepNormGradGetWorkspaceSize,
)
from normgrad.aclnn.group_norm_silu import (
    aclnnGroupNormSilu as aclnnGroupNormSilu,
    aclnnGroupNormSiluGetWorkspaceSize as aclnnGroupNormSiluGetWorkspaceSize,
    aclnnGroupNormSiluV2 as aclnnGroupNormSiluV2,
    aclnnGroupNormSiluV2GetWorkspaceSize as aclnnGroupNormSiluV2GetWorkspaceSize,
    aclnnGroupNormSwish as aclnnGroupNormSwish,
    aclnnGroupNormSwishGetWorkspaceSize as aclnnGroupNormSwishGetWorkspaceSize,
    aclnnGroupNormSwishGrad as aclnnGroupNormSwishGrad,
    aclnnGroupNormSwishGradGetWorkspaceSize as aclnnGroupNormSwishGradGetWorkspaceSize,
)
