"""The worked numbers of docs/explanation/math.md in float32, on every backend for host memory."""

import numpy as np
import pytest

import normgrad as ng
from neutral import neutral


def f32(*values):
    return np.array(values, np.float32)


def close(got, *values, rtol=2e-6):
    np.testing.assert_allclose(np.ravel(got), values, rtol=rtol)


EIGHT = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
ZEROS, ONES = f32(0, 0), f32(1, 1)


def test_batch_norm_in_training(host_backend):
    got = ng.batch_norm_backward(EIGHT, EIGHT, ZEROS, ONES, weight=ONES, backend=host_backend)
    close(got.grad_input, -1.5, -4, -6.5, -9, -127.5, -158, -188.5, -219)
    close(got.grad_weight, 14, 126)
    close(got.grad_bias, 6, 22)


def test_batch_norm_defaults_of_missing_vectors(host_backend):
    """Weight 1, mean 0, invstd 1: the numbers of the case above."""
    bare = ng.batch_norm_backward(EIGHT, EIGHT, *neutral(EIGHT), backend=host_backend)
    close(bare.grad_input, -1.5, -4, -6.5, -9, -127.5, -158, -188.5, -219)
    idle = ng.batch_norm_backward(
        EIGHT,
        EIGHT,
        neutral(EIGHT)[0],
        variance=neutral(EIGHT)[1],
        training=False,
        eps=0.0,
        backend=host_backend,
    )
    np.testing.assert_array_equal(idle.grad_input, EIGHT)  # running mean 0, variance 1
    close(idle.grad_weight, 14, 126)


def test_batch_norm_with_a_variance(host_backend):
    got = ng.batch_norm_backward(
        EIGHT, EIGHT, ZEROS, weight=ONES, variance=ONES, eps=1e-5, backend=host_backend
    )
    close(got.grad_input[0, 0, 0], -1.4999925, rtol=1e-7)
    close(got.grad_weight[0], 13.99993)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float32, np.float16])
def test_element_stage(host_backend, kind):
    got = ng.batch_norm_elemt_backward(
        EIGHT,
        EIGHT,
        ZEROS,
        ONES,
        ZEROS,
        ONES,
        np.array([5, 5], kind),
        weight=ONES,
        backend=host_backend,
    )
    close(got, *(0.9 * value for value in range(8)))


def test_element_stage_of_three_channels(host_backend):
    data = np.ones((2, 3, 1, 4), np.float32)
    got = ng.batch_norm_elemt_backward(
        data,
        data,
        f32(8, 5, 9),
        f32(2, 1, 2),
        f32(2, 2, 6),
        f32(2, 3, 11),
        np.array([5, 5, 5], np.int32),
        weight=f32(1, 1, 4),
        backend=host_backend,
    )
    for channel, value in enumerate((9.2, 5 / 3, 192.5333333)):
        close(got[:, channel], *[value] * 8)


@pytest.mark.parametrize("counts", [[2049, 1], [40000, 40000]])
def test_counts_in_float16_are_added_exactly(host_backend, counts):
    """2049 is no float16 and 80000 is beyond its largest number; 40000 is one."""
    data = np.ones((1, 1, 2), np.float32)
    one, total = f32(1), float(sum(counts))
    counter = np.array(counts, np.float16 if counts[0] > 3000 else np.int32)
    got = ng.batch_norm_elemt_backward(
        data, data, f32(0), one, f32(total), f32(total), counter, weight=one, backend=host_backend
    )
    close(got, -1, -1)


def test_layer_norm(host_backend):
    data = f32(2, 3, 4, 5).reshape(2, 2)
    got = ng.layer_norm_backward(data, data, f32(2, 3), f32(4, 5), 2, backend=host_backend)
    close(got.grad_input, -2, -94, -877.5, -1747.5)
    close(got.grad_weight, 20, 62)
    close(got.grad_bias, 6, 8)


def test_group_norm(host_backend):
    got = ng.group_norm_backward(
        f32(1, 0, 2, 1).reshape(1, 2, 2),
        f32(1, 2, 3, 4).reshape(1, 2, 2),
        f32(2.5),
        f32(1 / np.sqrt(1.25)),
        1,
        weight=f32(1, 3),
        backend=host_backend,
    )
    close(got.grad_input, 0.268328157, -1.699411663, 2.593838854, -1.162755348)
    close(got.grad_weight, -1.341640786, 2.236067977)
    close(got.grad_bias, 1, 3)


def test_group_norm_of_the_published_example(host_backend):
    """Here x and dy are one ramp and the statistics its own: grad_input is nothing but rounding."""
    data = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)
    got = ng.group_norm_backward(
        data,
        data,
        f32(6.5, 18.5).reshape(2, 1),
        f32(0.2896827, 0.2896827).reshape(2, 1),
        1,
        weight=f32(1, 1, 1),
        backend=host_backend,
    )
    assert np.abs(got.grad_input).max() < 1e-5
    close(got.grad_weight, -75.8968674, 2.896827, 155.8492926)
    close(got.grad_bias, 68, 100, 132)
