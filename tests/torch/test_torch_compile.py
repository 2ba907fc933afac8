"""Under ``torch.compile(fullgraph=True)``: the same numbers, the same strides, our backward."""

import copy

import pytest
import torch
from example_models import NAMES, make
from torch import nn
from torch._dynamo.testing import CompileCounter

import normgrad
import normgrad.torch as ours
from normgrad.calls import cached_calls, dispatch


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _step(model, x):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = model(x)
    y.square().mean().backward()
    return [y.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]


def _compare(model, shape, backend, channels_last=False):
    torch.manual_seed(3)
    twin = copy.deepcopy(model)
    for _ in range(2):
        x = torch.randn(shape)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        run = torch.compile(model, backend=backend, fullgraph=True)
        for got, want in zip(_step(run, x), _step(twin, x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for got, want in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels-last"])
def test_all_modules(channels_last):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1),
        ours.BatchNorm2d(8),
        ours.GroupNorm(2, 8),
        ours.InstanceNorm2d(8, affine=True, track_running_stats=True),
        ours.SyncBatchNorm(8),
        ours.LayerNorm(6),
        ours.RMSNorm(6),
    )
    _compare(model, (2, 3, 5, 6), "aot_eager", channels_last)


@pytest.mark.parametrize("name", NAMES)
def test_models(name):
    example = make(name)
    _compare(ours.convert(example.model), example.shape, "aot_eager")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on importing inductor
def test_inductor():
    model = nn.Sequential(nn.Linear(12, 12), ours.LayerNorm(12), nn.GELU(), ours.BatchNorm1d(12))
    _compare(model, (6, 12), "inductor")


def test_other_sizes_without_a_new_graph():
    layer = ours.LayerNorm(8)
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    run = torch.compile(layer, backend=count, fullgraph=True, dynamic=True)
    for rows in (3, 5, 9):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(run(x), layer(x))
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (ours.LayerNorm(4), (6, 4)),
        (ours.LayerNorm((4, 3)), (6, 4, 3)),
        (ours.GroupNorm(2, 4), (6, 4, 3)),
        (ours.GroupNorm(2, 4), (6, 4, 3, 3)),
        (ours.InstanceNorm1d(4, affine=True), (6, 4, 3)),
    ],
    ids=str,
)
def test_sizes_that_depend_on_data(layer, shape):
    x = torch.randn(shape, requires_grad=True)

    def function(x, chosen):
        return layer(x[chosen]).square().sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = torch.compile(function, backend="aot_eager", fullgraph=True)
        for rows in ([0, 2, 3, 5], [4, 5]):
            chosen = torch.zeros(6, dtype=torch.bool)
            chosen[rows] = True
            got, want = (torch.autograd.grad(one(x, chosen), x) for one in (run, function))
            torch.testing.assert_close(got, want)


def test_backward_operators_in_a_graph():
    x, dy = torch.randn(4, 6), torch.randn(4, 6)
    statistics = (torch.zeros(4, 1), torch.ones(4, 1))

    def function(dy, x):
        return torch.ops.normgrad.layer_norm_backward(dy, x, [6], *statistics)[0].sin()

    run = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(run(dy, x), function(dy, x))


def test_torchs_modules_with_enable(fast_backend):
    """The graph calls torch's operators, which are ours then."""
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))
    x = torch.randn(5, 6)
    run = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    ours.report(reset=True)
    with ours.enable(backend=fast_backend):
        got = _step(run, x)
    assert ours.report(reset=True).calls("normgrad", "native_layer_norm_backward") == 1
    for one, other in zip(got, _step(model, x), strict=True):
        torch.testing.assert_close(one, other)


def test_a_view_of_the_gradient_of_transposed_data_with_enable(fast_backend):
    """The graph knows that torch's gradient is contiguous."""
    layer = nn.LayerNorm(4)
    first = torch.randn(2, 4, 5, requires_grad=True)
    second = torch.randn(10, 4, requires_grad=True)

    def function(first, second):
        return layer(first.transpose(1, 2) + second.view(2, 5, 4)).square().sum()

    want = torch.autograd.grad(function(first, second), (first, second))
    with ours.enable(backend=fast_backend):
        run = torch.compile(function, backend="aot_eager", fullgraph=True)
        got = torch.autograd.grad(run(first, second), (first, second))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


def test_the_functional_api_is_one_break_in_a_graph():
    """Also the first call of its kind, which looks for more about its tensors."""
    x, mean, rstd = torch.randn(4, 8), torch.zeros(4), torch.ones(4)

    def around(x):
        return normgrad.layer_norm_backward(x * 2, x, mean, rstd, 8).grad_input + 1

    dispatch._cached_calls.clear()
    cached_calls._guards_see_grad.cache_clear()
    counter = CompileCounter()
    got = torch.compile(around, backend=counter)(x)
    assert torch.equal(got, around(x))
    assert counter.frame_count == 2  # before and after


def test_a_whole_graph_with_the_functional_api_is_refused_with_the_way_out():
    x, mean, rstd = torch.randn(4, 8), torch.zeros(4), torch.ones(4)

    def function(x):
        return normgrad.layer_norm_backward(x, x, mean, rstd, 8).grad_input

    run = torch.compile(function, backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"only torch\.ops\.normgrad and"):
        run(x)
