"""aclnnBatchNormBackward: each line of the page's tables, by its words."""

import functools

import aclnn_calls
import numpy as np
import pytest
from aclnn_calls import BATCH_NORM, BF16, F16, F32, arguments, compute, mask, refused, tensor

from normgrad import aclnn

ND, NC, NCL, NCHW = (
    aclnn.ACL_FORMAT_ND,
    aclnn.ACL_FORMAT_NC,
    aclnn.ACL_FORMAT_NCL,
    aclnn.ACL_FORMAT_NCHW,
)
NHWC, NCDHW, NDHWC = aclnn.ACL_FORMAT_NHWC, aclnn.ACL_FORMAT_NCDHW, aclnn.ACL_FORMAT_NDHWC
VECTORS = ("weight", "runningMean", "runningVar", "saveMean", "saveInvstd")
PARAM_GRADS = ("gradWeight", "gradBias")


check = functools.partial(aclnn_calls.check, BATCH_NORM)
fine = functools.partial(aclnn_calls.fine, BATCH_NORM)


@pytest.mark.parametrize("name", VECTORS)
def test_optional_vectors_may_be_null(name):
    fine(**{name: None})


@pytest.mark.parametrize("name", ["gradOut", "input", *VECTORS, "gradInput", *PARAM_GRADS])
@pytest.mark.parametrize("dtype", [aclnn.ACL_DOUBLE, aclnn.ACL_INT32, aclnn.ACL_BOOL])
def test_dtype_outside_the_supported_range(name, dtype):
    shape = (2, 3, 4) if name in ("gradOut", "input", "gradInput") else (3,)
    words = (f"{name} must be of type ACL_FLOAT or ACL_FLOAT16 or ACL_BF16", f"got {dtype.name}")
    check(161002, words, **{name: tensor(shape, dtype)})


@pytest.mark.parametrize("name", ["input", "gradInput"])
def test_data_differ_in_dtype(name):
    words = (f"{name} must have the type of gradOut, ACL_FLOAT", "got ACL_FLOAT16")
    check(161002, words, **{name: tensor((2, 3, 4), F16)})


@pytest.mark.parametrize("name", VECTORS)
def test_ascend950_data_f32_needs_f32_vectors(name):
    words = (f"{name} must be of type ACL_FLOAT on Ascend 950PR/950DT", "got ACL_FLOAT16")
    check(161002, words, **{name: tensor((3,), F16)})


@pytest.mark.parametrize("data", [F16, BF16])
def test_ascend950_16_bit_data_take_own_or_f32_vectors(data):
    fine(data, data)
    fine(data, F32)
    other = BF16 if data == F16 else F16
    for name in VECTORS:
        words = f"{name} must be of type {data.name} or ACL_FLOAT on Ascend 950PR/950DT"
        check(161002, words, data, **{name: tensor((3,), other)})


@pytest.mark.parametrize(
    ("first", "second"), [("runningMean", "runningVar"), ("saveMean", "saveInvstd")]
)
def test_ascend950_pairs_of_statistics_alike(first, second):
    words = f"{second} must have the type of {first}, ACL_FLOAT16"
    check(161002, words, F16, F16, **{second: tensor((3,), F32)})
    fine(F16, F16, **{second: tensor((3,), F32), first: None})


@pytest.mark.parametrize("data", [F16, BF16])
def test_ascend950_param_grads_f32_or_weights_type(data):
    for kind in (F32, data):
        fine(data, data, **{name: tensor((3,), kind) for name in PARAM_GRADS})
    words = "gradWeight must be of type ACL_FLOAT on"
    check(161002, words, data, F32, **{name: tensor((3,), data) for name in PARAM_GRADS})


def test_ascend950_param_grads_alike():
    words = "gradBias must have the type of gradWeight, ACL_FLOAT16"
    check(161002, words, F16, F16, gradBias=tensor((3,), F32))
    fine(F16, F16, gradBias=tensor((3,), F32), outputMask=mask(True, False, True))


@pytest.mark.parametrize("kind", [F32, F16, BF16])
def test_ascend950_without_weight_any_param_grads(kind):
    fine(F16, F16, weight=None, **{name: tensor((3,), kind) for name in PARAM_GRADS})


def test_ascend950_data_f32_needs_f32_param_grads():
    words = "gradWeight must be of type ACL_FLOAT on"
    changes = {name: tensor((3,), F16) for name in PARAM_GRADS}
    check(161002, words, **changes)
    check(161002, words, weight=None, **changes)


@pytest.mark.parametrize("product", ["atlas-a2", "atlas-a3"])
@pytest.mark.parametrize("data", [F32, F16, BF16])
def test_a2_a3_everything_as_the_data(product, data):
    aclnn.set_product(product)
    fine(data, data)
    other = F32 if data != F32 else F16
    for name in (*VECTORS, *PARAM_GRADS):
        words = f"{name} must be of type {data.name} on Atlas {product[-2:].upper()}"
        check(161002, words, data, **{name: tensor((3,), other)})


