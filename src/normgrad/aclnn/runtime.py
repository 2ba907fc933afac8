"""The runtime subset: start and end, devices, contexts, streams and settings."""

import threading
from collections import Counter
from typing import Any

from normgrad import device
from normgrad.aclnn import products
from normgrad.aclnn.constants import ACL_OPT_DETERMINISTIC
from normgrad.aclnn.status import (
    ACL_SUCCESS,
    BAD_PARAM,
    RUNTIME_CODES,
    Status,
    fail,
    reports,
    runtime_status,
)
from normgrad.device.failures import INTEGERS, described, is_null

_DETERMINISM = range(4)


class aclrtContext:
    """A device as one thread uses it, with its settings."""

    __slots__ = ("alive", "device", "options")

    def __init__(self, device_id: int) -> None:
        self.device = device_id
        self.options: dict[int, int] = {}
        self.alive = True


class aclrtStream:
    """An order of work; ``number`` is what the backends get."""

    __slots__ = ("alive", "number", "owner")

    def __init__(self, owner: object, number: int) -> None:
        self.owner = owner
        self.number = number
        self.alive = True


class _Thread(threading.local):
    context: aclrtContext | None = None


class _Process:
    """What the process has set up. A thread that set no device shares the first one's."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.initialized = False
        self.contexts: dict[int, aclrtContext] = {}  # the default context of each device
        self.users: Counter[int] = Counter()  # of each device: set so many times more than reset


_THREAD = _Thread()
_PROCESS = _Process()

StreamAnswer = tuple[Status, aclrtStream | None]
ContextAnswer = tuple[Status, aclrtContext | None]
NumberAnswer = tuple[Status, int | None]


def _no_stream(status: Status) -> StreamAnswer:
    return status, None


def _no_context(status: Status) -> ContextAnswer:
    return status, None


def _no_number(status: Status) -> NumberAnswer:
    return status, None


@runtime_status
def aclInit(configPath: str | None = None) -> Status:
    """Start; the configuration file is not read."""
    with _PROCESS.lock:
        if _PROCESS.initialized:
            fail(Status.ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before")
        _PROCESS.initialized = True
    return ACL_SUCCESS


@runtime_status
def aclFinalize() -> Status:
    """End; devices stay set until they are reset, memory stays until it is freed."""
    with _PROCESS.lock:
        if not _PROCESS.initialized:
            fail(Status.ACL_ERROR_UNINITIALIZE, "aclInit was not called")
        _PROCESS.initialized = False
    return ACL_SUCCESS


def device_count() -> int:
    """How many devices there are: the host is one, or the GPUs from NORMGRAD_DEVICE's on."""
    device.memory_of(_place(0))  # raises where there is no such device
    first = device.first_gpu()
    return 1 if first is None else device.gpu_count() - first


@runtime_status
def aclrtSetDevice(deviceId: int) -> Status:
    """Make a device the calling thread's. Each call counts, and wants its aclrtResetDevice."""
    number = _known(deviceId)
    with _PROCESS.lock:
        _PROCESS.users[number] += 1
        context = _PROCESS.contexts.setdefault(number, aclrtContext(number))
    _THREAD.context = context
    return ACL_SUCCESS


@runtime_status
def aclrtResetDevice(deviceId: int) -> Status:
    """Take one aclrtSetDevice back; the last one gives the device up.

    Memory that was not freed stays readable until it is.
    """
    number = _known(deviceId)
    with _PROCESS.lock:
        left = _PROCESS.users[number] = max(_PROCESS.users[number] - 1, 0)
        context = None if left else _PROCESS.contexts.pop(number, None)
        if context is not None:
            context.alive = False
    return ACL_SUCCESS


@reports(*RUNTIME_CODES, _no_number)
def aclrtGetDevice() -> NumberAnswer:
    """Status, and the calling thread's device."""
    return ACL_SUCCESS, current_context().device


@reports(*RUNTIME_CODES, _no_number)
def aclrtGetDeviceCount() -> NumberAnswer:
    """Status, and the number of devices."""
    return ACL_SUCCESS, device_count()


@reports(*RUNTIME_CODES, _no_context)
def aclrtCreateContext(deviceId: int) -> ContextAnswer:
    """Status, and a new context, which becomes the calling thread's."""
    number = _known(deviceId)
    context = aclrtContext(number)
    _THREAD.context = context
    return ACL_SUCCESS, context


@runtime_status
def aclrtDestroyContext(context: aclrtContext | None) -> Status:
    """End a context. The next aclrtSetDevice makes a new one where it was the device's own."""
    with _PROCESS.lock:
        ended = _living(context)
        ended.alive = False
        if _PROCESS.contexts.get(ended.device) is ended:
            del _PROCESS.contexts[ended.device]
    return ACL_SUCCESS


