"""Handles and tensor descriptors."""

from collections.abc import Sequence
from typing import Any, Final

from normgrad.core.spec import TensorSpec, row_major
from normgrad.device.failures import alive, integers, is_null, whole
from normgrad.infiniop.constants import infiniDtype_t
from normgrad.infiniop.runtime import current_device
from normgrad.infiniop.status import (
    BAD_PARAM,
    NULL_POINTER,
    SUCCESS,
    Status,
    fail,
    reports,
    status_only,
)

DTYPE_NAMES: Final[dict[int, str]] = {
    infiniDtype_t.INFINI_DTYPE_I32: "int32",
    infiniDtype_t.INFINI_DTYPE_I64: "int64",
    infiniDtype_t.INFINI_DTYPE_F16: "float16",
    infiniDtype_t.INFINI_DTYPE_F32: "float32",
    infiniDtype_t.INFINI_DTYPE_F64: "float64",
    infiniDtype_t.INFINI_DTYPE_BF16: "bfloat16",
}


class infiniopHandle_t:
    """The device that was the calling thread's when the handle was made."""

    __slots__ = ("alive", "device", "device_id")

    def __init__(self, device: int, device_id: int) -> None:
        self.device = device
        self.device_id = device_id
        self.alive = True


class infiniopTensorDescriptor_t:
    """Shape, strides in elements, and type; types that we do not know keep their number."""

    __slots__ = ("alive", "dtype", "tensor")

    def __init__(self, tensor: TensorSpec, dtype: int) -> None:
        self.tensor = tensor
        self.dtype = dtype
        self.alive = True


HandleAnswer = tuple[Status, infiniopHandle_t | None]
TensorAnswer = tuple[Status, infiniopTensorDescriptor_t | None]


def _no_handle(status: Status) -> HandleAnswer:
    return status, None


def _no_tensor(status: Status) -> TensorAnswer:
    return status, None


@reports(_no_handle)
def infiniopCreateHandle() -> HandleAnswer:
    """A handle of the calling thread's device.

    Returns:
        0 and an ``infiniopHandle_t``.

    Example:
        >>> status, handle = infiniop.infiniopCreateHandle()
        >>> handle.device, handle.device_id
        (0, 0)
    """
    return SUCCESS, infiniopHandle_t(*current_device())


@status_only
def infiniopDestroyHandle(handle: infiniopHandle_t | None) -> Status:
    """End a handle.

    Args:
        handle: Of ``infiniopCreateHandle``; null is success.

    Returns:
        0; 3 for one that was destroyed before.

    Example:
        >>> status, handle = infiniop.infiniopCreateHandle()
        >>> [int(infiniop.infiniopDestroyHandle(handle)) for _ in range(2)]
        [0, 3]
    """
    return destroy(handle, "handle", infiniopHandle_t)


@reports(_no_tensor)
def infiniopCreateTensorDescriptor(
    ndim: int, shape: Sequence[int] | None, strides: Sequence[int] | None, dtype: int
) -> TensorAnswer:
    """What a tensor is like: sizes, strides, type; all of it is copied.

    Args:
        ndim: How many sizes there are, 0 to 4096.
        shape: The sizes.
        strides: In elements, may be negative; null for contiguous.
        dtype: A value of ``infiniDtype_t``; operators refuse those that they do not take.

    Returns:
        0 and a descriptor; 3 and None for an argument that cannot be used, 4 for null sizes.

    Example:
        >>> f32 = infiniop.INFINI_DTYPE_F32
        >>> infiniop.infiniopCreateTensorDescriptor(2, (2, 3), None, f32)[1].tensor
        TensorSpec(shape=(2, 3), strides=(3, 1), dtype='float32')
    """
    sizes = _integers("shape", shape, ndim)
    if any(size < 0 for size in sizes):
        fail(BAD_PARAM, f"shape must not be negative, got {sizes}")
    steps = row_major(sizes) if is_null(strides) else _integers("strides", strides, ndim)
    kind = whole(BAD_PARAM, "dtype", dtype)
    tensor = TensorSpec(sizes, steps, DTYPE_NAMES.get(kind, f"dtype {kind}"))
    return SUCCESS, infiniopTensorDescriptor_t(tensor, kind)


@status_only
def infiniopDestroyTensorDescriptor(desc: infiniopTensorDescriptor_t | None) -> Status:
    """End a descriptor.

    Args:
        desc: Of ``infiniopCreateTensorDescriptor``; null is success.

    Returns:
        0; 3 for one that was destroyed before.

    Example:
        >>> int(infiniop.infiniopDestroyTensorDescriptor(None))
        0
    """
    return destroy(desc, "desc", infiniopTensorDescriptor_t)


def destroy(handle: Any, name: str, cls: type[Any]) -> Status:
    """End an object of ours once; null is success."""
    if not is_null(handle):
        living(handle, name, cls).alive = False
    return SUCCESS


def living(handle: Any, name: str, cls: type[Any]) -> Any:
    """The object, if it is one of a class and was not destroyed."""
    if is_null(handle):
        fail(BAD_PARAM, f"{name} must not be null")
    return alive(BAD_PARAM, handle, name, cls)


def _integers(name: str, values: Any, count: Any) -> tuple[int, ...]:
    return integers(BAD_PARAM, NULL_POINTER, name, values, count, "ndim")
