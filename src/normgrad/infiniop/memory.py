"""Memory of infinirt: allocations that have an owner, and copies."""

from typing import Any

from normgrad import device
from normgrad.device import HOST_SOURCE, HOST_TARGET, memory
from normgrad.device.failures import INTEGERS, byte_count, described, is_null, one_of, whole
from normgrad.device.memory import OwnershipError
from normgrad.infiniop.constants import infinirtMemcpyKind_t
from normgrad.infiniop.runtime import core_device, current_device, current_memory, stream_number
from normgrad.infiniop.status import (
    BAD_PARAM,
    NULL_POINTER,
    SUCCESS,
    Status,
    fail,
    reports,
    status_only,
)

PointerAnswer = tuple[Status, int]


def _no_pointer(status: Status) -> PointerAnswer:
    return status, 0


@reports(_no_pointer)
def infinirtMalloc(size: int) -> PointerAnswer:
    """New memory on the calling thread's device.

    Args:
        size: In bytes; 0 gives null.

    Returns:
        0 and the address; 3 and 0 for another size, 1 for want of memory.

    Example:
        >>> status, pointer = infiniop.infinirtMalloc(64)
        >>> int(infiniop.infinirtFree(pointer))
        0
    """
    return _allocate(memory.DEVICE, current_memory(), size, "infinirtMalloc")


@status_only
def infinirtFree(ptr: int | None) -> Status:
    """Free memory, by the very pointer that ``infinirtMalloc`` gave.

    Args:
        ptr: The address; null is success.

    Returns:
        0; 3 for memory that was freed before, and for any other address.

    Example:
        >>> status, pointer = infiniop.infinirtMalloc(64)
        >>> [int(infiniop.infinirtFree(pointer)) for _ in range(2)]
        [0, 3]
    """
    return _free(memory.DEVICE, ptr, "infinirtFree")


@reports(_no_pointer)
def infinirtMallocHost(size: int) -> PointerAnswer:
    """New host memory.

    Args:
        size: In bytes; 0 gives null.

    Returns:
        0 and the address; 3 and 0 for another size, 1 for want of memory.

    Example:
        >>> status, pointer = infiniop.infinirtMallocHost(64)
        >>> int(infiniop.infinirtFreeHost(pointer))
        0
    """
    return _allocate(memory.HOST, device.memory_of("cpu"), size, "infinirtMallocHost")


@status_only
def infinirtFreeHost(ptr: int | None) -> Status:
    """Free host memory, by the very pointer that ``infinirtMallocHost`` gave.

    Args:
        ptr: The address; null is success.

    Returns:
        0; 3 for memory that was freed before, and for any other address.

    Example:
        >>> status, pointer = infiniop.infinirtMallocHost(64)
        >>> [int(infiniop.infinirtFreeHost(pointer)) for _ in range(2)]
        [0, 3]
    """
    return _free(memory.HOST, ptr, "infinirtFreeHost")


@reports(_no_pointer)
def infinirtMallocAsync(size: int, stream: Any) -> PointerAnswer:
    """New memory on the calling thread's device, there at once and for every stream.

    Args:
        size: In bytes; 0 gives null.
        stream: Of ``infinirtStreamCreate``, the address of a CUDA stream, or null.

    Returns:
        0 and the address; 3 and 0 for another size or a destroyed stream, 1 for want of memory.

    Example:
        >>> status, pointer = infiniop.infinirtMallocAsync(64, None)
        >>> int(infiniop.infinirtFreeAsync(pointer, None))
        0
    """
    stream_number(stream)
    return _allocate(memory.DEVICE, current_memory(), size, "infinirtMallocAsync")


@status_only
def infinirtFreeAsync(ptr: int | None, stream: Any) -> Status:
    """Free memory once a stream's work is done; it waits for that.

    Args:
        ptr: Of ``infinirtMallocAsync`` or ``infinirtMalloc``; null is success.
        stream: Of ``infinirtStreamCreate``, the address of a CUDA stream, or null.

    Returns:
        0; 3 for a destroyed stream, memory that was freed before, and any other address.

    Example:
        >>> int(infiniop.infinirtFreeAsync(None, None))
        0
    """
    current_memory().synchronize(stream_number(stream))
    return _free(memory.DEVICE, ptr, "infinirtFreeAsync")


