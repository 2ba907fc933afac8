"""Norms with an activation, a shortcut, a residual or weights of each sample: against autograd."""

import itertools

import numpy as np
import pytest

import normgrad as ng
from normgrad.core.operators import ACTIVATIONS

torch = pytest.importorskip("torch")
F = torch.nn.functional

TORCHS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda z: F.leaky_relu(z, 0.2),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "hardswish": F.hardswish,
}
SLOPE = {"negative_slope": 0.2}
RNG = np.random.default_rng(0)


def normal(*shape):
    return torch.from_numpy(RNG.standard_normal(shape)).requires_grad_()


def with_activation(z, name):
    return z if name is None else TORCHS[name](z)


def options(name):
    return {"activation": name, **(SLOPE if name == "leaky_relu" else {})}


def arrays(*tensors):
    return [one.detach().numpy() for one in tensors]


def agree(ours, theirs):
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-10, atol=1e-12)


def test_every_activation_of_the_table_is_compared():
    assert set(TORCHS) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", [None, *ACTIVATIONS])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize("shortcut", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(name, layout, shortcut, training):
    x, r, dy = (normal(4, 5, 3, 6) for _ in range(3))
    if layout == "channels-last":
        x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    gamma, beta = normal(5), normal(5)
    mean, var = torch.zeros(5).double() + 0.3, torch.ones(5).double() * 2
    z = F.batch_norm(x, mean.clone(), var.clone(), gamma, beta, training)
    y = with_activation(z + r if shortcut else z, name)
    wanted = (x, gamma, beta, r) if shortcut else (x, gamma, beta)
    grads = torch.autograd.grad(y, wanted, dy)
    xs, rs, gs, bs, dys = arrays(x, r, gamma, beta, dy)
    if not shortcut:
        rs = None
    fused = options(name)
    if training:
        out = ng.batch_norm(xs, weight=gs, bias=bs, shortcut=rs, backend="reference", **fused)
        assert (out.mask is not None) == (shortcut and name == "relu")
        given = {"mask": out.mask} if out.mask is not None else {"shortcut": rs}
        statistics = (out.mean, out.rstd)
        more = {}
    else:
        running = {"running_mean": mean.numpy(), "running_var": var.numpy()}
        out = ng.batch_norm(
            xs,
            weight=gs,
            bias=bs,
            shortcut=rs,
            training=False,
            backend="reference",
            **running,
            **fused,
        )
        assert out.mask is None
        given, statistics = {"shortcut": rs}, (mean.numpy(), None)
        more = {"variance": var.numpy(), "training": False}
    agree(out.output, y)
    back = ng.batch_norm_backward(
        dys, xs, *statistics, weight=gs, bias=bs, backend="reference", **given, **fused, **more
    )
    for ours, theirs in itertools.zip_longest(back, grads):
        if theirs is None:
            assert ours is None
        else:
            agree(ours, theirs)


