"""The rules of memory: workspaces, results over operands, what was freed or never there."""

import numpy as np
import pytest
from aclnn_calls import (
    BATCH_NORM,
    LAYER_NORM,
    accepted,
    arguments,
    compute,
    refused,
    run,
    said,
    stage_one,
    stage_two,
)

from normgrad import aclnn
from normgrad.device import launch, memory

pytestmark = pytest.mark.usefixtures("device")


def on_device(array, **options):
    """A copy of an array in device memory: pointer and tensor."""
    status, pointer = aclnn.aclrtMalloc(array.nbytes)
    assert status == 0
    copied = aclnn.aclrtMemcpy(pointer, array.nbytes, array, array.nbytes, 1)
    assert copied == 0, said()
    given = {"strides": None, "offset": 0, **options}
    made = aclnn.aclCreateTensor(
        array.shape,
        array.ndim,
        aclnn.ACL_FLOAT,
        given["strides"],
        given["offset"],
        aclnn.ACL_FORMAT_ND,
        array.shape,
        array.ndim,
        pointer,
    )
    return pointer, made


def overlapping():
    """A call whose results lie over its operands: it needs a workspace on any backend."""
    both = np.random.default_rng(0).standard_normal(25).astype(np.float32)
    return both, arguments(BATCH_NORM) | {
        "input": aclnn.tensor(both[:24].reshape(2, 3, 4)),
        "gradInput": aclnn.tensor(both[1:].reshape(2, 3, 4)),
    }


def test_workspace_rules():
    _, given = overlapping()
    status, size, executor = stage_one(BATCH_NORM, given)
    assert status == 0
    assert size >= 96
    pointer = aclnn.aclrtMalloc(size)[1]
    assert stage_two(BATCH_NORM, None, size, executor) == 161001
    assert f"workspace must not be null for workspaceSize {size}" in said()
    assert stage_two(BATCH_NORM, pointer, size - 1, executor) == 161002
    assert f"workspaceSize must be at least {size}, as stage 1 said, got {size - 1}" in said()
    assert stage_two(BATCH_NORM, None, 0, executor) == 161002
    assert stage_two(BATCH_NORM, pointer + 8, size, executor) == 361001
    assert "workspace must lie in live device memory" in said()
    for impossible in (2**70, -5):
        assert stage_two(BATCH_NORM, impossible, size, executor) == 161002
        assert "workspace must lie where addresses reach" in said()
    assert stage_two(BATCH_NORM, pointer, size, executor) == 0  # refusals cost nothing
    assert aclnn.aclrtFree(pointer) == 0


def test_a_result_over_an_operand_goes_through_the_workspace():
    both, given = overlapping()
    expected = np.full((2, 3, 4), np.nan, np.float32)
    apart = given | {
        "input": aclnn.tensor(both[:24].reshape(2, 3, 4).copy()),
        "gradInput": aclnn.tensor(expected),
    }
    compute(BATCH_NORM, apart)
    first = both[0]
    compute(BATCH_NORM, given)
    np.testing.assert_array_equal(both[1:].reshape(2, 3, 4), expected)
    assert both[0] == first


@pytest.mark.parametrize("over", ["input", "gradOut"])
def test_grad_input_may_be_the_very_input_or_grad_out(over):
    rng = np.random.default_rng(1)
    given = arguments(BATCH_NORM)
    given["input"] = aclnn.tensor(rng.standard_normal((2, 3, 4)).astype(np.float32))
    given["gradOut"] = aclnn.tensor(rng.standard_normal((2, 3, 4)).astype(np.float32))
    expected = np.full((2, 3, 4), np.nan, np.float32)
    compute(BATCH_NORM, given | {"gradInput": aclnn.tensor(expected)})
    apart = stage_one(BATCH_NORM, given)[1]
    status, size, executor = stage_one(BATCH_NORM, given | {"gradInput": given[over]})
    assert (status, size) == (0, apart)  # in place: no detour
    assert run(BATCH_NORM, executor, size) == 0
    np.testing.assert_array_equal(given[over].owner[0], expected)


def test_results_over_each_other_are_161002():
    shared = np.zeros(4, np.float32)
    given = arguments(BATCH_NORM)
    given |= {"gradWeight": aclnn.tensor(shared[:3]), "gradBias": aclnn.tensor(shared[1:])}
    refused(BATCH_NORM, 161002, "gradBias must not share memory with gradWeight", given)


def test_results_between_each_other_are_fine():
    shared = np.full(6, np.nan, np.float32)
    given = arguments(BATCH_NORM)
    given |= {"gradWeight": aclnn.tensor(shared[::2]), "gradBias": aclnn.tensor(shared[1::2])}
    compute(BATCH_NORM, given)
    np.testing.assert_array_equal(shared[1::2], np.full(3, 8.0))
    np.testing.assert_array_equal(shared[::2], np.zeros(3))


def test_an_output_with_two_elements_at_one_address_is_161002():
    given = arguments(BATCH_NORM)
    pointer, _ = on_device(np.zeros(3, np.float32))
    given["gradBias"] = aclnn.aclCreateTensor((3,), 1, 0, (0,), 0, 2, (1,), 1, pointer)
    refused(BATCH_NORM, 161002, "gradBias must not have two elements at one address", given)


