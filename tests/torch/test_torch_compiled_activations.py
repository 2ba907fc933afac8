"""Compiled norms with activations, shortcuts and residual sums: one backward call of ours each."""

import copy

import pytest
import torch
from compiled_programs import COMPILES, compiled_step, step
from torch import nn
from torch.nn import functional as F

import normgrad.torch as ours
from normgrad.torch import nodes

pytestmark = [*COMPILES, pytest.mark.usefixtures("by_reference")]

CHANNELS = 8


@pytest.fixture(autouse=True)
def _every_form(monkeypatch):
    monkeypatch.setattr(nodes, "taken", lambda *form: True)
    nodes._taken.clear()
    yield
    nodes._taken.clear()


class Block(nn.Module):
    """As in a ResNet, with a group norm behind it."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.side = (
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False) for _ in range(3)
        )
        self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(CHANNELS) for _ in range(3))
        self.relu, self.gn = nn.ReLU(inplace=True), nn.GroupNorm(2, CHANNELS)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += F.silu(self.bn3(self.side(x)))
        out = self.relu(out)
        out = self.gn(out)
        return F.silu(out)


class Whole(nn.Module):
    """The same of modules that hold what they take in."""

    def __init__(self, block):
        super().__init__()
        self.conv1, self.conv2, self.side = block.conv1, block.conv2, block.side
        self.bn1, self.bn2 = (ours.BatchNormAct2d(CHANNELS) for _ in range(2))
        self.bn3 = ours.BatchNormAct2d(CHANNELS, "silu")
        self.gn = ours.GroupNormAct(2, CHANNELS)
        self.load_state_dict(block.state_dict())

    def forward(self, x):
        out = self.bn1(self.conv1(x))
        return self.gn(self.bn2(self.conv2(out), self.bn3(self.side(x))))


def block():
    torch.manual_seed(0)
    made = Block()
    for norm in (made.bn1, made.bn2, made.bn3, made.gn):
        nn.init.normal_(norm.weight, 1.0, 0.2)
        nn.init.normal_(norm.bias, 0.0, 0.2)
    return made


def images(layout=torch.contiguous_format):
    return torch.randn(3, CHANNELS, 7, 9).to(memory_format=layout)


# Of the last but one the sum's gradient goes through ReLU in inductor's kernel.
CALLS = sorted(
    [
        ("group_norm_backward", "silu"),
        ("batch_norm_backward", None),
        ("batch_norm_backward", "silu"),
        ("batch_norm_backward", "relu"),
    ],
    key=str,
)


def apart(some, exact):
    """The largest distance of results from exact ones, each beside its size."""
    pairs = [(one.double(), two.double()) for one, two in zip(some, exact, strict=True)]
    return max(float((one - two).norm() / (two.norm() + 1e-3)) for one, two in pairs)


def with_buffers(results, model):
    return [*results, *model.buffers()]


def check(model, x, torchs, slack=2.0):
    """The calls of a compiled step, and how near it is to the model of torch's in float64."""
    exact = copy.deepcopy(torchs).double()
    exact = with_buffers(step(exact, x.double()), exact)
    theirs = copy.deepcopy(torchs)
    theirs = apart(with_buffers(step(theirs, x), theirs), exact)
    got, (forward, backward) = compiled_step(model, x)
    assert forward == []
    assert sorted(backward, key=str) == CALLS
    assert apart(with_buffers(got, model), exact) <= slack * theirs + 1e-6
    return theirs


@pytest.mark.slow(6)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("road", ["enable", "fuse", "modules"])
def test_as_near_to_float64_as_torch(road, layout, monkeypatch):
    model = block()
    if road == "modules":
        model = Whole(model)
    if road == "fuse":
        monkeypatch.setattr(nodes.Small, "taken", True)
        monkeypatch.setattr(nodes.Small, "compiled", True)
        ours.convert(model)  # the norm of the sum, in the place of inductor's
        ours.fuse(model)
    if road == "enable":
        ours.enable(compiled=True)
    assert check(model, images(layout), block()) < 1e-4