@pytest.mark.parametrize("name", [None, *ACTIVATIONS])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("each", [False, True], ids=["shared", "each-sample"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_rows(name, residual, each, kind):
    x, r, dy, dsum = (normal(3, 4, 6) for _ in range(4))
    shape = (3, 1, 6) if each else (6,)
    gamma, beta = normal(*shape), normal(*shape)
    s = x + r if residual else x
    if kind == "layer":
        z = F.layer_norm(s, (6,), eps=1e-5) * gamma + beta
    else:
        z = F.rms_norm(s, (6,), eps=1e-5) * gamma
    y = with_activation(z, name)
    wanted = (x, gamma, beta) if kind == "layer" else (x, gamma)
    outputs, seeds = ((y, s), (dy, dsum)) if residual else ((y,), (dy,))
    grads = torch.autograd.grad(outputs, wanted, seeds)
    xs, rs, gs, bs, dys, dsums = arrays(x, r, gamma, beta, dy, dsum)
    forward = {"residual": rs} if residual else {}
    backward = {"grad_sum": dsums} if residual else {}
    if kind == "layer":
        more = {"weight": gs, "bias": bs, **options(name), "backend": "reference"}
        out = ng.layer_norm(xs, 6, **more, **forward)
        seen = out.sum if residual else xs
        back = ng.layer_norm_backward(dys, seen, out.mean, out.rstd, 6, **more, **backward)
    else:
        more = {"weight": gs, **options(name), "backend": "reference"}
        out = ng.rms_norm(xs, 6, eps=1e-5, **more, **forward)
        seen = out.sum if residual else xs
        back = ng.rms_norm_backward(dys, seen, out.rstd, 6, **more, **backward)
    agree(out.output, y)
    if residual:
        agree(out.sum, s)
    for ours, theirs in zip(back, grads, strict=False):
        assert ours.shape == theirs.shape
        agree(ours, theirs)


@pytest.mark.parametrize("name", [None, *ACTIVATIONS])
@pytest.mark.parametrize("each", [False, True], ids=["shared", "each-sample"])
def test_group_norm(name, each):
    x, dy = normal(3, 4, 5), normal(3, 4, 5)
    gamma, beta = (normal(3, 4, 1), normal(3, 4, 1)) if each else (normal(4), normal(4))
    as_data = (3, 4, 1) if each else (1, 4, 1)
    z = F.group_norm(x, 2) * gamma.reshape(as_data) + beta.reshape(as_data)
    y = with_activation(z, name)
    grads = torch.autograd.grad(y, (x, gamma, beta), dy)
    xs, gs, bs, dys = arrays(x, gamma, beta, dy)
    more = {"weight": gs, "bias": bs, **options(name), "backend": "reference"}
    out = ng.group_norm(xs, 2, **more)
    back = ng.group_norm_backward(dys, xs, out.mean, out.rstd, 2, **more)
    agree(out.output, y)
    for ours, theirs in zip(back, grads, strict=False):
        assert ours.shape == theirs.shape
        agree(ours, theirs)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_halves_of_synchronized_batch_norm(name):
    x, dy, gamma, beta = normal(6, 4, 5), normal(6, 4, 5), normal(4), normal(4)
    y = with_activation(F.batch_norm(x, None, None, gamma, beta, training=True), name)
    grads = torch.autograd.grad(y, (x, gamma, beta), dy)
    xs, gs, bs, dys = arrays(x, gamma, beta, dy)
    more = {"weight": gs, "bias": bs, "backend": "reference", **options(name)}
    mean, var = xs.mean((0, 2)), xs.var((0, 2))
    out = ng.batch_norm_elemt(xs, mean, variance=var, **more)
    agree(out, y)
    sums = ng.batch_norm_reduce_backward(dys, xs, mean, variance=var, **more)
    agree(sums.grad_weight, grads[1])
    agree(sums.grad_bias, grads[2])
    count = np.array([10, 20], np.int32)
    dx = ng.batch_norm_elemt_backward(
        dys, xs, mean, None, sums.sum_dy, sums.sum_dy_xmu, count, variance=var, **more
    )
    agree(dx, grads[0])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_relu_is_decided_on_the_rounded_value(dtype):
    """What rounds to 0 is closed, as where norm and activation are two operators."""
    x = np.array([[[2.0**-26, 2.0**-24, -1.0, np.nan]]], dtype)
    zero, one = np.zeros(1, "f4"), np.ones(1, "f4")
    back = ng.batch_norm_backward(
        np.ones_like(x), x, zero, one, training=False, activation="relu", backend="reference"
    )
    opened = [dtype == "float32", True, False, True]
    assert (back.grad_input[0, 0] == opened).all()


def test_a_sum_is_rounded_before_it_is_normalized():
    x = np.array([[2048.0, 1.0]], "f2")
    out = ng.layer_norm(x, 2, residual=np.ones_like(x), backend="reference")
    assert out.sum.tolist() == [[2048.0, 2.0]]
    assert out.mean.tolist() == [[1025.0]]


def test_the_mask_has_a_bit_for_each_element_of_a_run():
    x = np.array([-1.0, 1, 1, -1, 1, 1, 1, 1, -1, 1], "f4").reshape(1, 1, 10)
    out = np.empty((1, 1, 2), np.uint8)
    shortcut = np.zeros_like(x)
    ng.batch_norm(
        x, shortcut=shortcut, activation="relu", out=(None, None, None, out), backend="reference"
    )
    assert out.tolist() == [[[0b11110110, 0b10]]]


X = np.zeros((2, 3, 4), "f4")
C = np.ones(3, "f4")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ng.batch_norm(X, activation="swish"), "activation must be None or one of 'relu'"),
        (
            lambda: ng.batch_norm_backward(X, X, C, C, mask=np.zeros((2, 3, 1), np.uint8)),
            r"mask must be None without activation='relu'",
        ),
        (
            lambda: ng.batch_norm_backward(
                X, X, C, C, mask=np.zeros((8, 1), np.uint8), activation="relu"
            ),
            r"mask must be what the forward pass .* of shape \(2, 3, 1\), got shape \(8, 1\)",
        ),
        (
            lambda: ng.batch_norm_backward(
                X, X, C, C, mask=np.zeros((2, 3, 1), np.uint8), shortcut=X, activation="relu"
            ),
            "mask must be None where shortcut is given",
        ),
        (lambda: ng.batch_norm(X, shortcut=X[:1]), "shortcut must have the shape of input"),
        (lambda: ng.layer_norm(X, 4, residual=X[:1]), "residual must have the shape of input"),
        (
            lambda: ng.layer_norm(X, 4, out=(X.copy(), None, None, X.copy())),
            "sum must not be asked for without residual",
        ),
        (
            lambda: ng.layer_norm(X, 4, weight=np.ones((2, 1, 3), "f4")),
            r"weight must have the shape \(2, 1, 4\): one for each sample",
        ),
        (lambda: ng.rms_norm(X, 4, negative_slope="x"), "negative_slope"),
    ],
)
def test_errors(call, words):
    with pytest.raises(ng.NormgradError, match=words):
        call()
