"""Norms and what follows them in captured graphs: what becomes one operator, what stays."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normgrad.torch as ours
from normgrad.torch import nodes

pytestmark = [
    pytest.mark.usefixtures("by_reference"),
    pytest.mark.filterwarnings("ignore::normgrad.torch.NothingTakenWarning"),
]

CHANNELS, SLOPE = 6, 0.2


@pytest.fixture(autouse=True)
def _every_form(monkeypatch):
    monkeypatch.setattr(nodes, "taken", lambda *form: True)
    nodes._taken.clear()
    torch.compiler.reset()
    yield
    nodes._taken.clear()
    ours.disable()
    torch.compiler.reset()


def data(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (3, CHANNELS, 4, 5), generator=generator)


class Norms(nn.Module):
    """A function of data, and of norms and convolutions under short names."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(1)
        self.function = function
        self.bn, self.other = nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS)
        self.gn = nn.GroupNorm(2, CHANNELS)
        self.conv, self.side = (nn.Conv2d(CHANNELS, CHANNELS, 1) for _ in range(2))
        for one in self.parameters():
            nn.init.normal_(one)

    def forward(self, x):
        return self.function(self, x)


def rewrite(graph):
    from normgrad.torch.captured import OneNode  # loads inductor

    OneNode()(graph)


def operators(graph):
    """Ours in a graph: name and activation."""
    calls = [one for one in graph.nodes if "normgrad" in str(one.target)]
    return [
        (one.target._opname, next(arg for arg in one.args if isinstance(arg, str))) for one in calls
    ]


def step(model, x, run=None):
    model.zero_grad()
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = model(x) if run is None else run(x)
    y.mul(torch.arange(1.0, 1 + y.numel()).reshape(y.shape).cos()).sum().backward()
    grads = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return [y.detach(), x.grad, grads, dict(model.named_buffers())]


def as_captured(model, found, **options):
    """The model as a captured program, eager but for our pass; what that made goes to `found`."""

    def backend(graph, inputs):
        rewrite(graph.graph)
        graph.graph.lint()
        graph.recompile()
        found.extend(operators(graph.graph))
        return graph.forward

    return torch.compile(model, backend=backend, fullgraph=True, **options)


def rewritten(model, x, **options):
    """Which operators a captured step has, after it was seen to compute what the model does."""
    found, twin = [], copy.deepcopy(model)
    with ours.enable(compiled=True):
        got = step(model, x, as_captured(model, found, **options))
    ours.disable()
    torch.testing.assert_close(got, step(twin, x), rtol=1e-4, atol=1e-4)
    return found


def after(act):
    return lambda m, x: act(m.bn(m.conv(x)))


