"""What infiniop's forward operators compute, and the rules of each row of the table."""

import ml_dtypes
import numpy as np
import pytest

import normgrad
from normgrad import infiniop
from normgrad.device.host import HostMemory
from normgrad.infiniop.operators import OPERATORS
from normgrad.infiniop.table import SHAPES

BY_NAME = {one.name: one for one in OPERATORS}
CODES = {
    "float16": infiniop.INFINI_DTYPE_F16,
    "float32": infiniop.INFINI_DTYPE_F32,
    "float64": infiniop.INFINI_DTYPE_F64,
    "bfloat16": infiniop.INFINI_DTYPE_BF16,
}
F32, F16, F64 = np.float32, np.float16, np.float64
BF16 = ml_dtypes.bfloat16
EVERY = pytest.mark.parametrize("operator", OPERATORS, ids=list(BY_NAME))


def arrays_of(operator, dtype=F32, weight=None):
    rng = np.random.default_rng(4)
    made = {}
    for one in operator.tensors:
        kind = dtype if weight is None or one.role != "gamma" else weight
        made[one.name] = (1 + rng.random(SHAPES[one.shape][1])).astype(kind)
    return made


def describe(array):
    strides = [step // array.itemsize for step in array.strides]
    kind = CODES[np.dtype(array.dtype).name]
    return infiniop.infiniopCreateTensorDescriptor(array.ndim, array.shape, strides, kind)[1]


def create(operator, arrays, *numbers):
    numbers = numbers or [one.example for one in operator.numbers]
    given = [None if array is None else describe(array) for array in arrays.values()]
    handle = infiniop.infiniopCreateHandle()[1]
    make = getattr(infiniop, f"infiniopCreate{operator.name}Descriptor")
    return make(handle, *given, *numbers)


def compute(operator, arrays, *numbers):
    status, desc = create(operator, arrays, *numbers)
    assert status == 0, infiniop.recent_error()
    size = getattr(infiniop, f"infiniopGet{operator.name}WorkspaceSize")(desc)[1]
    workspace = infiniop.infinirtMalloc(size)[1]
    pointers = [None if array is None else array.ctypes.data for array in arrays.values()]
    run = getattr(infiniop, f"infiniop{operator.name}")
    assert run(desc, workspace, size, *pointers, None) == 0, infiniop.recent_error()
    assert infiniop.infinirtFree(workspace) == 0
    assert getattr(infiniop, f"infiniopDestroy{operator.name}Descriptor")(desc) == 0


@EVERY
def test_the_callers_workspace_is_enough(operator, monkeypatch):
    arrays = arrays_of(operator)
    desc = create(operator, arrays)[1]
    size = getattr(infiniop, f"infiniopGet{operator.name}WorkspaceSize")(desc)[1]
    workspace = infiniop.infinirtMalloc(size)[1]
    pointers = [array.ctypes.data for array in arrays.values()]
    run = getattr(infiniop, f"infiniop{operator.name}")
    monkeypatch.setattr(HostMemory, "allocate", None)
    assert run(desc, workspace, size, *pointers, None) == 0, infiniop.recent_error()
    monkeypatch.undo()
    assert infiniop.infinirtFree(workspace) == 0


def refused(operator, status, words, arrays=None, *numbers, **changes):
    arrays = arrays_of(operator) if arrays is None else arrays
    assert create(operator, {**arrays, **changes}, *numbers) == (status, None)
    assert words in infiniop.recent_error()


def agree(got, want):
    np.testing.assert_array_equal(got.view(np.uint8), np.asarray(want).view(np.uint8))


@EVERY
def test_nulls_types_shapes(operator):
    for one in operator.tensors:
        if one.required:
            refused(operator, 3, f"{one.name}_desc must not be null", **{one.name: None})
        shape = SHAPES[one.shape][1]
        refused(operator, 10, "type", **{one.name: np.ones(shape, F16)})
        longer = np.ones((*shape[:-1], shape[-1] + 1), F32)
        refused(operator, 11, "must ", **{one.name: longer})


@EVERY
def test_a_descriptor_of_another_operator(operator):
    status, desc = create(operator, arrays_of(operator))
    assert status == 0
    for other in OPERATORS:
        if other is not operator:
            size = getattr(infiniop, f"infiniopGet{other.name}WorkspaceSize")
            assert size(desc) == (3, 0)
            words = f"desc must be an {other.descriptor}, got an"
            assert words in infiniop.recent_error()


PAIRS = [(F32, F32), (F64, F64), (F16, F16), (F16, F32), (F16, BF16), (BF16, F32), (BF16, BF16)]


@pytest.mark.parametrize(("data", "weight"), PAIRS)
def test_rms_norm(data, weight):
    operator = BY_NAME["RMSNorm"]
    arrays = arrays_of(operator, data, weight)
    y, x, w = arrays.values()
    compute(operator, arrays, 1e-3)
    agree(y, normgrad.rms_norm(x, 4, weight=w, eps=1e-3).output)


@pytest.mark.parametrize(("data", "weight"), PAIRS)
def test_add_rms_norm(data, weight):
    operator = BY_NAME["AddRMSNorm"]
    arrays = arrays_of(operator, data, weight)
    y, total, a, b, w = arrays.values()
    want = normgrad.rms_norm(a, 4, weight=w, residual=b, eps=1e-3)
    compute(operator, arrays, 1e-3)
    agree(y, want.output)
    agree(total, want.sum)
    shared = {**arrays, "y": a, "residual_out": b}  # in place
    compute(operator, shared, 1e-3)
    agree(a, want.output)
    agree(b, want.sum)


@pytest.mark.parametrize("name", ["RMSNorm", "AddRMSNorm"])
def test_rms_norms_rules(name):
    operator = BY_NAME[name]
    weight, data = ("w", "x") if name == "RMSNorm" else ("weight", "a")
    wide = {one.name: np.ones((2, 3, 8), F32) for one in operator.tensors if one.shape == "rows"}
    gaps = {key: array[..., ::2] for key, array in wide.items()}
    refused(operator, 12, "must have last stride 1", {**arrays_of(operator), **gaps})
    refused(operator, 10, f"{weight} must be of type", **{weight: np.ones(4, F64)})
    refused(operator, 11, f"{weight} must have one axis", **{weight: np.ones((1, 4), F32)})
    flat = {one.name: np.ones((2, 3, 2, 4), F32) for one in operator.tensors if one.shape == "rows"}
    refused(operator, 11, "must have 2 or 3 axes", {**arrays_of(operator), **flat})
    refused(operator, 3, "epsilon must be finite and not negative", None, -1.0)
    refused(operator, 3, "epsilon must be a number", None, "x")
    rows = {key: array[:, ::2] for key, array in arrays_of(operator).items() if array.ndim == 3}
    compute(operator, {**arrays_of(operator), **rows})  # only the last axis is dense
    assert data in rows


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_batch_norm_leaves_what_its_gradient_takes(dtype):
    operator = BY_NAME["BatchNorm"]
    arrays = arrays_of(operator, dtype)
    y, mean, var, x, weight, bias = arrays.values()
    compute(operator, arrays, 1.0, 1e-3)
    agree(y, normgrad.batch_norm(x, weight=weight, bias=bias, eps=1e-3).output)
    wide = x.astype(np.float64)
    step = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(mean.astype(F64), wide.mean(axis=(0, 2)), rtol=step)
    np.testing.assert_allclose(var.astype(F64), wide.var(axis=(0, 2)), rtol=2 * step)


def test_batch_norm_with_a_share():
    operator = BY_NAME["BatchNorm"]
    arrays = arrays_of(operator)
    _, mean, var, x, *_ = arrays.values()
    before = mean.copy(), var.copy()
    compute(operator, arrays, 0.25, 1e-3)
    for got, old, new in (
        (mean, before[0], x.mean(axis=(0, 2))),
        (var, before[1], x.var(axis=(0, 2))),
    ):
        np.testing.assert_allclose(got, 0.75 * old + 0.25 * new, rtol=1e-6)
    refused(operator, 3, "momentum must be finite", None, float("nan"), 1e-3)
    refused(operator, 12, "input must be contiguous", input=np.ones((2, 3, 8), F32)[..., ::2])


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(dtype, bias):
    operator = BY_NAME["LayerNorm"]
    arrays = arrays_of(operator, dtype)
    if not bias:
        arrays["bias"] = None
    y, xhat, deviation, x, weight, shift = arrays.values()
    want = normgrad.layer_norm(x, 4, weight=weight, bias=shift, eps=1e-3)
    plain = normgrad.layer_norm(x, 4, eps=1e-3).output
    compute(operator, arrays, 1e-3)
    agree(y, want.output)
    agree(xhat, plain)
    true = np.sqrt(np.var(x.astype(F64), axis=-1) + 1e-3)
    step = max(float(ml_dtypes.finfo(dtype).eps), 1e-6)
    np.testing.assert_allclose(deviation.astype(F64), true, rtol=step)
    for name in ("output", "input_standardization"):  # either may lie over the input
        shared = {**arrays, "input": x.copy()}
        shared[name] = shared["input"]
        compute(operator, shared, 1e-3)
        agree(shared["output"], want.output)
        agree(shared["input_standardization"], plain)


def test_layer_norms_rules():
    operator = BY_NAME["LayerNorm"]
    words = "input_standardization must have the shape (2, 3, 4)"
    refused(operator, 11, words, input_standardization=np.ones((2, 12), F32))
    words = "input_std_deviation must have the shape (2, 3)"
    refused(operator, 11, words, input_std_deviation=np.ones((2, 3, 1), F32))
    refused(operator, 11, "bias must have one axis", bias=np.ones((1, 4), F32))
    arrays = arrays_of(operator)
    status, desc = create(operator, arrays)
    assert status == 0
    size = infiniop.infiniopGetLayerNormWorkspaceSize(desc)[1]
    workspace = infiniop.infinirtMalloc(size)[1]
    pointers = [array.ctypes.data for array in arrays.values()]
    pointers[1] = pointers[0]
    assert infiniop.infiniopLayerNorm(desc, workspace, size, *pointers, None) == 3
    assert "must not share memory" in infiniop.recent_error()
