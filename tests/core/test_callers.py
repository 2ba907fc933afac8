"""Who calls: NumPy, torch, and libraries that speak DLPack. Each gets its own kind back."""

import gc

import ml_dtypes
import numpy as np
import pytest
import torch
from foreign_arrays import Copying, Foreign, Old, Writable

import normgrad as ng
from normgrad import dispatch, dlpack, torch_arrays, verify
from normgrad.arrays import kind_of
from normgrad.spec import RESULTS, Op, TensorSpec
from normgrad.verify.run import to_torch

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
    got = ng.batch_norm_backward(dy, x, weight)
    assert [type(one) for one in got] == [np.ndarray] * 3
    assert [one.dtype for one in got] == [NUMPY[dtype]] * 3
    assert [one.shape for one in got] == [(2, 3, 4), (3,), (3,)]


@pytest.mark.parametrize("dtype", TORCH)
def test_torch_gets_torch_with_the_same_bits(dtype):
    dy, x, weight = (data(*shape).astype(NUMPY[dtype]) for shape in ((2, 3, 4), (2, 3, 4), (3,)))
    want = ng.batch_norm_backward(dy, x, weight)
    tensors = [torch.tensor(one.astype(np.float64)).to(TORCH[dtype]) for one in (dy, x, weight)]
    got = ng.batch_norm_backward(*tensors)
    for one, other in zip(got, want, strict=True):
        assert isinstance(one, torch.Tensor)
        assert one.dtype is TORCH[dtype]
        np.testing.assert_array_equal(one.double().numpy(), other.astype(np.float64))


@pytest.mark.parametrize("kind", [torch.nn.Parameter, lambda one: one.as_subclass(_Wrapped)])
def test_a_subclass_of_tensor_gets_plain_ones(kind):
    dy, x, weight = torch.randn(2, 3), kind(torch.randn(2, 3)), kind(torch.randn(3))
    for _ in range(2):
        got = ng.batch_norm_backward(dy, x, weight)
        assert [type(one) for one in got] == [torch.Tensor] * 3


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("kind", [Foreign, Old])
def test_a_dlpack_library_gets_its_own(dtype, kind):
    dy, x, mean, rstd = (kind.of(data(*shape), dtype) for shape in ((5, 4), (5, 4), (5,), (5,)))
    got = ng.layer_norm_backward(dy, x, 4, mean, rstd)
    arrays = [one.values.astype(NUMPY[dtype]) for one in (dy, x, mean, rstd)]
    want = ng.layer_norm_backward(*arrays[:2], 4, *arrays[2:])
    del dy, x, mean, rstd
    gc.collect()
    for one, other in zip(got, want, strict=True):
        assert isinstance(one, Foreign)
        assert one.tensor.dtype == dtype
        np.testing.assert_array_equal(one.values, other.astype(np.float64))


def test_memory_lent_through_dlpack_is_given_back():
    gc.collect()
    before = len(dlpack._live)
    got = ng.batch_norm_backward(*(Foreign.of(data(2, 3), "float32") for _ in range(2)))
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


def test_dlpack_results_that_may_be_written():
    dy, x = data(2, 3), data(2, 3)
    memory = [np.full(shape, np.nan) for shape in ((2, 3), (3,), (3,))]
    out = tuple(Writable(one) for one in memory)
    got = ng.batch_norm_backward(dy, x, out=out)
    assert all(one is given for one, given in zip(got, out, strict=True))
    for one, want in zip(memory, ng.batch_norm_backward(dy, x), strict=True):
        np.testing.assert_array_equal(one, want)
    aliased = Writable(x.copy())
    ng.batch_norm_backward(dy, aliased.array[::-1], out=(aliased, *out[1:]))
    np.testing.assert_array_equal(aliased.array, ng.batch_norm_backward(dy, x[::-1]).grad_input)


def test_dlpack_results_that_may_not_be_written():
    dy, x = data(2, 3), data(2, 3)
    out = (Foreign.of(x, "float64"), np.empty(3), np.empty(3))
    with pytest.raises(ng.ArrayTypeError, match="out's grad_input must be writable"):
        ng.batch_norm_backward(dy, x, out=out)


