"""``profile(step)`` and ``normgrad profile``: shares, what is left; nothing stays changed."""

import sys

import pytest
import torch
from torch import nn
from torch.optim import optimizer

import normgrad
import normgrad.torch as ours
from normgrad import cli
from normgrad.torch import nodes, profiling, shares

pytestmark = [
    pytest.mark.usefixtures("disabled"),
    # Torch's own, where it asks kineto for shapes.
    pytest.mark.filterwarnings("ignore:.*profiler.*:UserWarning"),
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(profiling, "_ROUNDS", 2)


class MyRMSNorm(nn.Module):
    """Of several operators, none of which is a norm's."""

    def __init__(self, size):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), 1e-6

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()

    def forward(self, x):
        return self.relu(self.bn(self.conv(x)) + x)


def steps_of(model, x):
    descent = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step():
        descent.zero_grad()
        model(x).square().mean().backward()
        descent.step()

    return step


def test_parts_of_a_step_and_what_is_left(monkeypatch):
    monkeypatch.setattr(nodes.Small, "taken", True)
    model = nn.Sequential(Block(), Block())
    classes = [type(one) for one in model.modules()]
    found = ours.profile(steps_of(model, torch.randn(8, 8, 32, 32)), seconds=0.01)
    assert [one.name for one in found] == ["now", "enable()", "enable(), fuse()"]
    now, _, fused = found
    for part in ("norm", "activation"):
        assert now.forward[part] > 0
        assert now.backward[part] > 0
    assert now.forward["sum"] > 0
    # Fused, sums and activations are part of the norm; gradients of two branches are still added.
    assert fused.forward["sum"] == fused.spent("activation") == 0 < fused.spent("norm")
    assert fused.backward["sum"] > 0
    assert sum(map(found.share, shares.PARTS)) == pytest.approx(1)
    assert sum(map(now.spent, shares.PARTS)) == pytest.approx(now.milliseconds)
    assert found.gain("now") == 1
    assert found.gain("enable()") == now.milliseconds / found[1].milliseconds
    assert [type(one) for one in model.modules()] == classes
    assert not ours.enabled()
    assert not nn.modules.module._global_forward_pre_hooks
    assert "enable() took 0 of 4 calls of norms; report() says why not all" in found.notes
    assert "fuse() makes 2 of 2 norms part of a node; fuse(model) says which" in found.notes


def test_norms_and_activations_written_in_python_count():
    class GELUActivation(nn.Module):
        def forward(self, x):
            return 0.5 * x * (1 + torch.erf(x / 2**0.5))

    model = nn.Sequential(nn.Linear(64, 64), MyRMSNorm(64), GELUActivation())
    plain = MyRMSNorm.forward
    found = ours.profile(steps_of(model, torch.randn(256, 64)), seconds=0.01)
    assert MyRMSNorm.forward is plain
    assert found[0].forward["norm"] > 0  # by how much is a matter of the machine
    assert found[0].backward["norm"] > 0
    assert found[0].forward["activation"] > 0
    assert found[0].backward["activation"] > 0
    assert found.share("sum") == 0  # eps is a number, and gradients of leaves are none of it


def test_what_holds_already_is_said_and_stays():
    model = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
    ours.fuse(model)
    classes = [type(one) for one in model.modules()]
    with ours.enable(backend="reference"):
        found = ours.profile(steps_of(model, torch.randn(4, 4, 8, 8)), seconds=0.01)
        assert ours.enabled()
    assert [one.name for one in found] == ["now"]
    assert "enable() held already: it is part of every column" in found.notes
    assert [type(one) for one in model.modules()] == classes


def test_a_step_that_fails_leaves_everything_as_it_was():
    model, calls = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), []

    def step():
        calls.append(ours.enabled())
        model(torch.randn(4, 4, 8, 8))
        if len(calls) == 12:
            raise RuntimeError("of the step")

    with pytest.raises(RuntimeError, match="of the step"):
        ours.profile(step)
    assert True in calls
    assert not ours.enabled()
    assert type(model) is nn.Sequential


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (nn.ReLU(), "step must be a function without arguments that runs one training step, got R"),
        (lambda x: x, "step must be a function without arguments"),
        (3, "step must be a function without arguments that runs one training step, got 3"),
        (lambda: None, "step must run a training step of torch .the profiler saw no operator."),
    ],
)
def test_no_step(step, words):
    with pytest.raises(normgrad.OptionError, match=words):
        ours.profile(step, seconds=0.01)


