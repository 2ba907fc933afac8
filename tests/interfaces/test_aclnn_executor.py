"""The rules of executors, workspaces and the memory between the two stages."""

import threading

import numpy as np
import pytest
from aclnn_calls import (
    BATCH_NORM,
    ELEMT,
    GROUP_NORM,
    LAYER_NORM,
    OPERATORS,
    OUTPUTS,
    PARAMETERS,
    accepted,
    arguments,
    compute,
    refused,
    run,
    said,
    sizes,
    stage_one,
    stage_two,
    tensor,
)

from normgrad import aclnn
from normgrad.aclnn import executor as executors
from normgrad.device import memory

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


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("null", [None, 0, np.int64(0)])
def test_null_executor_is_161001(name, null):
    assert stage_two(name, null, 0, null, null) == 161001
    assert said() == f"{name}: executor must not be null"
    assert aclnn.aclSetAclOpExecutorRepeatable(null) == 161001
    assert aclnn.aclDestroyAclOpExecutor(null) == 0


@pytest.mark.parametrize("name", OPERATORS)
def test_0_is_null_as_none_is(name):
    numbers = ("training", "eps", "N", "C", "HxW", "group")
    for key in PARAMETERS[name]:
        if key in numbers:
            continue
        answers = []
        for null in (None, 0, np.uint64(0)):
            status, size, executor = stage_one(name, arguments(name) | {key: null})
            answers.append((status, size, said() if status else ""))
            assert aclnn.aclDestroyAclOpExecutor(executor) == 0
        assert answers == answers[:1] * 3


@pytest.mark.parametrize("name", OPERATORS)
def test_an_executor_serves_one_stage_2(name):
    _, size, executor = stage_one(name, arguments(name))
    assert run(name, executor, size) == 0
    assert run(name, executor, size) == 561103
    assert "must not be used again: it is spent" in said()
    assert aclnn.aclSetAclOpExecutorRepeatable(executor) == 561103
    assert aclnn.aclDestroyAclOpExecutor(executor) == 561103


@pytest.mark.parametrize("name", OPERATORS)
def test_a_repeatable_executor_serves_many_until_destroyed(name):
    given = arguments(name)
    out = np.full((2, 3, 4), np.nan, np.float32)
    given[OUTPUTS[name][0]] = aclnn.tensor(out)
    _, size, executor = stage_one(name, given)
    assert aclnn.aclSetAclOpExecutorRepeatable(executor) == 0
    for _ in range(3):
        out[:] = np.nan
        assert run(name, executor, size) == 0
        assert not np.isnan(out).any()
    assert aclnn.aclDestroyAclOpExecutor(executor) == 0
    assert run(name, executor, size) == 561103
    assert "it is destroyed" in said()


def test_an_executor_that_never_ran_may_be_destroyed():
    executor = stage_one(BATCH_NORM, arguments(BATCH_NORM))[2]
    assert aclnn.aclDestroyAclOpExecutor(executor) == 0
    assert aclnn.aclDestroyAclOpExecutor(executor) == 561103


def test_destroying_null_is_success_and_repeating_it_is_161001():
    assert aclnn.aclDestroyAclOpExecutor(None) == 0
    assert aclnn.aclSetAclOpExecutorRepeatable(None) == 161001


def test_what_is_no_executor_is_561103():
    assert stage_two(BATCH_NORM, None, 0, "executor") == 561103
    assert "must come from stage 1, got a str" in said()


def test_an_executor_of_another_operator_is_161002():
    _, size, executor = stage_one(LAYER_NORM, arguments(LAYER_NORM))
    assert run(GROUP_NORM, executor, size) == 161002
    assert f"must be one of {GROUP_NORM}, got one of {LAYER_NORM}" in said()
    assert run(LAYER_NORM, executor, size) == 0


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


def test_destroyed_stream_is_361001():
    stream = aclnn.aclrtCreateStream()[1]
    _, size, executor = stage_one(BATCH_NORM, arguments(BATCH_NORM))
    assert aclnn.aclrtDestroyStream(stream) == 0
    assert run(BATCH_NORM, executor, size, stream) == 361001
    assert "stream must be alive, got one that was destroyed" in said()