@pytest.mark.parametrize("data", [F32, F16])
def test_atlas_training_everything_as_the_data(data):
    aclnn.set_product("atlas-training")
    fine(data, data)
    for name in (*VECTORS, *PARAM_GRADS):
        words = f"{name} must be of type {data.name} on Atlas training"
        check(161002, words, data, **{name: tensor((3,), F32 if data == F16 else F16)})


def test_atlas_training_has_no_bf16():
    aclnn.set_product("atlas-training")
    check(161002, "gradOut must be of type ACL_FLOAT or ACL_FLOAT16 on Atlas training", BF16)
    check(161002, "saveMean must be of type ACL_FLOAT or ACL_FLOAT16", saveMean=tensor((3,), BF16))


@pytest.mark.parametrize("name", ["input", "gradInput"])
def test_data_differ_in_format(name):
    words = (f"{name} must have the format of gradOut, ACL_FORMAT_ND", "got ACL_FORMAT_NCL")
    check(161002, words, **{name: tensor((2, 3, 4), F32, NCL)})


PRIVATE = (
    aclnn.ACL_FORMAT_NC1HWC0,
    aclnn.ACL_FORMAT_FRACTAL_Z,
    aclnn.ACL_FORMAT_FRACTAL_NZ,
    aclnn.ACL_FORMAT_NDC1HWC0,
    aclnn.ACL_FRACTAL_Z_3D,
)


@pytest.mark.parametrize(
    "format", [*PRIVATE, aclnn.ACL_FORMAT_HWCN, aclnn.ACL_FORMAT_UNDEFINED], ids=lambda f: f.name
)
def test_format_outside_the_supported_range(format):
    given = arguments(BATCH_NORM, format=format)
    refused(BATCH_NORM, 161002, ("gradOut must have a format of", f"got {format.name}"), given)


@pytest.mark.parametrize("name", [*VECTORS, *PARAM_GRADS])
@pytest.mark.parametrize("format", PRIVATE, ids=lambda f: f.name)
def test_private_format_of_a_vector(name, format):
    wrong = {name: tensor((3,), F32, format)}
    check(161002, f"{name} must not have a private format, got {format.name}", **wrong)
    if name in PARAM_GRADS:  # masked off, nobody looks
        fine(**wrong, outputMask=mask(True, name != "gradWeight", name != "gradBias"))


@pytest.mark.parametrize("format", [form for form in aclnn.aclFormat if form not in PRIVATE])
def test_a_vector_with_any_other_tag_is_a_vector(format):
    fine(**{name: tensor((3,), F32, format) for name in (*VECTORS, *PARAM_GRADS)})


@pytest.mark.parametrize("product", ["atlas-a2", "atlas-a3", "atlas-training"])
@pytest.mark.parametrize(("format", "shape"), [(NHWC, (2, 3, 4, 5)), (NDHWC, (2, 3, 4, 5, 6))])
def test_channels_last_only_on_ascend950(product, format, shape):
    aclnn.set_product(product)
    given = arguments(BATCH_NORM, shape=shape, format=format)
    words = ("gradOut must not have its channels last on", f"got {format.name}")
    refused(BATCH_NORM, 161002, words, given)


@pytest.mark.parametrize("shape", [(), (3,), (1, 3, 1, 1, 1, 1, 1, 1, 1)])
def test_rank_outside_2_to_8(shape):
    changes = {name: tensor(shape) for name in ("gradOut", "input", "gradInput")}
    check(161002, ("input must have 2 to 8 axes", f"got shape {shape}"), **changes)


def test_grad_out_shape_differs():
    words = ("gradOut must have the shape of input, (2, 3, 4)", "got shape (2, 3, 5)")
    check(161002, words, gradOut=tensor((2, 3, 5)))


