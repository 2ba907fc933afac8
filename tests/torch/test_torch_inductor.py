"""What inductor compiles: forward passes taken apart, backward passes calls of ours."""

import copy
import subprocess
import sys

import pytest
import torch
from compiled_programs import COMPILES, compiled_step, step
from example_models import NAMES, make
from torch import nn

import normgrad.torch as ours
from normgrad.core.errors import OptionError
from normgrad.torch import inductor

pytestmark = COMPILES

BACKWARD = {"resnet": "batch_norm", "unet": "group_norm", "transformer": "layer_norm"}


def _called(model, x, **options):
    """Results of a step, and the operators that the programs of its two passes call."""
    results, calls = compiled_step(model, x, **options)
    return results, [{f"normgrad.{name}" for name, _ in one} for one in calls]


def _assert_close(got, want, **tolerance):
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, **tolerance or {"rtol": 1e-4, "atol": 1e-5})


@pytest.mark.slow(20)
@pytest.mark.parametrize("name", NAMES)
def test_our_modules(name):
    torch.manual_seed(2)
    example = make(name)
    model, x = ours.convert(example.model), torch.randn(example.shape)
    twin = copy.deepcopy(model)
    got, called = _called(model, x)
    assert called == [set(), {f"normgrad.{BACKWARD[name]}_backward"}]
    _assert_close(got, step(twin, x))
    _assert_close(model.buffers(), twin.buffers())


@pytest.mark.slow(15)
@pytest.mark.parametrize("name", NAMES)
def test_torchs_modules(name):
    torch.manual_seed(3)
    example = make(name)
    x = torch.randn(example.shape)
    want = step(copy.deepcopy(example.model), x)
    with ours.enable(compiled=True):
        got, called = _called(example.model, x)
    # Layer norm stays inductor's.
    taken = set() if name == "transformer" else {f"normgrad.{BACKWARD[name]}_backward"}
    assert called == [set(), taken]
    _assert_close(got, want)


@pytest.mark.slow(10)
def test_programs_on_disk_are_told_apart(tmp_path, monkeypatch):
    from torch._functorch import config as graphs
    from torch._inductor import config as programs

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.SiLU()), torch.randn(5, 4)
    with graphs.patch(enable_autograd_cache=True), programs.patch(fx_graph_cache=True):
        for options, wanted in (
            ({"compiled": True}, [set(), {"normgrad.group_norm_backward"}]),
            ({}, [set(), set()]),
        ):
            torch.compiler.reset()
            with ours.enable(**options):
                assert _called(copy.deepcopy(model), x)[1] == wanted


def test_frozen_parameters_and_none():
    model = nn.Sequential(
        nn.Linear(6, 8),
        nn.GroupNorm(1, 8, affine=False),
        nn.GroupNorm(2, 8),
        nn.Unflatten(1, (4, 2)),
        nn.BatchNorm1d(4, affine=False),
        nn.BatchNorm1d(4),
    )
    model[2].bias = None
    model[5].bias.requires_grad_(False)
    x = torch.randn(5, 6)
    want = step(copy.deepcopy(model), x)
    with ours.enable(compiled=True):
        got, called = _called(model, x)
    assert called == [set(), {"normgrad.batch_norm_backward", "normgrad.group_norm_backward"}]
    _assert_close(got, want)


class Shift(nn.Module):
    """A bias and no weight: what type has its gradient?"""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(8))

    def forward(self, x):
        return nn.functional.batch_norm(x, None, None, None, self.bias, True)


def test_what_is_not_ours_stays_inductors():
    model, x = Shift(), torch.randn(5, 8)
    want = step(copy.deepcopy(model), x)
    with ours.enable(compiled=True):
        got, called = _called(model, x)
    assert called == [set(), set()]
    _assert_close(got, want)


