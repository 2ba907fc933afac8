"""Norms and what follows them in captured graphs: what becomes one operator, what stays."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normgrad.torch as ours
from normgrad.torch import nodes

pytestmark = pytest.mark.usefixtures("by_reference")
captured = pytest.importorskip("normgrad.torch.captured")

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


def operators(graph):
    """Ours in a graph: name and activation."""
    calls = [one for one in graph.nodes if "normgrad" in str(one.target)]
    return [
        (one.target._opname, next(arg for arg in one.args if isinstance(arg, str))) for one in calls
    ]


def step(model, x, run=None):
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = model(x) if run is None else run(x)
    y.mul(torch.arange(1.0, 1 + y.numel()).reshape(y.shape).cos()).sum().backward()
    grads = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return [y.detach(), x.grad, grads, dict(model.named_buffers())]


def rewritten(model, x, **options):
    """Which operators a captured step has, after it was seen to compute what the model does."""
    found = []

    def backend(graph, inputs):
        captured.OneNode()(graph.graph)
        graph.graph.lint()
        graph.recompile()
        found.extend(operators(graph.graph))
        return graph.forward

    twin = copy.deepcopy(model)
    with ours.enable(compiled=True):
        run = torch.compile(model, backend=backend, fullgraph=True, **options)
        got = step(model, x, run)
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
    model = Norms(lambda m, x: function(m, x))
    model.bn = model.gn
    assert rewritten(model, data()) == [("group_norm", activation)]


def late(m, x):
    """As ResNets are written: the shortcut is made behind the norm."""
    z = m.bn(m.conv(x))
    shortcut = m.other(m.side(x))
    z += shortcut
    return F.relu(z, inplace=True)


SUMS = {
    "late": late,
    "early": lambda m, x: F.relu(m.bn(m.conv(x)) + x),
    "the-other-way-round": lambda m, x: F.relu(x + m.bn(m.conv(x))),
    "torch-add": lambda m, x: F.relu(torch.add(m.bn(m.conv(x)), x)),
    "method": lambda m, x: F.relu(m.bn(m.conv(x)).add(x)),
    "in-place": lambda m, x: F.relu(m.bn(m.conv(x)).add_(x)),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_sums(name, layout):
    x = data().to(memory_format=layout)
    assert rewritten(Norms(SUMS[name]), x) == [("batch_norm_add", "relu")]


def test_two_norms_of_one_sum():
    """One takes the other's result for a shortcut."""
    function = lambda m, x: F.silu(m.bn(m.conv(x)) + m.other(m.side(x)))  # noqa: E731
    assert rewritten(Norms(function), data()) == [("batch_norm_add", "silu")]


def changed_between(m, x):
    made = m.conv(x)
    z = m.bn(made)
    made.mul_(2.0)
    return F.relu(z + made)


def a_view_changed_between(m, x):
    made = m.conv(x)
    z = m.bn(made)
    made.view(-1)[0].mul_(0.5)
    return F.relu(z + x)


def buffers_read_between(m, x):
    z = m.bn(m.conv(x))
    shift = m.bn.running_mean * 1.0
    return F.relu(z + x) + shift.sum()


def same_norm_twice(m, x):
    return F.relu(m.bn(m.conv(x)) + m.bn(m.side(x)))


def constants_between(m, x):
    z = m.bn(m.conv(x))
    with torch.no_grad():
        y = F.relu(z)
    return y + x


def autocast_between(m, x):
    z = m.bn(m.conv(x))
    with torch.autocast("cpu", torch.bfloat16):
        shortcut = m.side(x)
    return F.relu(z + shortcut.float())


def onto_the_shortcut(m, x):
    shortcut = m.side(x)
    shortcut += m.bn(m.conv(x))
    return F.relu(shortcut) + shortcut


def used_again(m, x):
    z = m.bn(m.conv(x))
    return F.relu(z) + z


def a_sum_used_again(m, x):
    z = m.bn(m.conv(x)) + x
    return F.relu(z) * z


def a_view_between(m, x):
    z = m.bn(m.conv(x))
    return F.relu(z.flatten(1)) + z.sum()


LEFT = {
    "changed between": changed_between,
    "a view changed between": a_view_changed_between,
    "buffers read between": buffers_read_between,
    "constants between": constants_between,
    "autocast between": autocast_between,
    "onto the shortcut": onto_the_shortcut,
    "used again": used_again,
    "a sum used again": a_sum_used_again,
    "a view between": a_view_between,
    "itself added": lambda m, x: (lambda z: F.relu(z + z))(m.bn(m.conv(x))),
    "a number added": lambda m, x: F.relu(m.bn(m.conv(x)) + 1.0),
    "broadcast": lambda m, x: F.relu(m.bn(m.conv(x)) + x[:1]),
    "scaled": lambda m, x: F.relu(torch.add(m.bn(m.conv(x)), x, alpha=2)),
    "wider": lambda m, x: F.relu(m.bn(m.conv(x)) + x.double()).float(),
    "other bounds": after(lambda z: F.hardtanh(z, 0.0, 5.0)),
    "another function": after(torch.tanh),
    "dropout": after(lambda z: F.relu(F.dropout(z, 0.0))),
    "a weight alone": lambda m, x: F.relu(
        F.batch_norm(m.conv(x), None, None, m.bn.weight, None, True)
    ),
    "a sum behind group norm": lambda m, x: F.relu(m.gn(m.conv(x)) + x),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name):
    assert rewritten(Norms(LEFT[name]), data()) == []


def test_a_norm_that_is_called_twice():
    """Its buffers are written in the order of the calls."""
    assert rewritten(Norms(same_norm_twice), data()) == [("batch_norm_add", "relu")]


def test_inference_and_frozen_parameters_are_left():
    model = Norms(after(F.relu))
    assert rewritten(model.eval(), data()) == []
    model = Norms(lambda m, x: after(F.relu)(m, x.detach()) + x).requires_grad_(False)
    assert rewritten(model, data()) == []


def test_nothing_without_the_wish():
    model, seen = Norms(after(F.relu)), []

    def backend(graph, inputs):
        captured.OneNode()(graph.graph)
        seen.extend(operators(graph.graph))
        return graph.forward

    torch.compile(model, backend=backend, fullgraph=True)(data())
    assert seen == []


def test_other_sizes():
    model = Norms(lambda m, x: F.silu(m.gn(F.relu(m.bn(m.conv(x)) + x))))
    for mark in (True, None):
        taken = rewritten(model, data(), dynamic=mark)
        assert taken == [("batch_norm_add", "relu"), ("group_norm", "silu")]
        torch.compiler.reset()


def test_a_pass_of_somebody_else_stays():
    from torch._inductor import config

    def theirs(graph):
        """Does nothing."""

    with config.patch(pre_grad_custom_pass=theirs), ours.enable(compiled=True):
        assert config.pre_grad_custom_pass is theirs
    with ours.enable(compiled=True):
        assert isinstance(config.pre_grad_custom_pass, captured.OneNode)
        with ours.enable():
            assert config.pre_grad_custom_pass is None
    assert config.pre_grad_custom_pass is None
