"""Executors whose tensors get other memory between one stage 2 and the next."""

import numpy as np
import pytest
from aclnn_calls import (
    BATCH_NORM,
    ELEMT,
    OPERATORS,
    OUTPUTS,
    arguments,
    compute,
    run,
    said,
    stage_one,
    stage_two,
)

from normgrad import aclnn
from normgrad.aclnn.constants import ACL_INT32
from normgrad.device import memory

pytestmark = pytest.mark.usefixtures("device")
SETTERS = (
    (aclnn.aclSetInputTensorAddr, aclnn.aclSetOutputTensorAddr),
    (aclnn.AclSetInputTensorAddr, aclnn.AclSetOutputTensorAddr),
    (aclnn.aclSetTensorAddr, aclnn.aclSetTensorAddr),
    (aclnn.AclSetTensorAddr, aclnn.AclSetTensorAddr),
)


def values(rng, shape, dtype):
    if dtype == ACL_INT32:
        return np.full(shape, 4, np.int32)
    return 0.5 + rng.random(shape).astype(np.float32)


class Problem:
    """A call whose tensors lie nowhere yet, and memory to put under them."""

    def __init__(self, name):
        self.name = name
        self.usual = arguments(name)
        self.tensors = {
            key: aclnn.aclCreateTensor(
                one.kind.tensor.shape, len(one.kind.tensor.shape), one.kind.dtype, None, 0, 2,
                one.kind.tensor.shape, len(one.kind.tensor.shape), None,
            )
            for key, one in self.usual.items()
            if isinstance(one, aclnn.aclTensor)
        }  # fmt: skip
        self.pointers = {}
        status, self.size, self.executor = stage_one(name, self.usual | self.tensors)
        assert status == 0, said()
        assert aclnn.aclSetAclOpExecutorRepeatable(self.executor) == 0

    def place(self, seed, setters):
        """New memory with new numbers under every tensor; the arrays."""
        rng = np.random.default_rng(seed)
        arrays = {}
        for key, tensor in self.tensors.items():
            made = values(rng, tensor.kind.tensor.shape, tensor.kind.dtype)
            status, pointer = aclnn.aclrtMalloc(made.nbytes)
            assert status == 0
            assert aclnn.aclrtMemcpy(pointer, made.nbytes, made, made.nbytes, 1) == 0
            self.pointers[key], arrays[key] = pointer, made
            put = setters[key in OUTPUTS[self.name]]
            assert put(self.executor, 0, tensor, pointer) == 0, said()
        return arrays

    def results(self):
        found = {}
        for key in OUTPUTS[self.name]:
            found[key] = np.empty(self.tensors[key].kind.tensor.shape, np.float32)
            size = found[key].nbytes
            assert aclnn.aclrtMemcpy(found[key], size, self.pointers[key], size, 2) == 0
        return found


@pytest.mark.parametrize("setters", SETTERS)
@pytest.mark.parametrize("name", OPERATORS)
def test_one_executor_for_memory_that_changes(name, setters):
    problem = Problem(name)
    for seed in range(3):
        arrays = problem.place(seed, setters)
        assert run(name, problem.executor, problem.size) == 0, said()
        assert run(name, problem.executor, problem.size) == 0, said()  # as it lies now
        expected = {key: np.full_like(arrays[key], np.nan) for key in OUTPUTS[name]}
        fresh = {key: aclnn.tensor(array) for key, array in (arrays | expected).items()}
        compute(name, problem.usual | fresh)
        for key, got in problem.results().items():
            np.testing.assert_array_equal(got, expected[key])
        assert not any(aclnn.aclrtFree(pointer) for pointer in problem.pointers.values())
    assert aclnn.aclDestroyAclOpExecutor(problem.executor) == 0


def small(room=8):
    """Batch norm's element stage, to be moved about in one block of memory."""
    x, dy = (np.random.default_rng(seed).random((2, 3, 4)).astype(np.float32) for seed in (0, 1))
    block = np.zeros(5 * 24 + room, np.float32)
    status, pointer = aclnn.aclrtMalloc(block.nbytes)
    assert status == 0
    block[:24], block[24:48] = dy.ravel(), x.ravel()
    assert aclnn.aclrtMemcpy(pointer, block.nbytes, block, block.nbytes, 1) == 0

    def at(place):
        shape = (2, 3, 4)
        return aclnn.aclCreateTensor(shape, 3, 0, None, 0, 2, shape, 3, pointer + 96 * place)

    usual = arguments(ELEMT) | {"gradOut": at(0), "input": at(1), "gradInput": at(2)}
    status, size, executor = stage_one(ELEMT, usual)
    assert status == 0, said()
    assert aclnn.aclSetAclOpExecutorRepeatable(executor) == 0
    expected = np.empty_like(x)
    apart = {"gradOut": dy, "input": x, "gradInput": expected}
    compute(ELEMT, usual | {key: aclnn.tensor(array) for key, array in apart.items()})

    def look(place):
        found = np.empty_like(x)
        assert aclnn.aclrtMemcpy(found, 96, pointer + place, 96, 2) == 0
        return found

    return usual, executor, size, pointer, look, expected


