"""Torch's tensors that have a shape and no memory to read: refused in words, never read."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

import normgrad as ng

X = torch.randn(4, 8)
STATISTICS = (torch.zeros(4), torch.ones(4))


class Wrapper(torch.Tensor):
    """Its data are elsewhere, as a DTensor's."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def freed():
    tensor = torch.randn(4, 8)
    tensor.untyped_storage().resize_(0)
    return tensor


def fake():
    with FakeTensorMode():
        return torch.randn(4, 8)


MAKERS = {
    "wrapper": lambda: Wrapper(X),
    "fake": fake,
    "zero": lambda: torch._efficientzerotensor(4, 8),
    "freed": freed,
}
WORDS = r"must have data in memory \(torch.ops.normgrad .* without"


@pytest.mark.parametrize("seen", [False, True], ids=["first-call", "seen-before"])
@pytest.mark.parametrize("backend", ["reference", None])
@pytest.mark.parametrize("maker", MAKERS)
def test_an_operand(maker, backend, seen):
    if seen:  # twice: the second call writes the road for all others
        for _ in range(3):
            ng.layer_norm_backward(X, X, *STATISTICS, 8, backend=backend)
    with pytest.raises(ng.ArrayTypeError, match=f"grad_out {WORDS}"):
        ng.layer_norm_backward(MAKERS[maker](), X, *STATISTICS, 8, backend=backend)
    with pytest.raises(ng.ArrayTypeError, match=f"input {WORDS}"):
        ng.layer_norm_backward(X, MAKERS[maker](), *STATISTICS, 8, backend=backend)


@pytest.mark.parametrize("maker", MAKERS)
def test_a_result(maker):
    def into(out):
        mask = (True, False, False)
        ng.layer_norm_backward(X, X, *STATISTICS, 8, output_mask=mask, out=(out, None, None))

    for _ in range(3):
        into(torch.empty(4, 8))
    with pytest.raises(ng.ArrayTypeError, match=f"out's grad_input {WORDS}"):
        into(MAKERS[maker]())


@pytest.mark.parametrize("transform", ["grad", "vmap"])
def test_inside_torch_func(transform):
    def loss(x):
        return ng.layer_norm_backward(x, x, *STATISTICS, 8).grad_input.sum()

    x = X if transform == "grad" else torch.stack([X, X])
    with pytest.raises(ng.ArrayTypeError, match=WORDS):
        getattr(torch.func, transform)(loss)(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("seen", [False, True], ids=["first-call", "seen-before"])
def test_inside_a_trace(seen):
    weight = torch.randn(8)  # new ones: no other test has made this very call

    def gradient(x):
        return ng.layer_norm_backward(X, x, *STATISTICS, 8, weight=weight).grad_input

    x = torch.randn(4, 8)
    for _ in range(3 if seen else 0):
        gradient(x)
    with pytest.raises(ng.ArrayTypeError, match=r"grad_out must be outside of torch.jit.trace"):
        torch.jit.trace(gradient, x)
    assert gradient(x).shape == (4, 8)


@pytest.mark.parametrize("seen", [0, 1], ids=["first-call", "seen-before"])
def test_results_of_a_fake_mode(seen):
    arrays = (X, torch.randn(4, 8))
    weight = torch.randn(8, dtype=torch.float64)  # a call that no other test has made
    mask = (True, not seen, True)

    def gradients():
        return ng.layer_norm_backward(*arrays, *STATISTICS, 8, weight=weight, output_mask=mask)

    for _ in range(seen):
        gradients()
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(ng.ArrayTypeError, match=f"a new result {WORDS}"),
    ):
        gradients()


def test_nothing_needs_no_memory():
    empty = torch.empty(0, 8)
    for _ in range(3):
        got = ng.layer_norm_backward(empty, empty, torch.empty(0), torch.empty(0), 8)
        assert got.grad_weight.tolist() == [0.0] * 8


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    nested = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(1, 8)], layout=layout)
    for arrays in ((nested, X), (X, nested)):
        with pytest.raises(ng.ArrayTypeError, match="must be a dense tensor"):
            ng.layer_norm_backward(*arrays, *STATISTICS, 8)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_in_a_call_seen_before():
    nested = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(1, 8)])
    arrays = [X, torch.randn(4, 8), *STATISTICS, torch.ones(8)]
    out = [torch.empty(4, 8), torch.empty(8), torch.empty(8)]

    def call(arrays, out):
        ng.layer_norm_backward(*arrays[:4], 8, weight=arrays[4], out=out)

    for _ in range(3):
        call(arrays, out)
    for place in range(len(arrays)):
        with pytest.raises(ng.ArrayTypeError, match="must be a dense tensor"):
            call([*arrays[:place], nested, *arrays[place + 1 :]], out)
    for place in range(3):
        with pytest.raises(ng.ArrayTypeError, match="must be a dense tensor"):
            call(arrays, [*out[:place], nested, *out[place + 1 :]])
