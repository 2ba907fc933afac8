"""The sentence of every status, and how a function fails with one."""

from typing import Final

from normgrad.aclnn.constants import ACL_SUCCESS, Status
from normgrad.device import messages
from normgrad.device.failures import StatusError, fail, reports

NULLPTR: Final = Status.ACLNN_ERR_PARAM_NULLPTR
INVALID: Final = Status.ACLNN_ERR_PARAM_INVALID
RUNTIME: Final = Status.ACLNN_ERR_RUNTIME_ERROR
TILING: Final = Status.ACLNN_ERR_INNER_TILING_ERROR
NO_KERNEL: Final = Status.ACLNN_ERR_INNER_FIND_KERNEL_ERROR
SPENT: Final = Status.ACLNN_ERR_INNER_NULLPTR
BAD_PARAM: Final = Status.ACL_ERROR_INVALID_PARAM

SENTENCES: Final[dict[int, str]] = {
    Status.ACL_SUCCESS: "The call did what was asked.",
    Status.ACLNN_ERR_PARAM_NULLPTR: "An argument that must be given is null.",
    Status.ACLNN_ERR_PARAM_INVALID: "An argument breaks a rule of the operator's page.",
    Status.ACLNN_ERR_RUNTIME_ERROR: "The runtime failed: memory is gone or used up.",
    Status.ACLNN_ERR_INNER: "The library failed inside; nothing is wrong with the arguments.",
    Status.ACLNN_ERR_INNER_TILING_ERROR: "A shape breaks a rule of the operator's page.",
    Status.ACLNN_ERR_INNER_FIND_KERNEL_ERROR: "The product, or this machine, lacks the operator.",
    Status.ACLNN_ERR_INNER_CREATE_EXECUTOR: "No executor could be made.",
    Status.ACLNN_ERR_INNER_NULLPTR: "The executor is spent, destroyed or none of ours.",
    Status.ACL_ERROR_INVALID_PARAM: "A runtime function got an argument it cannot use.",
    Status.ACL_ERROR_UNINITIALIZE: "aclInit was not called, or aclFinalize was.",
    Status.ACL_ERROR_REPEAT_INITIALIZE: "aclInit was called twice.",
    Status.ACL_ERROR_RT_INVALID_DEVICEID: "There is no device of that number.",
    Status.ACL_ERROR_RT_CONTEXT_NULL: "No device is set, or the context is destroyed.",
    Status.ACL_ERROR_RT_STREAM_CONTEXT: "The stream is destroyed or none of ours.",
    Status.ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID: "The event is not recorded, or not reached yet.",
    Status.ACL_ERROR_BAD_ALLOC: "There is not enough memory.",
    Status.ACL_ERROR_INTERNAL_ERROR: "The runtime failed inside.",
    Status.ACL_ERROR_FAILURE: "A program's own word for its failure; no function returns it.",
    Status.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT: "The stream still had work when the time was over.",
}


def aclGetRecentErrMsg() -> str:
    """What the calling thread's last failure was.

    Returns:
        The sentence: function, argument, rule and value; empty before the first failure.

    Example:
        >>> status, pointer = aclnn.aclrtMallocHost(-1)
        >>> aclnn.aclGetRecentErrMsg()
        'aclrtMallocHost: size must be a positive number of bytes, got -1'
    """
    return messages.recent()


def _bare(status: Status) -> Status:
    return status


# What a failure inside and one for want of memory are: of the runtime, and of the operators.
RUNTIME_CODES: Final = (Status.ACL_ERROR_INTERNAL_ERROR, Status.ACL_ERROR_BAD_ALLOC)
OPERATOR_CODES: Final = (Status.ACLNN_ERR_INNER, Status.ACLNN_ERR_RUNTIME_ERROR)
# Functions without results beside the status.
runtime_status = reports(*RUNTIME_CODES, _bare)
operator_status = reports(*OPERATOR_CODES, _bare)

__all__ = [
    "ACL_SUCCESS",
    "BAD_PARAM",
    "INVALID",
    "NO_KERNEL",
    "NULLPTR",
    "OPERATOR_CODES",
    "RUNTIME",
    "RUNTIME_CODES",
    "SENTENCES",
    "SPENT",
    "TILING",
    "Status",
    "StatusError",
    "aclGetRecentErrMsg",
    "fail",
    "operator_status",
    "reports",
    "runtime_status",
]