def test_a_result_that_comes_to_lie_over_an_operand():
    usual, executor, size, pointer, look, expected = small()
    result = usual["gradInput"]
    over = pointer + 96 + 4  # one element on from input
    assert aclnn.aclSetOutputTensorAddr(executor, 0, result, over) == 0
    assert run(ELEMT, executor, size) == 161002
    assert "now that a result lies over an operand, got " in said()
    assert run(ELEMT, executor, size + 4096) == 0, said()
    np.testing.assert_array_equal(look(96 + 4), expected)
    # Apart again, with what was lost put back.
    assert aclnn.aclSetOutputTensorAddr(executor, 0, result, pointer + 4 * 96) == 0
    block = np.random.default_rng(0).random((2, 3, 4)).astype(np.float32)
    assert aclnn.aclrtMemcpy(pointer + 96, 96, block, 96, 1) == 0
    assert run(ELEMT, executor, size) == 0, said()
    np.testing.assert_array_equal(look(4 * 96), expected)
    # And in place, as stage 1 would take it.
    assert aclnn.aclSetOutputTensorAddr(executor, 0, result, pointer + 96) == 0
    assert run(ELEMT, executor, size) == 0, said()
    np.testing.assert_array_equal(look(96), expected)
    assert aclnn.aclrtFree(pointer) == 0


def test_results_that_come_to_lie_over_each_other():
    problem = Problem(BATCH_NORM)
    problem.place(0, SETTERS[0])
    weight, bias = problem.tensors["gradWeight"], problem.tensors["gradBias"]
    apart = problem.pointers["gradBias"]
    put = aclnn.aclSetOutputTensorAddr
    assert put(problem.executor, 2, bias, problem.pointers["gradWeight"]) == 0
    assert run(BATCH_NORM, problem.executor, problem.size) == 161002
    assert "gradBias must not share memory with gradWeight" in said()
    assert put(problem.executor, 1, weight, apart) == 0  # the two have changed places
    assert run(BATCH_NORM, problem.executor, problem.size) == 0, said()


def test_addresses_that_stage_1_would_refuse():
    usual, executor, size, pointer, look, expected = small()
    put, data = aclnn.aclSetInputTensorAddr, usual["input"]
    for address, status, words in (
        (None, 161001, "input's data must not be null"),
        (pointer + 98, 161002, "input must begin at a multiple of 4 bytes"),
        (-4096, 161002, "input must lie where addresses reach"),
        (expected.ctypes.data, 161002, "input must lie in live device memory"),
    ):
        assert put(executor, 1, data, address) == 0, said()
        assert run(ELEMT, executor, size) == status
        assert words in said()
    assert put(executor, 1, data, pointer + 96) == 0
    assert run(ELEMT, executor, size) == 0, said()
    np.testing.assert_array_equal(look(2 * 96), expected)


def test_what_cannot_be_moved():
    usual, executor, size, pointer, _, _ = small()
    put, data = aclnn.aclSetTensorAddr, usual["input"]
    stranger = aclnn.aclCreateTensor((2, 3, 4), 3, 0, None, 0, 2, (24,), 1, pointer)
    assert put(executor, 0, stranger, pointer) == 161002
    assert "tensor must be one that this executor of aclnnBatchNormElemtBackward" in said()
    assert aclnn.aclDestroyTensor(stranger) == 0
    assert put(executor, 0, stranger, pointer) == 161002
    assert put(executor, 0, None, pointer) == put(executor, 0, 0, pointer) == 561103
    assert put(executor, 0, 4096, pointer) == 161002
    assert put(executor, 0, data, "there") == 161002
    assert put(executor, "first", data, pointer) == 161002
    assert run(ELEMT, executor, size) == 0, said()  # refusals have changed nothing
    assert aclnn.aclDestroyAclOpExecutor(executor) == 0
    for gone in (executor, None, 0, "executor"):
        assert put(gone, 0, data, pointer + 192) == 561103
    assert data.address == pointer + 192  # the tensor moves all the same


def test_tensors_that_nobody_reads_can_be_moved():
    problem = Problem(BATCH_NORM)
    problem.place(0, SETTERS[0])
    unread = problem.tensors["runningMean"]
    assert aclnn.aclSetInputTensorAddr(problem.executor, 3, unread, None) == 0
    assert run(BATCH_NORM, problem.executor, problem.size) == 0, said()


def test_an_executor_for_one_run_may_get_its_addresses_late():
    usual, _, _, pointer, look, expected = small()
    late = usual | {
        key: aclnn.aclCreateTensor((2, 3, 4), 3, 0, None, 0, 2, (24,), 1, None)
        for key in ("gradOut", "input", "gradInput")
    }
    _, size, executor = stage_one(ELEMT, late)
    for place, key in enumerate(("gradOut", "input", "gradInput")):
        assert aclnn.aclSetTensorAddr(executor, place, late[key], pointer + 96 * place) == 0
    assert run(ELEMT, executor, size) == 0, said()
    np.testing.assert_array_equal(look(2 * 96), expected)
    assert stage_two(ELEMT, None, 0, executor) == 561103


def test_raw_addresses(monkeypatch):
    monkeypatch.setattr(memory, "checked", False)
    store = np.arange(32, dtype=np.float32)
    made = aclnn.aclCreateTensor((2, 3), 2, 0, None, 1, 2, (8,), 1, None)
    assert aclnn.aclGetRawTensorAddr(made) == (0, 0)
    assert aclnn.aclSetRawTensorAddr(made, np.uintp(store.ctypes.data)) == 0
    assert aclnn.aclGetRawTensorAddr(made) == (0, store.ctypes.data)
    assert made.address == store.ctypes.data + 4
    assert (made.low, made.high) == (made.address, made.address + 24)
    for null in (None, 0):
        assert aclnn.aclSetRawTensorAddr(null, 4096) == 161001
        assert aclnn.aclGetRawTensorAddr(null) == (161001, 0)
    assert aclnn.aclDestroyTensor(made) == 0
    assert aclnn.aclSetRawTensorAddr(made, 4096) == 161002
    assert aclnn.aclGetRawTensorAddr(made) == (161002, 0)