@pytest.mark.parametrize(
    ("honest", "words"),
    [(True, "must be memory that its producer lends without a copy"), (False, "must be writable")],
)
def test_dlpack_results_that_would_be_written_into_a_copy(honest, words):
    dy, x = Copying(data(2, 3), honest=honest), data(2, 3)  # as an operand it may be one
    out = (Copying(np.full((2, 3), 7.0), honest=honest), np.empty(3), np.empty(3))
    with pytest.raises(ng.ArrayTypeError, match=f"out's grad_input {words}"):
        ng.batch_norm_backward(dy, x, out=out)
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
    want = ng.batch_norm_backward(dy, x)
    for odd in (shifted, record["x"]):
        for one, other in zip(ng.batch_norm_backward(dy, odd), want, strict=True):
            np.testing.assert_array_equal(one, other)


def test_read_only_memory_and_subclasses_may_be_operands(tmp_path):
    dy, x = data(3, 5), data(3, 5)
    want = ng.batch_norm_backward(dy, x)
    frozen = x.copy()
    frozen.flags.writeable = False
    mapped = np.memmap(tmp_path / "x", float, "w+", shape=x.shape)
    mapped[...] = x
    for odd in (frozen, mapped):
        got = ng.batch_norm_backward(dy, odd)
        assert [type(one) for one in got] == [np.ndarray] * 3
        np.testing.assert_array_equal(got.grad_input, want.grad_input)


def test_tensors_that_require_grad_are_operands_and_results_do_not():
    x = torch.randn(3, 4, requires_grad=True)
    weight = torch.nn.Parameter(torch.ones(4))
    got = ng.batch_norm_backward(torch.randn(3, 4), x, weight)
    assert [one.requires_grad for one in got] == [False] * 3
    assert x.grad is None


def test_kinds_may_be_mixed_and_the_input_decides():
    dy, x, weight = data(3, 4), data(3, 4), data(4)
    want = ng.batch_norm_backward(dy, x, weight)
    got = ng.batch_norm_backward(dy, torch.from_numpy(x), Foreign.of(weight, "float64"))
    for one, other in zip(got, want, strict=True):
        assert isinstance(one, torch.Tensor)
        np.testing.assert_array_equal(one.numpy(), other)
    memory = torch.full((3, 4), torch.nan, dtype=torch.float64)
    ng.batch_norm_backward(dy, x, weight, out=(memory, np.empty(4), np.empty(4)))
    np.testing.assert_array_equal(memory.numpy(), want.grad_input)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_data_with_float32_statistics(dtype):
    dy, x = (data(4, 3, 5).astype(NUMPY[dtype]) for _ in range(2))
    weight, mean, invstd = (data(3).astype(np.float32) for _ in range(3))
    got = ng.batch_norm_backward(dy, x, weight, save_mean=mean, save_invstd=invstd)
    assert [str(one.dtype) for one in got] == [dtype, "float32", "float32"]
    bare = ng.batch_norm_backward(dy, x, save_mean=mean, save_invstd=invstd)
    assert [str(one.dtype) for one in bare] == [dtype] * 3


HALF = {
    "batch": ng.batch_norm_backward,
    "reduce": lambda dy, x, one, **options: ng.batch_norm_reduce_backward(
        dy, x, one, one, one, **options
    ),
    "layer": lambda dy, x, one, **options: ng.layer_norm_backward(
        dy, x, 3, dy[:, 0], dy[:, 1], one, **options
    ),
    "group": lambda dy, x, one, **options: ng.group_norm_backward(
        dy, x, dy[:, 0], dy[:, 1], one, num_groups=1, **options
    ),
}


@pytest.mark.parametrize(
    "wish",
    ["float32", np.float32, np.dtype("f4"), torch.float32],
    ids=["name", "type", "dtype", "torch"],
)
@pytest.mark.parametrize("op", HALF)
def test_parameter_gradients_in_float32_on_request(op, wish):
    operands = [data(*shape).astype(np.float16) for shape in ((4, 3), (4, 3), (3,))]
    *others, dgamma, dbeta = HALF[op](*operands, param_grad_dtype=wish)
    assert [str(one.dtype) for one in (dgamma, dbeta)] == ["float32", "float32"]
    out = [np.empty_like(one) for one in (*others, dgamma, dbeta)]
    same = HALF[op](*operands, out=out)  # float32 needs no further word in out=
    np.testing.assert_array_equal(same.grad_weight, dgamma)
    assert [str(one.dtype) for one in HALF[op](*operands)[-2:]] == ["float16", "float16"]


