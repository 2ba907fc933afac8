"""``fuse(model)``: the numbers of the model, what is taken and what is left alone."""

import copy
import io
import pickle

import pytest
import torch
from closeness import apart, results
from ranks import data_parallel_alone
from torch import nn
from torch.nn import functional as F

import normgrad
import normgrad.torch as ours
from normgrad.torch import nodes, rewriting

pytestmark = pytest.mark.usefixtures("by_reference", "nodes_made")


class Basic(nn.Module):
    """As torchvision's and timm's blocks are written."""

    def __init__(self, channels=6, act=None):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.relu = act or nn.ReLU(inplace=True)
        self.drop, self.se, self.downsample = nn.Identity(), None, nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        """Has a docstring.

        Of several lines.
        """
        shortcut = x
        x = self.conv1(x)
        x = self.bn1(x)
        x = self.drop(x)
        x = self.relu(x)
        x = self.conv2(x)
        x = self.bn2(x)
        if self.se is not None:
            x = self.se(x)
        if self.downsample is not None:
            shortcut = self.downsample(shortcut)
        x += shortcut
        return self.relu(x)


class Assigned(Basic):
    def forward(self, x):
        identity = x
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out = identity + out
        out = self.relu(out)
        return self.drop(out)


class Nested(Basic):
    def forward(self, x, scale: float = 2.0, *, more=None):
        y = self._first(x)
        y = F.silu(self.bn2(self.conv2(y)) + self.downsample(x))
        return y * scale if more is None else y * more

    def _first(self, x):
        return torch.relu(self.bn1(self.conv1(x)))


class Groups(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.nonlinearity = nn.GroupNorm(2, 6), nn.SiLU()
        self.conv = nn.Conv2d(6, 6, 1)

    def forward(self, x, *args, **kwargs):
        if len(args) > 3:
            raise ValueError(args)
        hidden = x
        hidden = self.norm(hidden)
        hidden = self.nonlinearity(hidden)
        if "shift" in kwargs:
            hidden = self.norm(hidden) + kwargs["shift"]
        elif args:
            hidden = hidden * args[0]
            hidden = self.norm(hidden)
        else:
            hidden = self.norm(hidden)
        hidden = self.nonlinearity(hidden)
        return x + self.conv(hidden)


def row():
    return nn.Sequential(
        nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.LeakyReLU(0.2), nn.GroupNorm(3, 6), nn.GELU()
    )


MODELS = {
    "block": (Basic, [("batch", "relu", False), ("batch", "relu", True)]),
    "assigned": (Assigned, [("batch", "relu", False), ("batch", "relu", True)]),
    "nested": (Nested, [("batch", "relu", False), ("batch", "silu", True)]),
    "groups": (Groups, [("group", "silu", False)] * 2),
    "row": (row, [("batch", "leaky_relu", False), ("group", "gelu", False)]),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", MODELS)
def test_as_near_to_float64_as_torch(name, layout, nodes_made):
    make, forms = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(4, 6, 9, 8).to(memory_format=layout)
    exact = results(copy.deepcopy(model).double(), x.double())
    torchs = apart(results(model, x), exact)
    fused = copy.deepcopy(model)
    ours.fuse(fused)
    assert apart(results(fused, x), exact) <= 2 * torchs + 1e-6
    assert nodes_made == forms
    fused.eval(), model.eval()
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x))


def test_every_branch_computes_what_it_did():
    torch.manual_seed(0)
    model, x = Groups(), torch.randn(2, 6, 3, 3)
    fused = copy.deepcopy(model)
    ours.fuse(fused)
    for args, kwargs in (((), {}), ((2.0,), {}), ((), {"shift": 1.0})):
        torch.testing.assert_close(fused(x, *args, **kwargs), model(x, *args, **kwargs))
    with pytest.raises(ValueError, match="1, 2, 3, 4"):
        fused(x, 1, 2, 3, 4)