@runtime_status
def aclrtSetCurrentContext(context: aclrtContext | None) -> Status:
    """Make a context the calling thread's."""
    _THREAD.context = _living(context)
    return ACL_SUCCESS


@reports(*RUNTIME_CODES, _no_context)
def aclrtGetCurrentContext() -> ContextAnswer:
    """Status, and the calling thread's context."""
    return ACL_SUCCESS, current_context()


@reports(*RUNTIME_CODES, _no_stream)
def aclrtCreateStream() -> StreamAnswer:
    """Status, and a new stream."""
    return ACL_SUCCESS, aclrtStream(*current_memory().new_stream())


@runtime_status
def aclrtDestroyStream(stream: aclrtStream | None) -> Status:
    """End a stream, once its work is done."""
    if is_null(stream):
        fail(BAD_PARAM, "stream must not be null")
    current_memory().synchronize(stream_number(stream))
    assert stream is not None
    stream.alive = False
    stream.owner = None
    return ACL_SUCCESS


@runtime_status
def aclrtSynchronizeStream(stream: aclrtStream | None) -> Status:
    """Wait for a stream's work; null is the default stream."""
    current_memory().synchronize(stream_number(stream))
    return ACL_SUCCESS


@runtime_status
def aclrtSynchronizeDevice() -> Status:
    """Wait for all work."""
    current_memory().synchronize(None)
    return ACL_SUCCESS


def _no_name(status: Status) -> str:
    return ""


@reports(*RUNTIME_CODES, _no_name)
def aclrtGetSocName() -> str:
    """The chip of the product in force."""
    return products.SETTINGS.product.soc


@runtime_status
def aclrtCtxSetSysParamOpt(opt: int, value: int) -> Status:
    """Store a setting of the context. Results are deterministic whatever its value."""
    if opt != ACL_OPT_DETERMINISTIC:
        fail(BAD_PARAM, f"opt must be ACL_OPT_DETERMINISTIC (0), got {opt!r}")
    if value not in _DETERMINISM:
        fail(BAD_PARAM, f"value must be 0 to 3 for ACL_OPT_DETERMINISTIC, got {value!r}")
    current_context().options[int(opt)] = int(value)
    return ACL_SUCCESS


@reports(*RUNTIME_CODES, _no_number)
def aclrtCtxGetSysParamOpt(opt: int) -> NumberAnswer:
    """Status, and a setting of the context; 0 before it was set."""
    if opt != ACL_OPT_DETERMINISTIC:
        fail(BAD_PARAM, f"opt must be ACL_OPT_DETERMINISTIC (0), got {opt!r}")
    return ACL_SUCCESS, current_context().options.get(int(opt), 0)


def current_context() -> aclrtContext:
    """The calling thread's context, else that of the device which the process set first."""
    context = _context()
    if context is None:
        fail(Status.ACL_ERROR_RT_CONTEXT_NULL, "no device is set: call aclrtSetDevice first")
    return context


def _context() -> aclrtContext | None:
    context = _THREAD.context
    if context is not None and context.alive:
        return context
    with _PROCESS.lock:
        return next(iter(_PROCESS.contexts.values()), None)


def current_memory() -> device.Memory:
    """The memory of the calling thread's device."""
    return device.memory_of(_place(current_context().device))


def tensor_device() -> str:
    """Where a tensor over raw memory is taken to be: where the thread's aclrtMalloc gives it."""
    context = _context()
    return _place(0 if context is None else context.device)


def _place(number: int) -> str:
    """A device number as the core calls it; number 0 is the GPU that NORMGRAD_DEVICE names."""
    first = device.first_gpu()
    return device.default_device() if first is None else f"cuda:{first + number}"


def stream_number(stream: Any) -> int:
    """What a backend gets for a stream; null is the default stream, 0."""
    if is_null(stream):
        return 0
    if type(stream) is not aclrtStream or not stream.alive:
        fail(Status.ACL_ERROR_RT_STREAM_CONTEXT, f"stream must be alive, got {_describe(stream)}")
    number: int = stream.number
    return number


def _describe(stream: Any) -> str:
    if type(stream) is aclrtStream:
        return "one that was destroyed"
    return described(stream)


def _known(device_id: Any) -> int:
    count = device_count()
    if not isinstance(device_id, INTEGERS) or not 0 <= device_id < count:
        rule = f"deviceId must be 0 to {count - 1}, got {device_id!r}"
        fail(Status.ACL_ERROR_RT_INVALID_DEVICEID, rule)
    return int(device_id)


def _living(context: Any) -> aclrtContext:
    if is_null(context):
        fail(BAD_PARAM, "context must not be null")
    if type(context) is not aclrtContext or not context.alive:
        fail(Status.ACL_ERROR_RT_CONTEXT_NULL, "context must be one that was not destroyed")
    found: aclrtContext = context
    return found
