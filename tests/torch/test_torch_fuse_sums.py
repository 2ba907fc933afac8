"""``fuse(model)``: sums after a norm, sums before one, and norms that end a ``Sequential``."""

import copy
import functools
import pickle

import pytest
import torch
from closeness import apart, results
from ranks import data_parallel_alone
from torch import nn

import normgrad.torch as ours

pytestmark = pytest.mark.usefixtures("by_reference", "nodes_made")


def conv_norm(channels=6, act=False):
    parts = [nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels)]
    return nn.Sequential(*parts, *([nn.ReLU6()] if act else []))


class Inverted(nn.Module):
    """As torchvision's MobileNets and timm's EfficientNet are written."""

    def __init__(self, skip=True):
        super().__init__()
        self.conv = nn.Sequential(conv_norm(act=True), conv_norm())
        self.last, self.bn3, self.drop_path = nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.Identity()
        self.has_skip, self.part = skip, None

    def forward(self, x):
        if self.has_skip:  # noqa: SIM108  (as they write it)
            x = x + self.conv(x)
        else:
            x = self.conv(x)
        shortcut = x
        x = self.last(x)
        x = self.bn3(x)
        if self.has_skip:
            x = self.drop_path(x) + shortcut
        return x


class InPlace(Inverted):
    def forward(self, input):
        result = self.conv(input)
        if self.has_skip:
            result += input
        result = self.last(result)
        result = self.bn3(result)
        if not self.has_skip:
            result = result + input
        return result


class RegNet(nn.Module):
    """The activation stands behind both branches."""

    def __init__(self, project=True):
        super().__init__()
        self.proj = conv_norm() if project else None
        self.f, self.activation = nn.Sequential(conv_norm(act=True), conv_norm()), nn.ReLU()

    def forward(self, x):
        if self.proj is not None:  # noqa: SIM108
            x = self.proj(x) + self.f(x)
        else:
            x = x + self.f(x)
        return self.activation(x)


class Sums(Inverted):
    """What follows the sum is left as it is."""

    def forward(self, x):
        y = self.last(self.conv[1](self.conv[0](x)))
        y = self.bn3(y)
        y = y + x
        y = y + x
        y = self.drop_path(y)
        return torch.tanh(y)


class Written(nn.Module):
    """An RMS norm as models write it."""

    def __init__(self, size):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.randn(size)), 1e-6

    def forward(self, hidden_states):
        kind = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(kind)


class WrittenRMSNorm(Written):
    """The name says what it is."""


class Decoder(nn.Module):
    """As transformers' and timm's blocks are written."""

    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.attention, self.mlp = nn.Linear(8, 8), nn.Linear(8, 8)
        self.before, self.after = norm(8), norm(8)

    def forward(self, hidden):
        residual = hidden
        hidden = self.before(hidden)
        hidden = self.attention(hidden)
        hidden = residual + hidden
        residual = hidden
        hidden = self.after(hidden)
        hidden = self.mlp(hidden)
        return residual + hidden


class Vision(Decoder):
    def forward(self, x):
        x = x + self.attention(self.before(x))
        x = x + self.mlp(self.after(x))
        return x  # noqa: RET504


SKIPS = [("batch", "relu6", False), ("batch", None, True)]
MODELS = {
    "inverted": (Inverted, (4, 6, 5, 3), [*SKIPS, SKIPS[1]]),
    "without-skip": (lambda: Inverted(skip=False), (4, 6, 5, 3), SKIPS[:1]),
    "in-place": (InPlace, (4, 6, 5, 3), SKIPS),
    "regnet": (RegNet, (4, 6, 5, 3), [("batch", "relu6", False), ("batch", "relu", True)]),
    "regnet-plain": (lambda: RegNet(False), (4, 6, 5, 3), [SKIPS[0], ("batch", "relu", True)]),
    "sums": (Sums, (4, 6, 5, 3), SKIPS),
    "decoder": (Decoder, (3, 5, 8), [("sum", "LayerNorm")]),
    "vision": (Vision, (3, 5, 8), [("sum", "LayerNorm")]),
    "rms": (lambda: Decoder(nn.RMSNorm), (3, 5, 8), [("sum", "RMSNorm")]),
    "written": (lambda: Decoder(WrittenRMSNorm), (3, 5, 8), [("sum", "WrittenRMSNorm")]),
}