@pytest.mark.parametrize("name", MODELS)
def test_everything_but_the_classes_stays(name):
    model = MODELS[name][0]()
    classes, text = [type(one) for one in model.modules()], repr(model)
    state = {key: one.clone() for key, one in model.state_dict().items()}
    parts = dict(model.named_modules())
    ours.fuse(model)
    assert repr(model) == text
    assert [*model.state_dict()] == [*state]
    assert dict(model.named_modules()) == parts
    assert all(isinstance(one, cls) for one, cls in zip(model.modules(), classes, strict=True))
    model.load_state_dict(state)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(saved, weights_only=False),
    ):
        assert [type(one) for one in twin.modules()] == [type(one) for one in model.modules()]
        torch.testing.assert_close(twin.state_dict(), state)
    ours.fuse(model)  # once more changes nothing
    assert ours.unfuse(model) is model
    assert [type(one) for one in model.modules()] == classes


def test_the_report_says_what_was_fused_and_why_not():
    model = nn.Sequential(row(), nn.Sequential(nn.BatchNorm2d(6), nn.Tanh()), nn.LayerNorm(7))
    model.append(nn.InstanceNorm2d(6)).append(Basic())
    model[4].bn2.register_forward_hook(lambda *_: None)
    found = ours.fuse(model)
    assert [tuple(one) for one in found] == [
        ("0.1", "BatchNorm2d + LeakyReLU", ""),
        ("0.3", "GroupNorm + GELU", ""),
        ("1.0", "", "no activation or sum that is taken follows it in Sequential"),
        ("2", "", "no sum that it could take in stands right before it in Sequential"),
        ("3", "", "a InstanceNorm2d is not taken"),
        ("4.bn1", "BatchNorm2d + ReLU", ""),
        ("4.bn2", "", "hooks are on it or on its activation"),
    ]
    text = "3 of 7 norms are part of a node\n0.1    BatchNorm2d + LeakyReLU\n"
    assert str(found).startswith(text)
    assert ours.fuse(Assigned())[1].node == "BatchNorm2d + shortcut + ReLU"


@pytest.mark.parametrize("where", ["norm", "activation", "all"])
def test_hooks_see_what_they_saw(where, nodes_made):
    model, x = row(), torch.randn(2, 6, 5, 5)
    fused = copy.deepcopy(model)
    ours.fuse(fused)
    seen = []
    for one in (model, fused):
        mine = []
        note = lambda module, args, output, mine=mine: mine.append(output.detach().clone())  # noqa: E731
        if where == "all":
            handle = nn.modules.module.register_module_forward_hook(note)
        else:
            handle = one[1 if where == "norm" else 2].register_forward_hook(note)
        one(x)
        handle.remove()
        seen.append(mine)
    torch.testing.assert_close(*seen)
    assert [form for form in nodes_made if form[0] == "batch"] == []
    fused(x)
    assert nodes_made[-2:] == MODELS["row"][1]


def test_what_is_put_in_later_is_what_runs(nodes_made):
    model, x = Assigned(), torch.randn(2, 6, 5, 5)
    ours.fuse(model)
    model.bn1, model.relu = nn.Identity(), nn.Tanh()
    twin = ours.unfuse(copy.deepcopy(model))
    torch.testing.assert_close(model(x), twin(x))
    assert not nodes_made
    shared = row()
    ours.fuse(shared)
    torch.testing.assert_close(shared[:2](x), shared[1](shared[0](x)))  # a part ends at the norm


@pytest.mark.parametrize(
    "how", ["frozen", "parametrized", "strange-shortcut", "mixed-shortcut", "forward-of-its-own"]
)
def test_what_is_left_to_the_modules(how, nodes_made):
    torch.manual_seed(0)
    model, x = Assigned(), torch.randn(2, 6, 5, 5)
    if how == "parametrized":
        for one in (model.bn1, model.bn2):
            nn.utils.parametrize.register_parametrization(one, "weight", nn.Identity())
    elif how == "strange-shortcut":
        model.downsample = nn.AdaptiveAvgPool2d(1)
    elif how == "mixed-shortcut":
        model.downsample = nn.Conv2d(6, 6, 1).double()
        model.downsample.forward = lambda x: x.double()
    elif how == "forward-of-its-own":
        model.bn1.forward = model.bn2.forward = lambda x: x * 2
    if how == "frozen":
        model.eval()
    fused = copy.deepcopy(model)
    ours.fuse(fused)
    if how in ("frozen", "parametrized", "forward-of-its-own"):
        torch.testing.assert_close(results(fused, x), results(model, x), rtol=0, atol=0)
        assert not nodes_made
    else:
        torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-5)
        assert nodes_made == [("batch", "relu", False)]


