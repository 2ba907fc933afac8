"""Forward-mode differentiation, and torch.func's mixtures of both modes, against the formula."""

import pytest
import torch
from closeness import assert_near
from torch import func
from torch.autograd import forward_ad

import normgrad.torch as ours

# Torch's own, when it sets up its rules for forward mode.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

# Over which axes; torch's own layer norm is no judge here, its forward over forward is wrong.
MODULES = {
    "layer": (lambda: ours.LayerNorm(4), (3, 4), (1,)),
    "rms": (lambda: ours.RMSNorm(4, 1e-5), (3, 4), (1,)),
    "batch": (lambda: ours.BatchNorm1d(4, track_running_stats=False), (5, 4), (0,)),
    "group": (lambda: ours.GroupNorm(1, 4), (3, 4), (1,)),
    "instance": (lambda: ours.InstanceNorm1d(4), (2, 4, 3), (2,)),
}


@pytest.fixture(params=MODULES)
def case(request):
    """A module, the same as a formula, a point and a direction."""
    make, shape, axes = MODULES[request.param]
    module = make().double()
    torch.manual_seed(5)

    def formula(x):
        centred = x if request.param == "rms" else x - x.mean(axes, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + module.eps)

    x, direction = torch.randn(2, *shape, dtype=torch.float64)
    return module, formula, x, direction


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no-grad"])
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "trained"])
def test_tangents(case, frozen, grad):
    module, formula, x, direction = case
    module.requires_grad_(not frozen)
    with torch.set_grad_enabled(grad), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, direction)
        got = forward_ad.unpack_dual(dual + module(dual)).tangent.detach()
    assert_near(got, direction + func.jvp(formula, (x,), (direction,))[1])


@pytest.mark.parametrize(
    "twice",
    [
        func.hessian,
        lambda f: func.jacrev(func.jacfwd(f)),
        lambda f: func.jacrev(func.jacrev(f)),
        lambda f: func.jacfwd(func.jacfwd(f)),
    ],
    ids=["forward-over-reverse", "reverse-over-forward", "reverse-twice", "forward-twice"],
)
def test_second_derivatives(case, twice):
    module, formula, x, _ = case
    got = twice(lambda x: module(x).pow(3).sum())(x)
    assert_near(got.detach(), twice(lambda x: formula(x).pow(3).sum())(x))


@pytest.mark.parametrize("case", ["batch"], indirect=True)  # one is enough: 1 s each
def test_in_a_whole_graph(case):
    module, formula, x, direction = case

    def pushed(x):
        return func.jvp(module, (x,), (direction,))[1]

    torch.compiler.reset()
    got = torch.compile(pushed, backend="aot_eager", fullgraph=True)(x)
    assert_near(got.detach(), func.jvp(formula, (x,), (direction,))[1])
    torch.compiler.reset()


def test_running_statistics_move_once_and_have_no_tangent():
    modules = [ours.BatchNorm1d(4), ours.BatchNorm1d(4)]
    x = torch.randn(5, 4)
    modules[0](x)
    with forward_ad.dual_level():
        modules[1](forward_ad.make_dual(x, torch.randn(5, 4)))
        assert forward_ad.unpack_dual(modules[1].running_mean).tangent is None
    for one, other in zip(modules[0].buffers(), modules[1].buffers(), strict=True):
        assert torch.equal(one, other)


def test_sixteen_bits_and_a_batch_of_nothing():
    with forward_ad.dual_level():
        for x in (torch.randn(5, 4).bfloat16(), torch.randn(0, 4)):
            y = ours.LayerNorm(4)(forward_ad.make_dual(x, torch.ones_like(x)))
            tangent = forward_ad.unpack_dual(y).tangent
            assert (tangent.dtype, tangent.shape) == (x.dtype, x.shape)