def test_a_read_only_array_is_no_output():
    frozen = np.zeros((2, 3, 4), np.float32)
    frozen.flags.writeable = False
    accepted(BATCH_NORM, arguments(BATCH_NORM) | {"input": aclnn.tensor(frozen)})
    given = arguments(BATCH_NORM) | {"gradInput": aclnn.tensor(frozen)}
    refused(BATCH_NORM, 161002, "gradInput must be writable", given)


def test_tensor_of_memory_freed_before_stage_1_is_161002():
    pointer, freed = on_device(np.ones((2, 3, 4), np.float32))
    assert aclnn.aclrtFree(pointer) == 0
    words = ("input must lie in live device memory", "of aclrtMalloc", "which aclrtFree has freed")
    refused(BATCH_NORM, 161002, words, arguments(BATCH_NORM) | {"input": freed})


def test_tensor_of_memory_freed_between_the_stages_is_361001():
    pointer, alive = on_device(np.ones((2, 3, 4), np.float32))
    _, size, executor = stage_one(BATCH_NORM, arguments(BATCH_NORM) | {"input": alive})
    assert aclnn.aclrtFree(pointer) == 0
    assert run(BATCH_NORM, executor, size) == 361001
    assert "input must lie in live device memory" in said()
    assert "which aclrtFree has freed" in said()


def test_tensor_destroyed_between_the_stages_is_361001():
    given = arguments(BATCH_NORM)
    _, size, executor = stage_one(BATCH_NORM, given)
    assert aclnn.aclDestroyTensor(given["weight"]) == 0
    assert run(BATCH_NORM, executor, size) == 361001
    assert "weight must live until stage 2 returns" in said()


def test_out_of_memory_in_stage_2_is_361001(monkeypatch):
    _, size, executor = stage_one(BATCH_NORM, arguments(BATCH_NORM))

    def full(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(launch.Launch, "run", full)
    assert run(BATCH_NORM, executor, size) == 361001
    assert "not enough memory: no room" in said()


def test_view_that_leaves_its_allocation_is_161002():
    pointer, _ = on_device(np.ones(24, np.float32))
    long = aclnn.aclCreateTensor((2, 3, 4), 3, 0, None, 1, 2, (24,), 1, pointer)
    words = ("input must lie in live device memory", "by 4 bytes at its end")
    refused(BATCH_NORM, 161002, words, arguments(BATCH_NORM) | {"input": long})
    early = aclnn.aclCreateTensor((2, 3, 4), 3, 0, None, -1, 2, (24,), 1, pointer)
    refused(BATCH_NORM, 161002, "begin 4 before", arguments(BATCH_NORM) | {"input": early})
    assert aclnn.aclrtFree(pointer) == 0


def test_pointer_of_nobody_is_161002_unless_unchecked(monkeypatch):
    array = np.ones((2, 3, 4), np.float32)
    foreign = aclnn.aclCreateTensor((2, 3, 4), 3, 0, None, 0, 2, (24,), 1, array.ctypes.data)
    given = arguments(BATCH_NORM) | {"input": foreign}
    refused(BATCH_NORM, 161002, "belongs to no device allocation", given)
    monkeypatch.setattr(memory, "checked", False)
    compute(BATCH_NORM, given)


def test_null_data_is_161001_in_stage_2_unless_empty():
    """An address may come between the stages."""
    null = aclnn.aclCreateTensor((2, 3, 4), 3, 0, None, 0, 2, (24,), 1, None)
    status, size, executor = stage_one(BATCH_NORM, arguments(BATCH_NORM) | {"input": null})
    assert status == 0, said()
    assert run(BATCH_NORM, executor, size) == 161001
    assert "input's data must not be null for shape (2, 3, 4)" in said()
    assert aclnn.aclDestroyAclOpExecutor(executor) == 0  # it is not spent
    empty = aclnn.aclCreateTensor((0, 3, 4), 3, 0, None, 0, 2, (0,), 1, None)
    given = arguments(BATCH_NORM, shape=(0, 3, 4))
    compute(BATCH_NORM, given | {"input": empty, "gradOut": empty, "gradInput": empty})


@pytest.mark.parametrize(
    ("operator", "name", "size", "training"),
    [
        (BATCH_NORM, "runningMean", 3, True),
        (BATCH_NORM, "runningVar", 3, True),
        (BATCH_NORM, "saveMean", 3, False),
        (BATCH_NORM, "saveInvstd", 3, False),
        (LAYER_NORM, "biasOptional", 4, None),
    ],
)
def test_memory_that_is_given_but_not_read_is_looked_at(operator, name, size, training):
    given = arguments(operator) | ({} if training is None else {"training": training})
    accepted(operator, given)

    def at(address):
        made = aclnn.aclCreateTensor((size,), 1, 0, None, 0, 2, (size,), 1, address)
        return given | {name: made}

    accepted(operator, at(None))
    pointer, _ = on_device(np.ones(size + 1, np.float32))
    accepted(operator, at(pointer))
    refused(operator, 161002, f"{name} must begin at a multiple of 4 bytes", at(pointer + 2))
    assert aclnn.aclrtFree(pointer) == 0
    refused(operator, 161002, f"{name} must lie in live device memory", at(pointer))


def test_data_at_an_odd_address_is_161002():
    pointer = aclnn.aclrtMalloc(200)[1]
    odd = aclnn.aclCreateTensor((2, 3, 4), 3, 0, None, 0, 2, (24,), 1, pointer + 2)
    given = arguments(BATCH_NORM) | {"input": odd}
    refused(BATCH_NORM, 161002, "input must begin at a multiple of 4 bytes", given)
