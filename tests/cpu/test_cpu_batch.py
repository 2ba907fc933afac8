"""A gradient does not depend on the batch around it, but where its formula says so."""

import numpy as np
import pytest

from normgrad import functional, verify
from normgrad.backends.cpu.plan import tuned
from normgrad.cli.plan import spec_of
from normgrad.core.plan import make_plan
from normgrad.core.spec import Op

pytest.importorskip("numba")
SOME = (1, 2, 3, 4, 5, 7)


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def assert_slices_agree(gradient, samples):
    whole = gradient(samples)
    for some in (*SOME, samples - 1):
        np.testing.assert_array_equal(gradient(some), whole[:some], err_msg=f"{some} samples")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("columns", [1, 21, 64, 256, 257, 1000, 5000])
def test_rows(columns, dtype):
    x, dy = (numbers(23, columns, dtype=dtype, seed=seed) for seed in (1, 2))
    mean, rstd, gamma = numbers(23, 1), np.abs(numbers(23, 1)), numbers(columns)

    def gradient(some):
        return functional.layer_norm_backward(
            dy[:some], x[:some], mean[:some], rstd[:some], columns, weight=gamma, backend="cpu"
        ).grad_input

    assert_slices_agree(gradient, 23)


@pytest.mark.parametrize("columns", [4, 8, 16, 24, 49])
def test_short_rows_wherever_they_lie(columns):
    """Four at a time share vectors of factors; those left over have the same arithmetic."""
    x, dy = (numbers(23, columns, seed=seed) for seed in (1, 2))
    mean, rstd, gamma = numbers(23, 1), np.abs(numbers(23, 1)), numbers(columns)

    def gradient(some):
        return functional.layer_norm_backward(
            dy[some], x[some], mean[some], rstd[some], columns, weight=gamma, backend="cpu"
        ).grad_input

    whole = gradient(slice(None))
    for first, last in ((1, 23), (2, 9), (3, 4), (21, 23)):
        some = slice(first, last)
        np.testing.assert_array_equal(gradient(some), whole[some], err_msg=f"{first} to {last}")


@pytest.mark.parametrize("limits", [{}, {"STREAM_BYTES": 40000, "NEAR_BYTES": 20000}], ids=str)
@pytest.mark.parametrize("axis", [1, 2], ids=["channels-first", "channels-last"])
@pytest.mark.parametrize(
    ("channels", "groups", "pixels"),
    [(8, 2, 1), (64, 8, 16), (64, 8, 49), (6, 6, 49), (40, 4, 400), (4, 1, 70000), (128, 4, 600)],
)
def test_groups(channels, groups, pixels, axis, limits, monkeypatch, forget_plans):
    for name, size in limits.items():
        monkeypatch.setattr(tuned, name, size)
    forget_plans()
    shape = (9, channels, pixels) if axis == 1 else (9, pixels, channels)
    x, dy = (numbers(*shape, seed=seed) for seed in (1, 2))
    mean, rstd, gamma = numbers(9, groups), np.abs(numbers(9, groups)), numbers(channels)

    def gradient(some):
        return functional.group_norm_backward(
            dy[:some],
            x[:some],
            mean[:some],
            rstd[:some],
            groups,
            weight=gamma,
            channel_axis=axis,
            backend="cpu",
        ).grad_input

    assert_slices_agree(gradient, 9)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("axis", [1, 2], ids=["channels-first", "channels-last"])
@pytest.mark.parametrize(("channels", "pixels"), [(512, 196), (1300, 51), (300, 250)])
def test_groups_of_many_short_channels(channels, pixels, axis, dtype):
    """Units of few slabs hold as many channels as make a task: 167 of 14x14, no multiple of 4."""
    assert tuned.TASK_ELEMENTS // pixels % 4
    assert channels * pixels >= 2 * tuned.TASK_ELEMENTS
    shape = (9, channels, pixels) if axis == 1 else (9, pixels, channels)
    x, dy = (numbers(*shape, dtype=dtype, seed=seed) for seed in (1, 2))
    mean, rstd, gamma = numbers(9, 1), np.abs(numbers(9, 1)), numbers(channels)

    def gradient(some):
        return functional.group_norm_backward(
            dy[:some],
            x[:some],
            mean[:some],
            rstd[:some],
            1,
            weight=gamma,
            channel_axis=axis,
            backend="cpu",
        ).grad_input

    assert_slices_agree(gradient, 9)


