"""Empty tensors, one element per statistic, infinities: on every backend for host memory."""

import itertools

import numpy as np
import pytest

import normgrad as ng
from neutral import neutral

F = np.float32


def ones(*shape):
    return np.ones(shape, F)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0), (0, 4, 999, 999)])
def test_empty_data_gives_zero_parameter_gradients(shape, host_backend):
    """An empty sum is 0, whatever was in the memory before."""
    out = (np.empty(shape, F), np.full(4, np.nan, F), np.full(4, np.nan, F))
    data, stat = np.empty(shape, F), ones(shape[0], 2)
    calls = (
        lambda: ng.batch_norm_backward(
            data, data, *neutral(data), weight=ones(4), out=out, backend=host_backend
        ),
        lambda: ng.batch_norm_backward(
            data,
            data,
            neutral(data)[0],
            variance=neutral(data)[1],
            training=False,
            out=out,
            backend=host_backend,
        ),
        lambda: ng.group_norm_backward(data, data, stat, stat, 2, out=out, backend=host_backend),
    )
    for call in calls:
        out[1][...] = out[2][...] = np.nan
        got = call()
        assert got.grad_input.shape == shape
        np.testing.assert_array_equal(got.grad_weight, np.zeros(4))
        np.testing.assert_array_equal(got.grad_bias, np.zeros(4))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("axis", [1, 2], ids=["channels-first", "channels-last"])
def test_statistics_of_empty_data_have_no_say(axis, bad, host_backend):
    """Their own mean and deviation are nan: 0 is still the sum."""
    data, vector, stat = np.empty((0, 4, 4), F), np.full(4, bad, F), np.full((2, 2), bad, F)
    thin = np.empty((2, 4, 0) if axis == 1 else (2, 0, 4), F)
    options = {"channel_axis": axis, "backend": host_backend}
    for got in (
        ng.batch_norm_backward(data, data, vector, vector, **options),
        ng.batch_norm_backward(
            data, data, vector, variance=np.zeros(4, F), training=False, eps=0.0, **options
        ),
        ng.group_norm_backward(thin, thin, stat, stat, 2, **options),
        ng.layer_norm_backward(
            data, data, np.empty(0, F), np.empty(0, F), (4, 4), backend=host_backend
        ),
        ng.batch_norm_reduce_backward(data, data, vector, vector, **options),
    ):
        for one in (got.grad_weight, got.grad_bias):
            np.testing.assert_array_equal(one, np.zeros_like(one))


def test_empty_data_of_the_synchronized_halves(host_backend):
    data, vector = np.empty((0, 4, 3), F), ones(4)
    sums = ng.batch_norm_reduce_backward(data, data, vector, vector, backend=host_backend)
    for one in sums:
        np.testing.assert_array_equal(one, np.zeros(4))
    nobody = np.zeros(2, np.int32)
    got = ng.batch_norm_elemt_backward(
        data, data, vector, vector, *sums[:2], nobody, backend=host_backend
    )
    assert got.shape == (0, 4, 3)


def test_layer_norm_without_rows_or_without_columns(host_backend):
    none = ng.layer_norm_backward(
        np.empty((0, 5), F), np.empty((0, 5), F), ones(0), ones(0), 5, backend=host_backend
    )
    np.testing.assert_array_equal(none.grad_weight, np.zeros(5))
    thin = ng.layer_norm_backward(
        np.empty((3, 0), F), np.empty((3, 0), F), ones(3), ones(3), 0, backend=host_backend
    )
    assert [one.shape for one in thin[:3]] == [(3, 0), (0,), (0,)]


def test_empty_samples_take_neither_time_nor_memory():
    many = 1 << 40
    data, stat = np.empty((many, 2, 0), F), np.broadcast_to(ones(1), (many, 2))
    got = ng.batch_norm_backward(data, data, *neutral(data), backend="cpu")
    np.testing.assert_array_equal(got.grad_weight, np.zeros(2))
    got = ng.group_norm_backward(data, data, stat, stat, 2, backend="cpu")
    np.testing.assert_array_equal(got.grad_bias, np.zeros(2))
    got = ng.layer_norm_backward(data, data, stat[:, 0], stat[:, 0], (2, 0), backend="cpu")
    assert got.grad_weight.shape == (2, 0)


