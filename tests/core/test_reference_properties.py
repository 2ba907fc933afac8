"""What must hold for any numbers: linearity, permutations, splits, sums that vanish."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import normgrad as ng
from neutral import neutral
from normgrad.core.geometry import reshaped_strides
from normgrad.core.spec import TensorSpec, dense_like, row_major
from normgrad.core.strides import overlaps_itself
from normgrad.verify.budget import sum_factor

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 3).map(lambda n: 2 * n), st.integers(1, 6))
SEEDS = st.integers(0, 2**32 - 1)
OPS = ("batch", "inference", "layer", "group")


def run(op, dy, x, weight):
    """An operator with statistics of its own data, in float64."""
    if op in ("batch", "inference"):
        mean, var = x.mean((0, 2)), x.var((0, 2)) + 1e-5
        if op == "inference":
            return ng.batch_norm_backward(dy, x, mean, weight=weight, variance=var, training=False)
        return ng.batch_norm_backward(dy, x, mean, var**-0.5, weight=weight)
    if op == "layer":
        mean, rstd = x.mean((1, 2)), (x.var((1, 2)) + 1e-5) ** -0.5
        full = np.broadcast_to(weight[:, None], x.shape[1:])
        return ng.layer_norm_backward(dy, x, mean, rstd, x.shape[1:], weight=full)
    grouped = x.reshape(x.shape[0], 2, x.shape[1] // 2 * x.shape[2])
    mean, rstd = grouped.mean(2), (grouped.var(2) + 1e-5) ** -0.5
    return ng.group_norm_backward(dy, x, mean, rstd, 2, weight=weight)


def numbers(shape, seed):
    rng = np.random.default_rng(seed)
    x = 3 + rng.standard_normal(shape)
    return rng, x, rng.standard_normal(shape), 1 + rng.random(shape[1])


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * (1 + np.abs(want).max()))


@pytest.mark.parametrize("op", OPS)
@given(shape=SHAPES, seed=SEEDS)
@settings(max_examples=25)
def test_linear_in_dy(op, shape, seed):
    rng, x, dy, weight = numbers(shape, seed)
    other, factor = rng.standard_normal(shape), rng.standard_normal()
    for one, two, both in zip(
        run(op, dy, x, weight)[:3],
        run(op, other, x, weight)[:3],
        run(op, dy + factor * other, x, weight)[:3],
        strict=True,
    ):
        close(both, one + factor * two)


@pytest.mark.parametrize("op", OPS)
@given(shape=SHAPES, seed=SEEDS)
@settings(max_examples=25)
def test_permuting_samples_permutes_grad_input(op, shape, seed):
    rng, x, dy, weight = numbers(shape, seed)
    order = rng.permutation(shape[0])
    plain, moved = run(op, dy, x, weight), run(op, dy[order], x[order], weight)
    close(moved.grad_input, plain.grad_input[order])
    close(moved.grad_weight, plain.grad_weight)
    close(moved.grad_bias, plain.grad_bias)


@pytest.mark.parametrize("op", ["inference", "layer", "group"])
@given(shape=SHAPES, seed=SEEDS, cut=st.integers(0, 5))
@settings(max_examples=25)
def test_splitting_a_batch_adds_parameter_gradients(op, shape, seed, cut):
    _, x, dy, weight = numbers(shape, seed)
    if op == "inference":  # the statistics are the model's, not the batch's
        mean, var = x.mean((0, 2)), x.var((0, 2)) + 1e-5

        def part(dy, x):
            return ng.batch_norm_backward(dy, x, mean, weight=weight, variance=var, training=False)
    else:

        def part(dy, x):
            return run(op, dy, x, weight)

    whole, head, tail = part(dy, x), part(dy[:cut], x[:cut]), part(dy[cut:], x[cut:])
    close(head.grad_weight + tail.grad_weight, whole.grad_weight)
    close(head.grad_bias + tail.grad_bias, whole.grad_bias)
    close(np.concatenate([head.grad_input, tail.grad_input]), whole.grad_input)


@given(rows=st.integers(1, 6), cols=st.integers(1, 9), seed=SEEDS)
@settings(max_examples=50)
def test_layer_norm_rows_of_grad_input_sum_to_zero(rows, cols, seed):
    rng = np.random.default_rng(seed)
    x, dy = 5 + rng.standard_normal((rows, cols)), rng.standard_normal((rows, cols))
    mean, rstd = x.mean(1), (x.var(1) + 1e-5) ** -0.5
    got = ng.layer_norm_backward(dy, x, mean, rstd, cols, weight=np.ones(cols), backend="reference")
    scale = np.abs(rstd).max() * np.abs(dy).max() * cols
    assert np.abs(got.grad_input.sum(1)).max() <= 1e-12 * scale


VIEWS = st.lists(st.tuples(st.integers(0, 4), st.integers(-6, 12)), min_size=0, max_size=4)


def offsets(tensor):
    grid = np.zeros((), np.int64)
    for size, stride in zip(tensor.shape, tensor.strides, strict=True):
        grid = grid[..., None] + np.arange(size) * stride
    return grid


@given(axes=VIEWS, cut=st.integers(0, 4))
@settings(max_examples=300)
def test_reshaped_strides_reach_the_same_addresses(axes, cut):
    tensor = TensorSpec(tuple(a for a, _ in axes), tuple(b for _, b in axes), "float32")
    head = int(np.prod(tensor.shape[:cut], dtype=int))
    shape = (head, int(np.prod(tensor.shape[cut:], dtype=int)))
    strides = reshaped_strides(tensor, shape)
    if strides is not None and tensor.size:
        np.testing.assert_array_equal(
            offsets(TensorSpec(shape, strides, "float32")).ravel(), offsets(tensor).ravel()
        )
    if tensor.strides == row_major(tensor.shape):
        assert strides is not None


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), data=st.data())
@settings(max_examples=100)
def test_a_dense_layout_is_kept(sizes, data):
    order = data.draw(st.permutations(range(len(sizes))))
    array = np.empty([sizes[axis] for axis in order]).transpose(np.argsort(order))
    tensor = TensorSpec(array.shape, tuple(step // 8 for step in array.strides), "float64")
    kept = dense_like(tensor)
    assert [(n, s) for n, s in zip(kept.shape, kept.strides, strict=True) if n > 1] == [
        (n, s) for n, s in zip(tensor.shape, tensor.strides, strict=True) if n > 1
    ]
    assert not overlaps_itself(kept)


@pytest.mark.parametrize("terms", ["constant", "random"])
@pytest.mark.parametrize("op", ["batch", "planes", "samples", "group", "layer"])
def test_a_million_terms_in_float64_are_added_in_pairs(op, terms, host_backend):
    """One by one, roundings of equal terms go the same way: 120055 units for a million of 0.1."""
    count = 1_000_000
    one = np.full(count, 0.1) if terms == "constant" else np.random.default_rng(1).random(count)
    shape = {"planes": (1, count), "samples": (count // 2, 2), "group": (count // 4, 4)}.get(op)
    dy = np.repeat(one[:, None], 2, 1)
    if shape is not None:
        dy = np.stack([one.reshape(shape)] * 2, 1)
    x, rows = np.ones_like(dy), np.ones((len(dy), 1))
    options = {"output_mask": (False, True, True), "backend": host_backend}
    if op == "layer":
        got = ng.layer_norm_backward(dy, x, 0 * rows, rows, 2, **options)
    elif op == "group":
        got = ng.group_norm_backward(dy, x, 0 * rows, rows, 1, **options)
    else:
        got = ng.batch_norm_backward(dy, x, *neutral(x), **options)
    truth = math.fsum(one)  # of positive terms, so that it is the sum of their sizes too
    for result in (got.grad_weight, got.grad_bias):
        assert np.abs(result - truth).max() <= (sum_factor(count) + 1) * 2.0**-53 * truth