def test_grad_input_shape_differs():
    words = ("gradInput must have the shape (2, 3, 4)", "got shape (2, 3, 5)")
    check(161002, words, gradInput=tensor((2, 3, 5)))
    # The data are looked at before the vectors.
    check(161002, words, gradInput=tensor((2, 3, 5)), weight=tensor((7,)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("shape", [(4,), (3, 1), ()])
def test_vector_not_of_length_c(name, training, shape):
    words = (f"{name} must be 1-d with one element for each of the 3 channels of input",)
    check(161002, (*words, f"got shape {shape}"), **{name: tensor(shape)}, training=training)


@pytest.mark.parametrize("name", PARAM_GRADS)
def test_param_grad_not_of_length_c(name):
    words = (f"{name} must have the shape (3,)", "got shape (4,)")
    check(161002, words, **{name: tensor((4,))})


@pytest.mark.parametrize("name", ["saveMean", "saveInvstd"])
def test_saved_statistics_of_length_0_in_inference_only(name):
    fine(**{name: tensor((0,))}, training=False)
    check(161002, f"{name} must be 1-d", **{name: tensor((0,))}, training=True)


@pytest.mark.parametrize(
    ("shape", "format", "axis"),
    [
        ((4, 3), NC, 1),
        ((4, 3), ND, 1),
        ((4, 3, 5), NCL, 1),
        ((4, 3, 5), ND, 1),
        ((4, 3, 5, 6), NCHW, 1),
        ((4, 3, 5, 6), ND, 1),
        ((4, 5, 6, 3), NHWC, 3),
        ((2, 3, 4, 5, 6), NCDHW, 1),
        ((2, 3, 4, 5, 6), ND, 1),
        ((2, 4, 5, 6, 3), NDHWC, 4),
        ((2, 3, 2, 2, 2, 2), ND, 1),
        ((2, 3, 2, 2, 2, 2, 1), ND, 1),
        ((2, 3, 2, 2, 2, 2, 1, 2), ND, 1),
        # a tag of another rank
        ((4, 3), NCHW, 1),
        ((4, 3, 5), NCDHW, 1),
        # but for the two with channels last, which are read so at every rank
        ((4, 3), NHWC, 1),
        ((4, 5, 3), NHWC, 2),
        ((3, 3, 3), NDHWC, 2),
        ((4, 5, 6, 3), NDHWC, 3),
        ((4, 5, 6, 2, 3), NHWC, 4),
        ((2, 2, 2, 2, 1, 2, 3), NDHWC, 6),
    ],
)
def test_channel_axis_of_each_rank_and_format(shape, format, axis):
    from normgrad import batch_norm_backward

    rng = np.random.default_rng(1)
    dy, x = (100 + 3 * rng.standard_normal(shape) for _ in range(2))
    dy, x = dy.astype(np.float32), x.astype(np.float32)
    mean, invstd, weight = (rng.random(3).astype(np.float32) + 0.5 for _ in range(3))
    out = [np.full(size, np.nan, np.float32) for size in (shape, (3,), (3,))]
    given = arguments(BATCH_NORM, shape=(2, 3, 4)) | {
        "gradOut": aclnn.tensor(dy, format),
        "input": aclnn.tensor(x, format),
        "saveMean": aclnn.tensor(mean),
        "saveInvstd": aclnn.tensor(invstd),
        "weight": aclnn.tensor(weight),
        "gradInput": aclnn.tensor(out[0], format),
        "gradWeight": aclnn.tensor(out[1]),
        "gradBias": aclnn.tensor(out[2]),
    }
    compute(BATCH_NORM, given)
    expected = batch_norm_backward(dy, x, mean, invstd, weight=weight, channel_axis=axis)
    for got, want in zip(out, expected[:3], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("format", [NHWC, NDHWC])
@pytest.mark.parametrize("shape", [(), (3,), (1,) * 9])
def test_ranks_outside_2_to_8_with_channels_last(shape, format):
    data = {name: tensor(shape, F32, format) for name in ("gradOut", "input", "gradInput")}
    check(161002, "must have 2 to 8 axes", **data)


def test_eps_counts_in_inference_only():
    fine(eps=float("nan"))
    check(161002, "eps must be finite and not negative, got nan", eps=float("nan"), training=False)
    check(161002, "eps must be finite and not negative, got -1.0", eps=-1.0, training=False)
    check(161002, "eps must be finite and not negative, got inf", eps=float("inf"), training=False)


@pytest.mark.parametrize("wrong", ["1e-5", b"1e-5", None, [1e-5], 10**400, 1j])
def test_eps_is_a_number(wrong):
    """By the rule of the functional API, which cuts a long value short."""
    check(161002, f"eps must be a number, got {wrong!r:.60}", eps=wrong)


def test_variance_option():
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    out = [np.full(size, np.nan, np.float32) for size in ((1, 2, 4), 2, 2)]
    given = arguments(BATCH_NORM, shape=(1, 2, 4)) | {
        "gradOut": aclnn.tensor(x),
        "input": aclnn.tensor(x),
        "saveMean": aclnn.tensor(np.zeros(2, np.float32)),
        "gradInput": aclnn.tensor(out[0]),
        "gradWeight": aclnn.tensor(out[1]),
        "gradBias": aclnn.tensor(out[2]),
    }
    aclnn.set_save_invstd_is("variance")
    try:
        compute(BATCH_NORM, given)
    finally:
        aclnn.set_save_invstd_is("invstd")
    assert out[0].flat[0] == np.float32(-1.4999925)
    assert out[1][0] == np.float32(13.99993)
    with pytest.raises(ValueError, match="must be read as 'invstd' or 'variance', got 'std'"):
        aclnn.set_save_invstd_is("std")


def test_mask_all_false_writes_nothing():
    out = [np.full(size, np.nan, np.float32) for size in ((2, 3, 4), (3,), (3,))]
    names = ("gradInput", "gradWeight", "gradBias")
    given = arguments(BATCH_NORM) | dict(zip(names, map(aclnn.tensor, out), strict=True))
    compute(BATCH_NORM, {**given, "outputMask": mask(False, False, False)})
    assert all(np.isnan(array).all() for array in out)