def test_no_time():
    with pytest.raises(normgrad.OptionError, match="seconds must be more than 0, got 0"):
        ours.profile(lambda: None, seconds=0)
    with pytest.raises(normgrad.OptionError, match="part must be 'norm' or 'activation'"):
        ours.Way("now", 1.0, 0.0, {}, {}).spent("norms")
    with pytest.raises(normgrad.OptionError, match="name must be 'now'"):
        ours.Profile([ours.Way("now", 1.0, 0.0, {}, {})]).gain("fuse()")


def test_the_table():
    now = ours.Way("now", 20.0, 0.01, {"norm": 4.0, "all else": 10.0}, {"norm": 6.0})
    mine = ours.Way("enable()", 16.0, 0.01, {"norm": 2.0, "all else": 10.0}, {"norm": 4.0})
    same = now._replace(name="enable(), fuse()", milliseconds=19.9)
    found = ours.Profile([now, mine, same], "a <GPU>", ["a note"])
    lines = str(found).splitlines()
    assert lines[0].startswith("a <GPU>, torch ")
    assert lines[1].split() == ["now", "share", "enable()", "enable(),", "fuse()"]
    assert lines[2].split() == ["norm,", "forward", "4.00", "20%", "2.00", "4.00"]
    assert lines[-4].split() == ["whole", "step", "20.0", "16.0", "19.9"]
    assert lines[-3].split() == ["as", "fast", "1.25x", "as", "now"]
    words = "without norms, activations and sums a step would be 2.00 times as fast"
    assert lines[-2].startswith(words)
    assert lines[-1] == "a note"
    shown = found._repr_html_()
    assert shown.count("<tr>") == len(lines) - 3
    assert "a &lt;GPU&gt;" in shown
    assert "<td>1.25x</td>" in shown
    assert repr(found) == str(found)


SCRIPT = """
import sys
import torch
from torch import nn

if __name__ == "__main__":
    steps = int(sys.argv[1])
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    for step in range(steps):
        print("step", step)
        optimizer.zero_grad()
        model(torch.randn(4, 4, 16, 16)).square().mean().backward()
        optimizer.step()
        schedule.step()
    print("the script's end")
"""


def test_a_script_is_stopped_when_enough_was_seen(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    before = sys.argv[:], sys.path[:]
    assert cli.main(["profile", "--seconds", "0.01", str(script), "1000"]) == 0
    told = capsys.readouterr()
    assert "norm, backward" in told.out
    assert "fuse() makes 1 of 1 norms part of a node" in told.out
    assert "step" in told.err
    assert "the script's end" not in told.err
    assert (sys.argv, sys.path) == before
    assert not optimizer._global_optimizer_post_hooks


def test_scripts_that_cannot_be_measured(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert cli.main(["profile", str(script), "3"]) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    words = f"normgrad profile: SCRIPT must train for at least {profiling.STEPS + 1} optimizer"
    assert err.startswith(words)
    assert not ours.enabled()
    assert cli.main(["profile", str(tmp_path / "none.py")]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert cli.main(["profile", "--seconds", "0", str(script)]) == 2
    assert "--seconds must be" in capsys.readouterr().err


class Event:
    """As the profiler has them, of as many milliseconds."""

    def __init__(self, name, children=(), on_gpu=0.0):
        self.name, self.cpu_children, self.cpu_parent = name, children, None
        self.self_device_time_total, self.self_cpu_time_total = 1000 * on_gpu, 1000.0
        self.sequence_nr, self.input_shapes = -1, ()
        for one in children:
            one.cpu_parent = self


def test_compiled_parts_are_told():
    region = Event("Torch-Compiled Region: 0/0", [Event("aten::mm")])
    found = shares._summed([region, *region.cpu_children])
    assert found.compiled
    assert found.scaled
    assert found.forward == {"norm": 0, "activation": 0, "sum": 0, "all else": 2.0}


def test_where_a_gpu_works_its_time_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    nodes = [Event("aten::batch_norm", [Event("aten::native_batch_norm", on_gpu=3.0)])]
    name = "autograd::engine::evaluate_function: NativeBatchNormBackward0"
    nodes.append(Event(name, [Event("aten::native_batch_norm_backward", on_gpu=4.0)]))
    nodes.append(Event("aten::mm", on_gpu=2.0))
    found = shares._summed([*nodes, *(one for node in nodes for one in node.cpu_children)])
    assert found.device == "a GPU"
    assert not found.scaled
    assert found.forward == {"norm": 3.0, "activation": 0, "sum": 0, "all else": 2.0}
    assert found.backward["norm"] == 4.0
    way = profiling._of_clock("now", [0.01, 0.01, 0.01], found)
    assert (way.milliseconds, way.spent("norm")) == (10.0, 7.0)
