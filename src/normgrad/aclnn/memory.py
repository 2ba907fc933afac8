"""The runtime's memory functions, over allocations that have an owner."""

from typing import Any, Final

from normgrad.aclnn.constants import (
    ACL_MEM_ACCESS_USER_SPACE_READONLY,
    ACL_MEM_MALLOC_HUGE1G_ONLY_P2P,
    ACL_MEM_MALLOC_HUGE_FIRST,
    ACL_MEM_TYPE_HIGH_BAND_WIDTH,
    ACL_MEM_TYPE_LOW_BAND_WIDTH,
    ACL_MEMCPY_DEFAULT,
    ACL_MEMCPY_DEVICE_TO_DEVICE,
    ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE,
    ACL_MEMCPY_HOST_TO_DEVICE,
    ACL_MEMCPY_INNER_DEVICE_TO_DEVICE,
    ACL_MEMCPY_INTER_DEVICE_TO_DEVICE,
    aclrtMemAttr,
    aclrtMemcpyKind,
)
from normgrad.aclnn.runtime import current_memory
from normgrad.aclnn.status import (
    ACL_SUCCESS,
    BAD_PARAM,
    RUNTIME_CODES,
    Status,
    fail,
    reports,
    runtime_status,
)
from normgrad.aclnn.streams import stream_number
from normgrad.device import HOST_SOURCE, HOST_TARGET, memory, memory_of
from normgrad.device.failures import INTEGERS, byte_count, not_null, one_of, whole
from normgrad.device.memory import OwnershipError

Pointer = int | None
# Where host memory may come from: an address, bytes, a bytearray, a NumPy array, ...
HostBuffer = Any
PointerAnswer = tuple[Status, int]
SizesAnswer = tuple[Status, int, int]

# What may stand beside a policy of page sizes, added to it.
_POLICY_FLAGS: Final = (
    ACL_MEM_TYPE_LOW_BAND_WIDTH | ACL_MEM_TYPE_HIGH_BAND_WIDTH | ACL_MEM_ACCESS_USER_SPACE_READONLY
)
# Kinds that differ on the accelerator only.
_ALIKE: Final[dict[int, int]] = {
    ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE: ACL_MEMCPY_HOST_TO_DEVICE,
    ACL_MEMCPY_INNER_DEVICE_TO_DEVICE: ACL_MEMCPY_DEVICE_TO_DEVICE,
    ACL_MEMCPY_INTER_DEVICE_TO_DEVICE: ACL_MEMCPY_DEVICE_TO_DEVICE,
}


def _no_pointer(status: Status) -> PointerAnswer:
    return status, 0


def _no_sizes(status: Status) -> SizesAnswer:
    return status, 0, 0


@reports(*RUNTIME_CODES, _no_pointer)
def aclrtMalloc(size: int, policy: int = ACL_MEM_MALLOC_HUGE_FIRST) -> PointerAnswer:
    """New device memory, which has an owner: misuse of it is told (see ``memory.checked``).

    Args:
        size: In bytes, at least 1.
        policy: Values of ``aclrtMemMallocPolicy``; the memory is the same for all of them.

    Returns:
        0 and an address at a multiple of 64; 100000 for an argument that cannot be used, 107002
        where no device is set, 200000 for want of memory, each with address 0.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, pointer = aclnn.aclrtMalloc(64)
        >>> aclnn.aclrtFree(pointer)
        <Status.ACL_SUCCESS: 0>
    """
    nbytes = _size("size", size)
    pages = whole(BAD_PARAM, "policy", policy) & ~_POLICY_FLAGS
    if not 0 <= pages <= ACL_MEM_MALLOC_HUGE1G_ONLY_P2P:
        fail(BAD_PARAM, f"policy must be made of values of aclrtMemMallocPolicy, got {policy!r}")
    place = current_memory()
    owner, address = place.allocate(nbytes)
    memory.DEVICE.add(address, nbytes, owner, "aclrtMalloc", place.device)
    return ACL_SUCCESS, address


