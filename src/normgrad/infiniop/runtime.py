"""The infinirt subset: devices and streams."""

import threading
from typing import Any

from normgrad import device
from normgrad.device.failures import INTEGERS, described, is_null
from normgrad.infiniop.constants import (
    INFINI_DEVICE_CPU,
    INFINI_DEVICE_TYPE_COUNT,
    infiniDevice_t,
)
from normgrad.infiniop.status import (
    BAD_PARAM,
    NO_DEVICE,
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
CountsAnswer = tuple[Status, tuple[int, ...]]
StreamAnswer = tuple[Status, infinirtStream_t | None]


def _no_device(status: Status) -> DeviceAnswer:
    return status, None, None


def _no_number(status: Status) -> NumberAnswer:
    return status, 0


def _no_counts(status: Status) -> CountsAnswer:
    return status, ()


def _no_stream(status: Status) -> StreamAnswer:
    return status, None


@status_only
def infinirtInit() -> Status:
    """Nothing needs to be set up; calling it again is fine.

    Returns:
        0.

    Example:
        >>> int(infiniop.infinirtInit())
        0
    """
    return SUCCESS


def device_count(kind: int) -> int:
    """How many devices of a kind there are: the host is one."""
    if not isinstance(kind, INTEGERS) or kind not in tuple(infiniDevice_t):
        fail(UNSUPPORTED_DEVICE, f"device must be CPU (0) or NVIDIA (1), got {kind!r}")
    return 1 if kind == INFINI_DEVICE_CPU else device.gpu_count()


@status_only
def infinirtSetDevice(device: int, device_id: int) -> Status:
    """Make a device the calling thread's; CPU 0 is at first.

    Args:
        device: ``INFINI_DEVICE_CPU`` or ``INFINI_DEVICE_NVIDIA``.
        device_id: From 0.

    Returns:
        0; 5 for another kind, 6 where there is no device of that number.

    Example:
        >>> int(infiniop.infinirtSetDevice(infiniop.INFINI_DEVICE_CPU, 0))
        0
    """
    count = device_count(device)
    if not isinstance(device_id, INTEGERS) or not 0 <= device_id < count:
        name = infiniDevice_t(int(device)).name
        fail(NO_DEVICE, f"device_id must be one of {count} of {name}, got {device_id!r}")
    _THREAD.device = int(device)
    _THREAD.device_id = int(device_id)
    return SUCCESS


@reports(_no_device)
def infinirtGetDevice() -> DeviceAnswer:
    """The calling thread's device.

    Returns:
        0, its kind and its number.

    Example:
        >>> status, kind, number = infiniop.infinirtGetDevice()
        >>> kind, number
        (<infiniDevice_t.INFINI_DEVICE_CPU: 0>, 0)
    """
    return SUCCESS, infiniDevice_t(_THREAD.device), _THREAD.device_id


@reports(_no_number)
def infinirtGetDeviceCount(device: int) -> NumberAnswer:
    """How many devices of a kind there are; the host is one.

    Args:
        device: ``INFINI_DEVICE_CPU`` or ``INFINI_DEVICE_NVIDIA``.

    Returns:
        0 and the number; 5 and 0 for another kind.

    Example:
        >>> infiniop.infinirtGetDeviceCount(infiniop.INFINI_DEVICE_CPU)[1]
        1
    """
    return SUCCESS, device_count(device)


@reports(_no_counts)
def infinirtGetAllDeviceCount() -> CountsAnswer:
    """How many devices of each kind there are.

    Returns:
        0 and ``INFINI_DEVICE_TYPE_COUNT`` numbers, by the kind's value; those of kinds that are
        not ours are 0.

    Example:
        >>> status, counts = infiniop.infinirtGetAllDeviceCount()
        >>> counts[infiniop.INFINI_DEVICE_CPU], len(counts)
        (1, 9)
    """
    counts = [0] * INFINI_DEVICE_TYPE_COUNT
    for kind in infiniDevice_t:
        counts[kind] = device_count(kind)
    return SUCCESS, tuple(counts)


@status_only
def infinirtDeviceSynchronize() -> Status:
    """Wait for all work of the calling thread's device.

    Returns:
        0; 1 for a failure of the device.

    Example:
        >>> int(infiniop.infinirtDeviceSynchronize())
        0
    """
    current_memory().synchronize(None)
    return SUCCESS


@reports(_no_stream)
def infinirtStreamCreate() -> StreamAnswer:
    """A new stream on the calling thread's device.

    Returns:
        0 and an ``infinirtStream_t``.

    Example:
        >>> status, stream = infiniop.infinirtStreamCreate()
        >>> int(infiniop.infinirtStreamDestroy(stream))
        0
    """
    place = current_memory()
    return SUCCESS, infinirtStream_t(place.device, *place.new_stream())


@status_only
def infinirtStreamDestroy(stream: Any) -> Status:
    """End a stream of ours, once its work is done.

    Args:
        stream: Of ``infinirtStreamCreate``; null, the default stream, is success.

    Returns:
        0; 3 for a destroyed stream or none of ours.

    Example:
        >>> int(infiniop.infinirtStreamDestroy(None))
        0
    """
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
    """Wait for a stream's work.

    Args:
        stream: Of ``infinirtStreamCreate``; null and the address of a CUDA stream are the calling
            thread's device's.

    Returns:
        0; 3 for a destroyed stream.

    Example:
        >>> int(infiniop.infinirtStreamSynchronize(None))
        0
    """
    number = stream_number(stream)
    ours = type(stream) is infinirtStream_t
    place = device.memory_of(stream.device) if ours else current_memory()
    place.synchronize(number)
    return SUCCESS


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
