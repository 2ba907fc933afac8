"""Memory of the runtime: what is allocated, copied and freed, and by whom."""

import threading

import numpy as np
import pytest
import torch
from aclnn_calls import said

import normgrad.device
from normgrad import aclnn, infiniop
from normgrad.device import memory
from normgrad.device.host import HostMemory

pytestmark = pytest.mark.usefixtures("device")
H2H, H2D, D2H, D2D, DEFAULT, BUFFERED, INNER, INTER = aclnn.aclrtMemcpyKind


def test_copies_there_and_back():
    data = np.random.default_rng(0).standard_normal(7)
    pointers = [aclnn.aclrtMalloc(data.nbytes, policy)[1] for policy in range(3)]
    assert all(pointer % 64 == 0 for pointer in pointers)
    host = aclnn.aclrtMallocHost(data.nbytes)[1]
    assert aclnn.aclrtMemcpy(host, 56, data, 56, H2H) == 0
    assert aclnn.aclrtMemcpy(pointers[0], 56, host, 56, H2D) == 0
    assert aclnn.aclrtMemcpyAsync(pointers[1], 56, pointers[0], 56, D2D, None) == 0
    back = np.full(7, np.nan)
    assert aclnn.aclrtMemcpy(back, 56, pointers[1], 56, D2H) == 0
    np.testing.assert_array_equal(back, data)
    raw = bytearray(56)
    assert aclnn.aclrtMemcpy(raw, 56, pointers[1], 56, D2H) == 0
    assert bytes(raw) == data.tobytes()
    assert aclnn.aclrtMemcpy(pointers[2], 56, data.tobytes(), 56, H2D) == 0
    assert aclnn.aclrtMemset(pointers[2], 56, 0, 8) == 0
    assert aclnn.aclrtMemcpy(back.ctypes.data, 56, pointers[2], 56, D2H) == 0
    np.testing.assert_array_equal(back, [0, *data[1:]])
    assert [aclnn.aclrtFree(pointer) for pointer in pointers] == [0, 0, 0]
    assert aclnn.aclrtFreeHost(host) == 0


def test_a_numpy_integer_is_an_address():
    """Not a buffer of eight bytes, although it would serve as one."""
    data, back = np.arange(1.0, 3.0), np.zeros(2)
    host, other = np.uintp(data.ctypes.data), np.uint64(back.ctypes.data)
    pointer = np.uintp(aclnn.aclrtMalloc(np.int64(16), np.int32(0))[1])
    assert aclnn.aclrtMemcpy(pointer, np.int64(16), host, np.int64(16), np.int32(1)) == 0, said()
    assert aclnn.aclrtMemcpy(other, 16, pointer, 16, D2H) == 0, said()
    np.testing.assert_array_equal(back, data)
    assert aclnn.aclrtMemcpy(pointer, 8, np.uintp(0), 8, H2D) == 100000
    assert "src must not be null" in said()
    assert aclnn.aclrtFree(pointer) == 0


@pytest.mark.parametrize(
    "what", ["abcd", [1, 2, 3, 4], torch.ones(4), 2.5, memoryview(b"12345678")[::2]]
)
def test_what_is_neither_address_nor_buffer(what):
    pointer = aclnn.aclrtMalloc(16)[1]
    words = f"must be an address or a contiguous buffer, got a {type(what).__name__}"
    assert aclnn.aclrtMemcpy(pointer, 4, what, 4, H2D) == 100000
    assert f"src {words}" in said()
    assert aclnn.aclrtMemcpy(what, 4, pointer, 4, D2H) == 100000
    assert f"dst {words}" in said()
    assert aclnn.aclrtMemcpy(what, 4, b"1234", 4, H2D) == 100000
    assert "dst must be an integer" in said()
    assert aclnn.aclrtMalloc(8, what) == (100000, 0)
    assert aclnn.aclrtMemcpy(pointer, 4, b"1234", 4, np.ones(2)) == 100000
    assert aclnn.aclrtFree(pointer) == 0


