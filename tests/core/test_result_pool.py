"""Memory of large results: used again when nobody has it any more, and never before."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from normgrad import functional
from normgrad.arrays.kinds import dense_numpy
from normgrad.calls import result_pool
from normgrad.core.spec import TensorSpec

LARGE = result_pool.LEAST


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(result_pool, "_idle", [])
    monkeypatch.delenv("NORMGRAD_KEEP_MB", raising=False)
    result_pool._room.cache_clear()
    yield
    result_pool._room.cache_clear()


def make(nbytes=LARGE):
    return dense_numpy(TensorSpec.contiguous((nbytes // 4,), "float32"), np.dtype("f4"))


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_serves_again_once_it_is_free():
    first = make(LARGE + 8192)
    where = address(first)
    view = first[5:9]
    del first
    second = make()  # the view still has the first
    assert address(second) != where
    view[:] = 7
    del view
    third = make(LARGE + 4096)
    assert address(third) == where
    assert not result_pool._idle


def test_memory_much_larger_than_needed_is_left_alone():
    first = make(2 * LARGE)
    where = address(first)
    del first
    assert address(make()) != where


def test_sizes_that_differ_a_little_share_a_type():
    make(LARGE + 4)
    before = result_pool._blocks.cache_info().currsize
    for more in range(8, 80, 4):
        assert make(LARGE + more).nbytes == LARGE + more
    assert result_pool._blocks.cache_info().currsize == before


def test_small_results_are_numpys_own():
    assert make(4096).flags.owndata
    assert not result_pool._idle


@pytest.mark.parametrize(("room", "left"), [("40", 2), ("20", 1), ("0", 0)])
def test_how_much_is_kept(monkeypatch, room, left):
    monkeypatch.setenv("NORMGRAD_KEEP_MB", room)
    result_pool._room.cache_clear()
    arrays = [make() for _ in range(4)]
    arrays.clear()
    assert len(result_pool._idle) == left


def test_a_wish_that_is_none(monkeypatch):
    monkeypatch.setenv("NORMGRAD_KEEP_MB", "much")
    result_pool._room.cache_clear()
    with pytest.raises(ValueError, match="NORMGRAD_KEEP_MB must be a number of megabytes"):
        make()


def test_memory_that_is_not_there_is_a_memory_error():
    make()
    assert len(result_pool._idle) == 1
    with pytest.raises(MemoryError, match=f"no memory for a result of {1 << 55} bytes"):
        make(1 << 55)
    assert not result_pool._idle


def test_threads_never_get_the_same():
    lock, held, wrong = threading.Lock(), set(), []

    def work():
        for _ in range(200):
            array = make()
            with lock:
                wrong.extend({address(array)} & held)
                held.add(address(array))
            time.sleep(0)  # another thread's turn
            with lock:
                held.remove(address(array))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_writes_its_own():
    code = """
import os, numpy as np
from normgrad.arrays.kinds import dense_numpy
from normgrad.core.spec import TensorSpec
array = dense_numpy(TensorSpec.contiguous((5 << 20,), "float32"), np.dtype("f4"))
array[:] = 1
if os.fork() == 0:
    array[:] = 2
    os._exit(0)
os.wait()
print((array == 1).all())
"""
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.strip() == "True"


def test_results_that_live_until_the_end_leave_silently():
    code = """
import builtins, numpy as np
from normgrad.arrays.kinds import dense_numpy
from normgrad.core.spec import TensorSpec
builtins.held = dense_numpy(TensorSpec.contiguous((5 << 20,), "float32"), np.dtype("f4"))
"""
    told = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert told.stderr == ""


def test_torch_results():
    torch = pytest.importorskip("torch")
    rows, cols = 2048, LARGE // 4 // 2048
    x, dy = torch.randn(rows, cols) + 5, torch.randn(rows, cols)
    line = torch.ones(rows)

    def call():
        return functional.layer_norm_backward(
            dy, x, line, line, cols, weight=torch.ones(cols), backend="reference"
        )[0]

    first = call()
    where, want = first.data_ptr(), first.clone()
    assert not first._is_view()
    assert first.untyped_storage().nbytes() == first.nbytes
    part = first[:2]
    del first
    second = call()
    assert second.data_ptr() != where
    assert torch.equal(second, want)
    del part
    for _ in range(2):  # a call that is seen for the second time takes another road
        third = call()
        assert third.data_ptr() == where
        assert torch.equal(third, want)
        del third
