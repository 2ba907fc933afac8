"""infiniop: constants, and every check of the create functions in its order, by its words."""

import numpy as np
import pytest
from infiniop_calls import (
    BF16,
    BIG,
    D2D,
    D2H,
    F16,
    F32,
    H2D,
    H2H,
    NAMES,
    create,
    describe,
    expected,
    handle,
    problem,
    refused,
    run,
    said,
    scratch,
    tensors,
)

from normgrad import infiniop


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


def test_shape_or_strides_that_are_no_array_are_3():
    for shape, strides, words in ((3, None, "shape"), ((3,), 1, "strides")):
        made = infiniop.infiniopCreateTensorDescriptor(1, shape, strides, F32)
        assert made == (3, None)
        assert f"{words} must be an array, got address" in said()


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
    np.testing.assert_array_equal(arrays["grad_weight"], want[1])


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
