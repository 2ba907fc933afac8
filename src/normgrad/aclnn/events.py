"""Events: points in the order of a stream's work, to wait for and to measure time between."""

from typing import Any

from normgrad import device
from normgrad.aclnn.constants import (
    ACL_EVENT_CAPTURE_STREAM_PROGRESS,
    ACL_EVENT_RECORDED_STATUS_COMPLETE,
    ACL_EVENT_RECORDED_STATUS_NOT_READY,
    ACL_EVENT_SYNC,
    ACL_EVENT_TIME_LINE,
    aclrtEventRecordedStatus,
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
from normgrad.device.failures import alive, is_null, whole

_FLAGS = ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS | ACL_EVENT_TIME_LINE


class aclrtEvent:
    """A point of a stream's work, once it is recorded."""

    __slots__ = ("alive", "event", "place", "recorded")

    def __init__(self, event: device.Event, place: str) -> None:
        self.event = event
        self.place = place
        self.recorded = False
        self.alive = True


EventAnswer = tuple[Status, aclrtEvent | None]
EventStatusAnswer = tuple[Status, aclrtEventRecordedStatus | None]
TimeAnswer = tuple[Status, float]


def _no_event(status: Status) -> EventAnswer:
    return status, None


def _no_event_status(status: Status) -> EventStatusAnswer:
    return status, None


def _no_time(status: Status) -> TimeAnswer:
    return status, 0.0


@reports(*RUNTIME_CODES, _no_event)
def aclrtCreateEvent() -> EventAnswer:
    """A new event of the calling thread's device, which nothing has recorded yet.

    Returns:
        0 and an ``aclrtEvent``; 107002 and None where no device is set.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, event = aclnn.aclrtCreateEvent()
        >>> aclnn.aclrtDestroyEvent(event)
        <Status.ACL_SUCCESS: 0>
    """
    return ACL_SUCCESS, _new_event()


@reports(*RUNTIME_CODES, _no_event)
def aclrtCreateEventWithFlag(flag: int) -> EventAnswer:
    """A new event; every event can do all that the flags name.

    Args:
        flag: ``ACL_EVENT_SYNC``, ``ACL_EVENT_CAPTURE_STREAM_PROGRESS`` and
            ``ACL_EVENT_TIME_LINE``, one of them or several added.

    Returns:
        0 and an ``aclrtEvent``; 100000 and None for another flag, 107002 where no device is set.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, event = aclnn.aclrtCreateEventWithFlag(aclnn.ACL_EVENT_TIME_LINE)
        >>> aclnn.aclrtDestroyEvent(event)
        <Status.ACL_SUCCESS: 0>
    """
    number = whole(BAD_PARAM, "flag", flag)
    if number < 1 or number & ~_FLAGS:
        fail(BAD_PARAM, f"flag must be made of ACL_EVENT_SYNC and its like, got {number}")
    return ACL_SUCCESS, _new_event()


@runtime_status
def aclrtDestroyEvent(event: aclrtEvent | None) -> Status:
    """End an event. Streams that wait for it go on waiting.

    Args:
        event: Of ``aclrtCreateEvent``.

    Returns:
        0; 100000 for null, a destroyed event or none of ours.

    Example:
        >>> aclnn.aclrtDestroyEvent(None)
        <Status.ACL_ERROR_INVALID_PARAM: 100000>
    """
    _living("event", event).alive = False
    return ACL_SUCCESS


@runtime_status
def aclrtRecordEvent(event: aclrtEvent | None, stream: Any) -> Status:
    """Make an event the point that a stream reaches when its work so far is done.

    Args:
        event: Of ``aclrtCreateEvent``; one that was recorded before is recorded anew.
        stream: Of ``aclrtCreateStream``, or null for the default stream.

    Returns:
        0; 100000 for null, a destroyed event or none of ours; 107003 for a destroyed stream.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, event = aclnn.aclrtCreateEvent()
        >>> aclnn.aclrtRecordEvent(event, None)
        <Status.ACL_SUCCESS: 0>
    """
    recorded = _living("event", event)
    recorded.event.record(stream_number(stream))
    recorded.recorded = True
    return ACL_SUCCESS


@runtime_status
def aclrtResetEvent(event: aclrtEvent | None, stream: Any) -> Status:
    """Make an event as new, once the stream's work is done.

    Args:
        event: Of ``aclrtCreateEvent``.
        stream: Of ``aclrtCreateStream``, or null for the default stream.

    Returns:
        0; 100000 for null, a destroyed event or none of ours; 107003 for a destroyed stream.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, event = aclnn.aclrtCreateEvent()
        >>> aclnn.aclrtResetEvent(event, None)
        <Status.ACL_SUCCESS: 0>
    """
    again = _living("event", event)
    place = device.memory_of(again.place)
    place.synchronize(stream_number(stream))
    again.event = place.new_event()
    again.recorded = False
    return ACL_SUCCESS


@runtime_status
def aclrtSynchronizeEvent(event: aclrtEvent | None) -> Status:
    """Wait until an event is reached; one that nothing has recorded is.

    Args:
        event: Of ``aclrtCreateEvent``.

    Returns:
        0; 100000 for null, a destroyed event or none of ours.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, event = aclnn.aclrtCreateEvent()
        >>> aclnn.aclrtSynchronizeEvent(event)
        <Status.ACL_SUCCESS: 0>
    """
    _living("event", event).event.wait()
    return ACL_SUCCESS


@reports(*RUNTIME_CODES, _no_event_status)
def aclrtQueryEventStatus(event: aclrtEvent | None) -> EventStatusAnswer:
    """Whether an event is recorded and reached.

    Args:
        event: Of ``aclrtCreateEvent``.

    Returns:
        0 and ``ACL_EVENT_RECORDED_STATUS_COMPLETE`` or ``..._NOT_READY``; 100000 and None for
        null, a destroyed event or none of ours.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, event = aclnn.aclrtCreateEvent()
        >>> int(aclnn.aclrtQueryEventStatus(event)[1])
        0
        >>> status = aclnn.aclrtRecordEvent(event, None)
        >>> status = aclnn.aclrtSynchronizeEvent(event)
        >>> int(aclnn.aclrtQueryEventStatus(event)[1])
        1
    """
    asked = _living("event", event)
    reached = asked.recorded and asked.event.finished()
    answer = ACL_EVENT_RECORDED_STATUS_COMPLETE if reached else ACL_EVENT_RECORDED_STATUS_NOT_READY
    return ACL_SUCCESS, answer


@reports(*RUNTIME_CODES, _no_time)
def aclrtEventElapsedTime(startEvent: aclrtEvent | None, endEvent: aclrtEvent | None) -> TimeAnswer:
    """The time between two events that are reached, in milliseconds.

    Args:
        startEvent: Of ``aclrtCreateEvent``.
        endEvent: Of ``aclrtCreateEvent``, on the same device.

    Returns:
        0 and the time, negative where ``endEvent`` came first; 107006 and 0 for an event that is
        not recorded or not reached, 100000 for null, a destroyed event or events of two devices.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> start, end = (aclnn.aclrtCreateEvent()[1] for _ in range(2))
        >>> status = aclnn.aclrtRecordEvent(start, None), aclnn.aclrtRecordEvent(end, None)
        >>> status = aclnn.aclrtSynchronizeStream(None)
        >>> status, milliseconds = aclnn.aclrtEventElapsedTime(start, end)
        >>> milliseconds >= 0
        True
    """
    start, end = _living("startEvent", startEvent), _living("endEvent", endEvent)
    if start.place != end.place:
        fail(BAD_PARAM, f"endEvent must be of {start.place} as startEvent, got {end.place}")
    for name, one in (("startEvent", start), ("endEvent", end)):
        if not (one.recorded and one.event.finished()):
            rule = f"{name} must be recorded, and its stream have come so far"
            fail(Status.ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, rule)
    return ACL_SUCCESS, end.event.milliseconds_since(start.event)


@runtime_status
def aclrtStreamWaitEvent(stream: Any, event: aclrtEvent | None) -> Status:
    """Let a stream's coming work wait for an event; the host does not wait.

    Args:
        stream: Of ``aclrtCreateStream``, or null for the default stream.
        event: Of ``aclrtCreateEvent``; nothing waits for one that is not recorded.

    Returns:
        0; 100000 for null, a destroyed event or none of ours; 107003 for a destroyed stream.

    Example:
        >>> status = aclnn.aclrtSetDevice(0)
        >>> status, event = aclnn.aclrtCreateEvent()
        >>> aclnn.aclrtStreamWaitEvent(None, event)
        <Status.ACL_SUCCESS: 0>
    """
    number = stream_number(stream)
    _living("event", event).event.hold(number)
    return ACL_SUCCESS


def _new_event() -> aclrtEvent:
    place = current_memory()
    return aclrtEvent(place.new_event(), place.device)


def _living(name: str, event: Any) -> aclrtEvent:
    if is_null(event):
        fail(BAD_PARAM, f"{name} must not be null")
    found: aclrtEvent = alive(BAD_PARAM, event, name, aclrtEvent)
    return found