def test_sums_of_the_reduction_are_wide():
    dy, x, vector = data(4, 3), data(4, 3), data(3)
    half = [one.astype(np.float16) for one in (dy, x, vector, vector)]
    got = ng.batch_norm_reduce_backward(*half)
    assert [str(one.dtype) for one in got] == ["float32", "float32", "float16", "float16"]
    full = ng.batch_norm_reduce_backward(dy, x, vector, vector)
    assert [str(one.dtype) for one in full] == ["float64"] * 4


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1)])
@pytest.mark.parametrize("op", ["batch", "group", "elemt", "layer"])
def test_channels_last_stays_channels_last(shape, op):
    x = torch.randn(shape).to(memory_format=torch.channels_last)
    dy, vector = torch.randn(shape), torch.ones(shape[1])
    if op == "batch":
        got = ng.batch_norm_backward(dy, x).grad_input
    elif op == "group":
        stat = torch.ones(shape[0])
        got = ng.group_norm_backward(dy, x, stat, stat, num_groups=1).grad_input
    elif op == "layer":
        stat = torch.ones(shape[:3])
        got = ng.layer_norm_backward(dy, x, shape[3], stat, stat).grad_input
    else:
        counter = torch.tensor([4])
        got = ng.batch_norm_elemt_backward(dy, x, vector, vector, None, vector, vector, counter)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert got.stride() == x.stride()


def test_contiguous_stays_contiguous_where_sizes_are_one():
    """Strides of axes of size 1 decide which memory format torch sees."""
    x = torch.randn(2, 1, 3, 1)
    assert ng.batch_norm_backward(x, x).grad_input.stride() == x.stride()


def test_any_channel_axis_is_the_same_operator():
    dy, x = data(2, 5, 6, 4), data(2, 5, 6, 4)
    weight, mean, rstd = data(4), data(4), data(4)
    stat = data(2, 2)
    moved = [np.moveaxis(one, 3, 1) for one in (dy, x)]
    for axis in (3, -1):
        last = ng.batch_norm_backward(
            dy, x, weight, save_mean=mean, save_invstd=rstd, channel_axis=axis
        )
        first = ng.batch_norm_backward(*moved, weight, save_mean=mean, save_invstd=rstd)
        np.testing.assert_allclose(np.moveaxis(last.grad_input, 3, 1), first.grad_input)
        last = ng.group_norm_backward(dy, x, stat, stat, weight, num_groups=2, channel_axis=axis)
        first = ng.group_norm_backward(*moved, stat, stat, weight, num_groups=2)
        np.testing.assert_allclose(np.moveaxis(last.grad_input, 3, 1), first.grad_input)
        np.testing.assert_allclose(last.grad_weight, first.grad_weight)


@pytest.mark.parametrize("mask", [np.array([True, False, True]), [True, False, True]])
def test_masks_of_numpy_and_lists(mask):
    got = ng.batch_norm_backward(data(2, 3), data(2, 3), output_mask=mask)
    assert got.grad_weight is None
    assert got.grad_input is not None


@pytest.mark.parametrize("shape", [4, np.int64(4), np.array(4), [4], (4,), torch.Size([4])])
def test_spellings_of_a_normalized_shape(shape):
    dy, x, stat = data(3, 4), data(3, 4), data(3)
    got = ng.layer_norm_backward(dy, x, shape, stat, stat)
    np.testing.assert_array_equal(
        got.grad_input, ng.layer_norm_backward(dy, x, 4, stat, stat).grad_input
    )


def test_a_list_serves_as_out():
    out = [np.empty((2, 3)), None, np.empty(3)]
    got = ng.batch_norm_backward(data(2, 3), data(2, 3), output_mask=(True, False, True), out=out)
    assert got.grad_input is out[0]
    assert got.grad_weight is None


def test_a_torch_view_with_a_pending_negation():
    tensor = torch.randn(2, 3, dtype=torch.complex64)
    negated = tensor.conj().imag  # torch keeps the sign as a flag
    assert negated.is_neg()
    x = torch.randn(2, 3)
    got = ng.batch_norm_backward(negated, x)
    assert torch.equal(got.grad_input, ng.batch_norm_backward(-tensor.imag, x).grad_input)
    with pytest.raises(ng.ArrayTypeError, match="out's grad_input must be a plain tensor"):
        ng.batch_norm_backward(x, x, out=(negated, torch.empty(3), torch.empty(3)))


