"""The runtime subset: start and end, devices, contexts and settings."""

import threading
from collections import Counter
from typing import Any

from normgrad import device
from normgrad.aclnn import products
from normgrad.aclnn.constants import ACL_HOST, ACL_OPT_DETERMINISTIC
from normgrad.aclnn.status import (
    ACL_SUCCESS,
    BAD_PARAM,
    RUNTIME_CODES,
    Status,
    fail,
    reports,
    runtime_status,
)
from normgrad.device.failures import INTEGERS, is_null

_DETERMINISM = range(4)


class aclrtContext:
    """A device as one thread uses it, with its settings."""

    __slots__ = ("alive", "device", "options")

    def __init__(self, device_id: int) -> None:
        self.device = device_id
        self.options: dict[int, int] = {}
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

ContextAnswer = tuple[Status, aclrtContext | None]
NumberAnswer = tuple[Status, int | None]


def _no_context(status: Status) -> ContextAnswer:
    return status, None


def _no_number(status: Status) -> NumberAnswer:
    return status, None


@runtime_status
def aclInit(configPath: str | None = None) -> Status:
    """Start the runtime. Nothing else depends on it; it takes turns with ``aclFinalize``.

    Args:
        configPath: The file is not read.

    Returns:
        0; 100002 where it is started already.

    Example:
        >>> aclnn.aclInit(None)
        <Status.ACL_SUCCESS: 0>
        >>> aclnn.aclFinalize()
        <Status.ACL_SUCCESS: 0>
    """
    with _PROCESS.lock:
        if _PROCESS.initialized:
            fail(Status.ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before")
        _PROCESS.initialized = True
    return ACL_SUCCESS


@runtime_status
def aclFinalize() -> Status:
    """End the runtime. Devices stay set until they are reset, memory stays until it is freed.

    Returns:
        0; 100001 where it was not started.

    Example:
        >>> aclnn.aclFinalize()  # without aclInit
        <Status.ACL_ERROR_UNINITIALIZE: 100001>
    """
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
    """Make a device the calling thread's. Each call counts, and wants its ``aclrtResetDevice``.

    Args:
        deviceId: From 0; the host is 0, or with ``NORMGRAD_DEVICE=cuda:N`` GPU N is.

    Returns:
        0; 107001 where there is no device of that number.

    Example:
        >>> aclnn.aclrtSetDevice(0)
        <Status.ACL_SUCCESS: 0>
    """
    number = _known(deviceId)
    with _PROCESS.lock:
        _PROCESS.users[number] += 1
        context = _PROCESS.contexts.setdefault(number, aclrtContext(number))
    _THREAD.context = context
    return ACL_SUCCESS


@runtime_status
def aclrtResetDevice(deviceId: int) -> Status:
    """Take one ``aclrtSetDevice`` back; the last one gives the device up.

    Memory that was not freed stays readable until it is.

    Args:
        deviceId: From 0.

    Returns:
        0, also for a device that nobody set; 107001 where there is no device of that number.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> aclnn.aclrtResetDevice(0)
        <Status.ACL_SUCCESS: 0>
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
    """The calling thread's device, else the one that the process set first.

    Returns:
        0 and the number; 107002 and None where no device is set.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> aclnn.aclrtGetDevice()
        (<Status.ACL_SUCCESS: 0>, 0)
    """
    return ACL_SUCCESS, current_context().device


@reports(*RUNTIME_CODES, _no_number)
def aclrtGetDeviceCount() -> NumberAnswer:
    """How many devices there are: the host is one, or the GPUs from ``NORMGRAD_DEVICE``'s on.

    Returns:
        0 and the number; 500000 and None for a ``NORMGRAD_DEVICE`` that cannot be used.

    Example:
        >>> status, count = aclnn.aclrtGetDeviceCount()
        >>> count > 0
        True
    """
    return ACL_SUCCESS, device_count()


@reports(*RUNTIME_CODES, _no_number)
def aclrtGetRunMode() -> NumberAnswer:
    """Where the program runs: always beside the device, never on it.

    Returns:
        0 and ``ACL_HOST``.

    Example:
        >>> aclnn.aclrtGetRunMode()
        (<Status.ACL_SUCCESS: 0>, <aclrtRunMode.ACL_HOST: 1>)
    """
    return ACL_SUCCESS, ACL_HOST


@reports(*RUNTIME_CODES, _no_context)
def aclrtCreateContext(deviceId: int) -> ContextAnswer:
    """A new context of a device, which becomes the calling thread's.

    Args:
        deviceId: From 0.

    Returns:
        0 and an ``aclrtContext``; 107001 and None where there is no device of that number.

    Example:
        >>> status, context = aclnn.aclrtCreateContext(0)
        >>> aclnn.aclrtDestroyContext(context)
        <Status.ACL_SUCCESS: 0>
    """
    number = _known(deviceId)
    context = aclrtContext(number)
    _THREAD.context = context
    return ACL_SUCCESS, context


@runtime_status
def aclrtDestroyContext(context: aclrtContext | None) -> Status:
    """End a context. The next ``aclrtSetDevice`` makes a new one where it was the device's own.

    Args:
        context: Of ``aclrtCreateContext`` or ``aclrtGetCurrentContext``.

    Returns:
        0; 100000 for null, 107002 for one that was destroyed before.

    Example:
        >>> status, context = aclnn.aclrtCreateContext(0)
        >>> aclnn.aclrtDestroyContext(context)
        <Status.ACL_SUCCESS: 0>
    """
    with _PROCESS.lock:
        ended = _living(context)
        ended.alive = False
        if _PROCESS.contexts.get(ended.device) is ended:
            del _PROCESS.contexts[ended.device]
    return ACL_SUCCESS


@runtime_status
def aclrtSetCurrentContext(context: aclrtContext | None) -> Status:
    """Make a context the calling thread's.

    Args:
        context: Of ``aclrtCreateContext`` or ``aclrtGetCurrentContext``, in any thread.

    Returns:
        0; 100000 for null, 107002 for one that was destroyed.

    Example:
        >>> status, context = aclnn.aclrtCreateContext(0)
        >>> aclnn.aclrtSetCurrentContext(context)
        <Status.ACL_SUCCESS: 0>
    """
    _THREAD.context = _living(context)
    return ACL_SUCCESS


@reports(*RUNTIME_CODES, _no_context)
def aclrtGetCurrentContext() -> ContextAnswer:
    """The calling thread's context, else that of the device which the process set first.

    Returns:
        0 and an ``aclrtContext``; 107002 and None where no device is set.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, context = aclnn.aclrtGetCurrentContext()
        >>> context.device
        0
    """
    return ACL_SUCCESS, current_context()


def _no_name(status: Status) -> str:
    return ""


@reports(*RUNTIME_CODES, _no_name)
def aclrtGetSocName() -> str:
    """The name of the chip of the product in force.

    Returns:
        A string, empty where ``NORMGRAD_PRODUCT`` names none.

    Example:
        >>> aclnn.aclrtGetSocName()
        'Ascend950PR'
    """
    return products.SETTINGS.product.soc


@runtime_status
def aclrtCtxSetSysParamOpt(opt: int, value: int) -> Status:
    """Store a setting of the context. Results are deterministic whatever its value.

    Args:
        opt: ``ACL_OPT_DETERMINISTIC``.
        value: 0 to 3.

    Returns:
        0; 100000 for another setting or value, 107002 where no device is set.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> aclnn.aclrtCtxSetSysParamOpt(aclnn.ACL_OPT_DETERMINISTIC, 1)
        <Status.ACL_SUCCESS: 0>
    """
    if opt != ACL_OPT_DETERMINISTIC:
        fail(BAD_PARAM, f"opt must be ACL_OPT_DETERMINISTIC (0), got {opt!r}")
    if value not in _DETERMINISM:
        fail(BAD_PARAM, f"value must be 0 to 3 for ACL_OPT_DETERMINISTIC, got {value!r}")
    current_context().options[int(opt)] = int(value)
    return ACL_SUCCESS


@reports(*RUNTIME_CODES, _no_number)
def aclrtCtxGetSysParamOpt(opt: int) -> NumberAnswer:
    """A setting of the context; 0 before it was set.

    Args:
        opt: ``ACL_OPT_DETERMINISTIC``.

    Returns:
        0 and the value; 100000 and None for another setting, 107002 where no device is set.

    Example:
        >>> status, context = aclnn.aclrtCreateContext(0)
        >>> aclnn.aclrtCtxGetSysParamOpt(aclnn.ACL_OPT_DETERMINISTIC)
        (<Status.ACL_SUCCESS: 0>, 0)
    """
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
