"""Weights of each sample: a sample has the bits that it has alone, whatever the weights' axes."""

import numpy as np
import pytest

import normgrad as ng
from normgrad import functional

pytest.importorskip("numba")
# A shape for each schedule, number of groups (0: layer norm), channels last.
SCHEDULES = {
    "short rows": ((3, 401, 24), 0, False),
    "rows": ((5, 26, 768), 0, False),
    "long rows": ((2, 20, 5003), 0, False),
    "one row": ((9, 50), 0, False),
    "rows of three axes": ((2, 3, 7, 130), 0, False),
    "slabs of groups": ((16, 40, 20, 25), 10, False),
    "streamed slabs of groups": ((40, 40, 64, 64), 10, False),
    "groups of one segment": ((6, 70, 9, 9), 70, False),
    "split groups": ((2, 4, 50_001), 2, False),
    "whole samples": ((16, 40, 20, 25), 10, True),
    "samples in passes": ((2, 40, 20, 25), 10, True),
    "small groups": ((7, 40, 4, 4), 10, False),
    "groups of a pixel": ((33, 40), 10, False),
}


def laid(x, last):
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1) if last else x


def problem(name, dtype):
    shape, groups, last = SCHEDULES[name]
    rng = np.random.default_rng(2)
    x, dy = (laid(rng.standard_normal(shape).astype(dtype), last) for _ in range(2))
    channels = shape[1] if groups else shape[-1]
    # With gaps, as the parts of one linear layer's output are.
    weight, bias = np.split(rng.standard_normal((shape[0], 2 * channels)).astype(dtype), 2, axis=1)
    if not groups:
        between = [1] * (len(shape) - 2)
        weight, bias = (one.reshape(shape[0], *between, channels) for one in (weight, bias))
    return x, dy, weight, bias, groups


def forward(x, weight, bias, groups):
    if groups:
        return ng.group_norm(x, groups, weight=weight, bias=bias, backend="cpu")[:3]
    return ng.layer_norm(x, x.shape[-1], weight=weight, bias=bias, backend="cpu")[:3]


def backward(dy, x, mean, rstd, weight, groups, mask):
    if groups:
        name, size = "group_norm_backward", groups
    else:
        name, size = "layer_norm_backward", x.shape[-1]
    function = getattr(functional, name)
    return function(dy, x, mean, rstd, size, weight=weight, output_mask=mask, backend="cpu")[:3]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_sample_has_the_bits_that_it_has_alone(name, dtype):
    x, dy, weight, bias, groups = problem(name, dtype)
    y, mean, rstd = forward(x, weight, bias, groups)
    masks = [(True, True, True), (False, True, True)]
    found = [backward(dy, x, mean, rstd, weight, groups, mask) for mask in masks]
    for one in {0, 1, len(x) - 1}:
        here = slice(one, one + 1)
        w, b = weight[here], bias[here]
        if not groups:  # as those of all samples are given
            w, b = w.ravel(), b.ravel()
        alone = forward(x[here], w, b, groups)
        for some, expected in zip((y, mean, rstd), alone, strict=True):
            np.testing.assert_array_equal(some[here], expected)
        for mask, gradients in zip(masks, found, strict=True):
            expected = backward(dy[here], x[here], mean[here], rstd[here], w, groups, mask)
            if mask[0]:
                np.testing.assert_array_equal(gradients[0][here], expected[0])
            for each, want in zip(gradients[1:], expected[1:], strict=True):
                assert each.shape == weight.shape
                np.testing.assert_array_equal(each[here].ravel(), want.ravel())


def test_strips_of_columns_of_each_sample():
    x, dy, weight, bias, _ = problem("long rows", "float32")
    _, mean, rstd = forward(x, weight, bias, 0)
    _, dgamma, dbeta = backward(dy, x, mean, rstd, weight, 0, (False, True, True))
    xhat = (x.astype("f8") - mean) * rstd
    np.testing.assert_allclose(dgamma, (dy * xhat).sum(1, keepdims=True), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dbeta, dy.sum(1, keepdims=True, dtype="f8"), rtol=1e-4, atol=1e-4)


