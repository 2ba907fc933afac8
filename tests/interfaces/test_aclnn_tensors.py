"""aclTensor, aclBoolArray, aclIntArray, and computing through every kind of view."""

import re

import ml_dtypes
import numpy as np
import pytest
import torch
from aclnn_calls import (
    BATCH_NORM,
    F32,
    GROUP_NORM,
    LAYER_NORM,
    OPERATORS,
    arguments,
    compute,
    numpy_type,
    refused,
    said,
    tensor,
)

from normgrad import ArrayTypeError, DtypeError, aclnn, batch_norm_backward, layer_norm_backward
from normgrad.aclnn.dtypes import DTYPE_NAMES, dtype_name
from normgrad.device import memory

pytestmark = pytest.mark.usefixtures("device")


def create(**changes):
    given = {
        "viewDims": (2, 3),
        "viewDimsNum": 2,
        "dataType": aclnn.ACL_FLOAT16,
        "strides": (4, 1),
        "offset": 5,
        "format": aclnn.ACL_FORMAT_NC,
        "storageDims": (3, 4),
        "storageDimsNum": 2,
        "data": 4096,
        **changes,
    }
    return aclnn.aclCreateTensor(*given.values())


def test_a_tensor_tells_what_it_is():
    made = create()
    assert aclnn.aclGetViewShape(made) == (0, (2, 3), 2)
    assert aclnn.aclGetViewStrides(made) == (0, (4, 1), 2)
    assert aclnn.aclGetViewOffset(made) == (0, 5)
    assert aclnn.aclGetStorageShape(made) == (0, (3, 4), 2)
    assert aclnn.aclGetFormat(made) == (0, aclnn.ACL_FORMAT_NC)
    assert aclnn.aclGetDataType(made) == (0, aclnn.ACL_FLOAT16)
    assert made.address == 4096 + 5 * 2
    assert repr(made) == "aclTensor(shape=(2, 3), strides=(4, 1), float16, address=0x100a)"


def test_null_strides_mean_contiguous_and_dims_are_copied():
    dims = [2, 3]
    made = create(viewDims=dims, strides=None)
    dims[0] = 99
    assert aclnn.aclGetViewShape(made)[1] == (2, 3)
    assert aclnn.aclGetViewStrides(made)[1] == (3, 1)


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(
    ("strides", "offset", "words"),
    [
        ((-(2**63), 1, 1), 0, "gradInput must have and span less than 2**57 bytes"),
        ((2**62, 2**61, 1), 0, "gradInput must have and span less than 2**57 bytes"),
        ((12, 4, 1), 2**62, "gradInput must lie where addresses reach"),
        ((12, 4, 1), -(2**40), "gradInput must lie where addresses reach"),
    ],
)
def test_a_view_beyond_all_addresses_is_161002(monkeypatch, checked, strides, offset, words):
    monkeypatch.setattr(memory, "checked", checked)
    far = create(
        viewDims=(2, 3, 4), viewDimsNum=3, strides=strides, offset=offset, dataType=F32, format=2
    )
    refused(BATCH_NORM, 161002, words, arguments(BATCH_NORM) | {"gradInput": far})


def test_an_empty_tensor_lies_nowhere():
    """Neither its offset nor its strides mean anything, and both come back as they were."""
    far = {"viewDims": (0, 3, 2**40, 2**40), "viewDimsNum": 4, "strides": None, "data": 0}
    big = [create(**far, offset=2**62, dataType=F32, format=2) for _ in range(3)]
    assert aclnn.aclGetViewOffset(big[0]) == (0, 2**62)
    assert aclnn.aclGetViewStrides(big[0]) == (0, (2**63 - 1, 2**63 - 1, 2**40, 1), 4)
    out = [np.full(3, np.nan, np.float32) for _ in range(2)]
    given = arguments(BATCH_NORM)
    given |= dict(zip(("gradOut", "input", "gradInput"), big, strict=True))
    given |= {"gradWeight": aclnn.tensor(out[0]), "gradBias": aclnn.tensor(out[1])}
    compute(BATCH_NORM, given)
    np.testing.assert_array_equal(out, np.zeros((2, 3)))