def test_copy_rules():
    data = np.ones(4, np.float32)
    pointer = aclnn.aclrtMalloc(16)[1]
    assert aclnn.aclrtMemcpy(None, 0, None, 0, H2D) == 0  # count 0 is success,
    assert aclnn.aclrtMemcpy(pointer, 16, data, 0, 8) == 0  # whatever the others are
    assert aclnn.aclrtMemcpy(None, 16, data, 16, H2D) == 100000
    assert "dst must not be null" in said()
    assert aclnn.aclrtMemcpy(pointer, 16, 0, 16, H2D) == 100000
    assert "src must not be null" in said()
    assert aclnn.aclrtMemcpy(pointer, 8, data, 16, H2D) == 100000
    assert "count must not exceed destMax, 8, got 16" in said()
    assert aclnn.aclrtMemcpy(pointer, 16, data, 16, 8) == 100000
    assert "kind must be a value of aclrtMemcpyKind, got 8" in said()
    assert aclnn.aclrtMemcpy(pointer, 32, np.ones(8, np.float32), 32, H2D) == 100000
    assert "leave allocation" in said()
    assert "by 16 bytes at its end" in said()
    assert aclnn.aclrtMemcpy(data, 32, pointer, 32, D2H) == 100000  # either side
    assert aclnn.aclrtMemcpy(pointer, 16, data[:2], 16, H2D) == 100000
    assert "src must have 16 bytes, got 8" in said()
    assert aclnn.aclrtMemcpy(pointer, 8, data[::2], 8, H2D) == 100000
    assert "src must be contiguous" in said()
    assert aclnn.aclrtMemcpy(b"0123", 4, pointer, 4, D2H) == 100000
    assert "dst must be writable" in said()
    assert aclnn.aclrtMemcpy(data, 16, data.ctypes.data, 16, D2H) == 100000
    assert "belongs to no device allocation" in said()
    assert aclnn.aclrtMemcpy(pointer, 16, pointer, 16, H2D) == 100000
    assert "src must be host memory as kind says" in said()
    assert aclnn.aclrtMemcpy(pointer, 16, data, -1, H2D) == 100000
    assert aclnn.aclrtMemset(pointer, 16, 0, 17) == 100000
    assert aclnn.aclrtMemset(None, 16, 0, 16) == 100000
    assert aclnn.aclrtMemset(None, 16, 0, 0) == 0
    assert aclnn.aclrtFree(pointer) == 0
    assert aclnn.aclrtMemcpy(pointer, 16, data, 16, H2D) == 100000
    assert "which aclrtFree has freed" in said()


def test_what_was_device_memory_is_no_host_memory():
    alive, freed = (aclnn.aclrtMalloc(16)[1] for _ in range(2))
    assert aclnn.aclrtFree(freed) == 0
    for target, source, kind in ((freed, alive, D2H), (alive, freed, H2D)):
        assert aclnn.aclrtMemcpy(target, 16, source, 16, kind) == 100000
        assert "must be host memory as kind says" in said()
        assert "which aclrtFree has freed" in said()
    assert aclnn.aclrtMemcpy(alive - 8, 16, alive, 16, D2H) == 100000  # its end is not the host's
    assert aclnn.aclrtFree(alive) == 0


def test_free_rules():
    pointer = aclnn.aclrtMalloc(100)[1]
    host = aclnn.aclrtMallocHost(100)[1]
    assert aclnn.aclrtFree(pointer + 4) == 100000
    assert "is 4 bytes inside allocation" in said()
    assert aclnn.aclrtFree(host) == 100000
    assert "belongs to no device allocation" in said()
    assert aclnn.aclrtFree(None) == 100000
    assert "devPtr must not be null" in said()
    assert aclnn.aclrtFree(pointer) == 0
    assert aclnn.aclrtFree(pointer) == 100000
    assert "which aclrtFree has already freed" in said()
    assert aclnn.aclrtFreeHost(host) == 0
    assert aclnn.aclrtFreeHost(host) == 100000


def test_malloc_rules():
    for wrong in (0, -1, None, 2.5):
        assert aclnn.aclrtMalloc(wrong) == (100000, 0)
        assert aclnn.aclrtMallocHost(wrong) == (100000, 0)
    for wrong in (8, -1, 0x200, 2.0):
        assert aclnn.aclrtMalloc(8, wrong) == (100000, 0)
    assert "policy must be an integer, got 2.0" in said()