@pytest.mark.parametrize("shape", [(8, 64), (8, 64, 5), (8, 64, 40)], ids=str)
@pytest.mark.parametrize("layout", ["samples-fastest", "channel-axis-0", "every-other"])
def test_layouts_of_slices(shape, layout):
    """A result of one sample is dense where that of many is not: it has no say in the order."""
    x, dy = (numbers(*shape, seed=seed) for seed in (1, 2))
    mean, rstd, gamma = numbers(8, 8), np.abs(numbers(8, 8)), numbers(64)
    axis = 1
    if layout == "samples-fastest":
        x, dy = np.asfortranarray(x), np.asfortranarray(dy)
    elif layout == "channel-axis-0":
        x, dy, axis = x.swapaxes(0, 1).copy(), dy.swapaxes(0, 1).copy(), 0
    else:
        x, dy = (np.repeat(one, 2, axis=1)[:, ::2] for one in (x, dy))

    def gradient(first, last):
        some = (slice(None), slice(first, last)) if axis == 0 else slice(first, last)
        return functional.group_norm_backward(
            dy[some],
            x[some],
            mean[first:last],
            rstd[first:last],
            8,
            weight=gamma,
            channel_axis=axis,
            backend="cpu",
        ).grad_input.swapaxes(0, 1 - axis)

    whole = gradient(0, 8)
    for first, last in ((0, 1), (3, 4), (7, 8), (2, 5), (1, 8)):
        got = gradient(first, last)
        np.testing.assert_array_equal(got, whole[first:last], err_msg=f"{first} to {last}")


def test_more_groups_than_units_are_split_for():
    """Slabs are taken whole where there are many, and in pieces where there are few."""
    for samples, phase in ((9, "slabs"), (1, "sum_pieces")):
        case = verify.Case(
            id="", op=Op.GROUP_NORM_BACKWARD, shape=(samples, 4, 70000), num_groups=4
        )
        plan = make_plan(spec_of(case, "float32"), "cpu")
        assert plan.config.phases[0].split()[0] == phase
    x, dy = (numbers(9, 4, 70000, seed=seed) for seed in (1, 2))
    mean, rstd, gamma = numbers(9, 4), np.abs(numbers(9, 4)), numbers(4)

    def gradient(some):
        return functional.group_norm_backward(
            dy[:some], x[:some], mean[:some], rstd[:some], 4, weight=gamma, backend="cpu"
        ).grad_input

    assert_slices_agree(gradient, 9)


@pytest.mark.parametrize("axis", [1, 2], ids=["channels-first", "channels-last"])
@pytest.mark.parametrize(("channels", "pixels"), [(8, 1), (24, 1), (5, 33), (64, 40), (300, 7)])
def test_elements(channels, pixels, axis):
    shape = (23, channels, pixels) if axis == 1 else (23, pixels, channels)
    x, dy = (numbers(*shape, seed=seed) for seed in (1, 2))
    mean, rstd, gamma, one, other = (numbers(channels, seed=seed) for seed in range(5))
    count = np.array([1000], np.int32)

    def stage(some):
        return functional.batch_norm_elemt_backward(
            dy[:some],
            x[:some],
            mean,
            rstd,
            one,
            other,
            count,
            weight=gamma,
            channel_axis=axis,
            backend="cpu",
        )

    def inference(some):
        return functional.batch_norm_backward(
            dy[:some],
            x[:some],
            mean,
            weight=gamma,
            variance=np.abs(rstd),
            training=False,
            channel_axis=axis,
            backend="cpu",
        ).grad_input

    assert_slices_agree(stage, 23)
    assert_slices_agree(inference, 23)


def test_very_many_terms_change_parameter_gradients_alone(monkeypatch, forget_plans):
    """Rows, inference: sums are made in float64 from some number of terms on, gradients are not."""
    x, dy = (numbers(9, 40, seed=seed) for seed in (1, 2))
    mean, rstd, gamma = numbers(9, 1), np.abs(numbers(9, 1)), numbers(40)

    def gradients():
        forget_plans()
        rows = functional.layer_norm_backward(dy, x, mean, rstd, 40, weight=gamma, backend="cpu")
        constants = functional.batch_norm_backward(
            dy, x, gamma, weight=gamma, variance=np.abs(gamma), training=False, backend="cpu"
        )
        images = functional.group_norm_backward(
            dy.reshape(9, 8, 5), x.reshape(9, 8, 5), mean, rstd, 1, weight=gamma[:8], backend="cpu"
        )
        return [result.grad_input for result in (rows, constants, images)]

    before = gradients()
    monkeypatch.setattr(tuned, "MANY_TERMS", 0)
    for one, other in zip(before, gradients(), strict=True):
        np.testing.assert_array_equal(one, other)