@pytest.mark.slow(6)
def test_autocast():
    """Of convolutions in 16 bits; the norms' parameters are float32."""
    ours.enable(compiled=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert check(block(), images(torch.channels_last), block(), slack=1.2) < 0.2


@pytest.mark.slow(20)
def test_inference_with_gradients():
    """Modules of ours take it whole; of torch's no statistics are read that may have changed."""
    x, wanted = images(), [("batch_norm_backward", None)] * 3 + [("group_norm_backward", "silu")]
    with ours.enable(compiled=True):
        model = block().eval()
        want = step(copy.deepcopy(model), x)
        got, (forward, backward) = compiled_step(model, x)
    assert forward == []
    assert sorted(backward, key=str) == wanted
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    torch.compiler.reset()
    got, (forward, backward) = compiled_step(Whole(block()).eval(), x)
    assert forward == []
    assert ("batch_norm_add_backward", "relu") in backward
    torch.testing.assert_close(got, [want[place] for place in _order(model)], rtol=1e-4, atol=1e-4)


def _order(model):
    """Where the gradients of a block's parameters are among those of the block as a whole."""
    names = [name for name, _ in model.named_parameters()]
    return [0, 1, *(2 + names.index(name) for name, _ in Whole(model).named_parameters())]


@pytest.mark.slow(12)
def test_inference_is_inductors():
    model, x = Whole(block()).eval(), images()
    from torch._inductor.utils import run_and_get_code

    with torch.no_grad():
        got, programs = run_and_get_code(torch.compile(model, fullgraph=True), x)
        assert "normgrad" not in programs[0]
        torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow(20)
def test_other_batches():
    """Torch's convolutions on a CPU want to know the sizes of images."""
    ours.enable(compiled=True)
    model = block()
    twin = copy.deepcopy(model)
    _, (_, backward) = compiled_step(model, images(), dynamic=True)
    assert sorted(backward, key=str) == CALLS
    model.load_state_dict(twin.state_dict())
    run = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.compiler.set_stance("fail_on_recompile"):
        for samples in (5, 2):
            x = torch.randn(samples, CHANNELS, 7, 9)
            torch.testing.assert_close(step(run, x), step(twin, x), rtol=1e-4, atol=1e-3)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.one, self.two = ours.AddLayerNorm(16), ours.AddRMSNorm(16)

    def forward(self, x):
        y, added = self.one(self.first(x), x)
        y, added = self.two(y.sin(), added)
        return y * added


class Apart(Residual):
    """The same by torch, one after the other."""

    def forward(self, x):
        added = self.first(x) + x
        y = F.layer_norm(added, (16,), self.one.weight, self.one.bias)
        added = y.sin() + added
        return F.rms_norm(added, (16,), self.two.weight) * added


@pytest.mark.slow(8)
def test_sums_before_a_norm():
    """The sum's other gradient is an operand of the call: nobody adds it behind."""
    torch.manual_seed(1)
    model, twin, x = Residual(), Apart(), torch.randn(5, 16)
    twin.load_state_dict(model.state_dict())
    got, (forward, backward) = compiled_step(model, x)
    assert forward == []
    assert backward == [("rms_norm_backward", None), ("layer_norm_backward", None)]
    torchs = step(twin, x)
    exact = step(twin.double(), x.double())
    assert apart(got, exact) <= 2 * apart(torchs, exact) + 1e-6


@pytest.mark.parametrize("training", [True, False])
def test_export(training):
    """What is saved calls our operators, and computes what the modules do."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.whole, self.sums = Whole(block()), Residual()
            self.last = nn.Linear(9, 16)

        def forward(self, x):
            return self.sums(self.last(self.whole(x)))

    model, x = Both().train(training), images()
    program = torch.export.export(copy.deepcopy(model), (x,), strict=True)
    assert sum("normgrad" in str(one.target) for one in program.graph.nodes) == 6
    made = program.module()
    torch.testing.assert_close(made(x), model(x), rtol=1e-4, atol=1e-4)
    for name, buffer in made.named_buffers():
        torch.testing.assert_close(buffer, model.get_buffer(name))
