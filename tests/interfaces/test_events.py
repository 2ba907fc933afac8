"""Events of both runtimes, on the host and on a device that takes its time."""

import time

import pytest

import normgrad.device
from normgrad import aclnn, infiniop
from normgrad.device.host import HostEvent, HostMemory

pytestmark = pytest.mark.usefixtures("device")


class Slow(HostMemory):
    """Work that is done when ``done`` says so."""

    done = False
    held = ()

    def new_event(self):
        place = self

        class Event(HostEvent):
            def finished(self):
                return place.done

            def hold(self, stream):
                place.held += (stream,)

        return Event()


@pytest.fixture
def slow(monkeypatch):
    place = Slow()
    monkeypatch.setitem(normgrad.device._MEMORIES, "cpu", place)
    return place


def new():
    status, event = aclnn.aclrtCreateEvent()
    assert status == 0
    return event


def test_time_between_events():
    start, end = new(), aclnn.aclrtCreateEventWithFlag(aclnn.ACL_EVENT_TIME_LINE)[1]
    stream = aclnn.aclrtCreateStream()[1]
    assert aclnn.aclrtRecordEvent(start, stream) == 0
    time.sleep(0.02)
    assert aclnn.aclrtRecordEvent(end, None) == 0
    assert aclnn.aclrtSynchronizeEvent(end) == 0
    status, milliseconds = aclnn.aclrtEventElapsedTime(start, end)
    assert (status, 19 < milliseconds < 5000) == (0, True)
    assert aclnn.aclrtEventElapsedTime(end, start) == (0, -milliseconds)
    assert aclnn.aclrtEventElapsedTime(start, start) == (0, 0)
    assert [aclnn.aclrtDestroyEvent(event) for event in (start, end)] == [0, 0]


def test_an_event_is_as_far_as_its_stream(slow):
    event = new()
    assert aclnn.aclrtQueryEventStatus(event) == (0, 0)
    slow.done = True  # whatever the device says, nothing has recorded it
    assert aclnn.aclrtQueryEventStatus(event) == (0, aclnn.ACL_EVENT_RECORDED_STATUS_NOT_READY)
    slow.done = False
    assert aclnn.aclrtRecordEvent(event, None) == 0
    assert aclnn.aclrtQueryEventStatus(event) == (0, 0)
    assert aclnn.aclrtEventElapsedTime(event, event) == (107006, 0)
    assert "startEvent must be recorded" in aclnn.aclGetRecentErrMsg()
    slow.done = True
    assert aclnn.aclrtQueryEventStatus(event) == (0, aclnn.ACL_EVENT_RECORDED_STATUS_COMPLETE)
    assert aclnn.aclrtResetEvent(event, None) == 0
    assert aclnn.aclrtQueryEventStatus(event) == (0, 0)
    assert aclnn.aclrtStreamWaitEvent(None, event) == 0
    assert slow.held == (0,)


def test_events_that_are_none():
    event, stream = new(), aclnn.aclrtCreateStream()[1]
    assert aclnn.aclrtDestroyStream(stream) == 0
    assert aclnn.aclrtRecordEvent(event, stream) == 107003
    assert aclnn.aclrtStreamWaitEvent(stream, event) == 107003
    assert aclnn.aclrtResetEvent(event, stream) == 107003
    assert aclnn.aclrtDestroyEvent(event) == 0
    for wrong in (event, None, 0, 4096, object()):
        assert aclnn.aclrtDestroyEvent(wrong) == 100000
        assert aclnn.aclrtRecordEvent(wrong, None) == 100000
        assert aclnn.aclrtResetEvent(wrong, None) == 100000
        assert aclnn.aclrtSynchronizeEvent(wrong) == 100000
        assert aclnn.aclrtStreamWaitEvent(None, wrong) == 100000
        assert aclnn.aclrtQueryEventStatus(wrong) == (100000, None)
        assert aclnn.aclrtEventElapsedTime(wrong, new()) == (100000, 0)
    for flag in (0, 4, 16, -1, None):
        assert aclnn.aclrtCreateEventWithFlag(flag) == (100000, None)
    assert aclnn.aclrtCreateEventWithFlag(11)[0] == 0


def test_events_need_a_device():
    assert aclnn.aclrtDestroyContext(aclnn.aclrtGetCurrentContext()[1]) == 0
    assert aclnn.aclrtCreateEvent() == (107002, None)
    assert aclnn.aclrtCreateEventWithFlag(1) == (107002, None)
    assert aclnn.aclrtGetMemInfo(aclnn.ACL_HBM_MEM) == (107002, 0, 0)
    assert aclnn.aclrtSetDevice(0) == 0


def test_memory_in_numbers():
    for kind in aclnn.aclrtMemAttr:
        status, free, total = aclnn.aclrtGetMemInfo(kind)
        assert (status, 0 < free <= total) == (0, True)
    assert aclnn.aclrtGetMemInfo(18) == (100000, 0, 0)


