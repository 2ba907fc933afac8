"""Who calls: NumPy, torch, and libraries that speak DLPack. Each gets its own kind back."""

import gc

import ml_dtypes
import numpy as np
import pytest
import torch
from foreign_arrays import Copying, Foreign, Old, Wrapped, Writable

import normgrad as ng
from neutral import neutral
from normgrad.arrays import dlpack, torch_tensors
from normgrad.arrays.kinds import kind_of
from normgrad.core.spec import TensorSpec

RNG = np.random.default_rng(3)
NUMPY = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
TORCH = {name: getattr(torch, name) for name in NUMPY}


def data(*shape):
    return RNG.standard_normal(shape) + 1


@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_gets_numpy(dtype):
    dy, x, weight = (data(*shape).astype(NUMPY[dtype]) for shape in ((2, 3, 4), (2, 3, 4), (3,)))
    got = ng.batch_norm_backward(dy, x, *neutral(x), weight=weight)
    assert [type(one) for one in got[:3]] == [np.ndarray] * 3
    assert [one.dtype for one in got[:3]] == [NUMPY[dtype]] * 3
    assert [one.shape for one in got[:3]] == [(2, 3, 4), (3,), (3,)]


@pytest.mark.parametrize("dtype", TORCH)
def test_torch_gets_torch_with_the_same_bits(dtype):
    dy, x, weight = (data(*shape).astype(NUMPY[dtype]) for shape in ((2, 3, 4), (2, 3, 4), (3,)))
    want = ng.batch_norm_backward(dy, x, *neutral(x), weight=weight)
    tensors = [torch.tensor(one.astype(np.float64)).to(TORCH[dtype]) for one in (dy, x, weight)]
    got = ng.batch_norm_backward(*tensors[:2], *neutral(tensors[1]), weight=tensors[2])
    for one, other in zip(got[:3], want[:3], strict=True):
        assert isinstance(one, torch.Tensor)
        assert one.dtype is TORCH[dtype]
        np.testing.assert_array_equal(one.double().numpy(), other.astype(np.float64))


@pytest.mark.parametrize("kind", [torch.nn.Parameter, lambda one: one.as_subclass(Wrapped)])
def test_a_subclass_of_tensor_gets_plain_ones(kind):
    dy, x, weight = torch.randn(2, 3), kind(torch.randn(2, 3)), kind(torch.randn(3))
    for _ in range(2):
        got = ng.batch_norm_backward(dy, x, *neutral(x), weight=weight)
        assert [type(one) for one in got[:3]] == [torch.Tensor] * 3


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("kind", [Foreign, Old])
def test_a_dlpack_library_gets_its_own(dtype, kind):
    dy, x, mean, rstd = (kind.of(data(*shape), dtype) for shape in ((5, 4), (5, 4), (5,), (5,)))
    got = ng.layer_norm_backward(dy, x, mean, rstd, 4)
    arrays = [one.values.astype(NUMPY[dtype]) for one in (dy, x, mean, rstd)]
    want = ng.layer_norm_backward(*arrays, 4)
    del dy, x, mean, rstd
    gc.collect()
    for one, other in zip(got[:3], want[:3], strict=True):
        assert isinstance(one, Foreign)
        assert one.tensor.dtype == dtype
        np.testing.assert_array_equal(one.values, other.astype(np.float64))


def test_memory_lent_through_dlpack_is_given_back():
    gc.collect()
    before = len(dlpack._live)
    shapes = ((2, 3), (2, 3), (3,), (3,))
    got = ng.batch_norm_backward(*(Foreign.of(data(*shape), "float32") for shape in shapes))
    assert len(dlpack._live) > before  # the results are lent
    values = got.grad_input.values.copy()
    gc.collect()
    np.testing.assert_array_equal(got.grad_input.values, values)
    del got
    gc.collect()
    assert len(dlpack._live) == before


@pytest.mark.parametrize("consumer", [np.from_dlpack, torch.from_dlpack])
def test_our_exporter_serves_real_consumers(consumer):
    array = data(3, 4)
    tensor = TensorSpec((4, 3), (1, 4), "float64")
    exporter = dlpack.Exporter(tensor, array.__array_interface__["data"][0], array)
    seen = consumer(exporter)
    assert tuple(seen.shape) == (4, 3)
    np.testing.assert_array_equal(np.asarray(seen), array.T)
    del exporter, seen
    gc.collect()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("step", [2**62, -(2**62), 2**63 - 1])