def test_strides_of_axes_of_size_1_may_be_anything():
    """Also where the result lies over an operand and is computed elsewhere first."""
    rng = np.random.default_rng(3)
    dy, x = (rng.standard_normal((1, 3, 4)).astype(np.float32) for _ in range(2))
    ones = np.ones(3, np.float32)
    expected = batch_norm_backward(dy, x, ones, ones, weight=ones).grad_input
    store = np.zeros(13, np.float32)
    pointer = aclnn.aclrtMalloc(store.nbytes)[1]
    store[:12] = x.ravel()
    assert aclnn.aclrtMemcpy(pointer, 52, store, 52, 1) == 0
    wild = {"viewDims": (1, 3, 4), "viewDimsNum": 3, "strides": (-(2**63), 4, 1)}
    wild |= {"data": pointer, "dataType": F32, "format": 2}
    given = arguments(BATCH_NORM, shape=(1, 3, 4)) | {"gradOut": aclnn.tensor(dy)}
    given |= {"input": create(**wild, offset=0), "gradInput": create(**wild, offset=1)}
    compute(BATCH_NORM, given)
    assert aclnn.aclrtMemcpy(store, 52, pointer, 52, 2) == 0
    np.testing.assert_array_equal(store[1:].reshape(1, 3, 4), expected)
    assert aclnn.aclrtFree(pointer) == 0


def test_only_the_stated_number_of_dims_is_read():
    assert aclnn.aclGetViewShape(create(viewDims=(2, 3, 4, 5)))[1] == (2, 3)
    scalar = create(viewDims=None, viewDimsNum=0, strides=0)
    assert aclnn.aclGetViewShape(scalar) == (0, (), 0)
    assert scalar.high - scalar.low == 2  # a 0-d tensor is not empty


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"viewDims": None}, "viewDims must not be null for 2 elements"),
        ({"viewDims": 0}, "viewDims must not be null for 2 elements"),
        ({"viewDims": 6}, "viewDims must be an array, got address 0x6"),
        ({"strides": 1.5}, "strides must be an array, got a float"),
        ({"viewDims": (2,)}, "viewDims must have 2 elements, got 1"),
        ({"viewDimsNum": -1}, "the number of viewDims must be 0 to 4096, got -1"),
        ({"storageDimsNum": 4097}, "the number of storageDims must be 0 to 4096, got 4097"),
        ({"viewDims": (2, -3)}, "viewDims must not be negative, got (2, -3)"),
        ({"viewDims": (2, 0.5)}, "viewDims must be an integer, got 0.5"),
        ({"strides": (1,)}, "strides must have 2 elements, got 1"),
        ({"dataType": [0]}, "dataType must be a value of aclDataType, got [0]"),
        ({"format": "ND"}, "format must be a value of aclFormat, got 'ND'"),
        ({"offset": None}, "offset must be an integer, got None"),
        ({"data": "here"}, "data must be an integer, got 'here'"),
        ({"data": ""}, "data must be an integer, got ''"),
        ({"storageDims": None}, "storageDims must not be null for 2 elements"),
    ],
)
def test_a_tensor_that_cannot_be_made_is_none(changes, words):
    assert create(**changes) is None
    assert said() == f"aclCreateTensor: {words}"


def test_numpy_integers_in_every_place():
    numbers = {
        "viewDims": np.array([2, 3]),
        "viewDimsNum": np.int64(2),
        "dataType": np.int32(1),
        "strides": np.array([4, 1]),
        "offset": np.int64(5),
        "format": np.int64(2),
        "storageDims": np.array([3, 4], np.uint32),
        "storageDimsNum": np.uint64(2),
        "data": np.uintp(4096),
    }
    made = create(**numbers)
    assert made is not None, said()
    assert made.kind == create(format=2).kind
    assert (made.address, type(made.address)) == (4096 + 5 * 2, int)


def test_arrays_are_copied():
    bits, numbers = [True, False], [4, 5, 6]
    made = aclnn.aclCreateBoolArray(bits, 2), aclnn.aclCreateIntArray(numbers, 2)
    bits[0], numbers[0] = False, 0
    assert made[0].values == (True, False)
    assert made[1].values == (4, 5)
    assert aclnn.aclCreateBoolArray(None, 1) is None
    assert aclnn.aclCreateIntArray([1], 2) is None
    assert aclnn.aclCreateBoolArray(None, 0).values == ()


@pytest.mark.parametrize(
    ("make", "destroy", "words"),
    [
        (create, aclnn.aclDestroyTensor, "tensor must be an aclTensor"),
        (
            lambda: aclnn.aclCreateBoolArray([True], 1),
            aclnn.aclDestroyBoolArray,
            "array must be an aclBoolArray",
        ),
        (
            lambda: aclnn.aclCreateIntArray([1], 1),
            aclnn.aclDestroyIntArray,
            "array must be an aclIntArray",
        ),
    ],
)
def test_destroying(make, destroy, words):
    assert [destroy(null) for null in (None, 0, np.int64(0))] == [0, 0, 0]
    made = make()
    assert destroy(made) == 0
    assert destroy(made) == 161002
    assert "was destroyed" in said()
    # The argument by its name in the header; a pointer that is none of ours by its value.
    for other, got in (("something", "a str"), (0x1234, "address 0x1234"), (object(), "an object")):
        assert destroy(other) == 161002
        assert f"{words}, got {got}" in said()