def test_one_element_per_statistic_has_no_gradient(host_backend):
    """The lone element is its own mean: moving it changes nothing."""
    dy, x = np.array([[3.0, -2.0]], F), np.array([[5.0, 7.0]], F)
    got = ng.batch_norm_backward(dy, x, x[0].copy(), ones(2), backend=host_backend)
    np.testing.assert_array_equal(got.grad_input, np.zeros((1, 2)))
    np.testing.assert_array_equal(got.grad_bias, dy[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_numbers_stay_in_their_statistic(bad, host_backend):
    x, dy = np.linspace(0, 1, 24, dtype=F).reshape(2, 3, 4), ones(2, 3, 4)
    clean = ng.batch_norm_backward(dy, x, *neutral(x), backend=host_backend)
    x = x.copy()
    x[1, 2, 0] = bad
    got = ng.batch_norm_backward(dy, x, *neutral(x), backend=host_backend)
    np.testing.assert_array_equal(got.grad_input[:, :2], clean.grad_input[:, :2])
    np.testing.assert_array_equal(got.grad_bias, clean.grad_bias)
    assert not np.isfinite(got.grad_input[:, 2]).any()
    assert not np.isfinite(got.grad_weight[2])
    assert np.isfinite(got.grad_weight[:2]).all()


def test_a_variance_of_zero_is_plain_arithmetic(host_backend):
    x, dy = ones(3, 2), ones(3, 2)
    got = ng.batch_norm_backward(
        dy, x, ones(2), variance=np.zeros(2, F), training=False, eps=0.0, backend=host_backend
    )
    assert np.isposinf(got.grad_input).all()
    assert np.isnan(got.grad_weight).all()  # (x - mean) * inf = 0 * inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axis", [1, 2], ids=["channels-first", "channels-last"])
def test_any_variance_is_a_root_and_a_division(axis, dtype, host_backend):
    """-inf and what is negative have no root: nan, and not the 0 of a power of -0.5."""
    variance = np.array([-np.inf, -1, -0.0, 0, 1e-40, 0.25, 3, np.inf, np.nan], dtype)
    data = np.ones((2, 9, 5) if axis == 1 else (2, 5, 9), dtype)
    for eps in (0.0, 1e-5):
        got = ng.batch_norm_backward(
            data,
            data,
            np.zeros(9, dtype),
            variance=variance,
            training=False,
            eps=eps,
            channel_axis=axis,
            backend=host_backend,
        )
        with np.errstate(all="ignore"):
            want = (1 / np.sqrt(variance.astype(np.float64) + eps)).astype(dtype)
        np.testing.assert_array_equal(np.moveaxis(got.grad_input, axis, 0)[:, 0, 0], want)
        np.testing.assert_allclose(got.grad_weight, 10 * want.astype(np.float64), rtol=1e-6)


def test_a_total_count_of_zero_is_plain_arithmetic(host_backend):
    data, vector = ones(1, 2, 2), ones(2)
    got = ng.batch_norm_elemt_backward(
        data, data, vector, vector, vector, vector, np.zeros(1, F), backend=host_backend
    )
    assert not np.isfinite(got).any()


def test_overflow_of_a_narrow_result_is_infinite(host_backend):
    dy = np.full((40, 1), 60000, np.float16)
    got = ng.batch_norm_backward(
        dy, np.ones_like(dy), *neutral(np.ones_like(dy)), backend=host_backend
    )
    assert np.isposinf(got.grad_bias).all()
    wide = ng.batch_norm_backward(
        dy,
        np.ones_like(dy),
        *neutral(np.ones_like(dy)),
        param_grad_dtype="float32",
        backend=host_backend,
    )
    np.testing.assert_array_equal(wide.grad_bias, np.float32(40 * 60000))


@pytest.mark.parametrize("mask", list(itertools.product((False, True), repeat=3)))
def test_masked_results_are_none_and_the_others_unchanged(mask, host_backend):
    rng = np.random.default_rng(5)
    dy, x = (rng.standard_normal((3, 4, 5)).astype(F) for _ in range(2))
    want = ng.batch_norm_backward(dy, x, *neutral(x), backend=host_backend)
    got = ng.batch_norm_backward(dy, x, *neutral(x), output_mask=mask, backend=host_backend)
    for one, other, asked in zip(got[:3], want[:3], mask, strict=True):
        if asked:
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
        else:
            assert one is None
