"""The runtime's memory functions, over allocations that have an owner."""

from typing import Any

from normgrad.aclnn.constants import aclrtMemcpyKind, aclrtMemMallocPolicy
from normgrad.aclnn.runtime import current_memory, stream_number
from normgrad.aclnn.status import (
    ACL_SUCCESS,
    BAD_PARAM,
    RUNTIME_CODES,
    Status,
    fail,
    reports,
    runtime_status,
)
from normgrad.device import HOST_SOURCE, HOST_TARGET, memory, memory_of
from normgrad.device.failures import INTEGERS, byte_count, not_null, one_of, whole
from normgrad.device.memory import OwnershipError

Pointer = int | None
# Where host memory may come from: an address, bytes, a bytearray, a NumPy array, ...
HostBuffer = Any
PointerAnswer = tuple[Status, int]


def _no_pointer(status: Status) -> PointerAnswer:
    return status, 0


@reports(*RUNTIME_CODES, _no_pointer)
def aclrtMalloc(
    size: int, policy: int = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST
) -> PointerAnswer:
    """Status, and the address of new device memory."""
    nbytes = _size("size", size)
    one_of(BAD_PARAM, "policy", policy, aclrtMemMallocPolicy)
    place = current_memory()
    owner, address = place.allocate(nbytes)
    memory.DEVICE.add(address, nbytes, owner, "aclrtMalloc", place.device)
    return ACL_SUCCESS, address


@runtime_status
def aclrtFree(devPtr: Pointer) -> Status:
    """Free device memory, by the very pointer that aclrtMalloc gave."""
    return _free(memory.DEVICE, "devPtr", devPtr, "aclrtFree")


@reports(*RUNTIME_CODES, _no_pointer)
def aclrtMallocHost(size: int) -> PointerAnswer:
    """Status, and the address of new host memory."""
    nbytes = _size("size", size)
    owner, address = memory_of("cpu").allocate(nbytes)
    memory.HOST.add(address, nbytes, owner, "aclrtMallocHost")
    return ACL_SUCCESS, address


@runtime_status
def aclrtFreeHost(hostPtr: Pointer) -> Status:
    """Free host memory, by the very pointer that aclrtMallocHost gave."""
    return _free(memory.HOST, "hostPtr", hostPtr, "aclrtFreeHost")


@runtime_status
def aclrtMemcpy(dst: HostBuffer, destMax: int, src: HostBuffer, count: int, kind: int) -> Status:
    """Copy ``count`` bytes and wait; host sides may be addresses or buffers."""
    return _copy(dst, destMax, src, count, kind, 0, wait=True)


@runtime_status
def aclrtMemcpyAsync(
    dst: HostBuffer, destMax: int, src: HostBuffer, count: int, kind: int, stream: Any
) -> Status:
    """Copy ``count`` bytes in the order of a stream."""
    return _copy(dst, destMax, src, count, kind, stream_number(stream), wait=False)


@runtime_status
def aclrtMemset(devPtr: Pointer, maxCount: int, value: int, count: int) -> Status:
    """Set ``count`` bytes of device memory."""
    nbytes = _count(count, "maxCount", maxCount)
    if nbytes == 0:
        return ACL_SUCCESS
    address = _device_side("devPtr", devPtr, nbytes)
    place = current_memory()
    place.fill(address, whole(BAD_PARAM, "value", value), nbytes, 0)
    place.synchronize(0)
    return ACL_SUCCESS


def _copy(
    dst: HostBuffer, dest_max: int, src: HostBuffer, count: int, kind: int, stream: int, wait: bool
) -> Status:
    nbytes = _count(count, "destMax", dest_max)
    if nbytes == 0:  # whatever the pointers and the kind are
        return ACL_SUCCESS
    kind = one_of(BAD_PARAM, "kind", kind, aclrtMemcpyKind)
    target = (
        _host_side("dst", dst, nbytes, written=True)
        if kind in HOST_TARGET
        else _device_side("dst", dst, nbytes)
    )
    source = (
        _host_side("src", src, nbytes, written=False)
        if kind in HOST_SOURCE
        else _device_side("src", src, nbytes)
    )
    place = current_memory()
    place.copy(target, source, nbytes, kind, stream)
    if wait:
        place.synchronize(stream)
    return ACL_SUCCESS


def _free(table: memory.Allocations, name: str, pointer: Any, freer: str) -> Status:
    address = not_null(BAD_PARAM, name, pointer)
    try:
        table.release(address, freer)
    except OwnershipError as fault:
        fail(BAD_PARAM, f"{name} must be live memory of {table.space}: {fault}")
    return ACL_SUCCESS


def _device_side(name: str, pointer: Any, nbytes: int) -> int:
    address = not_null(BAD_PARAM, name, pointer)
    if memory.checked:
        place = current_memory().device
        _require(memory.DEVICE, name, address, nbytes, place, foreign=False)
    return address


def _host_side(name: str, buffer: HostBuffer, nbytes: int, *, written: bool) -> int:
    if buffer is None or isinstance(buffer, INTEGERS):
        address = not_null(BAD_PARAM, name, buffer)
        if memory.checked:
            # Host addresses may be anybody's; those that we know must hold.
            _require(memory.HOST, name, address, nbytes, "cpu", foreign=True)
            if memory.DEVICE.find(address) is not None:
                fail(BAD_PARAM, f"{name} must be host memory as kind says, got device memory")
            try:  # nor may it have been device memory, or go on into some
                memory.DEVICE.require(address, address + nbytes, "cpu", foreign=True)
            except OwnershipError as fault:
                fail(BAD_PARAM, f"{name} must be host memory as kind says: {fault}")
        return address
    try:
        return memory.host_address(name, buffer, nbytes, written=written)
    except OwnershipError as error:
        fail(BAD_PARAM, str(error))


def _require(
    table: memory.Allocations, name: str, address: int, nbytes: int, place: str, *, foreign: bool
) -> None:
    try:
        table.require(address, address + nbytes, place, foreign=foreign)
    except OwnershipError as fault:
        fail(BAD_PARAM, f"{name} must have {nbytes} bytes of live {table.space} memory: {fault}")


def _size(name: str, value: Any) -> int:
    if not isinstance(value, INTEGERS) or value <= 0:
        fail(BAD_PARAM, f"{name} must be a positive number of bytes, got {value!r}")
    return int(value)


def _count(count: Any, limit_name: str, limit: Any) -> int:
    nbytes, most = byte_count(BAD_PARAM, "count", count), byte_count(BAD_PARAM, limit_name, limit)
    if nbytes > most:
        fail(BAD_PARAM, f"count must not exceed {limit_name}, {most}, got {nbytes}")
    return nbytes