@pytest.mark.parametrize("name", MODELS)
def test_as_near_to_float64_as_torch(name, nodes_made):
    make, shape, forms = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    # A written one computes in float32, whatever it gets.
    wide = (model, x) if name == "written" else (copy.deepcopy(model).double(), x.double())
    want = results(*wide)
    torchs = apart(results(model, x), want)
    found = ours.fuse(model)
    nodes_made.clear()
    assert apart(results(model, x), want) <= 2 * torchs + 2e-6
    assert sorted(nodes_made, key=str) == sorted(forms, key=str)
    assert sum(bool(one.node) for one in found) == len(forms)
    twin = pickle.loads(pickle.dumps(model))
    nodes_made.clear()
    torch.testing.assert_close(twin(x), model(x), rtol=0, atol=0)
    assert len(nodes_made) == 2 * len(forms)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(x), ours.unfuse(twin.eval())(x))


def test_the_report_says_what_stands_behind_a_norm():
    model = Inverted()
    model.drop_path = nn.Dropout(0.5)
    assert [tuple(one) for one in ours.fuse(model)] == [
        ("conv.0.1", "BatchNorm2d + ReLU6", ""),
        ("conv.1.1", "BatchNorm2d + shortcut", ""),
        ("bn3", "", "a Dropout stands behind it"),
    ]
    found = ours.fuse(Inverted(skip=False))
    assert found[2].why == "no activation or sum that is taken follows it in Inverted"
    assert [one.node for one in ours.fuse(RegNet())] == [
        "",
        "BatchNorm2d + ReLU6",
        "BatchNorm2d + shortcut + ReLU",
    ]
    found = ours.fuse(Decoder())
    assert found[0].why == "no sum that it could take in stands right before it in Decoder"
    assert found[1].node == "sum + LayerNorm"


@pytest.mark.parametrize("where", ["conv", "conv.1", "conv.1.1"])
def test_hooks_on_what_ends_in_a_norm_see_what_they_saw(where, nodes_made):
    model, x = Inverted(), torch.randn(2, 6, 3, 3)
    fused = copy.deepcopy(model)
    ours.fuse(fused)
    seen = []
    for one in (model, fused):
        one.get_submodule(where).register_forward_hook(
            lambda module, args, output: seen.append(output.detach().clone())
        )
        one(x)
    torch.testing.assert_close(*seen)
    assert nodes_made.count(("batch", None, True)) == 1  # bn3's


@pytest.mark.parametrize("how", ["shapes", "hook", "parametrized", "forward-of-its-own"])
def test_sums_that_are_left_to_the_model(how, nodes_made):
    model, x = Decoder(), torch.randn(3, 5, 8)
    if how == "shapes":
        model.attention.register_forward_hook(lambda module, args, output: output[:1])
    elif how == "hook":
        model.after.register_forward_hook(lambda *_: None)
    elif how == "parametrized":
        nn.utils.parametrize.register_parametrization(model.after, "weight", nn.Identity())
    else:
        model.after.forward = lambda x: x * 2
    want = model(x)
    ours.fuse(model)
    torch.testing.assert_close(model(x), want, rtol=0, atol=0)
    assert not nodes_made


@pytest.mark.parametrize("norm", [nn.LayerNorm, WrittenRMSNorm])
def test_under_autocast_the_residual_is_wider(norm, nodes_made):
    torch.manual_seed(0)
    model, x = Decoder(norm), torch.randn(3, 5, 8)
    fused = copy.deepcopy(model)
    ours.fuse(fused)
    found = []
    for one in (model, fused):
        mine = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = one(mine)
        y.float().square().sum().backward()
        found.append([y, mine.grad, *(each.grad for each in one.parameters())])
    assert nodes_made == [("sum", norm.__name__)]
    assert [each.dtype for each in found[0]] == [each.dtype for each in found[1]]
    torch.testing.assert_close(*found, rtol=0.02, atol=0.05)


def test_in_16_bits_a_written_norm_has_the_models_type(nodes_made):
    torch.manual_seed(0)
    model, x = Decoder(WrittenRMSNorm).bfloat16(), torch.randn(3, 5, 8).bfloat16()
    want = model(x)
    ours.fuse(model)
    got = model(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)
    assert nodes_made == [("sum", "WrittenRMSNorm")]
    model.after.float()  # its result is float32, which is no type of the sum
    nodes_made.clear()
    twin = ours.unfuse(copy.deepcopy(model))
    model.mlp.float(), twin.mlp.float()
    torch.testing.assert_close(model(x), twin(x), rtol=0, atol=0)
    assert not nodes_made


class Unsuitable(Decoder):
    """Sums that are no sum of a norm."""

    def read_first(self, x, y):
        x = x + y
        z = x * 2
        return self.after(x) + z

    def on_a_condition(self, x, y):
        x = x + y
        return self.after(x) if self.training else x

    def after_another_call(self, x, y):
        x = x + y
        return self.mlp(y) + self.after(x)

    def written_in_place(self, x, y):
        x += y
        return self.after(x)

    def of_something_else(self, x, y):
        z = x + y
        return self.after(x), z


