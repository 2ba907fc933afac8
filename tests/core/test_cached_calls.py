"""Calls that were seen before: prepared once, written out, and still looked at."""

import pytest
import torch
from foreign_arrays import Wrapped

import normgrad as ng
from neutral import neutral
from normgrad import verify
from normgrad.calls import dispatch
from normgrad.core.spec import Op
from normgrad.verify.run import to_torch


def test_equal_calls_are_prepared_once():
    dy, x = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    dispatch._prepare.cache_clear()
    dispatch._cached_calls.clear()
    for _ in range(3):
        ng.batch_norm_backward(dy, x, *neutral(x))  # prepared once, known by its fingerprint then
        # The same shapes, strides and types.
        ng.batch_norm_backward(dy.numpy(), x.numpy(), *neutral(x.numpy()))
    info = dispatch._prepare.cache_info()
    assert (info.misses, info.hits) == (1, 3)
    assert len(dispatch._cached_calls) == 1


def test_a_full_table_forgets_the_oldest_call_and_learns_the_new(monkeypatch):
    monkeypatch.setattr(dispatch, "_MAX_KEYS", 2)
    dispatch._cached_calls.clear()
    for rows in (2, 3, 4, 4, 2):
        x = torch.randn(rows, 3)
        ng.batch_norm_backward(x, x, *neutral(x))
        newest = next(reversed(dispatch._cached_calls.values()))
        assert newest[0].same(x, x, *neutral(x)), rows
    assert len(dispatch._cached_calls) == 2


def test_a_known_call_answers_as_the_first():
    dy, x = torch.randn(4, 3, 5, 2).transpose(1, 3), torch.randn(4, 2, 5, 3)
    bf16 = torch.randn(3).bfloat16()
    statistics = (torch.randn(4, 2, 5), torch.rand(4, 2, 5))
    dispatch._cached_calls.clear()
    first, *later = (
        ng.layer_norm_backward(
            dy, x, *statistics, (3,), weight=bf16, output_mask=[True, True, False]
        )
        for _ in range(3)  # the third is written out
    )
    assert len(dispatch._cached_calls) == 1
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
    dispatch._cached_calls.clear()
    case = verify.Case(id="written-out", op=Op.BATCH_NORM_BACKWARD, shape=shape, mask=mask)
    for turn in range(4):
        problem = verify.make_problem(case, "float32", turn)
        operands = {role: to_torch(host, "cpu") for role, host in problem.operands.items()}
        got, want = (verify.call(problem, operands, None, name) for name in ("cpu", "reference"))
        for one, other, wanted in zip(got[:3], want[:3], mask, strict=True):
            assert (one is not None) is wanted
            if wanted:
                assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        named = zip(case.results, got[:3], strict=True)
        results = {role: one.double().numpy() for role, one in named if one is not None}
        for measured in verify.judge(problem, results):
            assert measured.ok, measured
        calls = [
            known.call.__code__.co_filename
            for one in dispatch._cached_calls.values()
            for known in one
        ]
        assert any("written out" in name for name in calls) is (turn > 0)


def test_what_resembles_a_known_call_is_looked_at_anew():
    x = torch.randn(2, 3)
    tensor = torch.randn(2, 3, dtype=torch.complex64)
    negated = tensor.conj().imag.as_strided((2, 3), (6, 2))
    plain = tensor.imag
    for _ in range(2):
        want = ng.batch_norm_backward(-plain, x, *neutral(x))
        ng.batch_norm_backward(plain, x, *neutral(x))
        ng.batch_norm_backward(x, x, *neutral(x))
    assert negated.stride() == plain.stride()
    assert torch.allclose(
        ng.batch_norm_backward(negated, x, *neutral(x)).grad_input, want.grad_input
    )
    known = len(dispatch._cached_calls)
    with pytest.raises(ng.OptionError, match="output_mask must be 3 booleans"):
        ng.batch_norm_backward(x, x, *neutral(x), output_mask=(1, 1, 1))
    with pytest.raises(ng.ArrayTypeError, match="must be a dense tensor"):
        ng.batch_norm_backward(x.to_sparse(), x, *neutral(x))
    with pytest.raises(ng.DeviceError, match="must be on the CPU or an NVIDIA GPU"):
        ng.batch_norm_backward(x, x.to("meta"), *neutral(x.to("meta")))
    with pytest.raises(ng.ArgumentError):
        ng.batch_norm_backward(x, x, *neutral(x), param_grad_dtype=[])
    with pytest.raises(ng.DtypeError, match="mean must be of type"):
        ng.batch_norm_backward(x, x, x[0].int(), x[0])
    with pytest.raises(ng.ArrayTypeError, match="must have data in memory"):
        torch.vmap(lambda dy: ng.batch_norm_backward(dy, x, *neutral(x)).grad_input)(
            torch.stack([x, x])
        )
    ng.batch_norm_backward(x.as_subclass(Wrapped), x, *neutral(x))
    assert (
        ng.batch_norm_backward(x, x, *neutral(x), output_mask=iter([True, False, True])).grad_weight
        is None
    )
    assert len(dispatch._cached_calls) == known


def test_known_calls_look_at_given_results_each_time():
    dy, x, weight = torch.randn(4, 3), torch.randn(4, 3), torch.randn(3)
    want = ng.batch_norm_backward(dy, x, *neutral(x), weight=weight)
    dispatch._cached_calls.clear()
    for _ in range(3):
        out = (torch.full((4, 3), torch.nan), torch.full((3,), torch.nan), torch.empty(3))
        got = ng.batch_norm_backward(dy, x, *neutral(x), weight=weight, out=out)
        assert all(one is other for one, other in zip(got[:3], out, strict=True))
        assert all(torch.equal(one, other) for one, other in zip(got[:3], want[:3], strict=True))
        assert out[0]._version == 1
    assert len(dispatch._cached_calls) == 1
    vectors = torch.empty(5)
    with pytest.raises(ng.OverlapError, match="grad_bias must not share memory with grad_weight"):
        ng.batch_norm_backward(
            dy, x, *neutral(x), weight=weight, out=(out[0], vectors[:3], vectors[2:])
        )
    with pytest.raises(ng.ArrayTypeError, match="must not require grad"):
        ng.batch_norm_backward(
            dy, x, *neutral(x), weight=weight, out=(x.clone().requires_grad_(), *out[1:])
        )
    over = weight.clone()
    got = ng.batch_norm_backward(dy, x, *neutral(x), weight=over, out=(out[0], over, out[2]))
    assert all(torch.equal(one, other) for one, other in zip(got[:3], want[:3], strict=True))
    over = x.clone()
    got = ng.batch_norm_backward(dy, over, *neutral(over), weight=weight, out=(over, *out[1:]))
    assert all(torch.equal(one, other) for one, other in zip(got[:3], want[:3], strict=True))
    assert len(dispatch._cached_calls) == 1