def test_equal_calls_are_prepared_once():
    dy, x = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    dispatch._prepare.cache_clear()
    dispatch._known.clear()
    for _ in range(3):
        ng.batch_norm_backward(dy, x)  # prepared once, known by its fingerprint then
        ng.batch_norm_backward(dy.numpy(), x.numpy())  # the same shapes, strides and types
    info = dispatch._prepare.cache_info()
    assert (info.misses, info.hits) == (1, 3)
    assert len(dispatch._known) == 1


def test_a_known_call_answers_as_the_first():
    dy, x = torch.randn(4, 3, 5, 2).transpose(1, 3), torch.randn(4, 2, 5, 3)
    bf16 = torch.randn(3).bfloat16()
    args = (torch.randn(4, 2, 5), torch.rand(4, 2, 5), bf16, torch.zeros(3))
    dispatch._known.clear()
    first, *later = (
        ng.layer_norm_backward(dy, x, (3,), *args, output_mask=[True, True, False])
        for _ in range(3)  # the third is written out
    )
    assert len(dispatch._known) == 1
    for known in later:
        assert known.grad_bias is None
        for one, other in zip(first[:2], known[:2], strict=True):
            assert (one.dtype, one.stride()) == (other.dtype, other.stride())
            assert torch.equal(one, other)
            assert one.data_ptr() != other.data_ptr()


@pytest.mark.parametrize("shape", [(4, 6, 5), (8, 64, 40, 16)], ids=["alone", "threads"])
@pytest.mark.parametrize("mask", [(True, True, True), (True, False, True), (False, True, False)])
def test_a_call_is_written_out_and_reads_its_own_data(shape, mask):
    pytest.importorskip("numba")
    dispatch._known.clear()
    case = verify.Case(id="written-out", op=Op.BATCH_NORM, shape=shape, mask=mask)
    for turn in range(4):
        problem = verify.make_problem(case, "float32", turn)
        operands = {role: to_torch(host, "cpu") for role, host in problem.operands.items()}
        got, want = (verify.call(problem, operands, None, name) for name in ("cpu", "reference"))
        for one, other, wanted in zip(got, want, mask, strict=True):
            assert (one is not None) is wanted
            if wanted:
                assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        named = zip(RESULTS[case.op], got, strict=True)
        results = {role: one.double().numpy() for role, one in named if one is not None}
        for measured in verify.judge(problem, results):
            assert measured.ok, measured
        calls = [
            known.call.__code__.co_filename for one in dispatch._known.values() for known in one
        ]
        assert any("written out" in name for name in calls) is (turn > 0)


@pytest.mark.parametrize("kind", [torch.ones, np.ones], ids=["torch", "numpy"])
def test_out_that_is_no_sequence(kind):
    x = kind((2, 3))
    with pytest.raises(ng.ArrayTypeError, match="out must be a tuple of 3"):
        ng.batch_norm_backward(x, x, out=5)


class _Wrapped(torch.Tensor):
    pass


def test_what_resembles_a_known_call_is_looked_at_anew():
    x = torch.randn(2, 3)
    tensor = torch.randn(2, 3, dtype=torch.complex64)
    negated = tensor.conj().imag.as_strided((2, 3), (6, 2))
    plain = tensor.imag
    for _ in range(2):
        want = ng.batch_norm_backward(-plain, x)
        ng.batch_norm_backward(plain, x)
        ng.batch_norm_backward(x, x)
    assert negated.stride() == plain.stride()
    assert torch.allclose(ng.batch_norm_backward(negated, x).grad_input, want.grad_input)
    known = len(dispatch._known)
    with pytest.raises(ng.OptionError, match="output_mask must be 3 booleans"):
        ng.batch_norm_backward(x, x, output_mask=(1, 1, 1))
    with pytest.raises(ng.ArrayTypeError, match="must be a dense tensor"):
        ng.batch_norm_backward(x.to_sparse(), x)
    with pytest.raises(ng.DeviceError, match="must be on the CPU or an NVIDIA GPU"):
        ng.batch_norm_backward(x, x.to("meta"))
    with pytest.raises(ng.ArgumentError):
        ng.batch_norm_backward(x, x, param_grad_dtype=[])
    with pytest.raises(ng.DtypeError, match="running_mean"):
        ng.batch_norm_backward(x, x, None, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ng.ArrayTypeError, match="must have data in memory"):
        torch.vmap(lambda dy: ng.batch_norm_backward(dy, x).grad_input)(torch.stack([x, x]))
    ng.batch_norm_backward(x.as_subclass(_Wrapped), x)
    assert ng.batch_norm_backward(x, x, output_mask=iter([True, False, True])).grad_weight is None
    assert len(dispatch._known) == known