def test_setting_bytes_in_the_order_of_a_stream():
    stream = aclnn.aclrtCreateStream()[1]
    pointer, back = aclnn.aclrtMalloc(8)[1], bytearray(8)
    assert aclnn.aclrtMemsetAsync(pointer, 8, 0x141, 8, stream) == 0
    assert aclnn.aclrtMemsetAsync(pointer, 8, 0x42, 4, None) == 0
    assert aclnn.aclrtSynchronizeStream(stream) == 0
    assert aclnn.aclrtMemcpy(back, 8, pointer, 8, aclnn.ACL_MEMCPY_DEVICE_TO_HOST) == 0
    assert bytes(back) == b"BBBBAAAA"
    assert aclnn.aclrtMemsetAsync(None, 8, 0, 0, None) == 0
    assert aclnn.aclrtMemsetAsync(None, 8, 0, 1, None) == 100000
    assert aclnn.aclrtMemsetAsync(pointer, 8, 0, 9, stream) == 100000
    assert aclnn.aclrtFree(pointer) == 0
    assert aclnn.aclrtMemsetAsync(pointer, 8, 0, 8, stream) == 100000
    assert aclnn.aclrtDestroyStream(stream) == 0
    assert aclnn.aclrtMemsetAsync(pointer, 8, 0, 8, stream) == 107003


def infini():
    status, event = infiniop.infinirtEventCreate()
    assert status == 0
    return event


def test_infinirt_times_and_waits(slow):
    start, end = infini(), infiniop.infinirtEventCreateWithFlags(3)[1]
    assert infiniop.infinirtEventQuery(start) == (0, infiniop.INFINIRT_EVENT_NOT_READY)
    assert infiniop.infinirtEventElapsedTime(start, end) == (3, 0)
    assert "start must be recorded" in infiniop.recent_error()
    assert infiniop.infinirtEventRecord(start, None) == 0
    time.sleep(0.01)
    assert infiniop.infinirtEventRecord(end, None) == 0
    assert infiniop.infinirtEventElapsedTime(start, end) == (3, 0)  # not reached
    slow.done = True
    assert infiniop.infinirtEventQuery(end) == (0, infiniop.INFINIRT_EVENT_COMPLETE)
    assert infiniop.infinirtEventSynchronize(end) == 0
    status, milliseconds = infiniop.infinirtEventElapsedTime(start, end)
    assert (status, 9 < milliseconds < 5000) == (0, True)
    assert infiniop.infinirtStreamWaitEvent(None, end) == 0
    assert slow.held == (0,)


def test_infinirt_events_that_are_none():
    event, stream = infini(), infiniop.infinirtStreamCreate()[1]
    assert infiniop.infinirtStreamDestroy(stream) == 0
    assert infiniop.infinirtEventRecord(event, stream) == 3
    assert infiniop.infinirtStreamWaitEvent(stream, event) == 3
    assert (infiniop.infinirtEventDestroy(event), infiniop.infinirtEventDestroy(None)) == (0, 0)
    assert infiniop.infinirtEventDestroy(event) == 3
    for wrong in (event, None, new(), 7):
        assert infiniop.infinirtEventRecord(wrong, None) == 3
        assert infiniop.infinirtEventSynchronize(wrong) == 3
        assert infiniop.infinirtEventQuery(wrong) == (3, None)
        assert infiniop.infinirtEventElapsedTime(wrong, infini()) == (3, 0)
        assert infiniop.infinirtStreamWaitEvent(None, wrong) == 3
    for flags in (4, -1, None):
        assert infiniop.infinirtEventCreateWithFlags(flags) == (3, None)


def test_infinirt_memory_of_the_host_and_of_streams():
    status, host = infiniop.infinirtMallocHost(8)
    assert status == 0
    stream = infiniop.infinirtStreamCreate()[1]
    status, pointer = infiniop.infinirtMallocAsync(8, stream)
    assert status == 0
    assert infiniop.infinirtMemcpy(host, b"12345678", 8, infiniop.INFINIRT_MEMCPY_H2H) == 0
    assert infiniop.infinirtMemcpyAsync(pointer, host, 8, infiniop.INFINIRT_MEMCPY_H2D, stream) == 0
    back = bytearray(8)
    assert infiniop.infinirtMemcpy(back, pointer, 8, infiniop.INFINIRT_MEMCPY_D2H) == 0
    assert bytes(back) == b"12345678"
    assert infiniop.infinirtFree(host) == 3
    assert infiniop.infinirtFreeHost(pointer) == 3
    assert "ptr must be live host memory" in infiniop.recent_error()
    assert infiniop.infinirtFreeHost(host) == 0
    assert infiniop.infinirtFreeHost(host) == 3
    assert infiniop.infinirtFreeAsync(pointer, stream) == 0
    assert infiniop.infinirtFreeAsync(pointer, stream) == 3
    assert infiniop.infinirtStreamDestroy(stream) == 0
    assert infiniop.infinirtMallocAsync(8, stream) == (3, 0)
    assert infiniop.infinirtFreeAsync(None, stream) == 3
    for nothing in (infiniop.infinirtMallocHost(0), infiniop.infinirtMallocAsync(0, None)):
        assert nothing == (0, 0)
    assert infiniop.infinirtMallocHost(1 << 60) == (1, 0)
    assert (infiniop.infinirtFreeHost(None), infiniop.infinirtFreeAsync(0, None)) == (0, 0)


def test_infinirt_counts_every_kind(monkeypatch):
    monkeypatch.setattr(normgrad.device, "gpu_count", lambda: 3)
    assert infiniop.infinirtGetAllDeviceCount() == (0, (1, 3, 0, 0, 0, 0, 0, 0, 0))