def test_root_mean_squares_with_a_residual_for_each_sample():
    rng = np.random.default_rng(1)
    x, r, dy, dsum = (rng.standard_normal((3, 37, 200)).astype("f4") for _ in range(4))
    weight = rng.standard_normal((3, 1, 200)).astype("f4")
    more = {"weight_offset": 1.0, "backend": "cpu"}
    y = ng.rms_norm(x, 200, weight=weight, residual=r, **more)
    options = {"weight": weight, "grad_sum": dsum, **more}
    dx, dgamma, _, _ = ng.rms_norm_backward(dy, y.sum, y.rstd, 200, **options)
    for one in range(3):
        w = weight[one, 0]
        alone = ng.rms_norm(x[one], 200, weight=w, residual=r[one], **more)
        np.testing.assert_array_equal(y.output[one], alone.output)
        np.testing.assert_array_equal(y.sum[one], alone.sum)
        options = {"weight": w, "grad_sum": dsum[one], **more}
        gradients = ng.rms_norm_backward(dy[one], alone.sum, alone.rstd, 200, **options)
        np.testing.assert_array_equal(dx[one], gradients[0])
        np.testing.assert_array_equal(dgamma[one, 0], gradients[1])


def test_a_residual_and_an_activation_together():
    rng = np.random.default_rng(4)
    x, r, dy, dsum = (rng.standard_normal((2, 19, 300)).astype("f2") for _ in range(4))
    weight, bias = rng.standard_normal((2, 2, 1, 300)).astype("f2")
    more = {"activation": "relu", "backend": "cpu"}
    y = ng.layer_norm(x, 300, weight=weight, bias=bias, residual=r, **more)
    known = y.sum, y.mean, y.rstd
    options = {"weight": weight, "bias": bias, "grad_sum": dsum, **more}
    gradients = ng.layer_norm_backward(dy, *known, 300, **options)
    for one in range(2):
        w, b = weight[one, 0], bias[one, 0]
        plain = ng.layer_norm(x[one] + r[one], 300, weight=w, bias=b, **more)
        np.testing.assert_array_equal(y.output[one], plain.output)
        # What a gradient goes through is open where the output is.
        through = np.where(plain.output > 0, dy[one], np.float16(0))
        rows = [each[one] for each in known]
        expected = ng.layer_norm_backward(
            through, *rows, 300, weight=w, grad_sum=dsum[one], backend="cpu"
        )
        np.testing.assert_array_equal(gradients[0][one], expected[0])
        for found, want in zip(gradients[1:3], expected[1:3], strict=True):
            np.testing.assert_array_equal(found[one, 0], want)


def test_nothing_gives_sums_of_nothing():
    x, rows = np.zeros((3, 0, 50), "f4"), np.zeros((3, 0, 1), "f4")
    weight = np.ones((3, 1, 50), "f4")
    out = [np.empty((3, 0, 50), "f4"), np.full_like(weight, 7), np.full_like(weight, 7)]
    ng.layer_norm_backward(x, x, rows, rows, 50, weight=weight, out=out, backend="cpu")
    assert not out[1].any()
    assert not out[2].any()


def test_in_bounds(stay_in_bounds):
    rows = [
        (op, {"shape": shape, "each_sample": True})
        for op in ("layer_norm", "layer_norm_backward", "rms_norm_backward")
        for shape in ((3, 9, 37), (2, 2, 3, 70))
    ]
    rows += [
        (op, {"shape": (3, 12), "num_groups": 4, "each_sample": True})
        for op in ("group_norm", "group_norm_backward")
    ]
    stay_in_bounds({"BLOCK_ROWS": 8}, "rows", rows, first=False)
    mask = (False, True, True)
    strips = [("layer_norm_backward", {"shape": (3, 9, 131), "mask": mask, "each_sample": True})]
    stay_in_bounds({"ROW_STRIP": 48}, "column_blocks_of_rows", strips, first=False)
    shape = {"shape": (3, 12, 5, 7), "num_groups": 4, "each_sample": True}
    for op in ("group_norm", "group_norm_backward"):
        stay_in_bounds({}, "slabs", [(op, shape)], first=False)
        split = {"TASK_ELEMENTS": 16, "NEAR_SLAB": 0}
        stay_in_bounds(split, "combine_pieces", [(op, shape)], first=False)
        last = {**shape, "layout": "channels-last"}
        stay_in_bounds({}, "join_blocks", [(op, last)], first=False)
        stay_in_bounds({"SOME_SAMPLES": 2}, "whole_samples", [(op, last)], first=False)
        single = {**shape, "num_groups": 12}
        stay_in_bounds({}, "single_segment_slabs", [(op, single)], first=False)
