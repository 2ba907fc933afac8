"""The constants of the C headers, with their documented values."""

from enum import IntEnum
from typing import Final


class Status(IntEnum):
    """What the functions return."""

    ACL_SUCCESS = 0
    # The operators: aclnnStatus.
    ACLNN_ERR_PARAM_NULLPTR = 161001
    ACLNN_ERR_PARAM_INVALID = 161002
    ACLNN_ERR_RUNTIME_ERROR = 361001
    ACLNN_ERR_INNER = 561000
    ACLNN_ERR_INNER_FIND_KERNEL_ERROR = 561003
    ACLNN_ERR_INNER_CREATE_EXECUTOR = 561101
    ACLNN_ERR_INNER_NULLPTR = 561103
    # The runtime: aclError.
    ACL_ERROR_INVALID_PARAM = 100000
    ACL_ERROR_UNINITIALIZE = 100001
    ACL_ERROR_REPEAT_INITIALIZE = 100002
    ACL_ERROR_RT_INVALID_DEVICEID = 107001
    ACL_ERROR_RT_CONTEXT_NULL = 107002
    ACL_ERROR_RT_STREAM_CONTEXT = 107003
    ACL_ERROR_BAD_ALLOC = 200000
    ACL_ERROR_INTERNAL_ERROR = 500000


class aclDataType(IntEnum):
    """The type of a tensor's elements."""

    ACL_DT_UNDEFINED = -1
    ACL_FLOAT = 0
    ACL_FLOAT16 = 1
    ACL_INT8 = 2
    ACL_INT32 = 3
    ACL_UINT8 = 4
    ACL_INT16 = 6
    ACL_UINT16 = 7
    ACL_UINT32 = 8
    ACL_INT64 = 9
    ACL_UINT64 = 10
    ACL_DOUBLE = 11
    ACL_BOOL = 12
    ACL_COMPLEX64 = 16
    ACL_COMPLEX128 = 17
    ACL_BF16 = 27


class aclFormat(IntEnum):
    """What the axes of a tensor mean, or how its storage is blocked."""

    ACL_FORMAT_UNDEFINED = -1
    ACL_FORMAT_NCHW = 0
    ACL_FORMAT_NHWC = 1
    ACL_FORMAT_ND = 2
    ACL_FORMAT_NC1HWC0 = 3
    ACL_FORMAT_FRACTAL_Z = 4
    ACL_FORMAT_HWCN = 16
    ACL_FORMAT_NDHWC = 27
    ACL_FORMAT_FRACTAL_NZ = 29
    ACL_FORMAT_NCDHW = 30
    ACL_FORMAT_NDC1HWC0 = 32
    ACL_FRACTAL_Z_3D = 33
    ACL_FORMAT_NC = 35
    ACL_FORMAT_NCL = 47


class aclrtMemcpyKind(IntEnum):
    """From which memory to which."""

    ACL_MEMCPY_HOST_TO_HOST = 0
    ACL_MEMCPY_HOST_TO_DEVICE = 1
    ACL_MEMCPY_DEVICE_TO_HOST = 2
    ACL_MEMCPY_DEVICE_TO_DEVICE = 3


class aclrtMemMallocPolicy(IntEnum):
    """Page sizes; without influence here."""

    ACL_MEM_MALLOC_HUGE_FIRST = 0
    ACL_MEM_MALLOC_HUGE_ONLY = 1
    ACL_MEM_MALLOC_NORMAL_ONLY = 2


class aclSysParamOpt(IntEnum):
    """Settings of a context."""

    ACL_OPT_DETERMINISTIC = 0


# Core name and bytes of each type; the core computes with the first six of them.
DTYPE_NAMES: Final[dict[int, str]] = {
    aclDataType.ACL_FLOAT: "float32",
    aclDataType.ACL_FLOAT16: "float16",
    aclDataType.ACL_BF16: "bfloat16",
    aclDataType.ACL_DOUBLE: "float64",
    aclDataType.ACL_INT32: "int32",
    aclDataType.ACL_INT64: "int64",
    aclDataType.ACL_INT8: "int8",
    aclDataType.ACL_UINT8: "uint8",
    aclDataType.ACL_INT16: "int16",
    aclDataType.ACL_UINT16: "uint16",
    aclDataType.ACL_UINT32: "uint32",
    aclDataType.ACL_UINT64: "uint64",
    aclDataType.ACL_BOOL: "bool",
    aclDataType.ACL_COMPLEX64: "complex64",
    aclDataType.ACL_COMPLEX128: "complex128",
    aclDataType.ACL_DT_UNDEFINED: "undefined",
}
DTYPE_BYTES: Final[dict[int, int]] = {
    aclDataType.ACL_FLOAT: 4,
    aclDataType.ACL_FLOAT16: 2,
    aclDataType.ACL_BF16: 2,
    aclDataType.ACL_DOUBLE: 8,
    aclDataType.ACL_INT32: 4,
    aclDataType.ACL_INT64: 8,
    aclDataType.ACL_INT8: 1,
    aclDataType.ACL_UINT8: 1,
    aclDataType.ACL_INT16: 2,
    aclDataType.ACL_UINT16: 2,
    aclDataType.ACL_UINT32: 4,
    aclDataType.ACL_UINT64: 8,
    aclDataType.ACL_BOOL: 1,
    aclDataType.ACL_COMPLEX64: 8,
    aclDataType.ACL_COMPLEX128: 16,
    aclDataType.ACL_DT_UNDEFINED: 0,
}