@pytest.mark.slow(6)
def test_batch_norm_by_running_statistics():
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4)).eval()
    model[1].running_mean.normal_()
    x = torch.randn(3, 2, 5, 4)
    want = step(copy.deepcopy(model), x)
    with ours.enable(compiled=True):
        _assert_close(_called(copy.deepcopy(model), x)[0], want)
    torch.compiler.reset()
    got, called = _called(ours.convert(copy.deepcopy(model)), x)
    assert called == [set(), {"normgrad.batch_norm_backward"}]
    _assert_close(got, want)


@pytest.mark.slow(6)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "layer",
    [ours.GroupNorm(2, 4), ours.BatchNorm2d(4), ours.LayerNorm(24), ours.RMSNorm(24)],
    ids=str,
)
def test_types(layer, dtype):
    """The numbers of eager calls, up to one rounding and the order in which statistics add up."""
    model = copy.deepcopy(layer).to(dtype)
    centre, deviation, terms = 40, 3, 8 * 6 * 24  # of the statistic with most of them
    x = (torch.randn(8, 4, 6, 24) * deviation + centre).to(dtype)
    twin = copy.deepcopy(model)
    got, called = _called(model, x)
    assert called[0] == set()
    wide = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    order = wide * terms**0.5 * centre / deviation
    pairs = [
        *zip(got, step(twin, x), strict=True),
        *zip(model.buffers(), twin.buffers(), strict=True),
    ]
    for one, other in pairs:
        size = float(other.double().square().mean().sqrt())
        rounding = 0.0 if dtype == torch.float64 else torch.finfo(dtype).eps
        torch.testing.assert_close(one, other, rtol=rounding, atol=2 * order * max(size, 1))


@pytest.mark.slow(4)
def test_other_sizes_and_none():
    model = nn.Sequential(ours.GroupNorm(2, 4), ours.LayerNorm(6))
    twin = copy.deepcopy(model)
    for samples in (3, 5, 0):
        x = torch.randn(samples, 4, 6)
        _assert_close(_called(model, x, dynamic=True)[0], step(twin, x))


def test_half_of_the_running_statistics():
    layer = ours.BatchNorm1d(3)
    layer.running_var = None
    with pytest.raises(RuntimeError, match="running_mean and running_var belong together"):
        _called(layer, torch.randn(6, 3))


def test_parameters_on_another_device():
    layer = ours.BatchNorm1d(3)
    layer.weight = nn.Parameter(layer.weight.to("meta"))
    with pytest.raises(RuntimeError, match="must be on input's device, cpu"):
        _called(layer, torch.randn(6, 3))


FIRST = """
import sys
import torch
import normgrad.torch as ours
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), ours.LayerNorm(8), nn.Unflatten(1, (4, 2)))
model.append(ours.GroupNorm(2, 4))
assert "torch._inductor" not in sys.modules
torch.compile(model, fullgraph=True)(torch.randn(5, 4)).sum().backward()
print("done")
"""


@pytest.mark.slow(10)
def test_the_first_thing_that_a_process_compiles():
    """Inductor is loaded between a model's shapes and its tables."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "done", done.stderr


def test_tables_and_tag_come_back():
    import torch._inductor.decomposition

    before, tag = [dict(one) for one in inductor._tables()], torch.compiler.config.cache_key_tag
    with ours.enable(compiled=True):
        assert inductor._tables() != before
        with ours.enable():  # an inner wish counts
            assert torch.compiler.config.cache_key_tag == tag
        with ours.enable(compiled=True):
            assert torch.compiler.config.cache_key_tag != tag
        assert inductor._tables() != before
    assert inductor._tables() == before
    assert torch.compiler.config.cache_key_tag == tag


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "cpu", "compiled": True}, "backend must be left out where compiled=True"),
        ({"compiled": "yes"}, "compiled must be True or False, got 'yes'"),
    ],
    ids=["backend", "text"],
)
def test_wrong_options(options, words):
    with pytest.raises(OptionError, match=words):
        ours.enable(**options)
    assert not ours.enabled()