@pytest.mark.parametrize("power", [60, 62, 63, 64, 70])
@pytest.mark.parametrize(
    "call", [aclnn.aclrtMalloc, aclnn.aclrtMallocHost, infiniop.infinirtMalloc]
)
def test_more_memory_than_there_is(call, power):
    status, pointer = call(1 << power)
    assert (status, pointer) == (1 if call is infiniop.infinirtMalloc else 200000, 0)
    words = f"{call.__name__}: not enough memory: {1 << power} bytes cannot be had on cpu"
    assert said() == words


def test_every_policy_gives_memory():
    flags = (0, aclnn.ACL_MEM_TYPE_HIGH_BAND_WIDTH, aclnn.ACL_MEM_ACCESS_USER_SPACE_READONLY)
    for policy in aclnn.aclrtMemMallocPolicy:
        for flag in flags:
            status, pointer = aclnn.aclrtMalloc(8, policy | flag)
            assert (status, aclnn.aclrtFree(pointer)) == (0, 0), said()


def test_a_copy_whose_kind_the_addresses_say():
    """Seen by what the look-ups refuse: as device or as host memory."""
    data, back = np.arange(4.0), np.zeros(4)
    one, two = (aclnn.aclrtMalloc(32)[1] for _ in range(2))
    for kind in (DEFAULT, BUFFERED):
        assert aclnn.aclrtMemcpy(one, 32, data.ctypes.data, 32, kind) == 0, said()
    for kind in (DEFAULT, INNER, INTER):
        assert aclnn.aclrtMemcpyAsync(two + 8, 24, one + 8, 24, kind, None) == 0, said()
    assert aclnn.aclrtMemcpy(two, 32, data, 8, DEFAULT) == 0
    assert aclnn.aclrtMemcpy(back, 32, two, 32, DEFAULT) == 0, said()
    np.testing.assert_array_equal(back, data)
    assert aclnn.aclrtMemcpy(back, 32, data, 32, DEFAULT) == 0
    assert aclnn.aclrtMemcpy(one, 40, two, 40, DEFAULT) == 100000
    assert "leave allocation" in said()
    assert aclnn.aclrtMemcpy(one, 32, data.ctypes.data, 32, INNER) == 100000
    assert "src must have 32 bytes of live device memory" in said()
    assert [aclnn.aclrtFree(one), aclnn.aclrtFree(two)] == [0, 0]


@pytest.mark.parametrize("source", ["host", "device"])
@pytest.mark.parametrize("target", ["host", "device"])
def test_the_device_is_told_which_side_is_the_hosts(monkeypatch, source, target):
    seen = []

    class Place(HostMemory):
        def copy(self, target, source, nbytes, kind, stream):
            seen.append(kind)

    monkeypatch.setitem(normgrad.device._MEMORIES, "cpu", Place())
    sides = {"host": np.zeros(4).ctypes.data, "device": aclnn.aclrtMalloc(32)[1]}
    assert aclnn.aclrtMemcpy(sides[target], 8, sides[source], 8, DEFAULT) == 0, said()
    ours = {("host", "host"): H2H, ("host", "device"): H2D, ("device", "host"): D2H}
    assert seen == [ours.get((source, target), D2D)]
    assert aclnn.aclrtFree(sides["device"]) == 0


def test_freed_memory_is_not_handed_out_at_once():
    pointer = aclnn.aclrtMalloc(64)[1]
    aclnn.aclrtFree(pointer)
    others = [aclnn.aclrtMalloc(64)[1] for _ in range(100)]
    assert pointer not in others
    for other in others:
        assert aclnn.aclrtFree(other) == 0


def test_live_allocations_are_listed():
    before = memory.DEVICE.live()
    pointer = aclnn.aclrtMalloc(48)[1]
    (leak,) = [block for block in memory.DEVICE.live() if block not in before]
    assert (leak.address, leak.nbytes, leak.maker) == (pointer, 48, "aclrtMalloc")
    assert str(leak).endswith(f"of aclrtMalloc (48 bytes at {pointer:#x})")
    aclnn.aclrtFree(pointer)


def test_memory_is_kept_by_many_threads():
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(200):
            data = rng.integers(0, 255, 128, np.uint8)
            pointer = aclnn.aclrtMalloc(128)[1]
            aclnn.aclrtMemcpy(pointer, 128, data, 128, H2D)
            back = np.zeros(128, np.uint8)
            aclnn.aclrtMemcpy(back, 128, pointer, 128, D2H)
            if aclnn.aclrtFree(pointer) or not np.array_equal(back, data):
                wrong.append(pointer)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
