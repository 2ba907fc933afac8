"""Streams: orders of work, and waiting for it."""

import time
from typing import Any, Final

from normgrad.aclnn.runtime import aclrtContext, current_context, current_memory
from normgrad.aclnn.status import (
    ACL_SUCCESS,
    BAD_PARAM,
    RUNTIME_CODES,
    Status,
    fail,
    reports,
    runtime_status,
)
from normgrad.device.failures import described, is_null, whole

_GLANCE: Final = 50e-6  # seconds between two looks at a stream


class aclrtStream:
    """An order of work; ``number`` is what the backends get. It ends with its context."""

    __slots__ = ("alive", "context", "number", "owner")

    def __init__(self, owner: object, number: int, context: aclrtContext | None = None) -> None:
        self.owner = owner
        self.number = number
        self.context = context
        self.alive = True

    @property
    def orphaned(self) -> bool:
        """Whether its context was destroyed, or its device reset."""
        return self.context is not None and not self.context.alive


StreamAnswer = tuple[Status, aclrtStream | None]


def _no_stream(status: Status) -> StreamAnswer:
    return status, None


@reports(*RUNTIME_CODES, _no_stream)
def aclrtCreateStream() -> StreamAnswer:
    """A new stream: an order of work on the calling thread's device.

    Returns:
        0 and an ``aclrtStream``; 107002 and None where no device is set.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, stream = aclnn.aclrtCreateStream()
        >>> aclnn.aclrtDestroyStream(stream)
        <Status.ACL_SUCCESS: 0>
    """
    context = current_context()
    return ACL_SUCCESS, aclrtStream(*current_memory().new_stream(), context)


@runtime_status
def aclrtDestroyStream(stream: aclrtStream | None) -> Status:
    """End a stream, once its work is done.

    Args:
        stream: Of ``aclrtCreateStream``.

    Returns:
        0; 100000 for null, 107003 for a destroyed stream or none of ours.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, stream = aclnn.aclrtCreateStream()
        >>> aclnn.aclrtDestroyStream(stream)
        <Status.ACL_SUCCESS: 0>
    """
    if is_null(stream):
        fail(BAD_PARAM, "stream must not be null")
    current_memory().synchronize(stream_number(stream))
    assert stream is not None
    stream.alive = False
    stream.owner = None
    return ACL_SUCCESS


@runtime_status
def aclrtSynchronizeStream(stream: aclrtStream | None) -> Status:
    """Wait for a stream's work.

    Args:
        stream: Of ``aclrtCreateStream``, or null for the default stream.

    Returns:
        0; 107002 where no device is set, 107003 for a destroyed stream or none of ours.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> aclnn.aclrtSynchronizeStream(None)
        <Status.ACL_SUCCESS: 0>
    """
    current_memory().synchronize(stream_number(stream))
    return ACL_SUCCESS


@runtime_status
def aclrtSynchronizeStreamWithTimeout(stream: aclrtStream | None, timeout: int) -> Status:
    """Wait for a stream's work, but not for ever.

    Args:
        stream: Of ``aclrtCreateStream``, or null for the default stream.
        timeout: Milliseconds; -1 for no limit.

    Returns:
        0; 507046 where work is left when the time is over, 100000 for another timeout, 107002 where
        no device is set, 107003 for a destroyed stream or none of ours.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> aclnn.aclrtSynchronizeStreamWithTimeout(None, 1000)
        <Status.ACL_SUCCESS: 0>
    """
    limit = whole(BAD_PARAM, "timeout", timeout)
    if limit < -1:
        fail(BAD_PARAM, f"timeout must be -1 or a number of milliseconds, got {limit}")
    place, number = current_memory(), stream_number(stream)
    if limit < 0:
        place.synchronize(number)
        return ACL_SUCCESS
    end = time.monotonic() + limit / 1000
    while not place.finished(number):
        if time.monotonic() >= end:
            rule = f"the stream still had work after {limit} ms"
            fail(Status.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, rule)
        time.sleep(_GLANCE)
    return ACL_SUCCESS


@runtime_status
def aclrtSynchronizeDevice() -> Status:
    """Wait for all work of the calling thread's device.

    Returns:
        0; 107002 where no device is set.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> aclnn.aclrtSynchronizeDevice()
        <Status.ACL_SUCCESS: 0>
    """
    current_memory().synchronize(None)
    return ACL_SUCCESS


def stream_number(stream: Any) -> int:
    """What a backend gets for a stream; null is the default stream, 0."""
    if is_null(stream):
        return 0
    if type(stream) is not aclrtStream or not stream.alive or stream.orphaned:
        fail(Status.ACL_ERROR_RT_STREAM_CONTEXT, f"stream must be alive, got {_describe(stream)}")
    number: int = stream.number
    return number


def _describe(stream: Any) -> str:
    if type(stream) is aclrtStream:
        return "one that was destroyed" if not stream.alive else "one whose context has ended"
    return described(stream)