@runtime_status
def aclrtFree(devPtr: Pointer) -> Status:
    """Free device memory, by the very pointer that ``aclrtMalloc`` gave.

    Args:
        devPtr: The address.

    Returns:
        0; 100000 for null, for memory that was freed before, and for any other address.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, pointer = aclnn.aclrtMalloc(64)
        >>> [int(aclnn.aclrtFree(pointer)) for _ in range(2)]
        [0, 100000]
    """
    return _free(memory.DEVICE, "devPtr", devPtr, "aclrtFree")


@reports(*RUNTIME_CODES, _no_pointer)
def aclrtMallocHost(size: int) -> PointerAnswer:
    """New host memory.

    Args:
        size: In bytes, at least 1.

    Returns:
        0 and an address; 100000 for another size, 200000 for want of memory, with address 0.

    Example:
        >>> status, pointer = aclnn.aclrtMallocHost(64)
        >>> aclnn.aclrtFreeHost(pointer)
        <Status.ACL_SUCCESS: 0>
    """
    nbytes = _size("size", size)
    owner, address = memory_of("cpu").allocate(nbytes)
    memory.HOST.add(address, nbytes, owner, "aclrtMallocHost")
    return ACL_SUCCESS, address


@runtime_status
def aclrtFreeHost(hostPtr: Pointer) -> Status:
    """Free host memory, by the very pointer that ``aclrtMallocHost`` gave.

    Args:
        hostPtr: The address.

    Returns:
        0; 100000 for null, for memory that was freed before, and for any other address.

    Example:
        >>> status, pointer = aclnn.aclrtMallocHost(64)
        >>> aclnn.aclrtFreeHost(pointer)
        <Status.ACL_SUCCESS: 0>
    """
    return _free(memory.HOST, "hostPtr", hostPtr, "aclrtFreeHost")


@runtime_status
def aclrtMemcpy(dst: HostBuffer, destMax: int, src: HostBuffer, count: int, kind: int) -> Status:
    """Copy bytes, and wait for it.

    Args:
        dst: Where to: an address, or for host memory a buffer (a bytearray, a NumPy array).
        destMax: How many bytes there are at ``dst``.
        src: Where from: an address, or for host memory a buffer.
        count: How many bytes to copy; 0 is success, whatever the others are.
        kind: Which side is whose, a value of ``aclrtMemcpyKind``. With ``ACL_MEMCPY_DEFAULT``
            memory of ``aclrtMalloc`` is the device's, all else the host's.

    Returns:
        0; 100000 for null, a count above ``destMax``, an unknown kind, and memory that is freed,
        too small or on the other side; 107002 where no device is set.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, pointer = aclnn.aclrtMalloc(8)
        >>> here, back = np.array([1.0]), np.empty(1)
        >>> status = aclnn.aclrtMemcpy(pointer, 8, here, 8, aclnn.ACL_MEMCPY_HOST_TO_DEVICE)
        >>> status = aclnn.aclrtMemcpy(back, 8, pointer, 8, aclnn.ACL_MEMCPY_DEVICE_TO_HOST)
        >>> back
        array([1.])
        >>> status = aclnn.aclrtFree(pointer)
    """
    return _copy(dst, destMax, src, count, kind, 0, wait=True)


@runtime_status
def aclrtMemcpyAsync(
    dst: HostBuffer, destMax: int, src: HostBuffer, count: int, kind: int, stream: Any
) -> Status:
    """Copy bytes in the order of a stream.

    Args:
        dst: As in ``aclrtMemcpy``; host buffers must live until the copy is done.
        destMax: How many bytes there are at ``dst``.
        src: As in ``aclrtMemcpy``.
        count: How many bytes to copy.
        kind: A value of ``aclrtMemcpyKind``.
        stream: Of ``aclrtCreateStream``, or null for the default stream.

    Returns:
        As ``aclrtMemcpy``; 107003 for a destroyed stream or none of ours.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> back, kind = bytearray(4), aclnn.ACL_MEMCPY_HOST_TO_HOST
        >>> status = aclnn.aclrtMemcpyAsync(back, 4, b"abcd", 4, kind, None)
        >>> status = aclnn.aclrtSynchronizeStream(None)
        >>> back
        bytearray(b'abcd')
    """
    return _copy(dst, destMax, src, count, kind, stream_number(stream), wait=False)