def test_known_calls_look_at_given_results_each_time():
    dy, x, weight = torch.randn(4, 3), torch.randn(4, 3), torch.randn(3)
    want = ng.batch_norm_backward(dy, x, weight)
    dispatch._known.clear()
    for _ in range(3):
        out = (torch.full((4, 3), torch.nan), torch.full((3,), torch.nan), torch.empty(3))
        got = ng.batch_norm_backward(dy, x, weight, out=out)
        assert all(one is other for one, other in zip(got, out, strict=True))
        assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
        assert out[0]._version == 1
    assert len(dispatch._known) == 1
    vectors = torch.empty(5)
    with pytest.raises(ng.OverlapError, match="grad_bias must not share memory with grad_weight"):
        ng.batch_norm_backward(dy, x, weight, out=(out[0], vectors[:3], vectors[2:]))
    with pytest.raises(ng.ArrayTypeError, match="must not require grad"):
        ng.batch_norm_backward(dy, x, weight, out=(x.clone().requires_grad_(), *out[1:]))
    over = weight.clone()
    got = ng.batch_norm_backward(dy, x, over, out=(out[0], over, out[2]))
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    over = x.clone()
    got = ng.batch_norm_backward(dy, over, weight, out=(over, *out[1:]))
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    assert len(dispatch._known) == 1


def test_autograd_learns_what_was_written():
    x = torch.randn(2, 3)
    leaf = torch.randn(2, 3, requires_grad=True)
    saved = torch.randn(2, 3)
    product = leaf * saved  # keeps `saved` for its own backward pass
    ng.batch_norm_backward(x, x, out=(saved, torch.empty(3), torch.empty(3)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_a_result_that_requires_grad():
    x = torch.randn(2, 3)
    out = (torch.full((2, 3), 7.0, requires_grad=True), torch.empty(3), torch.empty(3))
    with pytest.raises(ng.ArrayTypeError, match="out's grad_input must not require grad"):
        ng.batch_norm_backward(x, x, out=out)
    assert (out[0] == 7).all()
    with torch.no_grad():
        ng.batch_norm_backward(x, x, out=out)
    assert (out[0] != 7).all()
    with torch.inference_mode():
        inner = tuple(torch.empty(shape) for shape in ((2, 3), (3,), (3,)))
        ng.batch_norm_backward(x, x, out=inner)
    assert torch.equal(inner[0], out[0])


def test_arrays_on_two_devices(monkeypatch):
    """No second device here: a meta tensor is taken for one on a GPU, and never read."""
    monkeypatch.setitem(torch_arrays._places, torch.device("meta"), "cuda:0")
    monkeypatch.setattr(torch_arrays, "_address", lambda array, name: array.data_ptr())
    x, there = torch.ones(2, 3), torch.ones(2, 3, device="meta")
    vector = torch.ones(3, device="meta")
    with pytest.raises(ng.DeviceError, match="grad_out must be on input's device, cpu, got cuda:0"):
        ng.batch_norm_backward(there, x)
    with pytest.raises(ng.DeviceError, match="weight must be on input's device, cpu, got cuda:0"):
        ng.batch_norm_backward(x, x, vector)
    with pytest.raises(
        ng.DeviceError, match="save_mean must be on input's device, cuda:0, got cpu"
    ):
        ng.batch_norm_backward(there, there, save_mean=torch.ones(3))
    with pytest.raises(ng.DeviceError, match="running_mean must be on input's device, cpu"):
        ng.batch_norm_backward(x, x, None, vector)
    with pytest.raises(ng.DeviceError, match="out's grad_weight must be on input's device, cpu"):
        ng.batch_norm_backward(x, x, out=(torch.empty(2, 3), vector, torch.empty(3)))
    with pytest.raises(ng.BackendError, match="no backend takes batch_norm on cuda:0"):
        ng.batch_norm_backward(there, there, backend="reference")
