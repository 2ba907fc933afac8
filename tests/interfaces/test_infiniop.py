"""infiniopBatchNormBackward: each check in its order, by its words; and the runtime subset."""

import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
import torch

from normgrad import aclnn, batch_norm_backward, infiniop
from normgrad.device import memory
from normgrad.infiniop import batch_norm as functions

F16, F32, BF16 = infiniop.INFINI_DTYPE_F16, infiniop.INFINI_DTYPE_F32, infiniop.INFINI_DTYPE_BF16
NAMES = (
    "grad_input",
    "grad_weight",
    "grad_bias",
    "input",
    "grad_output",
    "weight",
    "running_mean",
    "running_var",
)
BIG = ("grad_input", "input", "grad_output")
H2H, H2D, D2H, D2D = infiniop.infinirtMemcpyKind_t


def said():
    return infiniop.recent_error()


def handle():
    status, made = infiniop.infiniopCreateHandle()
    assert status == 0
    return made


def describe(shape, strides=None, dtype=F32):
    status, made = infiniop.infiniopCreateTensorDescriptor(len(shape), shape, strides, dtype)
    assert status == 0, said()
    return made


def tensors(shape=(2, 3, 4), dtype=F32):
    return {name: describe(shape if name in BIG else (shape[1],), dtype=dtype) for name in NAMES}


def create(given=None, handle_=None, **changes):
    given = {**(given or tensors()), **changes}
    return infiniop.infiniopCreateBatchNormBackwardDescriptor(handle_ or handle(), *given.values())


def refused(status, words, **changes):
    assert create(**changes) == (status, None), said()
    assert words in said(), said()


def run(desc, arrays, workspace=None, size=0, stream=None):
    pointers = [array.ctypes.data for array in arrays.values()]
    return infiniop.infiniopBatchNormBackward(desc, workspace, size, *pointers, stream)


def problem(shape=(2, 3, 4), dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {}
    for name in NAMES:
        size = shape if name in BIG else shape[1:2]
        values = 100 + 3 * rng.standard_normal(size) if name in BIG else 0.5 + rng.random(size)
        arrays[name] = values.astype(dtype)
        if name.startswith("grad_") and name != "grad_output":
            arrays[name][...] = np.nan
    return arrays


def expected(arrays):
    return batch_norm_backward(
        arrays["grad_output"],
        arrays["input"],
        arrays["weight"],
        save_mean=arrays["running_mean"],
        save_invstd=arrays["running_var"],
        save_invstd_is="variance",
        eps=0.0,
    )


def scratch(desc):
    status, size = infiniop.infiniopGetBatchNormBackwardWorkspaceSize(desc)
    assert status == 0
    status, pointer = infiniop.infinirtMalloc(size)
    assert status == 0
    return pointer, size


def test_constants_have_their_documented_values():
    statuses = {
        "SUCCESS": 0, "INTERNAL_ERROR": 1, "NOT_IMPLEMENTED": 2, "BAD_PARAM": 3,
        "NULL_POINTER": 4, "DEVICE_TYPE_NOT_SUPPORTED": 5, "DEVICE_NOT_FOUND": 6,
        "DEVICE_NOT_INITIALIZED": 7, "DEVICE_ARCHITECTURE_NOT_SUPPORTED": 8,
        "BAD_TENSOR_DTYPE": 10, "BAD_TENSOR_SHAPE": 11, "BAD_TENSOR_STRIDES": 12,
        "INSUFFICIENT_WORKSPACE": 13,
    }  # fmt: skip
    for name, value in statuses.items():
        assert getattr(infiniop, f"INFINI_STATUS_{name}") == value
    for name, value in {"I32": 5, "I64": 6, "F16": 12, "F32": 13, "F64": 14, "BF16": 19}.items():
        assert getattr(infiniop, f"INFINI_DTYPE_{name}") == value
    assert (infiniop.INFINI_DEVICE_CPU, infiniop.INFINI_DEVICE_NVIDIA) == (0, 1)
    assert (H2H, H2D, D2H, D2D) == (0, 1, 2, 3)


def test_every_status_has_a_sentence():
    assert set(infiniop.SENTENCES) == set(infiniop.infiniStatus_t)
    assert len(set(infiniop.SENTENCES.values())) == len(infiniop.infiniStatus_t)
    assert all(text.endswith(".") for text in infiniop.SENTENCES.values())


@pytest.mark.parametrize("name", NAMES)
def test_null_descriptor_is_3(name):
    refused(3, f"{name}_desc must not be null", **{name: None})
    refused(3, f"{name}_desc must not be null", **{name: 0})


def test_null_handle_is_3():
    answer = infiniop.infiniopCreateBatchNormBackwardDescriptor(None, *tensors().values())
    assert answer == (3, None)
    assert "handle must not be null" in said()


def test_destroyed_handle_or_descriptor_is_3():
    dead = handle()
    assert infiniop.infiniopDestroyHandle(dead) == 0
    assert create(handle_=dead) == (3, None)
    assert "handle must be alive" in said()
    gone = describe((3,))
    assert infiniop.infiniopDestroyTensorDescriptor(gone) == 0
    refused(3, "weight_desc must be alive", weight=gone)
    refused(3, "weight_desc must be an infiniopTensorDescriptor_t, got a str", weight="w")


def test_device_not_ours_is_5():
    foreign = handle()
    foreign.device = 4
    assert create(handle_=foreign) == (5, None)
    assert "handle must be of CPU or NVIDIA, got device 4" in said()
    # after nulls, before types
    assert create(handle_=foreign, weight=None)[0] == 3
    assert create(handle_=foreign, weight=describe((3,), dtype=5))[0] == 5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [infiniop.INFINI_DTYPE_F64, infiniop.INFINI_DTYPE_I32, 99])
