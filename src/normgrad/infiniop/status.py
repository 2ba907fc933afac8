"""A sentence for each status."""

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from normgrad.device import failures, messages
from normgrad.device.failures import fail
from normgrad.infiniop.constants import infiniStatus_t

Status = infiniStatus_t

SUCCESS: Final = Status.INFINI_STATUS_SUCCESS
INTERNAL: Final = Status.INFINI_STATUS_INTERNAL_ERROR
BAD_PARAM: Final = Status.INFINI_STATUS_BAD_PARAM
NULL_POINTER: Final = Status.INFINI_STATUS_NULL_POINTER
UNSUPPORTED_DEVICE: Final = Status.INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED
NO_DEVICE: Final = Status.INFINI_STATUS_DEVICE_NOT_FOUND
BAD_DTYPE: Final = Status.INFINI_STATUS_BAD_TENSOR_DTYPE
BAD_SHAPE: Final = Status.INFINI_STATUS_BAD_TENSOR_SHAPE
BAD_STRIDES: Final = Status.INFINI_STATUS_BAD_TENSOR_STRIDES
SMALL_WORKSPACE: Final = Status.INFINI_STATUS_INSUFFICIENT_WORKSPACE

SENTENCES: Final[dict[int, str]] = {
    SUCCESS: "The call did what was asked.",
    INTERNAL: "The library failed inside, or memory is used up.",
    Status.INFINI_STATUS_NOT_IMPLEMENTED: "The function exists by name only.",
    BAD_PARAM: "An argument is null, destroyed, or of a value that cannot be used.",
    NULL_POINTER: "A pointer for a result, or a pointer of the runtime, is null.",
    UNSUPPORTED_DEVICE: "The kind of device is none of ours.",
    NO_DEVICE: "There is no device of that kind and number here.",
    Status.INFINI_STATUS_DEVICE_NOT_INITIALIZED: "The device was not set up.",
    Status.INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED: "No backend takes this device.",
    BAD_DTYPE: "A tensor's type is not F16, F32 or BF16, or the types differ.",
    BAD_SHAPE: "A tensor's shape is not the one that the operator needs.",
    BAD_STRIDES: "A tensor's strides are not those that the operator needs.",
    SMALL_WORKSPACE: "The workspace is smaller than the descriptor asked for.",
}


def recent_error() -> str:
    """What the calling thread's last failure was.

    Returns:
        The sentence: function, argument, rule and value; empty before the first failure.

    Example:
        >>> status, pointer = infiniop.infinirtMalloc(-1)
        >>> infiniop.recent_error()
        'infinirtMalloc: size must be a number of bytes, got -1'
    """
    return messages.recent()


CODES: Final = (INTERNAL, INTERNAL)  # a failure inside, and one for want of memory

Returned = TypeVar("Returned")
Arguments = ParamSpec("Arguments")


def reports(
    answer: Callable[[Status], Returned],
) -> Callable[[Callable[Arguments, Returned]], Callable[Arguments, Returned]]:
    """Failures inside and used-up memory are status 1."""
    return failures.reports(*CODES, answer)


def _bare(status: Status) -> Status:
    return status


status_only = reports(_bare)

__all__ = [
    "BAD_DTYPE",
    "BAD_PARAM",
    "BAD_SHAPE",
    "BAD_STRIDES",
    "CODES",
    "INTERNAL",
    "NO_DEVICE",
    "NULL_POINTER",
    "SENTENCES",
    "SMALL_WORKSPACE",
    "SUCCESS",
    "UNSUPPORTED_DEVICE",
    "Status",
    "fail",
    "recent_error",
    "reports",
    "status_only",
]
