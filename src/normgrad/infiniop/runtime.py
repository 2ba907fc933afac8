"""The infinirt subset: devices, streams, memory."""

import threading
from typing import Any

from normgrad import device
from normgrad.device import HOST_SOURCE, HOST_TARGET, memory
from normgrad.device.failures import INTEGERS, byte_count, described, is_null, one_of, whole
from normgrad.device.memory import OwnershipError
from normgrad.infiniop.constants import INFINI_DEVICE_CPU, infiniDevice_t, infinirtMemcpyKind_t
from normgrad.infiniop.status import (
    BAD_PARAM,
    NO_DEVICE,
    NULL_POINTER,
    SUCCESS,
    UNSUPPORTED_DEVICE,
    Status,
    fail,
    reports,
    status_only,
)


class infinirtStream_t:
    """An order of work; ``number`` is what the backends get."""

    __slots__ = ("alive", "device", "number", "owner")

    def __init__(self, where: str, owner: object, number: int) -> None:
        self.device = where
        self.owner = owner
        self.number = number
        self.alive = True


class _Thread(threading.local):
    device = int(INFINI_DEVICE_CPU)
    device_id = 0


_THREAD = _Thread()
DeviceAnswer = tuple[Status, int | None, int | None]
NumberAnswer = tuple[Status, int]
StreamAnswer = tuple[Status, infinirtStream_t | None]


def _no_device(status: Status) -> DeviceAnswer:
    return status, None, None


def _no_number(status: Status) -> NumberAnswer:
    return status, 0


def _no_stream(status: Status) -> StreamAnswer:
    return status, None


@status_only
def infinirtInit() -> Status:
    """Nothing needs to be set up; calling it again is fine."""
    return SUCCESS


def device_count(kind: int) -> int:
    """How many devices of a kind there are: the host is one."""
    if not isinstance(kind, INTEGERS) or kind not in tuple(infiniDevice_t):
        fail(UNSUPPORTED_DEVICE, f"device must be CPU (0) or NVIDIA (1), got {kind!r}")
    return 1 if kind == INFINI_DEVICE_CPU else device.gpu_count()


@status_only
def infinirtSetDevice(device: int, device_id: int) -> Status:
    """Make a device the calling thread's."""
    count = device_count(device)
    if not isinstance(device_id, INTEGERS) or not 0 <= device_id < count:
        name = infiniDevice_t(int(device)).name
        fail(NO_DEVICE, f"device_id must be one of {count} of {name}, got {device_id!r}")
    _THREAD.device = int(device)
    _THREAD.device_id = int(device_id)
    return SUCCESS


@reports(_no_device)
def infinirtGetDevice() -> DeviceAnswer:
    """Status, and the calling thread's device: kind and number."""
    return SUCCESS, infiniDevice_t(_THREAD.device), _THREAD.device_id


@reports(_no_number)
def infinirtGetDeviceCount(device: int) -> NumberAnswer:
    """Status, and the number of devices of a kind."""
    return SUCCESS, device_count(device)


@status_only
def infinirtDeviceSynchronize() -> Status:
    """Wait for all work of the calling thread's device."""
    current_memory().synchronize(None)
    return SUCCESS


@reports(_no_stream)
def infinirtStreamCreate() -> StreamAnswer:
    """Status, and a new stream on the calling thread's device."""
    place = current_memory()
    return SUCCESS, infinirtStream_t(place.device, *place.new_stream())


@status_only
def infinirtStreamDestroy(stream: Any) -> Status:
    """End a stream of ours, once its work is done. Null, the default stream, is success."""
    if is_null(stream):
        return SUCCESS
    number = stream_number(stream)
    if type(stream) is not infinirtStream_t:
        fail(BAD_PARAM, f"stream must come from infinirtStreamCreate, got address {number:#x}")
    device.memory_of(stream.device).synchronize(number)
    stream.alive = False
    stream.owner = None
    return SUCCESS


@status_only
def infinirtStreamSynchronize(stream: Any) -> Status:
    """Wait for a stream's work; null and others' streams are the calling thread's device's."""
    number = stream_number(stream)
    ours = type(stream) is infinirtStream_t
    place = device.memory_of(stream.device) if ours else current_memory()
    place.synchronize(number)
    return SUCCESS


@reports(_no_number)
def infinirtMalloc(size: int) -> NumberAnswer:
    """Status, and the address of new memory; 0 for no bytes."""
    nbytes = byte_count(BAD_PARAM, "size", size)
    if nbytes == 0:
        return SUCCESS, 0
    place = current_memory()
    owner, address = place.allocate(nbytes)
    memory.DEVICE.add(address, nbytes, owner, "infinirtMalloc", place.device)
    return SUCCESS, address


@status_only
def infinirtFree(ptr: int | None) -> Status:
    """Free memory, by the very pointer that infinirtMalloc gave. Null is success."""
    if is_null(ptr):
        return SUCCESS
    try:
        memory.DEVICE.release(whole(BAD_PARAM, "ptr", ptr), "infinirtFree")
    except OwnershipError as fault:
        fail(BAD_PARAM, f"ptr must be live device memory: {fault}")
    return SUCCESS


@status_only
def infinirtMemcpy(dst: Any, src: Any, size: int, kind: int) -> Status:
    """Copy bytes and wait; host sides may be addresses or buffers."""
    return _copy(dst, src, size, kind, 0, wait=True)


@status_only
def infinirtMemcpyAsync(dst: Any, src: Any, size: int, kind: int, stream: Any) -> Status:
    """Copy bytes in the order of a stream."""
    return _copy(dst, src, size, kind, stream_number(stream), wait=False)


def current_device() -> tuple[int, int]:
    """The calling thread's device: kind and number."""
    return _THREAD.device, _THREAD.device_id


def core_device(kind: int, device_id: int) -> str:
    """A device as the core calls it."""
    return "cpu" if kind == INFINI_DEVICE_CPU else f"cuda:{device_id}"


def current_memory() -> device.Memory:
    """The memory of the calling thread's device."""
    return device.memory_of(core_device(*current_device()))


def stream_number(stream: Any) -> int:
    """What a backend gets for a stream: one of ours, null, or a CUDA stream by its address."""
    if is_null(stream):
        return 0
    if type(stream) is infinirtStream_t:
        if not stream.alive:
            fail(BAD_PARAM, "stream must be alive, got one that was destroyed")
        number: int = stream.number
        return number
    if not isinstance(stream, INTEGERS):
        fail(BAD_PARAM, f"stream must be one of ours or an address, got {described(stream)}")
    return int(stream)


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