def test_dlpack_strides_along_which_nobody_steps(step, backend):
    dy, x = data(2, 1, 4, 5)
    want = ng.batch_norm_backward(dy, x, *neutral(x), backend=backend)
    odd = Foreign.of(x, "float64")
    odd.tensor = odd.tensor._replace(strides=(step, 5, 1))
    got = ng.batch_norm_backward(dy, odd, *neutral(x), backend=backend)
    np.testing.assert_array_equal(got.grad_input.values, want.grad_input)
    over = odd.owner[..., ::-1]  # goes by a detour: an operand lies under it
    mask = (True, False, False)
    ng.batch_norm_backward(
        dy, odd, *neutral(x), output_mask=mask, out=(over, None, None), backend=backend
    )
    np.testing.assert_array_equal(over, want.grad_input)


def test_dlpack_results_that_may_be_written():
    dy, x = data(2, 3), data(2, 3)
    memory = [np.full(shape, np.nan) for shape in ((2, 3), (3,), (3,))]
    out = tuple(Writable(one) for one in memory)
    got = ng.batch_norm_backward(dy, x, *neutral(x), out=out)
    assert all(one is given for one, given in zip(got[:3], out, strict=True))
    for one, want in zip(memory, ng.batch_norm_backward(dy, x, *neutral(x))[:3], strict=True):
        np.testing.assert_array_equal(one, want)
    aliased = Writable(x.copy())
    ng.batch_norm_backward(
        dy, aliased.array[::-1], *neutral(aliased.array[::-1]), out=(aliased, *out[1:])
    )
    np.testing.assert_array_equal(
        aliased.array, ng.batch_norm_backward(dy, x[::-1], *neutral(x[::-1])).grad_input
    )


def test_dlpack_results_that_may_not_be_written():
    dy, x = data(2, 3), data(2, 3)
    out = (Foreign.of(x, "float64"), np.empty(3), np.empty(3))
    with pytest.raises(ng.ArrayTypeError, match="out's grad_input must be writable"):
        ng.batch_norm_backward(dy, x, *neutral(x), out=out)


@pytest.mark.parametrize(
    ("honest", "words"),
    [(True, "must be memory that its producer lends without a copy"), (False, "must be writable")],
)
def test_dlpack_results_that_would_be_written_into_a_copy(honest, words):
    dy, x = Copying(data(2, 3), honest=honest), data(2, 3)  # as an operand it may be one
    out = (Copying(np.full((2, 3), 7.0), honest=honest), np.empty(3), np.empty(3))
    with pytest.raises(ng.ArrayTypeError, match=f"out's grad_input {words}"):
        ng.batch_norm_backward(dy, x, *neutral(x), out=out)
    assert (out[0].array == 7).all()


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, lambda a: Foreign.of(a, "float64")])
def test_operands_are_read_in_place(make):
    array = make(data(4, 6))
    view = kind_of(array, "x").view(array, "x")
    if isinstance(array, torch.Tensor):
        assert view.address == array.data_ptr()
    elif isinstance(array, Foreign):
        assert view.address == array.address
    else:
        assert view.address == array.__array_interface__["data"][0]


