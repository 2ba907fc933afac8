"""The reference against calculus: torch's autograd, finite differences, worked numbers."""

import numpy as np
import pytest
import torch

import normgrad as ng
from normgrad import verify
from normgrad.backends.reference.backend import evaluate

RNG = np.random.default_rng(7)
EPS = 1e-5


def normal(*shape):
    return RNG.standard_normal(shape)


def leaves(*arrays):
    return [torch.from_numpy(array).requires_grad_() for array in arrays]


def agree(got, *wanted):
    for one, want in zip(got[: len(wanted)], wanted, strict=True):
        np.testing.assert_allclose(one, want.detach().numpy(), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 6), (2, 3, 4, 5), (2, 3, 2, 3, 4)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_torch_autograd(shape, training):
    x, dy = normal(*shape) + 4, normal(*shape)
    weight, bias, mean = normal(3), normal(3), normal(3)
    var = 0.5 + RNG.random(3)
    tx, tw, tb = leaves(x, weight, bias)
    running = torch.from_numpy(mean.copy()), torch.from_numpy(var.copy())
    y = torch.nn.functional.batch_norm(tx, *running, tw, tb, training, 0.1, EPS)
    y.backward(torch.from_numpy(dy))
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    if training:
        mean, var = x.mean(axes), x.var(axes)
    got = ng.batch_norm_backward(
        dy, x, mean, variance=var, eps=EPS, weight=weight, training=training, backend="reference"
    )
    agree(got, tx.grad, tw.grad, tb.grad)


@pytest.mark.parametrize(("shape", "tail"), [((9,), 1), ((6, 5), 1), ((3, 4, 5), 2), ((2, 3), 2)])
def test_layer_norm_is_torch_autograd(shape, tail):
    x, dy = normal(*shape) - 2, normal(*shape)
    normalized = shape[len(shape) - tail :]
    weight, bias = normal(*normalized), normal(*normalized)
    tx, tw, tb = leaves(x, weight, bias)
    torch.nn.functional.layer_norm(tx, normalized, tw, tb, EPS).backward(torch.from_numpy(dy))
    axes = tuple(range(len(shape) - tail, len(shape)))
    mean, rstd = x.mean(axes, keepdims=True), 1 / np.sqrt(x.var(axes, keepdims=True) + EPS)
    got = ng.layer_norm_backward(dy, x, mean, rstd, normalized, weight=weight, backend="reference")
    agree(got, tx.grad, tw.grad, tb.grad)


@pytest.mark.parametrize(("shape", "groups"), [((3, 6), 2), ((2, 10, 7), 1), ((2, 6, 3, 4), 6)])
def test_group_norm_is_torch_autograd(shape, groups):
    x, dy = normal(*shape) + 1, normal(*shape)
    weight, bias = normal(shape[1]), normal(shape[1])
    tx, tw, tb = leaves(x, weight, bias)
    torch.nn.functional.group_norm(tx, groups, tw, tb, EPS).backward(torch.from_numpy(dy))
    grouped = x.reshape(shape[0], groups, -1)
    mean, rstd = grouped.mean(2), 1 / np.sqrt(grouped.var(2) + EPS)
    got = ng.group_norm_backward(dy, x, mean, rstd, groups, weight=weight, backend="reference")
    agree(got, tx.grad, tw.grad, tb.grad)


def test_synchronized_halves_make_the_whole():
    """Two ranks, one all-reduce: together they are batch norm over the joined batch."""
    x, dy = normal(7, 3, 5) + 3, normal(7, 3, 5)
    weight, mean = normal(3), x.mean((0, 2))
    invstd = 1 / np.sqrt(x.var((0, 2)) + EPS)
    whole = ng.batch_norm_backward(dy, x, mean, invstd, weight=weight)
    ranks = [(dy[:3], x[:3]), (dy[3:], x[3:])]
    sums = [ng.batch_norm_reduce_backward(*rank, mean, invstd, weight=weight) for rank in ranks]
    sum_dy, sum_dy_xmu, grad_weight, grad_bias = (sum(parts) for parts in zip(*sums, strict=True))
    counter = np.array([15, 20], np.int64)
    parts = [
        ng.batch_norm_elemt_backward(
            *rank, mean, invstd, sum_dy, sum_dy_xmu, counter, weight=weight
        )
        for rank in ranks
    ]
    np.testing.assert_allclose(np.concatenate(parts), whole.grad_input, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(grad_weight, whole.grad_weight, rtol=1e-11)
    np.testing.assert_allclose(grad_bias, whole.grad_bias, rtol=1e-11)


def forward(x, weight, bias, axes, shape):
    mean = x.mean(axes, keepdims=True)
    rstd = 1 / np.sqrt(x.var(axes, keepdims=True) + EPS)
    return (x - mean) * rstd * weight.reshape(shape) + bias.reshape(shape), mean, rstd


def difference(loss, array):
    """Central differences, element by element."""
    gradient = np.empty_like(array)
    step = 1e-6
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + step
        high = loss()
        array[index] = kept - step
        gradient[index] = (high - loss()) / (2 * step)
        array[index] = kept
    return gradient


@pytest.mark.parametrize("op", ["batch", "layer", "group"])
def test_against_finite_differences(op):
    x, dy = normal(3, 4, 2) + 2, normal(3, 4, 2)
    count = 8 if op == "layer" else 4
    weight, bias = normal(count), normal(count)
    data = x.reshape(3, 2, 4) if op == "group" else x  # two groups of two channels
    axes = {"batch": (0, 2), "layer": (1, 2), "group": (2,)}[op]

    def run():
        _, mean, rstd = forward(data, np.ones(1), np.zeros(1), axes, (1,))
        xhat = ((data - mean) * rstd).reshape(x.shape)
        shape = (4, 2) if op == "layer" else (4, 1)
        return (dy * (xhat * weight.reshape(shape) + bias.reshape(shape))).sum()

    _, mean, rstd = forward(data, np.ones(1), np.zeros(1), axes, (1,))
    if op == "batch":
        got = ng.batch_norm_backward(
            dy, x, mean.ravel(), rstd.ravel(), weight=weight, backend="reference"
        )
    elif op == "layer":
        got = ng.layer_norm_backward(
            dy, x, mean, rstd, (4, 2), weight=weight.reshape(4, 2), backend="reference"
        )
    else:
        got = ng.group_norm_backward(dy, x, mean, rstd, 2, weight=weight, backend="reference")
    for one, array in zip(got[:3], (x, weight, bias), strict=True):
        np.testing.assert_allclose(
            one.ravel(), difference(run, array).ravel(), rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize(
    "case", [case for case in verify.CASES if case.mask], ids=lambda case: case.name
)
def test_the_formula_answers_what_was_asked_alone(case):
    """With the weight's gradient alone wanted it had a dx too, which was dy."""
    problem = verify.make_problem(case, "float64")
    geometry = problem.geometry
    operands = {
        role: host.values.reshape(geometry.shape_of(role))
        for role, host in problem.operands.items()
    }
    assert tuple(evaluate(problem.spec, geometry, operands)) == problem.wanted
