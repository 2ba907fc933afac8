"""aclnnGroupNormBackward: each line of the page's tables, by its words."""

import functools

import aclnn_calls
import numpy as np
import pytest
from aclnn_calls import BF16, F16, F32, GROUP_NORM, arguments, compute, tensor

from normgrad import aclnn, group_norm_backward

OUTPUTS = aclnn_calls.OUTPUTS[GROUP_NORM]
FIVE = ("mean", "rstd", "gamma", "gradGammaOut", "gradBetaOut")
VECTOR_SHAPE = {"mean": (2, 1), "rstd": (2, 1)}


check = functools.partial(aclnn_calls.check, GROUP_NORM)
fine = functools.partial(aclnn_calls.fine, GROUP_NORM)


def test_gamma_may_be_null():
    fine(gamma=None)


@pytest.mark.parametrize("dtype", [aclnn.ACL_DOUBLE, aclnn.ACL_INT32])
def test_grad_outs_dtype_outside_the_supported_range(dtype):
    words = ("gradOut must be of type ACL_FLOAT or ACL_FLOAT16 or ACL_BF16", f"got {dtype.name}")
    check(161002, words, gradOut=tensor((2, 3, 4), dtype))


@pytest.mark.parametrize("name", ["input", "gradInput"])
def test_data_differ_in_dtype(name):
    words = f"{name} must have the type of gradOut, ACL_FLOAT, got ACL_BF16"
    check(161002, words, **{name: tensor((2, 3, 4), BF16)})


@pytest.mark.parametrize(
    ("data", "vectors"), [(F32, F32), (F16, F16), (F16, F32), (BF16, BF16), (BF16, F32)]
)
def test_ascend950_rows_of_the_dtype_table(data, vectors):
    fine(data, vectors)


@pytest.mark.parametrize(("data", "vectors"), [(F32, F16), (F32, BF16), (F16, BF16), (BF16, F16)])
def test_ascend950_pairs_outside_the_dtype_table(data, vectors):
    words = ("mean must be of type", "on Ascend 950PR/950DT", f"got {vectors.name}")
    check(161002, words, data, vectors)


@pytest.mark.parametrize("name", FIVE[1:])
def test_the_five_alike(name):
    wrong = tensor(VECTOR_SHAPE.get(name, (3,)), F32)
    words = f"{name} must have the type of mean, ACL_FLOAT16, got ACL_FLOAT"
    check(161002, words, F16, F16, **{name: wrong})


@pytest.mark.parametrize("product", ["atlas-a2", "atlas-a3"])
@pytest.mark.parametrize("data", [F32, F16, BF16])
def test_a2_a3_vectors_as_the_data(product, data):
    aclnn.set_product(product)
    fine(data, data)
    if data != F32:
        check(161002, f"mean must be of type {data.name} on Atlas A", data, F32)


@pytest.mark.parametrize("data", [F32, F16])
def test_atlas_training_vectors_as_the_data(data):
    aclnn.set_product("atlas-training")
    fine(data, data)
    if data == F16:
        check(161002, "mean must be of type ACL_FLOAT16 on Atlas training", F16, F32)


def test_atlas_training_has_no_bf16():
    aclnn.set_product("atlas-training")
    check(161002, "gradOut must be of type ACL_FLOAT or ACL_FLOAT16 on Atlas training", BF16)


def test_grad_input_shape_not_inputs():
    words = ("gradInput must have the shape (2, 3, 4)", "got shape (2, 12)")
    check(161002, words, gradInput=tensor((2, 12)))


@pytest.mark.parametrize("name", ["gradGammaOut", "gradBetaOut"])
def test_param_grad_shape_not_gammas(name):
    check(161002, f"{name} must have the shape (3,), got shape (3, 1)", **{name: tensor((3, 1))})
    column = {
        "gamma": tensor((3, 1)),
        "gradGammaOut": tensor((3, 1)),
        "gradBetaOut": tensor((3, 1)),
    }
    fine(**column)
    words = f"{name} must have the shape (3, 1), got shape (3,)"
    check(161002, words, **{**column, name: tensor((3,))})
    check(161002, f"{name} must have the shape (3,)", gamma=None, **{name: tensor((3, 1))})


@pytest.mark.parametrize("group", [0, -1])
def test_group_not_positive(group):
    check(161002, f"group must be positive, got {group}", group=group)


def test_c_not_divisible_by_group():
    check(161002, "group must divide the number of channels, 3, got 2", group=2)


@pytest.mark.parametrize("name", ["gradOut", "input"])
def test_data_count_not_n_c_hxw(name):
    words = f"{name} must have N*C*HxW = 24 elements, got 30 (shape (2, 3, 5))"
    check(161002, words, **{name: tensor((2, 3, 5))})


@pytest.mark.parametrize("name", ["mean", "rstd"])
def test_statistic_count_not_n_group(name):
    words = (f"{name} must have 2 elements, one for each sample and group", "got 3 (shape (3,))")
    check(161002, words, **{name: tensor((3,))})


def test_gamma_count_not_c():
    words = "gamma must have 3 elements, one for each channel, got 4 (shape (4,))"
    check(161002, words, gamma=tensor((4,)))


@pytest.mark.parametrize("name", ["N", "C", "HxW"])
def test_sizes_negative(name):
    check(161002, ("N, C and HxW must not be negative", "-1"), **{name: -1})
    check(161002, f"{name} must be an int64, got {2**63}", **{name: 2**63})


@pytest.mark.parametrize("name", ["gradOut", "input", "mean", "rstd", "gamma"])
def test_rank_above_8(name):
    shape = {"mean": (2,), "rstd": (2,), "gamma": (3,)}.get(name, (2, 3, 4))
    shape = shape + (1,) * (9 - len(shape))
    check(161002, (f"{name} must have", "8 axes", f"shape {shape}"), **{name: tensor(shape)})