class Unsuitable(Basic):
    """Sources that look alike and are not."""

    def read_between(self, x):
        x = self.bn1(x)
        y = x * 2
        x = self.relu(x)
        return x + y

    def written_between(self, x):
        y = self.bn1(x)
        x.add_(1)
        return self.relu(y)

    def returned_between(self, x):
        y = self.bn1(x)
        if self.training:
            return 0
        return self.relu(y)

    def later(self, x):
        x = self.bn1(x)
        return lambda: self.relu(self.bn1(x))

    def added_to_itself(self, x):
        x = self.bn1(x)
        x = x + x
        return self.relu(x)

    def known_inside(self, x):
        x = self.bn1(x)
        told = [lambda: x]
        x = self.relu(x)
        return x, told

    def read_in_the_end(self, x):
        try:
            x = self.bn1(x)
            x = self.relu(x)
        finally:
            print(x)

    def of_two(self, x):
        return F.leaky_relu(self.bn1(x), 0.3)

    def known_to_its_class(self, x):
        self.__seen = x
        return self.relu(self.bn1(x))

    @torch.no_grad()
    def decorated(self, x):
        return self.relu(self.bn1(x))


def never(path):
    return False


@pytest.mark.parametrize("name", [one for one in vars(Unsuitable) if not one.startswith("_")])
def test_sources_that_are_left_alone(name):
    method = getattr(Unsuitable, name)
    taken = {"self.bn1", "self.relu", "F.leaky_relu"}.__contains__
    looked = rewriting.Looked(taken, taken, never, taken)
    assert rewriting.rewritten(method, looked, (nodes.node, nodes.node)) is None


def test_a_method_that_is_not_its_source_is_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "of_a_user.py"
    path.write_text("def forward(self, x):\n    return self.relu(self.bn1(x)) * 2\n")
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    path.write_text("def forward(self, x):\n    return self.relu(self.bn1(x)) * 3\n")
    every = lambda path: path in ("self.bn1", "self.relu")  # noqa: E731
    looked = rewriting.Looked(every, every, never, every)
    assert rewriting.rewritten(names["forward"], looked, (nodes.node, nodes.node)) is None


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_tracers_see_the_modules():
    model, x = nn.Sequential(Basic(), row()), torch.randn(2, 6, 6, 6)
    torchs = copy.deepcopy(model).eval()
    ours.fuse(model.eval())
    traced = torch.jit.trace(model, x)
    assert "normgrad::" not in str(traced.inlined_graph)
    exported = torch.export.export(model, (x,))
    assert "normgrad." not in str(exported.graph)
    graph = torch.fx.symbolic_trace(model)
    assert {"0.bn1", "0.bn2", "1.1", "1.3"} <= {one.target for one in graph.graph.nodes}
    for one in (traced, exported.module(), graph):
        torch.testing.assert_close(one(x), torchs(x))
    with pytest.raises(NotImplementedError, match="unfuse"):
        torch.jit.script(model)


def test_compiled_on_the_cpu_is_the_modules(nodes_made):
    model, x = nn.Sequential(Basic(), row()), torch.randn(2, 6, 6, 6)
    want = model(x)
    ours.fuse(model)
    torch.compiler.reset()
    got = torch.compile(model, backend="eager", fullgraph=True)(x)
    torch.compiler.reset()
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert not nodes_made


def test_compiled_nodes_are_operators(monkeypatch):
    """As on a GPU, where a compiler calls them."""
    fits = nodes.fits

    def as_on_a_gpu(norm, kind, after, x, shortcut):
        return kind_of_module(norm) is not None and after is not None

    kind_of_module = nodes.kind_of
    torch.manual_seed(0)
    model, x = nn.Sequential(Assigned(), row()), torch.randn(2, 6, 6, 6)
    want = results(model, x)
    ours.fuse(model)
    monkeypatch.setattr(nodes, "fits", as_on_a_gpu)
    torch.compiler.reset()
    x.requires_grad_()
    y = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    (y * torch.arange(1.0, 1 + y.numel()).view_as(y)).sum().backward()
    torch.compiler.reset()
    assert fits is not nodes.fits
    grads = [x.grad, *(one.grad for one in model.parameters())]
    torch.testing.assert_close([y, *grads], want[: 1 + len(grads)], rtol=1e-3, atol=1e-2)