@pytest.mark.parametrize("name", [one for one in vars(Unsuitable) if not one.startswith("_")])
def test_sums_that_are_left_alone(name):
    from normgrad.torch import nodes, rewriting

    looked = rewriting.Looked(*(["".__eq__] * 2), "self.after".__eq__, "".__eq__)
    assert rewriting.rewritten(getattr(Unsuitable, name), looked, (nodes.node,) * 2) is None


class Decorated(Inverted):
    """As diffusers and older transformers decorate."""

    @torch.no_grad()
    def forward(self, x):
        return x + self.conv(x)


class Wrapping(nn.Module):
    """Wraps each class derived from it, as transformers' layers do."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        forward = cls.forward

        @functools.wraps(forward)
        def wrapped(self, *args):
            self.calls = getattr(self, "calls", 0) + 1
            return forward(self, *args)

        cls.forward = wrapped


class WrappedDecoder(Wrapping, Decoder):
    def forward(self, hidden):
        residual = hidden + 1.0
        hidden = residual + hidden
        return self.after(hidden)


def test_what_decorators_do_is_still_done(nodes_made):
    model, x = Decorated(), torch.randn(2, 6, 3, 3, requires_grad=True)
    want = model(x)
    plain = Decorated.forward
    assert [one.node for one in ours.fuse(model)] == ["BatchNorm2d + ReLU6", SHORTCUT, ""]
    torch.testing.assert_close(model(x), want)
    assert not model(x).requires_grad
    assert SKIPS[1] in nodes_made
    assert Decorated.forward is plain
    wrapped, x = WrappedDecoder(), torch.randn(2, 3, 8)
    want = wrapped(x)
    ours.fuse(wrapped)
    torch.testing.assert_close(wrapped(x), want)
    assert nodes_made[-1] == ("sum", "LayerNorm")
    assert wrapped.calls == 2  # once for each pass


SHORTCUT = "BatchNorm2d + shortcut"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("make", [Inverted, RegNet, Decoder])
def test_tracers_and_compilers_see_the_modules(make, nodes_made):
    model, x = make(), torch.randn(2, 6, 4, 8)
    torchs = copy.deepcopy(model).eval()
    ours.fuse(model.eval())
    traced = torch.jit.trace(model, x)
    assert "normgrad::" not in str(traced.inlined_graph)
    nodes_made.clear()  # the trace's check calls the model itself
    exported = torch.export.export(model, (x,))
    assert "normgrad." not in str(exported.graph)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for one in (traced, exported.module(), torch.fx.symbolic_trace(model), compiled):
        torch.testing.assert_close(one(x), torchs(x))
    torch.compiler.reset()
    assert not nodes_made
    with pytest.raises(NotImplementedError, match="unfuse"):
        torch.jit.script(model)


@pytest.mark.parametrize("make", [Inverted, RegNet, Decoder])
def test_autocast_channels_last_checkpoints_and_replicas(make, nodes_made):
    torch.manual_seed(0)
    model, x = make(), torch.randn(3, 6, 4, 8)
    fused = copy.deepcopy(model)
    ours.fuse(fused)
    if make is not Decoder:
        last = x.to(memory_format=torch.channels_last)
        assert fused(last).is_contiguous(memory_format=torch.channels_last)
        model(last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = fused(x), model(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)
    nodes_made.clear()
    again = torch.utils.checkpoint.checkpoint(fused, x.requires_grad_(), use_reentrant=False)
    again.sum().backward()
    assert nodes_made
    data_parallel_alone(fused, x)
    assert all(one.grad is not None for one in fused.parameters())
    fused.load_state_dict(model.state_dict())
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["in-place", "regnet", "decoder", "written"])
def test_compiled_nodes_are_operators(name, monkeypatch, nodes_made):
    """As on a GPU, where a compiler calls them."""
    from normgrad.torch import nodes, sum_nodes

    make, shape, forms = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    want = results(model, x)
    ours.fuse(model)
    for module in (nodes, sum_nodes):
        monkeypatch.setattr(module, "plain", lambda x, least: True)
    for form in forms:
        nodes._taken[form[0], "cpu", *form[1:]] = True
    torch.compiler.reset()
    x.requires_grad_()
    nodes_made.clear()
    y = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    assert len(nodes_made) == len(forms)
    (y * torch.arange(1.0, 1 + y.numel()).view_as(y)).sum().backward()
    torch.compiler.reset()
    grads = [x.grad, *(one.grad for one in model.parameters())]
    torch.testing.assert_close([y, *grads], want[: 1 + len(grads)], rtol=1e-3, atol=1e-2)
