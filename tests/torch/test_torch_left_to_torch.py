"""Backward passes that ``enable()`` leaves to torch: each is in ``report()``, with the reason."""

import pytest
import torch
from closeness import assert_near, off_centre
from torch import nn

import normgrad.torch as ours
from normgrad.torch.too_small import LEAST

pytestmark = [
    pytest.mark.usefixtures("disabled"),
    pytest.mark.filterwarnings("ignore::normgrad.torch.NothingTakenWarning"),
]

CPU = LEAST["cpu"]


@pytest.mark.parametrize("dtype", CPU, ids=str)
def test_what_is_too_small_to_gain(dtype, fast_backend):
    module, columns = nn.LayerNorm(1024, dtype=dtype), 1024
    rows = CPU[dtype] // columns
    assert rows * columns == CPU[dtype]
    small, large = (torch.randn(one, columns, dtype=dtype) for one in (rows - 1, rows))
    with ours.enable(forward=False):
        module(small.requires_grad_()).sum().backward()
        (row,) = ours.report()
        assert (row.taken_by, row.calls) == ("torch", 1)
        assert row.reason.startswith(f"too small to gain: under {CPU[dtype]} elements of ")
        assert "enable(backend='cpu')" in row.reason
        if fast_backend == "cpu":
            module(large.requires_grad_()).sum().backward()
            assert ours.report().calls("normgrad") == 1
    ours.report(reset=True)
    with ours.enable(forward=False, backend=fast_backend):
        module(small).sum().backward()
    assert ours.report().calls("torch") == 0


def test_only_data_that_torch_can_take_are_too_small(fast_backend):
    """On the CPU it has no synchronized operators."""
    x, ones = torch.randn(5, 4), torch.ones(4)
    with ours.enable():
        torch.batch_norm_backward_reduce(x, x, ones, ones, ones, True, True, True)
    assert ours.report().calls("normgrad") == (fast_backend == "cpu")


def test_what_exported_programs_call(fast_backend):
    """Torch's newer batch norm, whose backward operator is another."""
    x, dy = off_centre((3, 4, 5), torch.float32)
    weight, bias = torch.rand(4) + 0.5, torch.rand(4)

    def grads(update):
        leaves = [one.clone().requires_grad_() for one in (x, weight, bias)]
        running = (torch.full((4,), 90.0), torch.full((4,), 9.0))
        op = torch.ops.aten._batch_norm_with_update
        op = op if update else torch.ops.aten._batch_norm_no_update
        op(*leaves, *running, 0.1, 1e-5)[0].backward(dy)
        return [one.grad for one in leaves]

    for update in (True, False):
        want = grads(update)
        with ours.enable(backend=fast_backend):
            got = grads(update)
        for one, other in zip(got, want, strict=True):
            assert_near(one, other, torch.float32)
    report = ours.report()
    assert report.calls("normgrad", "batch_norm_backward") == 2
    assert report.calls("torch") == 0


def _create_graph(module, x):
    x = x.requires_grad_()
    (dx,) = torch.autograd.grad(module(x).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(dx.square().sum(), x)
    return second


def _mapped(module, x):
    return torch.func.vmap(torch.func.grad(lambda one: module(one[None]).pow(3).sum()))(x)


# With create_graph also the second backward pass, which has gradients of mean and 1/std.
@pytest.mark.parametrize(("way", "calls"), [(_create_graph, 2), (_mapped, 1)])
def test_group_norm_that_torch_differentiates_in_pieces(way, calls, fast_backend):
    module = nn.GroupNorm(2, 4, dtype=torch.float64)
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    want = way(module, x.clone())
    with ours.enable(forward=False, backend=fast_backend):
        got = way(module, x.clone())
    assert torch.equal(got, want)
    (row,) = ours.report(reset=True)
    assert (row.operator, row.device) == ("native_group_norm_backward", "cpu")
    assert (row.taken_by, row.calls) == ("torch", calls)
    assert "under create_graph=True, in torch.func" in row.reason
    with ours.enable(forward=False, backend=fast_backend):  # the way out that the reason names
        converted = way(ours.convert(module), x.clone())
    assert_near(converted, want)
    assert ours.report() == ()


def test_group_norm_without_that_is_counted_once(fast_backend):
    module = nn.GroupNorm(2, 4)
    with ours.enable(forward=False, backend=fast_backend):
        module(torch.randn(3, 4, 5, requires_grad=True)).sum().backward()
        module(torch.randn(3, 4, 5))
        y = module(torch.randn(3, 4, 5, requires_grad=True))
    _create_graph(module, torch.randn(3, 4, 5))
    torch.autograd.grad(y.sum(), list(module.parameters()), create_graph=True)
    (row,) = ours.report()
    assert (row.taken_by, row.calls) == ("normgrad", 1)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no mkldnn")
def test_mkldnn_tensors(fast_backend):
    module = nn.BatchNorm2d(4)

    def grad(x):
        x = x.to_mkldnn().requires_grad_()
        module(x).to_dense().square().sum().backward()
        return x.grad.to_dense()

    x = torch.randn(3, 4, 5, 5)
    want = grad(x)
    with ours.enable(backend=fast_backend):
        got = grad(x)
    assert torch.equal(got, want)
    (row,) = ours.report()
    assert (row.operator, row.taken_by) == ("native_batch_norm_backward", "torch")
    assert "mkldnn tensors have no strides: to_dense()" in row.reason


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(fast_backend):
    module, parts = nn.LayerNorm(5), [torch.randn(2, 5), torch.randn(3, 5)]

    def backward(layout):
        x = torch.nested.nested_tensor(parts, layout=layout, requires_grad=True)
        y = module(x)
        y.backward(y.detach().clone())

    with ours.enable(forward=False, backend=fast_backend):
        backward(torch.strided)
        (row,) = ours.report(reset=True)
        assert (row.operator, row.taken_by) == ("native_layer_norm_backward", "torch")
        assert "layout=torch.jagged makes ones that we take" in row.reason
        backward(torch.jagged)
    assert ours.report().calls("normgrad") == 1