TAKEN = {
    "relu": (after(F.relu), "relu"),
    "relu-in-place": (after(nn.ReLU(inplace=True)), "relu"),
    "torch-relu": (after(torch.relu), "relu"),
    "method": (after(lambda z: z.relu()), "relu"),
    "method-in-place": (after(lambda z: z.relu_()), "relu"),
    "relu6": (after(nn.ReLU6(inplace=True)), "relu6"),
    "leaky": (after(nn.LeakyReLU(SLOPE)), "leaky_relu"),
    "leaky-by-name": (after(lambda z: F.leaky_relu(z, negative_slope=SLOPE)), "leaky_relu"),
    "silu": (after(nn.SiLU(inplace=True)), "silu"),
    "gelu": (after(nn.GELU()), "gelu"),
    "gelu-tanh": (after(nn.GELU(approximate="tanh")), "gelu_tanh"),
    "hardswish": (after(nn.Hardswish()), "hardswish"),
    "named-input": (after(lambda z: F.silu(input=z)), "silu"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_activations(name):
    function, activation = TAKEN[name]
    assert rewritten(Norms(function), data()) == [("batch_norm", activation)]
    model = Norms(function)
    model.bn = model.gn
    assert rewritten(model, data()) == [("group_norm", activation)]


def constants_between(m, x):
    z = m.bn(m.conv(x))
    with torch.no_grad():
        y = F.relu(z)
    return y + x


def autocast_between(m, x):
    z = m.bn(m.conv(x))
    with torch.autocast("cpu", torch.bfloat16):
        other = m.side(x)
    return F.relu(z) + other.float()


def used_again(m, x):
    z = m.bn(m.conv(x))
    return F.relu(z) + z


def a_view_between(m, x):
    z = m.bn(m.conv(x))
    return F.relu(z.flatten(1)) + z.sum()


LEFT = {
    "constants between": constants_between,
    "autocast between": autocast_between,
    "used again": used_again,
    "a view between": a_view_between,
    "a sum between": lambda m, x: F.relu(m.bn(m.conv(x)) + x),
    "other bounds": after(lambda z: F.hardtanh(z, 0.0, 5.0)),
    "another function": after(torch.tanh),
    "dropout": after(lambda z: F.relu(F.dropout(z, 0.0))),
    "a weight alone": lambda m, x: F.relu(
        F.batch_norm(m.conv(x), None, None, m.bn.weight, None, True)
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name):
    assert rewritten(Norms(LEFT[name]), data()) == []


def buffers_read_between(m, x):
    """As the norm wrote them."""
    z = m.bn(m.conv(x))
    seen = m.bn.running_mean * 1.0
    return F.relu(z) + seen.sum() + m.other(m.side(x))


def same_norm_twice(m, x):
    return F.relu(m.bn(m.conv(x))) + F.silu(m.bn(m.side(x)))


def test_the_norm_stays_where_it_was():
    assert rewritten(Norms(buffers_read_between), data()) == [("batch_norm", "relu")]
    taken = [("batch_norm", "relu"), ("batch_norm", "silu")]
    assert rewritten(Norms(same_norm_twice), data()) == taken


def test_inference_and_frozen_parameters_are_left():
    model = Norms(after(F.relu))
    assert rewritten(model.eval(), data()) == []
    model = Norms(lambda m, x: after(F.relu)(m, x.detach()) + x).requires_grad_(False)
    assert rewritten(model, data()) == []


def test_transforms_are_left():
    def loss(x, weight):
        return F.silu(F.group_norm(x, 2, weight, weight)).square().sum()

    found, inputs = [], (data(), torch.randn(CHANNELS))
    with ours.enable(compiled=True):
        got = as_captured(torch.func.grad(loss), found)(*inputs)
    assert found == []
    torch.testing.assert_close(got, torch.func.grad(loss)(*inputs))


def test_nothing_without_the_wish():
    found = []
    as_captured(Norms(after(F.relu)), found)(data())
    assert found == []


def test_other_sizes():
    model = Norms(lambda m, x: F.silu(m.gn(F.relu(m.bn(m.conv(x))))))
    for mark in (True, None):
        taken = rewritten(model, data(), dynamic=mark)
        assert taken == [("batch_norm", "relu"), ("group_norm", "silu")]
        torch.compiler.reset()


def test_a_pass_of_somebody_else_stays():
    from torch._inductor import config

    def theirs(graph):
        """Does nothing."""

    with config.patch(pre_grad_custom_pass=theirs), ours.enable(compiled=True):
        assert config.pre_grad_custom_pass is theirs
    with ours.enable(compiled=True):
        assert config.pre_grad_custom_pass.uuid().startswith("normgrad")
        with ours.enable():
            assert config.pre_grad_custom_pass is None
    assert config.pre_grad_custom_pass is None


def on_a_gpu(strides, dtype, seen, wide):
    """A captured group norm and SiLU of data on a GPU, of which there are shapes alone."""
    graph, mode = torch.fx.Graph(), torch._subclasses.FakeTensorMode()
    nodes_of = [graph.placeholder(name) for name in ("x", "weight", "bias")]
    z = graph.call_function(F.group_norm, (nodes_of[0], 2, *nodes_of[1:]))
    graph.output(graph.call_function(F.silu, (z,), {"inplace": True}))
    with mode, torch.no_grad():  # autograd asks the device for streams
        x = torch.empty_strided((2, 6, 4, 5), strides, dtype=dtype, device="cuda:0")
        vectors = [torch.empty(6, dtype=seen, device="cuda:0")] * 2
        made = F.group_norm(x, 2, *(one.to(dtype) for one in vectors)).to(wide)
        values = [x, *vectors, made, made.detach().requires_grad_()]
    for node, value in zip(graph.nodes, values, strict=False):
        node.meta["example_value"] = value
    return graph


@pytest.mark.parametrize("strides", [(120, 20, 5, 1), (120, 1, 30, 6)], ids=["first", "last"])
def test_on_a_gpu(strides):
    """Torch's result is contiguous there; under autocast it is float32, and so is ours."""
    half, single = torch.bfloat16, torch.float32
    for dtype, seen, wide, taken in (
        (single, single, single, True),
        (half, half, half, True),
        (half, single, single, True),
        (half, single, half, True),
        (single, single, half, False),
    ):
        graph = on_a_gpu(strides, dtype, seen, wide)
        with ours.enable(compiled=True):
            rewrite(graph)
        assert operators(graph) == ([("group_norm", "silu")] if taken else [])