def test_dtype_outside_the_three_is_10(name, dtype):
    shape = (2, 3, 4) if name in BIG else (3,)
    changes = {name: describe(shape, dtype=dtype)}
    refused(10, f"{name} must be of type float16, float32, bfloat16", **changes)


@pytest.mark.parametrize("name", NAMES)
def test_dtypes_not_all_equal_is_10(name):
    shape = (2, 3, 4) if name in BIG else (3,)
    refused(10, "must have the type of input", **{name: describe(shape, dtype=F16)})


@pytest.mark.parametrize("dtype", [F16, F32, BF16])
def test_the_three_dtypes(dtype):
    assert create(tensors(dtype=dtype))[0] == 0


@pytest.mark.parametrize("name", BIG)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4, 1)])
def test_big_tensor_not_3d_is_11(name, shape):
    refused(
        11, f"{name} must have the 3 axes (N, C, L), got shape {shape}", **{name: describe(shape)}
    )


@pytest.mark.parametrize("name", ["grad_input", "grad_output"])
def test_big_tensors_not_alike_is_11(name):
    refused(11, f"{name} must have the shape", **{name: describe((2, 3, 5))})


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BIG])
@pytest.mark.parametrize("shape", [(4,), (3, 1), ()])
def test_vector_not_1d_of_length_c_is_11(name, shape):
    refused(11, f"{name} must", **{name: describe(shape)})


@pytest.mark.parametrize("name", BIG)
@pytest.mark.parametrize("strides", [(24, 8, 2), (12, 1, 3), (0, 4, 1), (-12, 4, 1)])
def test_big_tensor_not_contiguous_is_12(name, strides):
    changes = {name: describe((2, 3, 4), strides)}
    refused(12, f"{name} must be contiguous, with strides (12, 4, 1), got {strides}", **changes)


def test_shapes_are_looked_at_before_strides():
    odd = describe((2, 3, 4), (24, 8, 2))
    refused(11, "running_var must be 1-d", input=odd, running_var=describe((4,)))
    refused(11, "grad_bias must have the shape (3,)", grad_input=odd, grad_bias=describe((4,)))


def test_output_vector_of_stride_0_is_12():
    words = "grad_weight must not have two elements at one address"
    refused(12, words, grad_weight=describe((3,), (0,)))


def test_strides_of_axes_of_size_1_do_not_matter():
    given = tensors((1, 3, 1))
    assert create(given, input=describe((1, 3, 1), (77, 1, 5)))[0] == 0
    given = tensors((2, 1, 4))
    far = {name: describe((1,), (-(2**63),)) for name in NAMES if name not in BIG}
    desc = create({**given, **far})[1]
    arrays = problem((2, 1, 4))
    want = expected(arrays)
    arrays["grad_weight"] = arrays["weight"]  # through memory of our own
    pointer, size = scratch(desc)
    assert run(desc, arrays, pointer, size) == 0, said()
    np.testing.assert_array_equal(arrays["grad_weight"], want.grad_weight)


@pytest.mark.parametrize("shape", [(2**40, 2, 2**40), (2**62, 1, 2), (2**64 - 1, 3, 1)])
def test_more_data_than_addresses_is_11(shape):
    assert create(tensors(shape)) == (11, None)
    assert "grad_input must have and span less than 2**57 bytes" in said()


@pytest.mark.parametrize("step", [2**62, -(2**62), 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("name", ["weight", "running_var", "grad_bias"])
def test_a_vector_beyond_all_addresses_is_12(name, step):
    refused(12, f"{name} must have and span less", **{name: describe((3,), (step,))})


def test_descriptors_copy_what_they_are_given():
    given = tensors()
    desc = create(given)[1]
    for tensor in given.values():
        assert infiniop.infiniopDestroyTensorDescriptor(tensor) == 0
    arrays = problem()
    pointer, size = scratch(desc)
    assert run(desc, arrays, pointer, size) == 0


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
    want = expected(arrays).grad_input
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
    np.testing.assert_array_equal(held["grad_input"].numpy(), expected(arrays).grad_input)


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
    memory.DEVICE.require(pointer, pointer + 64, foreign=True)


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


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((2, None, None, F32), 4),
        ((2, 0, None, F32), 4),
        ((2, (3,), None, F32), 3),
        ((2, (3, -1), None, F32), 3),
        ((1, (3,), (), F32), 3),
        ((1, (2.5,), None, F32), 3),
        ((1, (3,), None, "F32"), 3),
    ],
)
def test_tensor_descriptor_that_cannot_be_made(arguments, status):
    assert infiniop.infiniopCreateTensorDescriptor(*arguments) == (status, None)


def test_tensor_descriptor_copies_shape_and_strides():
    shape, strides = [2, 3], [3, 1]
    made = infiniop.infiniopCreateTensorDescriptor(2, shape, strides, F32)[1]
    shape[0], strides[0] = 9, 9
    assert made.tensor == ((2, 3), (3, 1), "float32")
    assert infiniop.infiniopCreateTensorDescriptor(0, None, None, F32)[0] == 0


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
