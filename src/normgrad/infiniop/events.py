"""Events of infinirt: points in the order of a stream's work."""

from typing import Any

from normgrad import device
from normgrad.device.failures import alive, is_null, whole
from normgrad.infiniop.constants import (
    INFINIRT_EVENT_COMPLETE,
    INFINIRT_EVENT_NOT_READY,
    infinirtEventFlags_t,
    infinirtEventStatus_t,
)
from normgrad.infiniop.runtime import current_memory, stream_number
from normgrad.infiniop.status import BAD_PARAM, SUCCESS, Status, fail, reports, status_only


class infinirtEvent_t:
    """A point of a stream's work, once it is recorded."""

    __slots__ = ("alive", "event", "place", "recorded")

    def __init__(self, event: device.Event, place: str) -> None:
        self.event = event
        self.place = place
        self.recorded = False
        self.alive = True


EventAnswer = tuple[Status, infinirtEvent_t | None]
EventStatusAnswer = tuple[Status, infinirtEventStatus_t | None]
TimeAnswer = tuple[Status, float]


def _no_event(status: Status) -> EventAnswer:
    return status, None


def _no_event_status(status: Status) -> EventStatusAnswer:
    return status, None


def _no_time(status: Status) -> TimeAnswer:
    return status, 0.0


@reports(_no_event)
def infinirtEventCreate() -> EventAnswer:
    """A new event of the calling thread's device, which nothing has recorded yet.

    Returns:
        0 and an ``infinirtEvent_t``.

    Example:
        >>> status, event = infiniop.infinirtEventCreate()
        >>> int(infiniop.infinirtEventDestroy(event))
        0
    """
    return SUCCESS, _new_event()


@reports(_no_event)
def infinirtEventCreateWithFlags(flags: int) -> EventAnswer:
    """A new event; every event has its time, whatever the flags are.

    Args:
        flags: Values of ``infinirtEventFlags_t``, added.

    Returns:
        0 and an ``infinirtEvent_t``; 3 and None for another flag.

    Example:
        >>> flags = infiniop.INFINIRT_EVENT_DISABLE_TIMING
        >>> status, event = infiniop.infinirtEventCreateWithFlags(flags)
        >>> int(status)
        0
    """
    number = whole(BAD_PARAM, "flags", flags)
    if number < 0 or number & ~sum(infinirtEventFlags_t):
        fail(BAD_PARAM, f"flags must be made of infinirtEventFlags_t, got {number}")
    return SUCCESS, _new_event()


@status_only
def infinirtEventRecord(event: infinirtEvent_t | None, stream: Any) -> Status:
    """Make an event the point that a stream reaches when its work so far is done.

    Args:
        event: Of ``infinirtEventCreate``.
        stream: Of ``infinirtStreamCreate``, the address of a CUDA stream, or null.

    Returns:
        0; 3 for null, a destroyed event or stream, and none of ours.

    Example:
        >>> status, event = infiniop.infinirtEventCreate()
        >>> int(infiniop.infinirtEventRecord(event, None))
        0
    """
    recorded = _living("event", event)
    recorded.event.record(stream_number(stream))
    recorded.recorded = True
    return SUCCESS


@reports(_no_event_status)
def infinirtEventQuery(event: infinirtEvent_t | None) -> EventStatusAnswer:
    """Whether an event is reached; one that nothing has recorded is, as CUDA has it.

    Args:
        event: Of ``infinirtEventCreate``.

    Returns:
        0 and ``INFINIRT_EVENT_COMPLETE`` or ``INFINIRT_EVENT_NOT_READY``; 3 and None for null, a
        destroyed event or none of ours.

    Example:
        >>> status, event = infiniop.infinirtEventCreate()
        >>> int(infiniop.infinirtEventQuery(event)[1])
        0
    """
    reached = _living("event", event).event.finished()
    return SUCCESS, INFINIRT_EVENT_COMPLETE if reached else INFINIRT_EVENT_NOT_READY


@status_only
def infinirtEventSynchronize(event: infinirtEvent_t | None) -> Status:
    """Wait until an event is reached.

    Args:
        event: Of ``infinirtEventCreate``.

    Returns:
        0; 3 for null, a destroyed event or none of ours.

    Example:
        >>> status, event = infiniop.infinirtEventCreate()
        >>> int(infiniop.infinirtEventSynchronize(event))
        0
    """
    _living("event", event).event.wait()
    return SUCCESS


@status_only
def infinirtEventDestroy(event: infinirtEvent_t | None) -> Status:
    """End an event.

    Args:
        event: Of ``infinirtEventCreate``; null is success.

    Returns:
        0; 3 for one that was destroyed before.

    Example:
        >>> status, event = infiniop.infinirtEventCreate()
        >>> [int(infiniop.infinirtEventDestroy(event)) for _ in range(2)]
        [0, 3]
    """
    if not is_null(event):
        _living("event", event).alive = False
    return SUCCESS


@reports(_no_time)
def infinirtEventElapsedTime(
    start: infinirtEvent_t | None, end: infinirtEvent_t | None
) -> TimeAnswer:
    """The time between two events that are reached, in milliseconds.

    Args:
        start: Of ``infinirtEventCreate``.
        end: Of ``infinirtEventCreate``, on the same device.

    Returns:
        0 and the time, negative where ``end`` came first; 3 and 0 for null, a destroyed event,
        events of two devices, and one that is not recorded or not reached.

    Example:
        >>> start, end = (infiniop.infinirtEventCreate()[1] for _ in range(2))
        >>> status = [infiniop.infinirtEventRecord(event, None) for event in (start, end)]
        >>> status = infiniop.infinirtStreamSynchronize(None)
        >>> status, milliseconds = infiniop.infinirtEventElapsedTime(start, end)
        >>> milliseconds >= 0
        True
    """
    first, last = _living("start", start), _living("end", end)
    if first.place != last.place:
        fail(BAD_PARAM, f"end must be of {first.place} as start, got {last.place}")
    for name, one in (("start", first), ("end", last)):
        if not (one.recorded and one.event.finished()):
            fail(BAD_PARAM, f"{name} must be recorded, and its stream have come so far")
    return SUCCESS, last.event.milliseconds_since(first.event)


@status_only
def infinirtStreamWaitEvent(stream: Any, event: infinirtEvent_t | None) -> Status:
    """Let a stream's coming work wait for an event; the host does not wait.

    Args:
        stream: Of ``infinirtStreamCreate``, the address of a CUDA stream, or null.
        event: Of ``infinirtEventCreate``; nothing waits for one that is not recorded.

    Returns:
        0; 3 for null, a destroyed event or stream, and none of ours.

    Example:
        >>> status, event = infiniop.infinirtEventCreate()
        >>> int(infiniop.infinirtStreamWaitEvent(None, event))
        0
    """
    number = stream_number(stream)
    _living("event", event).event.hold(number)
    return SUCCESS


def _new_event() -> infinirtEvent_t:
    place = current_memory()
    return infinirtEvent_t(place.new_event(), place.device)


def _living(name: str, event: Any) -> infinirtEvent_t:
    if is_null(event):
        fail(BAD_PARAM, f"{name} must not be null")
    found: infinirtEvent_t = alive(BAD_PARAM, event, name, infinirtEvent_t)
    return found