def test_under_autocast_and_func():
    torch.manual_seed(0)
    model, x = Assigned(), torch.randn(3, 6, 5, 5)
    fused = copy.deepcopy(model)
    ours.fuse(fused)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = fused(x), model(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)
    found = []
    for one in (fused, model):
        for norm in (one.bn1, one.bn2):
            norm.num_batches_tracked = norm.running_mean = norm.running_var = None

        def loss(state, one=one):
            return torch.func.functional_call(one, state, (x,)).sin().sum()

        found.append(torch.func.grad(loss)(dict(one.named_parameters())))
    for key in dict(model.named_parameters()):
        torch.testing.assert_close(found[0][key], found[1][key], rtol=1e-3, atol=1e-3)


def test_small_data_on_the_cpu_are_left_to_torch(monkeypatch, nodes_made):
    monkeypatch.setattr(nodes.Small, "taken", False)
    model, x = row(), torch.randn(2, 6, 5, 5)
    want = model(x)
    ours.fuse(model)
    torch.testing.assert_close(model(x), want, rtol=0, atol=0)
    assert not nodes_made


def test_what_the_fast_backend_lacks_is_left_to_torch(monkeypatch, nodes_made):
    monkeypatch.setattr(nodes, "taken", lambda *form: form[1] != "cpu")
    model, x = Assigned(), torch.randn(2, 6, 5, 5)
    want = model(x)
    ours.fuse(model)
    torch.testing.assert_close(model(x), want, rtol=0, atol=0)
    assert not nodes_made


def test_converted_models_and_distributed_wrappers():
    model, x = nn.Sequential(Basic(), row()), torch.randn(2, 6, 6, 6)
    want = results(model, x)
    fused = ours.convert(copy.deepcopy(model))
    assert all(one.node for one in ours.fuse(fused))
    torch.testing.assert_close(results(fused, x), want, rtol=1e-3, atol=1e-3)
    data_parallel_alone(fused, x)
    assert all(one.grad is not None for one in fused.parameters())


def test_errors_are_ours():
    for function in (ours.fuse, ours.unfuse):
        with pytest.raises(normgrad.ArrayTypeError, match="model must be a torch"):
            function(nn.ReLU)
    with pytest.raises(normgrad.OptionError, match="activation must be"):
        ours.BatchNormAct2d(3, "sigmoid")


def test_modules_of_ones_own():
    torch.manual_seed(0)
    x, y = torch.randn(2, 6, 4, 4), torch.randn(2, 6, 4, 4)
    norm, theirs = ours.BatchNormAct2d(6, "hardswish", eps=1e-3), nn.BatchNorm2d(6, eps=1e-3)
    assert [*norm.state_dict()] == [*theirs.state_dict()]
    theirs.load_state_dict(norm.state_dict())
    torch.testing.assert_close(norm(x, y), F.hardswish(theirs(x) + y))
    torch.testing.assert_close(norm.eval()(x), F.hardswish(theirs.eval()(x)))
    torch.testing.assert_close(norm.running_mean, theirs.running_mean)
    groups = ours.GroupNormAct(2, 6, "leaky_relu", 0.2)
    assert [*groups.state_dict()] == [*nn.GroupNorm(2, 6).state_dict()]
    assert repr(groups).endswith(", activation=leaky_relu, negative_slope=0.2)")
    torch.testing.assert_close(groups(x), F.leaky_relu(F.group_norm(x, 2), 0.2))
    for made, function in (
        (ours.AddLayerNorm(4), F.layer_norm),
        (ours.AddRMSNorm(4, eps=1e-6), lambda x, shape: F.rms_norm(x, shape, eps=1e-6)),
    ):
        got, added = made(x, y)
        torch.testing.assert_close(added, x + y)
        torch.testing.assert_close(got, function(x + y, [4]))