@status_only
def infinirtMemcpy(dst: Any, src: Any, size: int, kind: int) -> Status:
    """Copy bytes, and wait for it.

    Args:
        dst: Where to: an address, or for host memory a buffer (a bytearray, a NumPy array).
        src: Where from: an address, or for host memory a buffer.
        size: How many bytes; 0 is success, whatever the pointers are.
        kind: Which side is whose, a value of ``infinirtMemcpyKind_t``.

    Returns:
        0; 4 for null, 3 for an unknown kind and for memory that is freed, too small or on another
        device.

    Example:
        >>> back = bytearray(4)
        >>> int(infiniop.infinirtMemcpy(back, b"abcd", 4, infiniop.INFINIRT_MEMCPY_H2H))
        0
        >>> back
        bytearray(b'abcd')
    """
    return _copy(dst, src, size, kind, 0, wait=True)


@status_only
def infinirtMemcpyAsync(dst: Any, src: Any, size: int, kind: int, stream: Any) -> Status:
    """Copy bytes in the order of a stream.

    Args:
        dst: As in ``infinirtMemcpy``; host buffers must live until the copy is done.
        src: As in ``infinirtMemcpy``.
        size: How many bytes.
        kind: A value of ``infinirtMemcpyKind_t``.
        stream: Of ``infinirtStreamCreate``, the address of a CUDA stream, or null.

    Returns:
        As ``infinirtMemcpy``; 3 for a destroyed stream.

    Example:
        >>> back = bytearray(4)
        >>> kind = infiniop.INFINIRT_MEMCPY_H2H
        >>> int(infiniop.infinirtMemcpyAsync(back, b"abcd", 4, kind, None))
        0
    """
    return _copy(dst, src, size, kind, stream_number(stream), wait=False)


def _allocate(
    table: memory.Allocations, place: device.Memory, size: Any, maker: str
) -> PointerAnswer:
    nbytes = byte_count(BAD_PARAM, "size", size)
    if nbytes == 0:
        return SUCCESS, 0
    owner, address = place.allocate(nbytes)
    table.add(address, nbytes, owner, maker, place.device)
    return SUCCESS, address


def _free(table: memory.Allocations, ptr: int | None, freer: str) -> Status:
    if is_null(ptr):
        return SUCCESS
    try:
        table.release(whole(BAD_PARAM, "ptr", ptr), freer)
    except OwnershipError as fault:
        fail(BAD_PARAM, f"ptr must be live {table.space} memory: {fault}")
    return SUCCESS


def _copy(dst: Any, src: Any, size: int, kind: int, stream: int, *, wait: bool) -> Status:
    nbytes = byte_count(BAD_PARAM, "size", size)
    kind = one_of(BAD_PARAM, "kind", kind, infinirtMemcpyKind_t)
    if nbytes == 0:
        return SUCCESS
    target = _side("dst", dst, nbytes, on_device=kind not in HOST_TARGET, written=True)
    source = _side("src", src, nbytes, on_device=kind not in HOST_SOURCE, written=False)
    place = current_memory()
    place.copy(target, source, nbytes, kind, stream)
    if wait:
        place.synchronize(stream)
    return SUCCESS


def _side(name: str, where: Any, nbytes: int, *, on_device: bool, written: bool) -> int:
    if is_null(where):
        fail(NULL_POINTER, f"{name} must not be null")
    if isinstance(where, INTEGERS):
        address = int(where)
        place = core_device(*current_device()) if on_device else "cpu"
        check_range(name, address, address + nbytes, place)
        return address
    if on_device:
        fail(BAD_PARAM, f"{name} must be an address, got {described(where)}")
    try:
        return memory.host_address(name, where, nbytes, written=written)
    except OwnershipError as error:
        fail(BAD_PARAM, str(error))


def check_range(name: str, low: int, high: int, place: str) -> None:
    """Memory of ours must hold and be on the device; callers' own, as a torch tensor's, passes."""
    if memory.checked:
        try:
            memory.DEVICE.require(low, high, place, foreign=True)
        except OwnershipError as fault:
            fail(BAD_PARAM, f"{name} must lie in live memory: {fault}")
