"""The rules of executors, and of what is asked in which order."""

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
from normgrad.device import launch, memory

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("null", [None, 0, np.int64(0)])
def test_null_executor(name, null):
    assert stage_two(name, null, 0, null, null) == 161001
    assert said() == f"{name}: executor must not be null"
    assert aclnn.aclSetAclOpExecutorRepeatable(null) == 561103
    assert aclnn.aclDestroyAclOpExecutor(null) == 561103


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
            assert status or aclnn.aclDestroyAclOpExecutor(executor) == 0
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


def test_destroying_or_repeating_null_is_561103():
    """As the vendor's library has it; only for tensors and arrays is destroying null success."""
    for call in (aclnn.aclDestroyAclOpExecutor, aclnn.aclSetAclOpExecutorRepeatable):
        assert call(None) == 561103
        assert said() == f"{call.__name__}: executor must not be null"


def test_what_is_no_executor_is_561103():
    assert stage_two(BATCH_NORM, None, 0, "executor") == 561103
    assert "must come from stage 1, got a str" in said()


def test_an_executor_of_another_operator_is_161002():
    _, size, executor = stage_one(LAYER_NORM, arguments(LAYER_NORM))
    assert run(GROUP_NORM, executor, size) == 161002
    assert f"must be one of {GROUP_NORM}, got one of {LAYER_NORM}" in said()
    assert run(LAYER_NORM, executor, size) == 0


def test_destroyed_stream_is_361001():
    stream = aclnn.aclrtCreateStream()[1]
    _, size, executor = stage_one(BATCH_NORM, arguments(BATCH_NORM))
    assert aclnn.aclrtDestroyStream(stream) == 0
    assert run(BATCH_NORM, executor, size, stream) == 361001
    assert "stream must be alive, got one that was destroyed" in said()


def test_stream_of_a_context_that_has_ended_is_361001():
    context = aclnn.aclrtCreateContext(0)[1]
    assert aclnn.aclrtSetCurrentContext(context) == 0
    stream = aclnn.aclrtCreateStream()[1]
    _, size, executor = stage_one(BATCH_NORM, arguments(BATCH_NORM))
    assert aclnn.aclrtDestroyContext(context) == 0
    assert run(BATCH_NORM, executor, size, stream) == 361001
    assert "stream must be alive, got one whose context has ended" in said()
    assert aclnn.aclrtSynchronizeStream(stream) == 107003
    assert run(BATCH_NORM, executor, size) == 0  # the default stream is another's


def test_failure_inside_is_561000(monkeypatch):
    _, size, executor = stage_one(BATCH_NORM, arguments(BATCH_NORM))
    monkeypatch.setattr(launch.Launch, "run", lambda *_: 1 // 0)
    assert run(BATCH_NORM, executor, size) == 561000
    assert "ZeroDivisionError" in said()


def test_no_executor_to_be_made_is_561101(monkeypatch):
    def gone(*_):
        raise RuntimeError("device gone")

    monkeypatch.setattr(executors.device, "memory_of", gone)
    given = arguments(BATCH_NORM)
    assert stage_one(BATCH_NORM, given) == (561101, 0, None)
    assert "no executor for aclnnBatchNormBackward: device gone" in said()


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

    monkeypatch.setattr(products, "SETTINGS", products._Settings())
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

    monkeypatch.setattr(products, "SETTINGS", products._Settings())
    monkeypatch.setenv("NORMGRAD_PRODUCT", "atlas-9000")
    monkeypatch.setenv("NORMGRAD_SAVE_INVSTD_IS", "deviation")
    aclnn.set_product("atlas-a2")
    assert aclnn.get_product() == "atlas-a2"
    assert stage_one(LAYER_NORM, arguments(LAYER_NORM))[0] == 561000
    assert "saveInvstd must be read as 'invstd' or 'variance', got 'deviation'" in said()
    aclnn.set_save_invstd_is("variance")
    accepted(LAYER_NORM, arguments(LAYER_NORM))
