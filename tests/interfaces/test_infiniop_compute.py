"""infiniopBatchNormBackward: its numbers, memory over memory, and what it refuses."""

import ml_dtypes
import numpy as np
import pytest
import torch
from infiniop_calls import (
    BF16,
    BIG,
    F16,
    F32,
    NAMES,
    create,
    describe,
    expected,
    problem,
    run,
    said,
    scratch,
    tensors,
)

from normgrad import infiniop
from normgrad.infiniop import functions


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 1, 1), (5, 7, 33)])
def test_results_are_those_of_the_training_formula_without_eps(shape, dtype):
    code = {np.float16: F16, np.float32: F32}.get(dtype, BF16)
    desc = create(tensors(shape, code))[1]
    pointer, size = scratch(desc)
    for seed in range(3):  # a descriptor serves any number of computations
        arrays = problem(shape, dtype, seed)
        assert run(desc, arrays, pointer, size) == 0, said()
        for name, want in zip(NAMES, expected(arrays), strict=False):
            got = arrays[name].astype(np.float32)
            np.testing.assert_array_equal(got, want.astype(np.float32))


def test_variance_of_0_is_plain_arithmetic():
    desc = create()[1]
    arrays = problem()
    arrays["running_var"][1] = 0
    pointer, size = scratch(desc)
    assert run(desc, arrays, pointer, size) == 0
    finite = np.isfinite(arrays["grad_input"]).all(axis=(0, 2))
    np.testing.assert_array_equal(finite, [True, False, True])


@pytest.mark.parametrize("over", ["grad_output", "input"])
def test_grad_input_may_be_the_buffer_of(over):
    desc = create()[1]
    pointer, size = scratch(desc)
    arrays = problem()
    want = expected(arrays)[0]
    arrays["grad_input"] = arrays[over]
    assert run(desc, arrays, pointer, size) == 0
    np.testing.assert_array_equal(arrays["grad_input"], want)


@pytest.mark.parametrize("result", ["grad_weight", "grad_bias"])
@pytest.mark.parametrize("over", ["weight", "running_mean", "running_var"])
def test_param_grads_may_lie_over_vectors(result, over):
    desc = create()[1]
    pointer, size = scratch(desc)
    arrays = problem()
    want = dict(zip(NAMES, expected(arrays), strict=False))
    arrays[result] = arrays[over]
    assert run(desc, arrays, pointer, size) == 0
    for name, values in want.items():
        np.testing.assert_array_equal(arrays[name], values)


def test_results_over_each_other_are_3():
    desc = create()[1]
    pointer, size = scratch(desc)
    arrays = problem()
    arrays["grad_bias"] = arrays["grad_weight"]
    assert run(desc, arrays, pointer, size) == 3
    assert "grad_bias must not share memory with grad_weight" in said()


@pytest.mark.parametrize("step", [2, -1, -3])
def test_strided_vectors_keep_what_lies_between(step):
    given = tensors()
    arrays = problem()
    want = expected(arrays)
    stores = {}
    for name in NAMES:
        if name in BIG:
            continue
        stores[name] = np.full(9, -5.0, np.float32)
        view = stores[name][::step][:3]
        view[...] = arrays[name]
        arrays[name] = view
        given[name] = describe((3,), (step,))
    desc = create(given)[1]
    pointer, size = scratch(desc)
    assert run(desc, arrays, pointer, size) == 0, said()
    for name, values in zip(NAMES, want, strict=False):
        np.testing.assert_array_equal(arrays[name], values)
        if name not in BIG:
            arrays[name][...] = -5
            np.testing.assert_array_equal(stores[name], np.full(9, -5.0))


@pytest.mark.parametrize("place", range(8))
def test_null_data_pointer_is_3(place):
    desc = create()[1]
    pointers = [4096] * 8
    pointers[place] = None
    assert infiniop.infiniopBatchNormBackward(desc, None, 0, *pointers, None) == 3
    assert f"{NAMES[place]} must not be null" in said()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (2**70, "must lie where addresses reach, 0 to 0x8000000000000000, got bytes 0x4"),
        (2**63 - 4, "must lie where addresses reach"),
        (-4, "must lie where addresses reach, 0 to 0x8000000000000000, got bytes -0x4"),
        (4098, "must begin at a multiple of 4 bytes, got address 0x1002"),
    ],
)
@pytest.mark.parametrize("place", range(8))
def test_an_address_that_no_element_has_is_3(place, address, words):
    desc = create()[1]
    pointers = [4096] * 8
    pointers[place] = address
    assert infiniop.infiniopBatchNormBackward(desc, None, 0, *pointers, None) == 3
    assert f"{NAMES[place]} {words}" in said()


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_data_begin_at_a_multiple_of_their_own_size(dtype):
    desc = create(tensors(dtype=dtype))[1]
    arrays = problem(dtype=np.float16)
    pointers = [array.ctypes.data for array in arrays.values()]
    store = np.zeros(64, np.float16)  # 2 bytes on are enough, 1 is not
    for shift, status in ((2, 0), (1, 3)):
        pointers[0] = store.ctypes.data + shift
        assert infiniop.infiniopBatchNormBackward(desc, None, 0, *pointers, None) == status, said()


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0)])
def test_empty_data_may_have_null_pointers(shape):
    desc = create(tensors(shape))[1]
    arrays = problem(shape)
    pointer, size = scratch(desc)
    pointers = [None if array.size == 0 else array.ctypes.data for array in arrays.values()]
    assert infiniop.infiniopBatchNormBackward(desc, pointer, size, *pointers, None) == 0, said()
    np.testing.assert_array_equal(arrays["grad_weight"], np.zeros(3))
    np.testing.assert_array_equal(arrays["grad_bias"], np.zeros(3))


