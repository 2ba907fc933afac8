"""The runtime subset of infiniop: memory that is watched, devices, streams, copies."""

import threading
import weakref

import numpy as np
import pytest
import torch
from infiniop_calls import D2D, D2H, H2D, H2H, create, handle, problem, run, said, scratch

import normgrad.device
from normgrad import aclnn, infiniop
from normgrad.arrays.host_memory import aligned_bytes
from normgrad.device import memory


def test_memory_of_ours_is_watched():
    desc = create()[1]
    workspace, size = scratch(desc)
    arrays = problem()
    pointers = [array.ctypes.data for array in arrays.values()]
    pointers[0] = infiniop.infinirtMalloc(4 * 24 - 4)[1]
    call = infiniop.infiniopBatchNormBackward
    assert call(desc, workspace, size, *pointers, None) == 3
    assert "grad_input must lie in live memory" in said()
    assert "by 4 bytes at its end" in said()
    assert infiniop.infinirtFree(pointers[0]) == 0
    assert call(desc, workspace, size, *pointers, None) == 3
    assert "which infinirtFree has freed" in said()


def test_memory_that_left_quarantine_is_anybodys(monkeypatch):
    monkeypatch.setattr(memory, "checked", False)
    pointer = infiniop.infinirtMalloc(64)[1]
    assert infiniop.infinirtFree(pointer) == 0
    monkeypatch.setattr(memory, "checked", True)
    memory.DEVICE.require(pointer, pointer + 64, "cpu", foreign=True)


def test_memory_of_another_device_is_told(monkeypatch):
    """A thread that forgot its infinirtSetDevice has the CPU, which cannot read a GPU's memory."""

    class Gpu:
        device = "cuda:0"

        def allocate(self, nbytes):
            return aligned_bytes(nbytes)

    monkeypatch.setitem(normgrad.device._MEMORIES, "cuda:0", Gpu())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert infiniop.infinirtSetDevice(infiniop.INFINI_DEVICE_NVIDIA, 0) == 0
    pointer = infiniop.infinirtMalloc(96)[1]
    assert infiniop.infinirtSetDevice(infiniop.INFINI_DEVICE_CPU, 0) == 0
    here = np.zeros(24, np.float32)
    copies = ((here, pointer, D2H), (pointer, here, H2D), (pointer, here, H2H))
    for target, source, kind in copies:
        assert infiniop.infinirtMemcpy(target, source, 96, kind) == 3
        assert said().endswith("which is on cuda:0, not on cpu")
    desc = create()[1]
    pointers = [pointer, *[array.ctypes.data for array in problem().values()][1:]]
    assert infiniop.infiniopBatchNormBackward(desc, *scratch(desc), *pointers, None) == 3
    assert "grad_input must lie in live memory" in said()
    assert infiniop.infinirtFree(pointer) == 0


def test_quarantine_holds_a_thousand_blocks(monkeypatch):
    monkeypatch.setattr(memory, "checked", True)
    table = memory.Allocations("device")
    owners = [np.zeros(8, np.uint8) for _ in range(1025)]
    seen = [weakref.ref(owner) for owner in owners]
    for number, owner in enumerate(owners):
        table.add(64 * number, 8, owner, "malloc")
        table.release(64 * number, "free")
    del owners, owner
    assert [one() is None for one in seen] == [True, *[False] * 1024]


def test_every_block_in_quarantine_is_known_and_nothing_between(monkeypatch):
    monkeypatch.setattr(memory, "checked", True)
    table = memory.Allocations("device")
    order = np.random.default_rng(0).permutation(1100) + 1
    for number in order:
        table.add(64 * int(number), 8, None, "malloc")
        table.release(64 * int(number), "free")
    gone = set(order[:-1024].tolist())  # the first that were freed have left it
    for number in range(1, 1101):
        base = 64 * number
        table.require(base + 8, base + 16, "cpu", foreign=True)
        if number in gone:
            table.require(base, base + 8, "cpu", foreign=True)
            continue
        for address in (base, base + 7):
            with pytest.raises(memory.OwnershipError, match="which free has freed"):
                table.require(address, base + 8, "cpu", foreign=True)


def test_devices_of_threads():
    assert infiniop.infinirtInit() == 0
    assert infiniop.infinirtGetDevice() == (0, 0, 0)
    assert infiniop.infinirtGetDeviceCount(0) == (0, 1)
    assert infiniop.infinirtGetDeviceCount(7) == (5, 0)
    assert infiniop.infinirtSetDevice(7, 0) == 5
    assert "device must be CPU (0) or NVIDIA (1), got 7" in said()
    assert infiniop.infinirtSetDevice(0, 1) == 6
    gpus = infiniop.infinirtGetDeviceCount(infiniop.INFINI_DEVICE_NVIDIA)[1]
    assert infiniop.infinirtSetDevice(1, gpus) == 6
    assert infiniop.infinirtSetDevice(np.zeros(2), 0) == 5
    assert infiniop.infinirtSetDevice(np.int32(0), np.ones(2)) == 6
    assert infiniop.infinirtSetDevice(np.int64(0), np.int64(0)) == 0
    seen = []
    thread = threading.Thread(target=lambda: seen.append(infiniop.infinirtGetDevice()))
    thread.start()
    thread.join()
    assert seen == [(0, 0, 0)]
    made = handle()
    assert (made.device, made.device_id) == (0, 0)


