"""New results of calls that were seen before: made in the quickest way that torch has."""

import pytest

torch = pytest.importorskip("torch")
cached_calls = pytest.importorskip("normgrad.calls.cached_calls")
guards = pytest.importorskip("torch._C._dynamo.guards")

import normgrad  # noqa: E402

LAYOUTS = (((2, 3), (3, 1)), ((2, 3), (1, 2)), ((0, 5), (5, 1)), ((), ()), ((4,), (1,)))
NAME = "_empty_strided_cpu"


@pytest.fixture(autouse=True)
def afresh():
    cached_calls._empty.cache_clear()
    yield
    cached_calls._empty.cache_clear()


@pytest.mark.parametrize("inference", [False, True])
def test_they_are_what_torch_makes(inference):
    make = cached_calls._empty("cpu")
    with torch.inference_mode(inference):
        for shape, strides in LAYOUTS:
            for dtype in (torch.float32, torch.bfloat16, torch.float64):
                one, other = (
                    make(shape, strides, dtype),
                    torch.empty_strided(shape, strides, dtype=dtype),
                )
                assert cached_calls._traits(one) == cached_calls._traits(other)
                assert torch._C._dispatch_keys(one) == torch._C._dispatch_keys(other)
                assert one.is_inference() is inference


def absent(monkeypatch):
    monkeypatch.delattr(guards, NAME)


def other_arguments(monkeypatch):
    monkeypatch.setattr(guards, NAME, torch.empty)


def other_strides(monkeypatch):
    monkeypatch.setattr(guards, NAME, lambda shape, strides, dtype: torch.empty(shape, dtype=dtype))


def other_type(monkeypatch):
    monkeypatch.setattr(
        guards, NAME, lambda shape, strides, dtype: torch.empty_strided(shape, strides).double()
    )


@pytest.mark.parametrize("change", [absent, other_arguments, other_strides, other_type])
def test_a_torch_that_makes_others(change, monkeypatch):
    change(monkeypatch)
    made = cached_calls._empty("cpu")((2, 3), (1, 2), torch.bfloat16)
    assert (made.shape, made.stride(), made.dtype) == ((2, 3), (1, 2), torch.bfloat16)


def test_each_call_in_its_own_mode():
    x, dy = torch.randn(4, 6), torch.randn(4, 6)
    mean, rstd = torch.randn(4), torch.rand(4)
    for inference in (False, True, True, False, False):
        with torch.inference_mode(inference):
            for result in normgrad.layer_norm_backward(dy, x, mean, rstd, 6)[:3]:
                assert result.is_inference() is inference
                assert not result.requires_grad


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_a_type_that_no_operand_has(dtype):
    x, dy, gamma = (torch.randn(4, 6).bfloat16() for _ in range(3))
    statistics = torch.rand(4, dtype=torch.bfloat16)
    for _ in range(3):
        results = normgrad.layer_norm_backward(
            dy, x, statistics, statistics, 6, weight=gamma[0].contiguous(), param_grad_dtype=dtype
        )
        assert [one.dtype for one in results[:3]] == [
            torch.bfloat16,
            *[dtype or torch.bfloat16] * 2,
        ]