def test_null_or_destroyed_desc_is_3():
    arrays = problem()
    assert run(None, arrays) == 3
    assert "desc must not be null" in said()
    assert infiniop.infiniopGetBatchNormBackwardWorkspaceSize(None) == (3, 0)
    desc = create()[1]
    assert infiniop.infiniopDestroyBatchNormBackwardDescriptor(desc) == 0
    assert run(desc, arrays) == 3
    assert "desc must be alive" in said()
    assert infiniop.infiniopDestroyBatchNormBackwardDescriptor(desc) == 3


@pytest.mark.parametrize("null", [None, 0, np.int64(0)])
def test_destroying_null_is_success(null):
    assert infiniop.infiniopDestroyBatchNormBackwardDescriptor(null) == 0
    assert infiniop.infiniopDestroyHandle(null) == 0
    assert infiniop.infiniopDestroyTensorDescriptor(null) == 0
    assert infiniop.infinirtFree(null) == 0


def test_workspace_rules(monkeypatch):
    desc = create()[1]
    monkeypatch.setattr(desc, "workspace_bytes", 128)
    arrays = problem()
    pointer = infiniop.infinirtMalloc(128)[1]
    assert infiniop.infiniopGetBatchNormBackwardWorkspaceSize(desc) == (0, 128)
    assert run(desc, arrays, pointer, 127) == 13
    assert "workspace_size must be at least 128, got 127" in said()
    assert run(desc, arrays, None, 0) == 13
    assert run(desc, arrays, None, 128) == 3
    assert run(desc, arrays, pointer + 1, 128) == 3
    for impossible in (2**70, -5):
        assert run(desc, arrays, impossible, 128) == 3
        assert "workspace must lie where addresses reach" in said()
    assert run(desc, arrays, pointer, 128) == 0
    assert not np.isnan(arrays["grad_input"]).any()


def test_failure_inside_is_1(monkeypatch):
    desc = create()[1]
    monkeypatch.setattr(functions.devices, "memory_of", lambda _: 1 // 0)
    pointer, size = None, 0
    if desc.workspace_bytes:
        monkeypatch.undo()
        pointer, size = scratch(desc)
        monkeypatch.setattr(functions.devices, "memory_of", lambda _: 1 // 0)
    assert run(desc, problem(), pointer, size) == 1
    assert "ZeroDivisionError" in said()


def test_torch_addresses_work():
    desc = create()[1]
    pointer, size = scratch(desc)
    arrays = problem()
    held = {name: torch.from_numpy(array) for name, array in arrays.items()}
    pointers = [tensor.data_ptr() for tensor in held.values()]
    assert infiniop.infiniopBatchNormBackward(desc, pointer, size, *pointers, None) == 0
    np.testing.assert_array_equal(held["grad_input"].numpy(), expected(arrays)[0])


def test_worked_numbers():
    """The seed example of batch norm: its variance of 1 is its inverse deviation."""
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    arrays = problem((1, 2, 4)) | {"input": x, "grad_output": x.copy()}
    arrays |= {"weight": np.ones(2, np.float32), "running_var": np.ones(2, np.float32)}
    arrays["running_mean"] = np.zeros(2, np.float32)
    arrays = {name: arrays[name] for name in NAMES}
    desc = create(tensors((1, 2, 4)))[1]
    workspace, size = scratch(desc)
    assert run(desc, arrays, workspace, size) == 0
    expected_input = [-1.5, -4, -6.5, -9, -127.5, -158, -188.5, -219]
    np.testing.assert_array_equal(arrays["grad_input"].ravel(), expected_input)
    np.testing.assert_array_equal(arrays["grad_weight"], [14, 126])
    np.testing.assert_array_equal(arrays["grad_bias"], [6, 22])
