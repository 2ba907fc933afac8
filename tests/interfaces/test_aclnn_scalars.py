"""Scalars, lists, float16 and the sizes of types: what programs use around the operators."""

import numpy as np
import pytest
from aclnn_calls import said

from normgrad import aclnn


def tensor():
    return aclnn.aclCreateTensor((2,), 1, aclnn.ACL_FLOAT, None, 0, 2, (2,), 1, 4096)


def scalar(number=2.5):
    return aclnn.aclCreateScalar(np.array([number]), aclnn.ACL_DOUBLE)


def test_a_scalar_is_copied_from_an_address_or_a_buffer():
    source = np.array([2.5, 3.5], np.float32)
    for place in (source, source.ctypes.data, np.uintp(source.ctypes.data), np.float32(2.5)):
        made = aclnn.aclCreateScalar(place, aclnn.ACL_FLOAT)
        assert (made.value, made.dtype) == (np.float32(2.5).tobytes(), aclnn.ACL_FLOAT)
        assert aclnn.aclDestroyScalar(made) == 0
        assert aclnn.aclDestroyScalar(made) == 161002
    source[0] = 9
    assert made.value == np.float32(2.5).tobytes()


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        (None, 0, "value must not be null"),
        (0, 0, "value must not be null"),
        (2.5, 0, "value must be an address or a contiguous buffer, got a float"),
        (np.zeros(1, np.int8), 0, "value must have 4 bytes, got 1"),
        (np.zeros(4), aclnn.ACL_INT4, "whole bytes, got ACL_INT4"),
        (np.zeros(4), 99, "whole bytes, got data type 99"),
        (np.zeros(4), "float", "whole bytes, got 'float'"),
    ],
)
def test_a_scalar_that_cannot_be_made_is_none(value, dtype, words):
    assert aclnn.aclCreateScalar(value, dtype) is None
    assert said().startswith("aclCreateScalar: ")
    assert words in said()


LISTS = {
    "tensors": (
        tensor,
        aclnn.aclCreateTensorList,
        aclnn.aclDestroyTensorList,
        aclnn.aclGetTensorListSize,
        aclnn.aclDestroyTensor,
    ),
    "scalars": (
        scalar,
        aclnn.aclCreateScalarList,
        aclnn.aclDestroyScalarList,
        aclnn.aclGetScalarListSize,
        aclnn.aclDestroyScalar,
    ),
}


@pytest.mark.parametrize(
    ("member", "create", "destroy", "size", "destroy_member"), LISTS.values(), ids=LISTS
)
def test_a_list_owns_its_members(member, create, destroy, size, destroy_member):
    given = [member(), None, member(), member()]
    made = create(given, 3)
    given[0] = None  # the list is a copy
    assert size(made) == (0, 3)
    assert destroy(made) == 0
    assert [each.alive for each in made.members if each] == [False, False]
    assert (destroy_member(given[2]), destroy_member(given[3])) == (161002, 0)
    assert (destroy(made), destroy(None), destroy("x")) == (161002, 0, 161002)
    assert "array must be an acl" in said()
    assert (size(made), size(None)) == ((161002, 0), (161001, 0))
    assert create(given[2:3], 1) is None
    assert "value[0] must be alive" in said()
    assert create([object()], 1) is None
    assert create(None, 1) is None
    assert "value must not be null for 1 elements" in said()
    assert size(create(None, 0)) == (0, 0)


def test_a_member_that_ended_before_its_list():
    gone = tensor()
    made = aclnn.aclCreateTensorList([gone], 1)
    assert aclnn.aclDestroyTensor(gone) == 0
    assert aclnn.aclDestroyTensorList(made) == 0


def test_lengths_of_arrays():
    mask, sizes = aclnn.aclCreateBoolArray([True] * 3, 3), aclnn.aclCreateIntArray([4, 5], 2)
    assert aclnn.aclGetBoolArraySize(mask) == (0, 3)
    assert aclnn.aclGetIntArraySize(sizes) == (0, 2)
    assert aclnn.aclGetIntArraySize(None) == (161001, 0)
    aclnn.aclDestroyBoolArray(mask)
    assert aclnn.aclGetBoolArraySize(mask) == (161002, 0)


def test_arrays_of_floats():
    made = aclnn.aclCreateFloatArray([0.1, np.float64(2), 1e300, 7], 3)
    assert made.values == (float(np.float32(0.1)), 2.0, float("inf"))
    assert aclnn.aclGetFloatArraySize(made) == (0, 3)
    assert (aclnn.aclDestroyFloatArray(made), aclnn.aclDestroyFloatArray(None)) == (0, 0)
    assert aclnn.aclDestroyFloatArray(made) == 161002
    assert aclnn.aclGetFloatArraySize(made) == (161002, 0)
    assert aclnn.aclCreateFloatArray(["a"], 1) is None
    assert "value must be a number, got 'a'" in said()
    assert aclnn.aclCreateFloatArray(None, 1) is None


def test_the_operators_need_no_start():
    assert [aclnn.aclnnInit(None), aclnn.aclnnInit("x.json"), aclnn.aclnnFinalize()] == [0, 0, 0]
    assert aclnn.aclnnFinalize() == 0


def test_float16_there_and_back():
    bits = np.arange(65536, dtype=np.uint16)
    numbers = bits.view(np.float16).astype(np.float32)
    for pattern, number in zip(bits.tolist(), numbers.tolist(), strict=True):
        if number == number:
            assert aclnn.aclFloat16ToFloat(pattern) == number
            assert aclnn.aclFloatToFloat16(number) == pattern
    for number, pattern in ((1e30, 0x7C00), (65519.99, 0x7BFF), (65520, 0x7C00), (2**-25, 0)):
        assert aclnn.aclFloatToFloat16(number) == pattern
    assert np.isnan(aclnn.aclFloat16ToFloat(aclnn.aclFloatToFloat16(float("nan"))))


def test_sizes_of_types():
    assert aclnn.aclDataTypeSize(aclnn.ACL_COMPLEX128) == 16
    assert aclnn.aclDataTypeSize(aclnn.ACL_HIFLOAT8) == 1
    for none in (aclnn.ACL_INT4, aclnn.ACL_STRING, aclnn.ACL_DT_UNDEFINED, 99):
        assert aclnn.aclDataTypeSize(none) == 0