@pytest.mark.parametrize(
    "ask",
    [
        aclnn.aclGetViewShape,
        aclnn.aclGetViewStrides,
        aclnn.aclGetViewOffset,
        aclnn.aclGetStorageShape,
        aclnn.aclGetFormat,
        aclnn.aclGetDataType,
    ],
)
def test_asking_null_or_a_destroyed_tensor(ask):
    assert [ask(null)[0] for null in (None, 0)] == [161001, 161001]
    made = create()
    aclnn.aclDestroyTensor(made)
    assert ask(made)[0] == 161002


NUMPYS = [
    dtype
    for dtype, name in DTYPE_NAMES.items()
    if hasattr(np, name) or (name != "hifloat8" and hasattr(ml_dtypes, name))
]


@pytest.mark.parametrize("dtype", NUMPYS)
def test_numpy_arrays_of_every_type(dtype):
    made = aclnn.tensor(np.zeros((2, 3), numpy_type(dtype)))
    assert aclnn.aclGetDataType(made) == (0, dtype)


def test_tensors_of_every_type_and_of_none():
    """Operators look at types; nobody else needs to know one."""
    for dtype in (*aclnn.aclDataType, 5, 99, -7):
        made = create(dataType=dtype)
        assert aclnn.aclGetDataType(made) == (0, dtype)
        assert aclnn.aclDestroyTensor(made) == 0
    assert repr(create(dataType=99)).startswith(
        "aclTensor(shape=(2, 3), strides=(4, 1), data type 99"
    )


@pytest.mark.parametrize("dtype", [aclnn.ACL_STRING, aclnn.ACL_FLOAT4_E2M1, aclnn.ACL_HIFLOAT8, 99])
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operand_of_an_unknown_type_is_161002(operator, dtype):
    usual = arguments(operator)
    for name, value in usual.items():
        if isinstance(value, aclnn.aclTensor):
            shape = value.kind.tensor.shape
            made = create(
                viewDims=shape, viewDimsNum=len(shape), strides=None, dataType=dtype, data=4096
            )
            words = f"got {dtype_name(dtype)}"
            refused(operator, 161002, (name, "type", words), usual | {name: made})


def test_torch_tensors_are_seen_in_place():
    array = torch.zeros(2, 4, 3, dtype=torch.bfloat16).transpose(1, 2)
    made = aclnn.tensor(array)
    assert aclnn.aclGetDataType(made)[1] == aclnn.ACL_BF16
    assert aclnn.aclGetViewStrides(made)[1] == (12, 1, 3)
    assert made.address == array.data_ptr()


def frozen(array):
    array.flags.writeable = False
    return array


READ_IN_PLACE = {
    "numpy": lambda: frozen(np.zeros((2, 3), np.float32)),
    "expanded": lambda: np.broadcast_to(np.zeros(3, np.float32), (2, 3)),
    "of-autograd": lambda: torch.zeros(2, 3, requires_grad=True),
}


@pytest.mark.parametrize("array", READ_IN_PLACE.values(), ids=READ_IN_PLACE)
def test_what_must_not_be_written_is_seen_in_place(array):
    array = array()
    made = aclnn.tensor(array)
    assert not made.kind.writable
    at = array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data
    assert made.address == at


def odd_address():
    return np.zeros(25, np.uint8)[1:].view(np.float32)


COPIED = {
    "field": (lambda: np.zeros(4, [("v", "f4"), ("tag", "u1")])["v"], "must step by whole", "copy"),
    "odd": (odd_address, "must be aligned to its elements", "copy"),
    "odd-frozen": (lambda: frozen(odd_address()), "must be aligned to its elements", "copy"),
    "odd-torch": (
        lambda: torch.from_numpy(odd_address()).requires_grad_(),
        "must be aligned to its elements",
        "copy",
    ),
    "negated": (
        lambda: torch.zeros(3, dtype=torch.cfloat).conj().imag,
        "must be a plain tensor",
        "resolve_neg()",
    ),
}


@pytest.mark.parametrize(("array", "rule", "help"), COPIED.values(), ids=COPIED)
def test_what_could_only_be_read_as_a_copy_is_refused(array, rule, help):
    with pytest.raises(ArrayTypeError, match=rf"array {rule}.*\(pass .*{re.escape(help)}\)"):
        aclnn.tensor(array())


def test_what_is_no_array_raises():
    with pytest.raises(TypeError, match="must be a NumPy array"):
        aclnn.tensor([1, 2])
    with pytest.raises(DtypeError, match="must be of a type that aclDataType has"):
        aclnn.tensor(np.zeros(3, "<U1"))