# C's enumerators stand alone, without the name of their type.
ACL_DT_UNDEFINED: Final = aclDataType.ACL_DT_UNDEFINED
ACL_FLOAT: Final = aclDataType.ACL_FLOAT
ACL_FLOAT16: Final = aclDataType.ACL_FLOAT16
ACL_INT8: Final = aclDataType.ACL_INT8
ACL_INT32: Final = aclDataType.ACL_INT32
ACL_UINT8: Final = aclDataType.ACL_UINT8
ACL_INT16: Final = aclDataType.ACL_INT16
ACL_UINT16: Final = aclDataType.ACL_UINT16
ACL_UINT32: Final = aclDataType.ACL_UINT32
ACL_INT64: Final = aclDataType.ACL_INT64
ACL_UINT64: Final = aclDataType.ACL_UINT64
ACL_DOUBLE: Final = aclDataType.ACL_DOUBLE
ACL_BOOL: Final = aclDataType.ACL_BOOL
ACL_COMPLEX64: Final = aclDataType.ACL_COMPLEX64
ACL_COMPLEX128: Final = aclDataType.ACL_COMPLEX128
ACL_BF16: Final = aclDataType.ACL_BF16

ACL_FORMAT_UNDEFINED: Final = aclFormat.ACL_FORMAT_UNDEFINED
ACL_FORMAT_NCHW: Final = aclFormat.ACL_FORMAT_NCHW
ACL_FORMAT_NHWC: Final = aclFormat.ACL_FORMAT_NHWC
ACL_FORMAT_ND: Final = aclFormat.ACL_FORMAT_ND
ACL_FORMAT_NC1HWC0: Final = aclFormat.ACL_FORMAT_NC1HWC0
ACL_FORMAT_FRACTAL_Z: Final = aclFormat.ACL_FORMAT_FRACTAL_Z
ACL_FORMAT_HWCN: Final = aclFormat.ACL_FORMAT_HWCN
ACL_FORMAT_NDHWC: Final = aclFormat.ACL_FORMAT_NDHWC
ACL_FORMAT_FRACTAL_NZ: Final = aclFormat.ACL_FORMAT_FRACTAL_NZ
ACL_FORMAT_NCDHW: Final = aclFormat.ACL_FORMAT_NCDHW
ACL_FORMAT_NDC1HWC0: Final = aclFormat.ACL_FORMAT_NDC1HWC0
ACL_FRACTAL_Z_3D: Final = aclFormat.ACL_FRACTAL_Z_3D
ACL_FORMAT_NC: Final = aclFormat.ACL_FORMAT_NC
ACL_FORMAT_NCL: Final = aclFormat.ACL_FORMAT_NCL

ACL_MEMCPY_HOST_TO_HOST: Final = aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_HOST
ACL_MEMCPY_HOST_TO_DEVICE: Final = aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_DEVICE
ACL_MEMCPY_DEVICE_TO_HOST: Final = aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_HOST
ACL_MEMCPY_DEVICE_TO_DEVICE: Final = aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_DEVICE
ACL_MEM_MALLOC_HUGE_FIRST: Final = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST
ACL_MEM_MALLOC_HUGE_ONLY: Final = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_ONLY
ACL_MEM_MALLOC_NORMAL_ONLY: Final = aclrtMemMallocPolicy.ACL_MEM_MALLOC_NORMAL_ONLY
ACL_OPT_DETERMINISTIC: Final = aclSysParamOpt.ACL_OPT_DETERMINISTIC

ACL_SUCCESS: Final = Status.ACL_SUCCESS
ACL_ERROR_NONE: Final = Status.ACL_SUCCESS
ACLNN_SUCCESS: Final = Status.ACL_SUCCESS
ACLNN_ERR_PARAM_NULLPTR: Final = Status.ACLNN_ERR_PARAM_NULLPTR
ACLNN_ERR_PARAM_INVALID: Final = Status.ACLNN_ERR_PARAM_INVALID
ACLNN_ERR_RUNTIME_ERROR: Final = Status.ACLNN_ERR_RUNTIME_ERROR
ACLNN_ERR_INNER: Final = Status.ACLNN_ERR_INNER
ACLNN_ERR_INNER_FIND_KERNEL_ERROR: Final = Status.ACLNN_ERR_INNER_FIND_KERNEL_ERROR
ACLNN_ERR_INNER_CREATE_EXECUTOR: Final = Status.ACLNN_ERR_INNER_CREATE_EXECUTOR
ACLNN_ERR_INNER_NULLPTR: Final = Status.ACLNN_ERR_INNER_NULLPTR
ACL_ERROR_INVALID_PARAM: Final = Status.ACL_ERROR_INVALID_PARAM
ACL_ERROR_UNINITIALIZE: Final = Status.ACL_ERROR_UNINITIALIZE
ACL_ERROR_REPEAT_INITIALIZE: Final = Status.ACL_ERROR_REPEAT_INITIALIZE
ACL_ERROR_RT_INVALID_DEVICEID: Final = Status.ACL_ERROR_RT_INVALID_DEVICEID
ACL_ERROR_RT_CONTEXT_NULL: Final = Status.ACL_ERROR_RT_CONTEXT_NULL
ACL_ERROR_RT_STREAM_CONTEXT: Final = Status.ACL_ERROR_RT_STREAM_CONTEXT
ACL_ERROR_BAD_ALLOC: Final = Status.ACL_ERROR_BAD_ALLOC
ACL_ERROR_INTERNAL_ERROR: Final = Status.ACL_ERROR_INTERNAL_ERROR

_DTYPES: Final[dict[int, str]] = {member.value: member.name for member in aclDataType}
_FORMATS: Final[dict[int, str]] = {member.value: member.name for member in aclFormat}


def dtype_name(value: int) -> str:
    """A type as the header calls it."""
    return _DTYPES.get(value, f"data type {value}")


def format_name(value: int) -> str:
    """A format as the header calls it."""
    return _FORMATS.get(value, f"format {value}")