def test_streams():
    status, stream = infiniop.infinirtStreamCreate()
    assert status == 0
    assert infiniop.infinirtStreamSynchronize(stream) == 0
    assert infiniop.infinirtStreamSynchronize(None) == 0
    assert infiniop.infinirtDeviceSynchronize() == 0
    assert infiniop.infinirtStreamDestroy(stream) == 0
    assert infiniop.infinirtStreamDestroy(None) == 0
    assert infiniop.infinirtStreamDestroy(stream) == 3
    assert infiniop.infinirtStreamSynchronize(stream) == 3
    desc = create()[1]
    workspace, size = scratch(desc)
    assert run(desc, problem(), workspace, size, stream) == 3
    assert "stream must be alive" in said()
    assert run(desc, problem(), workspace, size, "stream") == 3
    assert "stream must be one of ours or an address, got a str" in said()


@pytest.mark.parametrize("null", [None, 0, np.int64(0)])
def test_null_is_the_default_stream(null):
    assert infiniop.infinirtStreamSynchronize(null) == 0
    assert infiniop.infinirtStreamDestroy(null) == 0
    desc = create()[1]
    workspace, size = scratch(desc)
    assert run(desc, problem(), workspace, size, null) == 0


@pytest.mark.parametrize("address", [0x1234, np.uintp(0x1234)])
def test_a_stream_of_somebody_else(address):
    """It is waited for on the current device, and not ours to end."""
    assert infiniop.infinirtStreamSynchronize(address) == 0
    assert infiniop.infinirtStreamDestroy(address) == 3
    assert "must come from infinirtStreamCreate, got address 0x1234" in said()
    desc = create()[1]
    workspace, size = scratch(desc)
    assert run(desc, problem(), workspace, size, address) == 0
    for wrong in ("stream", np.zeros(2), aclnn.aclrtStream(None, 0)):
        assert infiniop.infinirtStreamSynchronize(wrong) == 3
        assert infiniop.infinirtStreamDestroy(wrong) == 3


def test_copies():
    data = np.arange(8.0)
    status, pointer = infiniop.infinirtMalloc(64)
    assert status == 0
    assert infiniop.infinirtMemcpy(pointer, data, 64, H2D) == 0
    back = np.zeros(8)
    assert infiniop.infinirtMemcpyAsync(back, pointer, 64, D2H, None) == 0
    np.testing.assert_array_equal(back, data)
    assert infiniop.infinirtMemcpy(pointer, pointer + 8, 8, D2D) == 0
    assert infiniop.infinirtMemcpy(back.ctypes.data, data.ctypes.data, 64, H2H) == 0
    assert infiniop.infinirtMemcpy(None, data, 64, H2D) == 4
    assert infiniop.infinirtMemcpy(pointer, None, 64, H2D) == 4
    assert infiniop.infinirtMemcpy(None, None, 0, H2D) == 0
    assert infiniop.infinirtMemcpy(pointer, data, 64, 9) == 3
    assert infiniop.infinirtMemcpy(pointer, np.zeros(9), 72, H2D) == 3
    assert "by 8 bytes at its end" in said()
    assert infiniop.infinirtMemcpy(pointer, data, 65, H2D) == 3
    assert infiniop.infinirtMemcpy(data, pointer, 8, H2D) == 3
    assert infiniop.infinirtMemcpy(b"12345678", pointer, 8, D2H) == 3
    assert infiniop.infinirtMemcpy(pointer, data, -1, H2D) == 3
    assert infiniop.infinirtFree(pointer) == 0
    assert infiniop.infinirtFree(pointer) == 3
    assert "which infinirtFree has already freed" in said()
    assert infiniop.infinirtFree(None) == 0
    assert infiniop.infinirtMalloc(0) == (0, 0)
    assert infiniop.infinirtMalloc(-1) == (3, 0)
    assert infiniop.infinirtMalloc(1 << 62) == (1, 0)


def test_a_numpy_integer_is_an_address():
    data, back = np.arange(1.0, 3.0), np.zeros(2)
    pointer = np.uintp(infiniop.infinirtMalloc(np.int64(16))[1])
    source = np.uintp(data.ctypes.data)
    assert infiniop.infinirtMemcpy(pointer, source, np.int64(16), np.int32(1)) == 0, said()
    assert infiniop.infinirtMemcpy(np.uintp(back.ctypes.data), pointer, 16, D2H) == 0, said()
    np.testing.assert_array_equal(back, data)
    assert infiniop.infinirtMemcpy(pointer, np.uintp(0), 8, H2D) == 4
    assert infiniop.infinirtFree(pointer) == 0


@pytest.mark.parametrize("what", ["abcd", [1, 2, 3, 4], torch.ones(4), 2.5])
def test_what_is_neither_address_nor_buffer(what):
    pointer = infiniop.infinirtMalloc(16)[1]
    assert infiniop.infinirtMemcpy(pointer, what, 4, H2D) == 3
    assert f"src must be an address or a contiguous buffer, got a {type(what).__name__}" in said()
    assert infiniop.infinirtMemcpy(what, b"1234", 4, H2D) == 3
    assert f"dst must be an address, got a {type(what).__name__}" in said()
    assert infiniop.infinirtFree(pointer) == 0