def test_statistics_of_any_shape():
    fine(mean=tensor((2,)), rstd=tensor((1, 2, 1)))


@pytest.mark.parametrize(
    ("dy_shape", "x_shape"), [((24,), (2, 3, 4)), ((2, 3, 2, 2), (6, 4)), ((4, 6), (1, 24, 1))]
)
def test_data_are_read_as_n_c_hxw_whatever_their_shape(dy_shape, x_shape):
    rng = np.random.default_rng(5)
    dy, x = (rng.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(2))
    mean, rstd = (rng.random((2, 3)).astype(np.float32) + 0.5 for _ in range(2))
    gamma = rng.random(3).astype(np.float32)
    out = [np.full(shape, np.nan, np.float32) for shape in (x_shape, (3,), (3,))]
    given = arguments(GROUP_NORM) | {
        "gradOut": aclnn.tensor(dy.reshape(dy_shape)),
        "input": aclnn.tensor(x.reshape(x_shape)),
        "mean": aclnn.tensor(mean),
        "rstd": aclnn.tensor(rstd),
        "gamma": aclnn.tensor(gamma),
        "group": 3,
        **dict(zip(OUTPUTS, map(aclnn.tensor, out), strict=True)),
    }
    compute(GROUP_NORM, given)
    expected = group_norm_backward(dy, x, mean, rstd, 3, weight=gamma)
    for got, want in zip(out, expected[:3], strict=True):
        np.testing.assert_array_equal(got.reshape(want.shape), want)


@pytest.mark.parametrize("dy_shape", [(24,), (6, 4), (2, 1, 3, 1, 4), (2, 3, 4)])
@pytest.mark.parametrize("x_shape", [(2, 3, 4), (2, 3, 2, 2), (6, 4)])
def test_channels_last_beside_a_tensor_without_an_axis_of_channels(dy_shape, x_shape):
    """Each lies as its own shape says: a copy of one must not move axes of the other."""
    rng = np.random.default_rng(6)
    dy, x = (rng.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(2))
    mean, rstd = (rng.random((2, 3)).astype(np.float32) + 0.5 for _ in range(2))

    def last(shape, values=np.nan):
        """The same elements with axis 1 the fastest."""
        made = np.full((shape[0], *shape[2:], shape[1]), np.nan, np.float32)
        view = np.moveaxis(made, -1, 1)
        view[...] = values
        return view

    expected = group_norm_backward(dy, x, mean, rstd, 3, weight=np.ones(3, np.float32))
    for x_last, out_last in ((True, False), (True, True), (False, True)):
        data = last(x_shape, x.reshape(x_shape)) if x_last else x.reshape(x_shape)
        big = last(x_shape) if out_last else np.full(x_shape, np.nan, np.float32)
        out = [big, *(np.full(3, np.nan, np.float32) for _ in range(2))]
        given = arguments(GROUP_NORM) | {
            "gradOut": aclnn.tensor(dy.reshape(dy_shape)),
            "input": aclnn.tensor(data),
            "mean": aclnn.tensor(mean),
            "rstd": aclnn.tensor(rstd),
            "group": 3,
            **dict(zip(OUTPUTS, map(aclnn.tensor, out), strict=True)),
        }
        compute(GROUP_NORM, given)
        for got, want in zip(out, expected[:3], strict=True):
            np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-5)


def test_groups_of_10_channels():
    rng = np.random.default_rng(7)
    dy, x = (rng.standard_normal((2, 320, 4)).astype(np.float32) for _ in range(2))
    mean, rstd = (rng.random((2, 32)).astype(np.float32) + 0.5 for _ in range(2))
    gamma = rng.random(320).astype(np.float32)
    out = [np.full(shape, np.nan, np.float32) for shape in (x.shape, (320,), (320,))]
    given = arguments(GROUP_NORM, shape=x.shape) | {
        "gradOut": aclnn.tensor(dy),
        "input": aclnn.tensor(x),
        "mean": aclnn.tensor(mean),
        "rstd": aclnn.tensor(rstd),
        "gamma": aclnn.tensor(gamma),
        "group": 32,
        **dict(zip(OUTPUTS, map(aclnn.tensor, out), strict=True)),
    }
    compute(GROUP_NORM, given)
    expected = group_norm_backward(dy, x, mean, rstd, 32, weight=gamma)
    for got, want in zip(out, expected[:3], strict=True):
        np.testing.assert_array_equal(got, want)


def test_worked_numbers():
    def values(*numbers, shape):
        return aclnn.tensor(np.array(numbers, np.float32).reshape(shape))

    out = [np.full(shape, np.nan, np.float32) for shape in ((1, 2, 2), (2,), (2,))]
    given = arguments(GROUP_NORM, shape=(1, 2, 2)) | {
        "input": values(1, 2, 3, 4, shape=(1, 2, 2)),
        "gradOut": values(1, 0, 2, 1, shape=(1, 2, 2)),
        "gamma": values(1, 3, shape=2),
        "mean": values(2.5, shape=1),
        "rstd": values(1.25**-0.5, shape=1),
        **dict(zip(OUTPUTS, map(aclnn.tensor, out), strict=True)),
    }
    compute(GROUP_NORM, given)
    expected = [0.268328157, -1.699411663, 2.593838854, -1.162755348]
    np.testing.assert_allclose(out[0].ravel(), expected, rtol=1e-6)
    np.testing.assert_allclose(out[1], [-1.341640786, 2.236067977], rtol=1e-6)
    np.testing.assert_array_equal(out[2], [1, 3])