def test_out_of_memory_in_stage_2_is_361001(monkeypatch):
    _, size, executor = stage_one(BATCH_NORM, arguments(BATCH_NORM))

    def full(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(executors.Launch, "run", full)
    assert run(BATCH_NORM, executor, size) == 361001
    assert "not enough memory: no room" in said()


def test_failure_inside_is_561000(monkeypatch):
    _, size, executor = stage_one(BATCH_NORM, arguments(BATCH_NORM))
    monkeypatch.setattr(executors.Launch, "run", lambda *_: 1 // 0)
    assert run(BATCH_NORM, executor, size) == 561000
    assert "ZeroDivisionError" in said()


def test_no_executor_to_be_made_is_561101(monkeypatch):
    def gone(*_):
        raise RuntimeError("device gone")

    monkeypatch.setattr(executors.device, "memory_of", gone)
    given = arguments(BATCH_NORM)
    assert stage_one(BATCH_NORM, given) == (561101, 0, None)
    assert "no executor for aclnnBatchNormBackward: device gone" in said()


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


def test_null_data_is_161001_unless_empty():
    null = aclnn.aclCreateTensor((2, 3, 4), 3, 0, None, 0, 2, (24,), 1, None)
    words = "input's data must not be null for shape (2, 3, 4)"
    refused(BATCH_NORM, 161001, words, arguments(BATCH_NORM) | {"input": null})
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

    refused(operator, 161001, f"{name}'s data must not be null", at(None))
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


def test_destroyed_handles_and_wrong_kinds_are_161002():
    given = arguments(LAYER_NORM)
    dead = tensor((2, 3, 4))
    aclnn.aclDestroyTensor(dead)
    words = "input must be alive, got an aclTensor that was destroyed"
    refused(LAYER_NORM, 161002, words, given | {"input": dead})
    refused(LAYER_NORM, 161002, "mean must be an aclTensor, got a list", given | {"mean": [1]})
    aclnn.aclDestroyBoolArray(given["outputMask"])
    refused(LAYER_NORM, 161002, "outputMask must be alive", given)
    given = arguments(LAYER_NORM)
    aclnn.aclDestroyIntArray(given["normalizedShape"])
    refused(LAYER_NORM, 161002, "normalizedShape must be alive", given)


def dead_tensor():
    made = tensor((2, 3, 4))
    assert aclnn.aclDestroyTensor(made) == 0
    return made


def dead_sizes():
    made = sizes(4)
    assert aclnn.aclDestroyIntArray(made) == 0
    return made


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        (BATCH_NORM, {"input": dead_tensor()}, "input must be alive"),
        (BATCH_NORM, {"eps": "small"}, "eps must be a number, got 'small'"),
        (BATCH_NORM, {"training": 0.5}, "training must be a boolean, got 0.5"),
        (LAYER_NORM, {"normalizedShape": dead_sizes()}, "normalizedShape must be alive"),
        (GROUP_NORM, {"HxW": 2**63}, f"HxW must be an int64, got {2**63}"),
        (GROUP_NORM, {"group": 0.5}, "group must be an integer, got 0.5"),
    ],
)
def test_nulls_come_before_the_product_and_that_before_all_else(name, wrong, words):
    given = arguments(name) | wrong
    last = OUTPUTS[name][-1]
    aclnn.set_product("atlas-200i-500-a2")
    refused(name, 161001, f"{last} must not be null", given | {last: None})
    refused(name, 561003, f"has no {name}", given)
    aclnn.set_product("ascend950")
    refused(name, 161002, words, given)


@pytest.mark.parametrize("name", [BATCH_NORM, LAYER_NORM, GROUP_NORM])
def test_a_mask_that_cannot_be_read_is_refused_after_the_product(name):
    given = arguments(name)
    assert aclnn.aclDestroyBoolArray(given["outputMask"]) == 0
    aclnn.set_product("atlas-200i-500-a2")
    refused(name, 561003, f"has no {name}", given)
    refused(name, 161001, "gradOut must not be null", given | {"gradOut": None})
    aclnn.set_product("ascend950")
    refused(name, 161002, "outputMask must be alive", given)
    refused(name, 161002, "outputMask must be an aclBoolArray", given | {"outputMask": [1, 1, 1]})


def test_masked_off_outputs_are_never_looked_at():
    dead = tensor((7,), aclnn.ACL_INT8)
    aclnn.aclDestroyTensor(dead)
    given = arguments(BATCH_NORM)
    given |= {"gradWeight": dead, "outputMask": aclnn.aclCreateBoolArray([1, 0, 1], 3)}
    accepted(BATCH_NORM, given)


def test_of_two_threads_with_one_executor_one_runs():
    for _ in range(20):
        _, size, executor = stage_one(ELEMT, arguments(ELEMT))
        start = threading.Barrier(4)
        statuses = []

        def race(executor=executor, size=size, start=start, statuses=statuses):
            start.wait()
            statuses.append(int(run(ELEMT, executor, size)))

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [0, 561103, 561103, 561103]


def test_a_failed_stage_1_holds_nothing():
    live = memory.DEVICE.live()
    for name in OPERATORS:
        refused(name, 161001, "input must not be null", arguments(name) | {"input": None})
    assert memory.DEVICE.live() == live


def test_errors_are_told_to_the_thread_that_made_them():
    stage_two(BATCH_NORM, None, 0, None)
    mine = said()
    heard = []

    def other():
        heard.append(said())
        stage_two(ELEMT, None, 0, None)
        heard.append(said())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert heard == ["", f"{ELEMT}: executor must not be null"]
    assert said() == mine


def test_unknown_product_is_a_status(monkeypatch):
    from normgrad.aclnn import products

    monkeypatch.setattr(products, "_settings", products._Settings())
    monkeypatch.setenv("NORMGRAD_PRODUCT", "atlas-9000")
    assert stage_one(BATCH_NORM, arguments(BATCH_NORM))[0] == 561000
    assert "product must be one of ascend950" in said()
    monkeypatch.setenv("NORMGRAD_PRODUCT", "atlas-inference")
    assert stage_one(BATCH_NORM, arguments(BATCH_NORM))[0] == 561003
    assert aclnn.get_product() == "atlas-inference"
    with pytest.raises(ValueError, match=r"must be one of ascend950, .*, got 'x'"):
        aclnn.set_product("x")


def test_a_wrong_environment_does_not_stop_what_sets_it_right(monkeypatch):
    from normgrad.aclnn import products

    monkeypatch.setattr(products, "_settings", products._Settings())
    monkeypatch.setenv("NORMGRAD_PRODUCT", "atlas-9000")
    monkeypatch.setenv("NORMGRAD_SAVE_INVSTD_IS", "deviation")
    aclnn.set_product("atlas-a2")
    assert aclnn.get_product() == "atlas-a2"
    assert stage_one(LAYER_NORM, arguments(LAYER_NORM))[0] == 561000
    assert "saveInvstd must be read as 'invstd' or 'variance', got 'deviation'" in said()
    aclnn.set_save_invstd_is("variance")
    accepted(LAYER_NORM, arguments(LAYER_NORM))