def test_strided_operands_are_read_in_place_too():
    whole = data(8, 6)
    for view in (whole[::2, ::-1], whole.T, np.broadcast_to(whole[:1], (5, 6))):
        seen = kind_of(view, "x").view(view, "x")
        assert seen.owner is view
        assert seen.tensor.strides == tuple(step // 8 for step in view.strides)


def test_unaligned_operands_are_copied_and_right():
    dy, x = data(3, 5).astype(np.float32), data(3, 5).astype(np.float32)
    raw = np.zeros(x.nbytes + 1, np.uint8)
    shifted = raw[1:].view(np.float32).reshape(3, 5)
    shifted[...] = x
    record = np.zeros((3, 5), np.dtype([("pad", "u1"), ("x", "f4")]))  # strides of 5 bytes
    record["x"] = x
    want = ng.batch_norm_backward(dy, x, *neutral(x))
    for odd in (shifted, record["x"]):
        for one, other in zip(
            ng.batch_norm_backward(dy, odd, *neutral(odd))[:3], want[:3], strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_read_only_memory_and_subclasses_may_be_operands(tmp_path):
    dy, x = data(3, 5), data(3, 5)
    want = ng.batch_norm_backward(dy, x, *neutral(x))
    frozen = x.copy()
    frozen.flags.writeable = False
    mapped = np.memmap(tmp_path / "x", float, "w+", shape=x.shape)
    mapped[...] = x
    for odd in (frozen, mapped):
        got = ng.batch_norm_backward(dy, odd, *neutral(odd))
        assert [type(one) for one in got[:3]] == [np.ndarray] * 3
        np.testing.assert_array_equal(got.grad_input, want.grad_input)


def test_tensors_that_require_grad_are_operands_and_results_do_not():
    x = torch.randn(3, 4, requires_grad=True)
    weight = torch.nn.Parameter(torch.ones(4))
    got = ng.batch_norm_backward(torch.randn(3, 4), x, *neutral(x), weight=weight)
    assert [one.requires_grad for one in got[:3]] == [False] * 3
    assert x.grad is None


def test_kinds_may_be_mixed_and_the_input_decides():
    dy, x, weight = data(3, 4), data(3, 4), data(4)
    want = ng.batch_norm_backward(dy, x, *neutral(x), weight=weight)
    got = ng.batch_norm_backward(
        dy, torch.from_numpy(x), *neutral(torch.from_numpy(x)), weight=Foreign.of(weight, "float64")
    )
    for one, other in zip(got[:3], want[:3], strict=True):
        assert isinstance(one, torch.Tensor)
        np.testing.assert_array_equal(one.numpy(), other)
    memory = torch.full((3, 4), torch.nan, dtype=torch.float64)
    ng.batch_norm_backward(
        dy, x, *neutral(x), weight=weight, out=(memory, np.empty(4), np.empty(4))
    )
    np.testing.assert_array_equal(memory.numpy(), want.grad_input)


def test_a_torch_view_with_a_pending_negation():
    tensor = torch.randn(2, 3, dtype=torch.complex64)
    negated = tensor.conj().imag  # torch keeps the sign as a flag
    assert negated.is_neg()
    x = torch.randn(2, 3)
    got = ng.batch_norm_backward(negated, x, *neutral(x))
    assert torch.equal(
        got.grad_input, ng.batch_norm_backward(-tensor.imag, x, *neutral(x)).grad_input
    )
    with pytest.raises(ng.ArrayTypeError, match="out's grad_input must be a plain tensor"):
        ng.batch_norm_backward(x, x, *neutral(x), out=(negated, torch.empty(3), torch.empty(3)))


def test_arrays_on_two_devices(monkeypatch):
    """No second device here: a meta tensor is taken for one on a GPU, and never read."""
    monkeypatch.setitem(torch_tensors._places, torch.device("meta"), "cuda:0")
    monkeypatch.setattr(torch_tensors, "_address", lambda array, name: array.data_ptr())
    x, there = torch.ones(2, 3), torch.ones(2, 3, device="meta")
    vector = torch.ones(3, device="meta")
    with pytest.raises(ng.DeviceError, match="grad_out must be on input's device, cpu, got cuda:0"):
        ng.batch_norm_backward(there, x, *neutral(x))
    with pytest.raises(ng.DeviceError, match="weight must be on input's device, cpu, got cuda:0"):
        ng.batch_norm_backward(x, x, *neutral(x), weight=vector)
    with pytest.raises(ng.DeviceError, match="mean must be on input's device, cuda:0, got cpu"):
        ng.batch_norm_backward(there, there, torch.ones(3), vector)
    with pytest.raises(ng.DeviceError, match="variance must be on input's device, cpu"):
        ng.batch_norm_backward(x, x, torch.ones(3), variance=vector)
    with pytest.raises(ng.DeviceError, match="out's grad_weight must be on input's device, cpu"):
        ng.batch_norm_backward(x, x, *neutral(x), out=(torch.empty(2, 3), vector, torch.empty(3)))
    with pytest.raises(ng.BackendError, match="no backend takes batch_norm_backward on cuda:0"):
        ng.batch_norm_backward(there, there, *neutral(there), backend="reference")