@runtime_status
def aclrtMemset(devPtr: Pointer, maxCount: int, value: int, count: int) -> Status:
    """Set bytes of device memory, and wait for it.

    Args:
        devPtr: The address.
        maxCount: How many bytes there are.
        value: What each byte becomes, of which the lowest eight bits count.
        count: How many bytes to set; 0 is success, whatever the others are.

    Returns:
        0; 100000 for null, a count above ``maxCount``, and memory that is freed or too small;
        107002 where no device is set.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, pointer = aclnn.aclrtMalloc(8)
        >>> aclnn.aclrtMemset(pointer, 8, 0, 8)
        <Status.ACL_SUCCESS: 0>
        >>> status = aclnn.aclrtFree(pointer)
    """
    return _fill(devPtr, maxCount, value, count, 0, wait=True)


@runtime_status
def aclrtMemsetAsync(devPtr: Pointer, maxCount: int, value: int, count: int, stream: Any) -> Status:
    """Set bytes of device memory in the order of a stream.

    Args:
        devPtr: The address.
        maxCount: How many bytes there are.
        value: What each byte becomes, of which the lowest eight bits count.
        count: How many bytes to set; 0 is success, whatever the others are.
        stream: Of ``aclrtCreateStream``, or null for the default stream.

    Returns:
        As ``aclrtMemset``; 107003 for a destroyed stream or none of ours.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, pointer = aclnn.aclrtMalloc(8)
        >>> aclnn.aclrtMemsetAsync(pointer, 8, 0, 8, None)
        <Status.ACL_SUCCESS: 0>
        >>> status = aclnn.aclrtFree(pointer)
    """
    return _fill(devPtr, maxCount, value, count, stream_number(stream), wait=False)


@reports(*RUNTIME_CODES, _no_sizes)
def aclrtGetMemInfo(attr: int) -> SizesAnswer:
    """How much memory the calling thread's device has.

    Args:
        attr: A value of ``aclrtMemAttr``; the answer is the same for all of them.

    Returns:
        0, the free bytes and all bytes; 100000 and zeros for another kind, 107002 where no
        device is set.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, free, total = aclnn.aclrtGetMemInfo(aclnn.ACL_HBM_MEM)
        >>> 0 < free <= total
        True
    """
    one_of(BAD_PARAM, "attr", attr, aclrtMemAttr)
    return ACL_SUCCESS, *current_memory().room()


def _fill(
    pointer: Pointer, most: int, value: int, count: int, stream: int, *, wait: bool
) -> Status:
    nbytes = _count(count, "maxCount", most)
    if nbytes == 0:
        return ACL_SUCCESS
    address = _device_side("devPtr", pointer, nbytes)
    place = current_memory()
    place.fill(address, whole(BAD_PARAM, "value", value), nbytes, stream)
    if wait:
        place.synchronize(stream)
    return ACL_SUCCESS


def _copy(
    dst: HostBuffer, dest_max: int, src: HostBuffer, count: int, kind: int, stream: int, wait: bool
) -> Status:
    nbytes = _count(count, "destMax", dest_max)
    if nbytes == 0:  # whatever the pointers and the kind are
        return ACL_SUCCESS
    kind = one_of(BAD_PARAM, "kind", kind, aclrtMemcpyKind)
    if kind == ACL_MEMCPY_DEFAULT:
        kind = 2 * _is_ours(src) + _is_ours(dst)  # from host 0, to device 1, from device 2 and on
    kind = _ALIKE.get(kind, kind)
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


def _is_ours(side: HostBuffer) -> bool:
    """Whether memory of the device, ours, lies there; what nobody told us is the host's."""
    return isinstance(side, INTEGERS) and memory.DEVICE.find(int(side)) is not None


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
