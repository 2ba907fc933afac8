"""Operators with an activation, a shortcut or a residual: against torch's, one after the other."""

import itertools

import pytest
import torch
from torch.nn import functional as F

import normgrad.torch
from normgrad.core import operators
from normgrad.core.errors import BackendError
from normgrad.core.operators import SLOT
from normgrad.torch import backward_ops, forward
from normgrad.torch.activations import activated

OPS = torch.ops.normgrad
ACTIVATIONS = frozenset(operators.ACTIVATIONS)
SLOPE = 0.2
SHAPES = {
    "rows": (6, 5),
    "images": (3, 5, 4, 3),
    "channels-last": (3, 5, 4, 3),
    "nine": (2, 5, *[2] * 7),
}


def data(shape, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    made = [torch.randn(SHAPES[shape], dtype=torch.float64).to(dtype) for _ in range(3)]
    if shape == "channels-last":
        made = [one.contiguous(memory_format=torch.channels_last) for one in made]
    vectors = [torch.randn(5, dtype=torch.float64).to(dtype) for _ in range(2)]
    return [one.requires_grad_() for one in (*made[:2], *vectors)], made[2].detach()


def agree(ours, theirs, leaves, dy, **tolerance):
    torch.testing.assert_close(ours, theirs, **tolerance)
    found = [torch.autograd.grad(y, leaves, dy.to(y.dtype)) for y in (ours, theirs)]
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("name", [None, *operators.ACTIVATIONS])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_and_what_follows(name, training, shape):
    (x, added, weight, bias), dy = data(shape)
    buffers = [torch.full((5,), 0.3).double(), torch.full((5,), 2.0).double()]
    theirs = [one.clone() for one in buffers]
    after = (name, SLOPE)
    more = (training, 0.1, 1e-5)
    z = F.batch_norm(x, *theirs, weight, bias, *more)
    own = [one.clone() for one in buffers]
    y = OPS.batch_norm(x, weight, bias, *own, *more, *after)[0]
    agree(y, activated(z, *after), [x, weight, bias], dy)
    torch.testing.assert_close(own, theirs)
    own = [one.clone() for one in buffers]
    y, *_, mask = OPS.batch_norm_add(x, added, weight, bias, *own, *more, *after)
    assert bool(mask.numel()) == (training and name == "relu")
    theirs = [one.clone() for one in buffers]
    z = F.batch_norm(x, *theirs, weight, bias, *more)
    agree(y, activated(z + added, *after), [x, added, weight, bias], dy)
    torch.testing.assert_close(own, theirs)


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("name", [None, *operators.ACTIVATIONS])
@pytest.mark.parametrize("shape", SHAPES)
def test_group_norm_and_an_activation(name, shape):
    (x, _, weight, bias), dy = data(shape)
    y = OPS.group_norm(x, weight, bias, 1, 1e-5, name, SLOPE)[0]
    agree(y, activated(F.group_norm(x, 1, weight, bias), name, SLOPE), [x, weight, bias], dy)


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("used", list(itertools.product([True, False], repeat=2))[:3], ids=str)
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_of_a_sum_which_goes_on(kind, used):
    torch.manual_seed(1)
    shapes = [(4, 3, 5)] * 2 + [(5,)] * 2
    x, residual, w, b = (torch.randn(*one).double().requires_grad_() for one in shapes)
    leaves = [x, residual, w, *([b] if kind == "layer" else [])]
    added = x + residual
    if kind == "layer":
        ours = OPS.add_layer_norm(x, residual, [5], w, b, 1e-5)[:2]
        theirs = F.layer_norm(added, [5], w, b), added
    else:
        ours = OPS.add_rms_norm(x, residual, [5], w, 1e-5)[:2]
        theirs = F.rms_norm(added, [5], w, 1e-5), added
    found = []
    for made in (ours, theirs):
        terms = ((2 + place) * one.sin().sum() for place, one in enumerate(made) if used[place])
        found.append([*made, *torch.autograd.grad(sum(terms), leaves, allow_unused=True)])
    torch.testing.assert_close(*found)


def test_changes_between_the_passes_are_noticed():
    (x, added, weight, bias), dy = data("images")
    for call in (
        lambda: OPS.batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5, "relu")[0],
        lambda: OPS.batch_norm_add(x, added, weight, bias, None, None, True, 0.1, 1e-5, "silu")[0],
        lambda: OPS.group_norm(x, weight, bias, 1, 1e-5, "silu")[0],
    ):
        for changed in (weight, bias):
            y = call()
            with torch.no_grad():
                changed.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.backward(dy)
    y, added, *_ = OPS.add_layer_norm(x, added, [3], None, None, 1e-5)
    with torch.no_grad():
        added.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(dy)


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("shape", ["images", "channels-last"])
def test_what_no_kernel_takes_is_computed_by_torch(monkeypatch, shape):
    """As on a GPU, where the reference backend is not asked."""
    (x, added, weight, bias), _ = data(shape)
    rows, columns = torch.randn(4, 5).double().requires_grad_(), torch.randn(4, 5).double()

    def results():
        buffers = [torch.zeros(5).double(), torch.ones(5).double()]
        calls = [
            OPS.batch_norm(x, weight, bias, *buffers, True, 0.1, 1e-5, "silu")[0],
            OPS.batch_norm_add(x, added, weight, None, *buffers, True, 0.1, 1e-5, "relu")[0],
            OPS.batch_norm_add(x, added, None, bias, *buffers, False, 0.1, 1e-5, "gelu")[0],
            OPS.group_norm(x, weight, bias, 1, 1e-5, "relu6")[0],
            torch.stack(OPS.add_layer_norm(rows, columns, [5], weight, bias, 1e-5)[:2]).sin(),
            torch.stack(OPS.add_rms_norm(rows, columns, [5], weight, 1e-5)[:2]).sin(),
        ]
        leaves = [x, added, weight, bias, rows]
        value = sum((one * torch.arange(1.0, 1 + one.numel()).view_as(one)).sum() for one in calls)
        return [*calls, *buffers, *torch.autograd.grad(value, leaves)]

    wanted = results()
    compute = forward.compute

    def refused(op, arrays, unread, settings, *rest):
        fused = any(one is not None for one in arrays[SLOT["residual"] :])
        if fused or not ACTIVATIONS.isdisjoint(one for one in settings if isinstance(one, str)):
            raise BackendError("this", {"cuda": "it has no such form"})
        return compute(op, arrays, unread, settings, *rest)

    monkeypatch.setattr(forward, "compute", refused)
    monkeypatch.setattr(backward_ops, "compute", refused)
    torch.testing.assert_close(results(), wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_types(dtype):
    """Against float64 on the same numbers, by a rounding of the result."""
    (x, added, weight, bias), dy = data("images", dtype)
    wide = [one.detach().double().requires_grad_() for one in (x, added, weight, bias)]
    z = F.batch_norm(wide[0], None, None, *wide[2:], True)
    want = torch.relu(z + wide[1])
    made = OPS.batch_norm_add(x, added, weight, bias, None, None, True, 0.1, 1e-5, "relu")
    y = made[0]
    assert y.dtype == dtype
    assert made[1].dtype == torch.float32
    step = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), want, rtol=step, atol=step)
    grads = torch.autograd.grad(y, [x, added, weight, bias], dy)
    wanted = torch.autograd.grad(want, wide, dy.double())
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=4 * step, atol=8 * step)


def test_errors_say_what_to_give():
    x = torch.randn(2, 5, 3)
    nothing = (None, None, None, None, True, 0.1, 1e-5)
    with pytest.raises(normgrad.OptionError, match="activation must be"):
        OPS.batch_norm(x, *nothing, "sigmoid")
    with pytest.raises(RuntimeError, match="shortcut should have the input's shape"):
        OPS.batch_norm_add(x, x[:1], *nothing)
    with pytest.raises(RuntimeError, match="shortcut should have the input's type"):
        OPS.batch_norm_add(x, x.double(), *nothing, "relu")
    with pytest.raises(RuntimeError, match="residual should have the input's shape"):
        OPS.add_layer_norm(x, x[0], [3], None, None, 1e-5)
    with pytest.raises(RuntimeError, match="residual should have the input's type"):
        OPS.add_rms_norm(x, x.half(), [3], None, None)
