"""Forward operators on the CPU's schedules: far means, equal elements, bits, results in place."""

import numpy as np
import pytest

import normgrad as ng

# A shape for each schedule, number of groups (None: batch norm; 0: layer norm), channels last.
SCHEDULES = {
    "slabs": ((16, 40, 20, 25), None, False),
    "single segments": ((1, 70, 9, 9), None, False),
    "split slabs": ((3, 2, 50_000), None, False),
    "planes side by side": ((140, 200, 7, 7), None, False),
    "rows of channels": ((16, 40, 20, 25), None, True),
    "several rows as one": ((400, 24), None, False),
    "slabs of groups": ((16, 40, 20, 25), 10, False),
    "groups of one segment": ((6, 70, 9, 9), 70, False),
    "split groups": ((2, 4, 50_001), 2, False),
    "whole samples": ((16, 40, 20, 25), 10, True),
    "samples in passes": ((2, 40, 20, 25), 10, True),
    "groups as rows": ((7, 40, 4, 4), 10, False),
    "short rows": ((9, 40), 0, False),
    "long rows": ((7, 3001), 0, False),
}


def laid(x, last):
    """X, or the same numbers with channels last."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1) if last else x


def norm(x, groups, **options):
    options = {"backend": "cpu"} | options
    if groups is None:
        return ng.batch_norm(x, **options)[:3]
    if groups:
        return ng.group_norm(x, groups, **options)[:3]
    return ng.layer_norm(x, x.shape[-1], **options)[:3]


def grouped(x, groups):
    """X with what shares a statistic in the last axis."""
    if groups is None:
        return np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
    return np.ascontiguousarray(x).reshape(x.shape[0] * max(groups, 1), -1)


def data(name, dtype=np.float32, centre=0.0):
    shape, groups, last = SCHEDULES[name]
    x = np.random.default_rng(1).standard_normal(shape) + centre
    return laid(x.astype(dtype), last), groups


@pytest.mark.parametrize("ratio", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_statistics_do_not_suffer_from_a_far_mean(name, ratio):
    x, groups = data(name, centre=ratio)
    seen = grouped(x, groups)
    if seen.shape[1] > 1000:  # the first element is far from all others, and from their mean
        x[(..., *[0] * (x.ndim - 2))] = x[(..., *[0] * (x.ndim - 2))] - 50
        seen = grouped(x, groups)
    y, mean, rstd = norm(x, groups, eps=0.0)
    true = seen.astype(np.float64)
    centre = true.mean(1, keepdims=True)
    deviation = np.sqrt(((true - centre) ** 2).mean(1, keepdims=True))
    np.testing.assert_allclose(mean.ravel(), centre.ravel(), rtol=2e-7, atol=2e-7)
    np.testing.assert_allclose(rstd.ravel(), 1 / deviation.ravel(), rtol=1e-6)
    # A rounding of a mean of 10000 deviations is a thousandth of a deviation.
    atol = 2e-6 + 1e-7 * ratio
    np.testing.assert_allclose(
        grouped(y, groups), (true - centre) / deviation, rtol=3e-7, atol=atol
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", SCHEDULES)
def test_equal_elements_have_no_variance_and_give_beta(name, dtype):
    x, groups = data(name)
    x = laid(np.full(x.shape, 100.3, dtype), SCHEDULES[name][2])
    bias = np.linspace(-1, 1, x.shape[1]).astype(dtype)
    y, mean, rstd = norm(x, groups, weight=bias + 2, bias=bias, eps=0.25)
    assert (np.ravel(mean) == x.flat[0]).all()
    assert (np.ravel(rstd) == 2.0).all()
    across = (slice(None), *[None] * (x.ndim - 2))
    np.testing.assert_array_equal(y, np.broadcast_to(bias[across], x.shape))


@pytest.mark.parametrize(
    "name", [n for n, (_, groups, _) in SCHEDULES.items() if groups is not None]
)
def test_a_sample_has_the_same_bits_in_any_batch(name):
    x, groups = data(name)
    many = norm(x, groups)
    for some in (1, 3):
        few = norm(x[:some], groups)
        for one, all_of_them in zip(few, many, strict=True):
            np.testing.assert_array_equal(one, all_of_them[:some])


@pytest.mark.parametrize("name", SCHEDULES)
def test_bits_do_not_depend_on_addresses_and_y_may_be_x(name):
    x, groups = data(name)
    y, mean, rstd = norm(x, groups)
    memory = np.empty(x.size + 1, np.float32)[1:]
    shape, _, last = SCHEDULES[name]
    if last:
        moved = np.moveaxis(memory.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
    else:
        moved = memory.reshape(shape)
    moved[...] = x
    found = norm(moved, groups, out=(moved, np.empty_like(mean), np.empty_like(rstd)))
    for one, other in zip(found, (y, mean, rstd), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", SCHEDULES)
def test_nan_stays_in_its_group(name):
    x, groups = data(name)
    clean = norm(x, groups)
    x[(0, 1, *[3] * (x.ndim - 2))] = np.nan
    found = norm(x, groups)
    touched = np.isnan(found[1]).ravel()
    assert touched.sum() == 1
    same = ~touched
    for one, other in zip(found[1:], clean[1:], strict=True):
        np.testing.assert_array_equal(np.ravel(one)[same], np.ravel(other)[same])
    one, other = grouped(found[0], groups), grouped(clean[0], groups)
    np.testing.assert_array_equal(one[same], other[same])
    assert np.isnan(one[touched]).all()


def test_a_hundred_million_elements_in_one_group():
    some = np.random.default_rng(0).standard_normal(1_000_000).astype(np.float32)
    x = np.tile(some, 100)[None, None]
    x += 1000
    mean, variance, _ = ng.batch_norm_stats(x, backend="cpu")
    centre = x.mean(dtype=np.float64)
    true = sum(((part.astype(np.float64) - centre) ** 2).sum() for part in x.reshape(100, -1))
    np.testing.assert_allclose(mean, centre, rtol=1e-7)
    np.testing.assert_allclose(variance, true / x.size, rtol=1e-6)


@pytest.mark.parametrize("last", [False, True])
def test_running_statistics_of_any_type_and_stride(last):
    torch = pytest.importorskip("torch")
    x = laid(np.random.default_rng(2).standard_normal((8, 24, 7, 9)).astype(np.float32) + 3, last)
    gaps = np.zeros((24, 2), np.float16)[:, 0]
    ranges = np.ones(48, np.float64).reshape(2, 3, 8)[:1].reshape(3, 8).T.ravel()
    mean, variance = torch.zeros(24), torch.ones(24)
    torch.nn.functional.batch_norm(torch.from_numpy(x), mean, variance, training=True, momentum=0.3)
    ng.batch_norm(x, running_mean=gaps, running_var=ranges, momentum=0.3, backend="cpu")
    np.testing.assert_allclose(gaps, mean.numpy(), rtol=1e-3)
    np.testing.assert_allclose(ranges, variance.numpy(), rtol=1e-6)