def test_strided_tensors_inside_a_storage():
    """Each tensor is a view with an offset and gaps in device memory; the gaps keep their bytes."""
    rng = np.random.default_rng(7)
    shape = (3, 4, 5)
    size, marker = 3 * 4 * 5, np.float32(-77.25)

    def place(values, strides, offset, storage):
        """Values in a marked storage: pointer, tensor, and the view to read it back."""
        host = np.full(storage, marker, np.float32)
        view = np.lib.stride_tricks.as_strided(
            host[offset:], values.shape, [4 * step for step in strides]
        )
        view[...] = values
        pointer = aclnn.aclrtMalloc(host.nbytes)[1]
        assert aclnn.aclrtMemcpy(pointer, host.nbytes, host, host.nbytes, 1) == 0
        made = aclnn.aclCreateTensor(
            values.shape, values.ndim, 0, strides, offset, 2, (storage,), 1, pointer
        )
        return pointer, made, host, view

    dy, x = (100 + 3 * rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    vectors = {
        name: rng.random(4).astype(np.float32) + 0.5 for name in ("mean", "invstd", "weight")
    }
    nan3, nan1 = np.full(shape, np.nan, np.float32), np.full(4, np.nan, np.float32)
    placed = {
        "gradOut": place(dy, (1, 15, 3), 4, size + 9),  # transposed
        "input": place(x, (48, 12, 2), 1, 150),  # gaps
        "saveMean": place(vectors["mean"], (3,), 2, 14),
        "saveInvstd": place(vectors["invstd"], (1,), 5, 9),
        "weight": place(vectors["weight"], (2,), 0, 8),
        "gradInput": place(nan3, (44, 11, 2), 3, 140),
        "gradWeight": place(nan1, (5,), 7, 30),
        "gradBias": place(nan1, (1,), 1, 6),
    }
    given = arguments(BATCH_NORM, shape=shape) | {name: p[1] for name, p in placed.items()}
    compute(BATCH_NORM, given)
    expected = batch_norm_backward(
        dy, x, vectors["mean"], vectors["invstd"], weight=vectors["weight"]
    )
    results = dict(zip(("gradInput", "gradWeight", "gradBias"), expected[:3], strict=True))
    for name, (pointer, _, host, view) in placed.items():
        before = host.copy()
        assert aclnn.aclrtMemcpy(host, host.nbytes, pointer, host.nbytes, 2) == 0
        if name in results:
            np.testing.assert_array_equal(view, results[name])
            view[...] = np.nan  # what is left are the gaps
        np.testing.assert_array_equal(host, before)
        assert aclnn.aclrtFree(pointer) == 0


def test_stride_0_is_legal_for_inputs():
    given = arguments(LAYER_NORM, shape=(2, 3, 4))
    row = np.random.default_rng(2).standard_normal((1, 1, 4)).astype(np.float32)
    spread = np.broadcast_to(row, (2, 3, 4))
    out = np.full((2, 3, 4), np.nan, np.float32)
    given |= {"gradOut": aclnn.tensor(spread), "gradInputOut": aclnn.tensor(out)}
    compute(LAYER_NORM, given)
    ones = np.ones((2, 3, 4), np.float32)
    stats = np.ones((2, 3, 1), np.float32)
    expected = layer_norm_backward(spread.copy(), ones, stats, stats, (4,))
    np.testing.assert_array_equal(out, expected.grad_input)


def test_negative_strides():
    rng = np.random.default_rng(4)
    dy, x = (rng.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(2))
    outs = [np.full((2, 3, 4), np.nan, np.float32) for _ in range(2)]
    for out, flip in zip(outs, (False, True), strict=True):
        seen = (lambda a: a[:, ::-1, ::-1]) if flip else (lambda a: a)
        given = arguments(BATCH_NORM) | {
            "gradOut": aclnn.tensor(seen(dy)),
            "input": aclnn.tensor(seen(x)),
            "gradInput": aclnn.tensor(seen(out)),
        }
        compute(BATCH_NORM, given)
    np.testing.assert_array_equal(outs[0], outs[1])


@pytest.mark.parametrize("name", [BATCH_NORM, LAYER_NORM, GROUP_NORM])
def test_torch_and_numpy_agree(name):
    results = []
    for kind in (np.asarray, torch.from_numpy):
        rng = np.random.default_rng(9)
        given = arguments(name)
        data = [kind(rng.standard_normal((2, 3, 4)).astype(np.float32)) for _ in range(2)]
        out = np.full((2, 3, 4), np.nan, np.float32)
        key = "gradInputOut" if name == LAYER_NORM else "gradInput"
        given |= {"gradOut": aclnn.tensor(data[0]), "input": aclnn.tensor(data[1])}
        compute(name, given | {key: aclnn.tensor(kind(out))})
        results.append(out)
    assert not np.isnan(results[0]).any()
    np.testing.assert_array_equal(*results)


def test_a_tensor_keeps_its_array_alive():
    made = tensor((2, 3, 4))
    assert made.owner[0].sum() == 24
